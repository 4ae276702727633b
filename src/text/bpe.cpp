// The merge table and the two merge loops. The package's queue orders by (rank, position); an entry is stale when its
// pair no longer stands there. Both loops here apply the same order (merge_queue.h).
#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/error.h"
#include "text/bpe_cache.h"
#include "text/merge_queue.h"
#include "text/pretokenizer.h"
#include "text/unicode.h"

namespace tensorfold {
namespace {

struct Merge {
  std::uint32_t rank = std::numeric_limits<std::uint32_t>::max();
  std::int32_t id = kNoToken;
  explicit operator bool() const { return id != kNoToken; }
};

/// (left id, right id) to merge, open addressing.
class MergeTable {
 public:
  void reserve(std::size_t count) { slots_.resize(std::bit_ceil(count * 2 + 16)); }

  void set(std::int32_t left, std::int32_t right, Merge merge) {
    Slot& slot = slots_[index_of(key(left, right))];
    slot = {key(left, right), merge};
  }
  Merge find(std::int32_t left, std::int32_t right) const { return slots_[index_of(key(left, right))].merge; }

 private:
  static constexpr std::uint64_t kEmpty = ~0ull;
  struct Slot {
    std::uint64_t key = kEmpty;
    Merge merge;
  };
  static std::uint64_t key(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
  }
  std::size_t index_of(std::uint64_t key) const {
    const std::size_t mask = slots_.size() - 1;
    std::uint64_t hash = key * 0x9E3779B97F4A7C15ull;
    hash ^= hash >> 32;
    std::size_t i = hash & mask;
    while (slots_[i].key != key && slots_[i].key != kEmpty) i = (i + 1) & mask;
    return i;
  }
  std::vector<Slot> slots_;
};

class BpeModel final : public TokenizerModel {
 public:
  BpeModel(const Vocabulary& vocabulary, const std::vector<std::pair<std::string, std::string>>& merges,
           BpeOptions options);

  void encode(std::string_view piece, bool bytes, const std::vector<bool>& forbidden,
              std::vector<std::int32_t>& ids) const override;
  std::size_t tokens_min(std::size_t piece_bytes, bool bytes) const override;

 private:
  struct Symbol {
    std::int32_t id, previous, next;
  };

  void encode_uncached(std::string_view piece, bool bytes, const std::vector<bool>& forbidden,
                       std::vector<std::int32_t>& ids) const;
  void byte_symbols(std::string_view piece, const std::vector<bool>& forbidden, std::vector<std::int32_t>& ids) const;
  void character_symbols(std::string_view piece, const std::vector<bool>& forbidden,
                         std::vector<std::int32_t>& ids) const;
  bool append_byte_tokens(std::string_view character, std::vector<std::int32_t>& ids) const;
  Merge find_merge(std::int32_t left, std::int32_t right, const std::vector<bool>& forbidden) const;
  void merge_short(std::vector<std::int32_t>& ids, std::size_t begin, const std::vector<bool>& forbidden) const;
  void merge_long(std::vector<std::int32_t>& ids, std::size_t begin, const std::vector<bool>& forbidden) const;

