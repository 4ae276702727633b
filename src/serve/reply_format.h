// How a reply is written on the wire, as the connection sees it: one implementation for each wire format under api/.
// The connection owns framing and timing, a format owns the JSON; neither knows the other's half.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "serve/generation.h"

namespace tensorfold {

class ReplyFormat {
 public:
  virtual ~ReplyFormat() = default;
  /// The whole reply as one JSON text.
  virtual std::string whole(const Generation& generation) = 0;
  /// Server-sent events, each "data: ...\n\n": what opens a stream, each piece of a choice (with its end, where it has
  /// one), what closes the stream after the last choice has ended.
  virtual std::string stream_open(const Generation& generation) = 0;
  virtual std::string stream_piece(const Generation& generation, const ReplyPiece& piece) = 0;
  virtual std::string stream_close(const Generation& generation) = 0;
  /// After opening: what tells the client that the reply broke.
  virtual std::string stream_error(const std::string& message) = 0;
};

/// One generating exchange: an open stream and the format that writes it.
struct Exchange {
  std::unique_ptr<Generation> generation;
  std::unique_ptr<ReplyFormat> format;
};

}  // namespace tensorfold
