// Open addressing with linear probing throughout: a lookup is one hash and mostly one cache line.
#include "text/tokenizer_vocabulary.h"

#include <bit>
#include <cstring>

#include "base/error.h"
#include "base/limits.h"

namespace tensorfold {

std::uint64_t hash_bytes(std::string_view bytes) {
  // Eight bytes a step, multiply and fold: fast on the short keys that words and tokens are.
  constexpr std::uint64_t kMultiplier = 0x9E3779B97F4A7C15ull;
  std::uint64_t hash = bytes.size() * kMultiplier;
  const char* p = bytes.data();
  std::size_t left = bytes.size();
  const auto mix = [&](std::uint64_t word) {
    hash = (hash ^ word) * kMultiplier;
    hash ^= hash >> 32;
  };
  for (; left >= 8; left -= 8, p += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, p, 8);
    mix(word);
  }
  if (left > 0) {
    std::uint64_t word = 0;
    std::memcpy(&word, p, left);
    mix(word);
  }
  hash *= kMultiplier;
  return hash ^ hash >> 29;
}

void TextTable::reserve(std::size_t count) {
  const std::size_t wanted = std::bit_ceil(count * 2 + 16);
  if (wanted <= slots_.size()) return;
  std::vector<Slot> old(wanted);
  old.swap(slots_);
  size_ = 0;
  for (const Slot& slot : old) {
    if (slot.data != nullptr) insert({slot.data, slot.length}, slot.id);
  }
}

bool TextTable::insert(std::string_view text, std::int32_t id) {
  if ((size_ + 1) * 2 > slots_.size()) reserve(size_ * 2 + 16);
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t i = hash_bytes(text) & mask;; i = (i + 1) & mask) {
    Slot& slot = slots_[i];
    if (slot.data == nullptr) {
      slot = {text.empty() ? "" : text.data(), static_cast<std::uint32_t>(text.size()), id};
      ++size_;
      return true;
    }
    if (std::string_view(slot.data, slot.length) == text) return false;
  }
}

std::int32_t TextTable::find(std::string_view text) const {
  if (slots_.empty()) return kNoToken;
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t i = hash_bytes(text) & mask;; i = (i + 1) & mask) {
    const Slot& slot = slots_[i];
    if (slot.data == nullptr) return kNoToken;
    if (std::string_view(slot.data, slot.length) == text) return slot.id;
  }
}

void Vocabulary::reserve(std::size_t count) {
  texts_.reserve(count);
  present_.reserve(count);
}

void Vocabulary::add(std::string text, std::int64_t id) {
  if (id < 0 || id >= limits::kVocabularySizeMax) {
    fail(ErrorCode::kInvalidCheckpoint, "tokenizer: token '{}' has id {}, outside 0..{}", text, id,
         limits::kVocabularySizeMax - 1);
  }
  const auto index = static_cast<std::size_t>(id);
  if (index >= texts_.size()) {
    texts_.resize(index + 1);
    present_.resize(index + 1);
  }
  if (present_[index]) {
    fail(ErrorCode::kInvalidCheckpoint, "tokenizer: the tokens '{}' and '{}' have the same id {}", texts_[index], text,
         id);
  }
  texts_[index] = std::move(text);
  present_[index] = true;
  ++entry_count_;
}

void Vocabulary::finish(bool allow_shared_texts) {
  // Rebuilt whole: growing `texts_` moves short strings.
  table_ = TextTable();
  table_.reserve(entry_count_);
  for (std::size_t i = 0; i < texts_.size(); ++i) {
    if (present_[i] && !table_.insert(texts_[i], static_cast<std::int32_t>(i)) && !allow_shared_texts) {
      fail(ErrorCode::kInvalidCheckpoint, "tokenizer: the token text '{}' has two ids, {} and {}", texts_[i],
           table_.find(texts_[i]), i);
    }
  }
}

}  // namespace tensorfold