  const Vocabulary& vocabulary_;
  BpeOptions options_;
  MergeTable merges_;
  std::int32_t byte_ids_[256];           // byte-level characters
  std::int32_t byte_fallback_ids_[256];  // <0x00> ...
  bool has_all_bytes_ = true;
  bool has_all_fallbacks_ = true;
  std::size_t longest_bytes_ = 1, longest_characters_ = 1;  // of the vocabulary's texts
  std::vector<std::string> raw_texts_;  // the bytes that whole tokens spell, for ignore_merges on raw bytes
  TextTable raw_table_;
  mutable PieceCache cache_;
};

BpeModel::BpeModel(const Vocabulary& vocabulary, const std::vector<std::pair<std::string, std::string>>& merges,
                   BpeOptions options)
    : vocabulary_(vocabulary), options_(std::move(options)) {
  merges_.reserve(merges.size());
  const std::size_t prefix_length = options_.continuing_subword_prefix.size();
  std::string joined;
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const auto& [left, right] = merges[i];
    joined = left;
    if (right.size() >= prefix_length) joined.append(right, prefix_length);
    const std::int32_t ids[3] = {vocabulary.find(left), vocabulary.find(right), vocabulary.find(joined)};
    const std::string* texts[3] = {&left, &right, &joined};
    for (int k = 0; k < 3; ++k) {
      if (ids[k] == kNoToken) {
        fail(ErrorCode::kInvalidCheckpoint, "tokenizer: merge {} ('{}' '{}') names '{}', which isn't in the vocabulary",
             i, left, right, *texts[k]);
      }
    }
    merges_.set(ids[0], ids[1], {static_cast<std::uint32_t>(i), ids[2]});
  }
  for (int b = 0; b < 256; ++b) {
    byte_ids_[b] = vocabulary.find(byte_level_character(static_cast<unsigned char>(b)));
    byte_fallback_ids_[b] = vocabulary.find(fmt::format("<0x{:02X}>", b));
    has_all_bytes_ = has_all_bytes_ && byte_ids_[b] != kNoToken;
    has_all_fallbacks_ = has_all_fallbacks_ && byte_fallback_ids_[b] != kNoToken;
  }
  for (std::int32_t id = 0; id < vocabulary.size(); ++id) {
    const std::string_view text = vocabulary.text(id);
    longest_bytes_ = std::max(longest_bytes_, text.size());
    const auto begins_character = [](char c) { return (static_cast<unsigned char>(c) & 0xC0u) != 0x80u; };
    longest_characters_ = std::max(longest_characters_,
                                   static_cast<std::size_t>(std::count_if(text.begin(), text.end(), begins_character)));
  }
  has_all_bytes_ = has_all_bytes_ && options_.continuing_subword_prefix.empty() && options_.end_of_word_suffix.empty();
  if (!options_.ignore_merges || !has_all_bytes_) return;
  raw_texts_.resize(static_cast<std::size_t>(vocabulary.size()));
  raw_table_.reserve(vocabulary.entry_count());
  for (std::int32_t id = 0; id < vocabulary.size(); ++id) {
    const std::string_view text = vocabulary.text(id);
    std::string& raw = raw_texts_[static_cast<std::size_t>(id)];
    bool spellable = !text.empty();
    for (std::size_t k = 0; k < text.size() && spellable;) {
      const auto [value, length] = unicode::decode_valid(text.data() + k);
      const int byte = byte_level_byte(value);
      spellable = byte >= 0;
      raw.push_back(static_cast<char>(byte));
      k += length;
    }
    if (spellable) raw_table_.insert(raw, id);
  }
}

void BpeModel::encode(std::string_view piece, bool bytes, const std::vector<bool>& forbidden,
                      std::vector<std::int32_t>& ids) const {
  if (piece.empty()) return;
  if (bytes && !has_all_bytes_) {
    std::string mapped;
    for (const char c : piece) mapped += byte_level_character(static_cast<unsigned char>(c));
    return encode_uncached(mapped, false, forbidden, ids);
  }
  // A cache entry is the answer without forbidden merges; a tokenizer's pieces are always bytes or never.
  if (piece.size() > PieceCache::kPieceBytesMax || !forbidden.empty()) {
    return encode_uncached(piece, bytes, forbidden, ids);
  }
  const std::uint64_t hash = hash_bytes(piece);
  if (cache_.find(piece, hash, ids)) return;
  const std::size_t begin = ids.size();
  encode_uncached(piece, bytes, forbidden, ids);
  cache_.store(piece, hash, ids.data() + begin, ids.size() - begin);
}

std::size_t BpeModel::tokens_min(std::size_t piece_bytes, bool bytes) const {
  // A merged token's text is that of its parts, so no token stands for more than the longest text. In a byte-level
  // vocabulary each character of a text is one byte of the piece.
  const bool plain = options_.continuing_subword_prefix.empty() && options_.end_of_word_suffix.empty();
  if (!plain) return 0;
  if (bytes) return has_all_bytes_ ? (piece_bytes + longest_characters_ - 1) / longest_characters_ : 0;
  const bool keeps_all = options_.byte_fallback && has_all_fallbacks_;
  return keeps_all ? (piece_bytes + longest_bytes_ - 1) / longest_bytes_ : 0;
}

void BpeModel::encode_uncached(std::string_view piece, bool bytes, const std::vector<bool>& forbidden,
                               std::vector<std::int32_t>& ids) const {
  if (options_.ignore_merges) {
    const std::int32_t whole = bytes ? raw_table_.find(piece) : vocabulary_.find(piece);
    if (whole != kNoToken && !is_forbidden(forbidden, whole)) {
      ids.push_back(whole);
      return;
    }
  }
  const std::size_t begin = ids.size();
  if (bytes) {
    byte_symbols(piece, forbidden, ids);
  } else {
    character_symbols(piece, forbidden, ids);
  }
  constexpr std::size_t kShortSymbolsMax = 48;
  if (ids.size() - begin <= kShortSymbolsMax) {
    merge_short(ids, begin, forbidden);
  } else {
    merge_long(ids, begin, forbidden);
  }
}

void BpeModel::byte_symbols(std::string_view piece, const std::vector<bool>& forbidden,
                            std::vector<std::int32_t>& ids) const {
  for (const char c : piece) {
    const std::int32_t id = byte_ids_[static_cast<unsigned char>(c)];
    if (!is_forbidden(forbidden, id)) ids.push_back(id);
  }
}

bool BpeModel::append_byte_tokens(std::string_view character, std::vector<std::int32_t>& ids) const {
  for (const char c : character) {
    if (byte_fallback_ids_[static_cast<unsigned char>(c)] == kNoToken) return false;
  }
  for (const char c : character) ids.push_back(byte_fallback_ids_[static_cast<unsigned char>(c)]);
  return true;
}

void BpeModel::character_symbols(std::string_view piece, const std::vector<bool>& forbidden,
                                 std::vector<std::int32_t>& ids) const {
  bool unknown_pending = false;
  std::string decorated;
  const bool plain = options_.continuing_subword_prefix.empty() && options_.end_of_word_suffix.empty();
  for (std::size_t i = 0; i < piece.size();) {
    const std::size_t length = unicode::valid_length(piece[i]);
    std::string_view character = piece.substr(i, length);
    if (!plain) {
      decorated.clear();
      if (i > 0) decorated += options_.continuing_subword_prefix;
      decorated += character;
      if (i + length == piece.size()) decorated += options_.end_of_word_suffix;
      character = decorated;
    }
    i += length;
    const std::int32_t id = vocabulary_.find(character);
    if (id != kNoToken && !is_forbidden(forbidden, id)) {
      if (unknown_pending) ids.push_back(options_.unknown_token);
      unknown_pending = false;
      ids.push_back(id);
      continue;
    }
    // Byte tokens go before an unknown token that is still pending: the package's order.
    if (options_.byte_fallback && append_byte_tokens(character, ids)) continue;
    if (options_.unknown_token == kNoToken) continue;
    if (unknown_pending && !options_.fuse_unknown) ids.push_back(options_.unknown_token);
    unknown_pending = true;
  }
  if (unknown_pending) ids.push_back(options_.unknown_token);
}

Merge BpeModel::find_merge(std::int32_t left, std::int32_t right, const std::vector<bool>& forbidden) const {
  const Merge merge = merges_.find(left, right);
  return merge && is_forbidden(forbidden, merge.id) ? Merge{} : merge;
}

void BpeModel::merge_short(std::vector<std::int32_t>& ids, std::size_t begin,
                           const std::vector<bool>& forbidden) const {
  std::size_t count = ids.size() - begin;
  if (count < 2) return;
  std::int32_t* symbols = ids.data() + begin;
  Merge pairs[64];
  for (std::size_t i = 0; i + 1 < count; ++i) pairs[i] = find_merge(symbols[i], symbols[i + 1], forbidden);
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (!pairs[best]) break;
    symbols[best] = pairs[best].id;
    std::copy(symbols + best + 2, symbols + count, symbols + best + 1);
    std::copy(pairs + best + 1, pairs + count - 1, pairs + best);
    --count;
    if (best > 0) pairs[best - 1] = find_merge(symbols[best - 1], symbols[best], forbidden);
    if (best + 1 < count) pairs[best] = find_merge(symbols[best], symbols[best + 1], forbidden);
  }
  ids.resize(begin + count);
}

