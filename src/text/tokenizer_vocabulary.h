// The model's vocabulary: texts and ids, both ways, with one flat hash table. Added tokens that aren't part of it are
// kept apart (tokenizer_added_tokens.h), because a piece of text never becomes one of those. Fixed once loading is
// over.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tensorfold {

inline constexpr std::int32_t kNoToken = -1;

/// 64-bit hash of bytes, used by all of the tokenizer's tables.
std::uint64_t hash_bytes(std::string_view bytes);

/// Text to id with open addressing; the texts live elsewhere and outlive the table.
class TextTable {
 public:
  void reserve(std::size_t count);
  /// False when the text is there already (its id stays).
  bool insert(std::string_view text, std::int32_t id);
  std::int32_t find(std::string_view text) const;
  std::size_t size() const { return size_; }

 private:
  struct Slot {
    const char* data = nullptr;
    std::uint32_t length = 0;
    std::int32_t id = kNoToken;
  };
  std::vector<Slot> slots_;
  std::size_t size_ = 0;
};

class Vocabulary {
 public:
  /// Throws Error(kInvalidCheckpoint) for an id or text already taken and for ids outside [0, kVocabularySizeMax).
  void add(std::string text, std::int64_t id);
  void reserve(std::size_t count);
  /// Builds the text table after the last add. Two ids with one text are an error, or the lower id is found.
  void finish(bool allow_shared_texts);

  std::int32_t find(std::string_view text) const { return table_.find(text); }
  bool contains(std::int64_t id) const {
    return id >= 0 && id < static_cast<std::int64_t>(texts_.size()) && present_[static_cast<std::size_t>(id)];
  }
  /// "" for ids without a text.
  std::string_view text(std::int32_t id) const {
    return contains(id) ? std::string_view(texts_[static_cast<std::size_t>(id)]) : std::string_view();
  }
  std::int32_t size() const { return static_cast<std::int32_t>(texts_.size()); }  // largest id + 1
  std::size_t entry_count() const { return entry_count_; }

 private:
  std::vector<std::string> texts_;
  std::vector<bool> present_;
  std::size_t entry_count_ = 0;
  TextTable table_;
};

}  // namespace tensorfold
