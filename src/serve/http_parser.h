// Strict, incremental framing of HTTP/1.x requests. It is our own instead of a library's because the promise is about
// what is *refused*: one reading of a message's length, with everything that two readers could see differently (both
// lengths, conflicting lengths, folded lines, bare line feeds, odd chunk sizes) answered and the connection closed,
// because leftover bytes must not become the next request. No I/O here; it is fuzzed and tested byte by byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "serve/http_message.h"

namespace tensorfold {

/// A request whose framing can't be trusted: answer `status` and close.
class FramingError : public std::runtime_error {
 public:
  FramingError(int status, const std::string& message) : std::runtime_error(message), status_(status) {}
  int status() const { return status_; }

 private:
  int status_;
};

class HttpRequestParser {
 public:
  explicit HttpRequestParser(std::size_t body_bytes_max) : body_bytes_max_(body_bytes_max) {}

  /// Takes the head from the front of `input`. True when it is complete (then request() has everything but the body);
  /// false when more bytes are needed. Throws FramingError.
  bool parse_head(std::string& input);
  /// After the head: takes body bytes from the front of `input`. True when the message is complete; what is left in
  /// `input` belongs to the next request. Throws FramingError.
  bool parse_body(std::string& input);
  /// True until the first byte of a request has arrived.
  bool idle() const { return !started_; }

  HttpRequest& request() { return request_; }
  bool expects_continue() const { return expects_continue_; }
  bool has_body() const { return chunked_ || content_length_ > 0; }
  bool keep_alive() const { return keep_alive_; }

 private:
  enum class ChunkState { kSize, kData, kDataEnd, kTrailers, kDone };

  void take_request_line(std::string_view line);
  void take_header_line(std::string_view line);
  void finish_head();
  void frame_body();
  bool parse_chunked(std::string& input);
  bool take_line(std::string& input, std::size_t& position, std::string_view& line, std::size_t line_bytes_max) const;
  bool take_chunk_size(std::string_view line);

  std::size_t body_bytes_max_;
  HttpRequest request_;
  bool started_ = false;
  bool have_request_line_ = false;
  bool expects_continue_ = false;
  bool keep_alive_ = true;
  bool chunked_ = false;
  std::uint64_t content_length_ = 0;
  std::size_t scanned_ = 0;  // bytes of the current line already searched for its end
  int blank_lines_ = 0;
  ChunkState chunk_state_ = ChunkState::kSize;
  std::uint64_t chunk_left_ = 0;
  std::size_t extension_bytes_ = 0;
  std::size_t trailer_bytes_ = 0;
};

}  // namespace tensorfold