void BpeModel::merge_long(std::vector<std::int32_t>& ids, std::size_t begin, const std::vector<bool>& forbidden) const {
  const auto count = static_cast<std::int32_t>(ids.size() - begin);
  std::vector<Symbol> symbols(static_cast<std::size_t>(count));
  for (std::int32_t i = 0; i < count; ++i) {
    symbols[static_cast<std::size_t>(i)] = {ids[begin + static_cast<std::size_t>(i)], i - 1,
                                            i + 1 < count ? i + 1 : -1};
  }
  MergeQueue queue;
  const auto consider = [&](std::int32_t position) {
    const Symbol& symbol = symbols[static_cast<std::size_t>(position)];
    if (symbol.next < 0) return;
    const Merge merge = find_merge(symbol.id, symbols[static_cast<std::size_t>(symbol.next)].id, forbidden);
    if (merge) queue.push({merge.rank, static_cast<std::uint32_t>(position), merge.id});
  };
  for (std::int32_t i = 0; i + 1 < count; ++i) consider(i);
  while (!queue.empty()) {
    const PendingMerge top = queue.pop();
    Symbol& symbol = symbols[top.position];
    if (symbol.id == kNoToken || symbol.next < 0) continue;
    Symbol& right = symbols[static_cast<std::size_t>(symbol.next)];
    if (find_merge(symbol.id, right.id, forbidden).id != top.id) continue;
    symbol.id = top.id;
    symbol.next = right.next;
    right.id = kNoToken;
    if (right.next >= 0)
      symbols[static_cast<std::size_t>(right.next)].previous = static_cast<std::int32_t>(top.position);
    if (symbol.previous >= 0) consider(symbol.previous);
    consider(static_cast<std::int32_t>(top.position));
  }
  ids.resize(begin);
  for (const Symbol& symbol : symbols) {
    if (symbol.id != kNoToken) ids.push_back(symbol.id);
  }
}

}  // namespace

std::unique_ptr<TokenizerModel> make_bpe_model(const Vocabulary& vocabulary,
                                               const std::vector<std::pair<std::string, std::string>>& merges,
                                               BpeOptions options) {
  return std::make_unique<BpeModel>(vocabulary, merges, std::move(options));
}

}  // namespace tensorfold
