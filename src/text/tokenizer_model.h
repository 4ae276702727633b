// The model of a tokenizer: turns one piece of text into ids. Ids that a message must never yield are given per call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace tensorfold {

class TokenizerModel {
 public:
  virtual ~TokenizerModel() = default;
  /// Appends the ids of `piece`. With `bytes` the piece is raw bytes of a byte-level vocabulary, else its characters
  /// are the vocabulary's own. Merges that give an id with forbidden[id] set are not made (empty: all are).
  virtual void encode(std::string_view piece, bool bytes, const std::vector<bool>& forbidden,
                      std::vector<std::int32_t>& ids) const = 0;
  /// The fewest ids that any piece of this many bytes can give; 0 where the model may drop characters.
  virtual std::size_t tokens_min(std::size_t piece_bytes, bool bytes) const = 0;
};

inline bool is_forbidden(const std::vector<bool>& forbidden, std::int32_t id) {
  return static_cast<std::size_t>(id) < forbidden.size() && forbidden[static_cast<std::size_t>(id)];
}

}  // namespace tensorfold
