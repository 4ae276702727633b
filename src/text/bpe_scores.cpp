// The merge queue. Among equal scores the leftmost pair is first, and a stale entry is one whose two symbols no longer
// have the length it saw.
#include "text/bpe_scores.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <queue>
#include <string>

#include "text/unicode.h"

namespace tensorfold {
namespace {

struct Symbol {
  std::uint32_t begin, length;
  std::int32_t previous, next;
};

struct Candidate {
  float score;
  std::int32_t left, right;
  std::uint32_t length;
  bool operator<(const Candidate& other) const {
    return score != other.score ? score < other.score : left > other.left;
  }
};

class ScoreModel final : public TokenizerModel {
 public:
  ScoreModel(const Vocabulary& vocabulary, std::vector<float> scores, std::int32_t unknown_token)
      : vocabulary_(vocabulary), scores_(std::move(scores)), unknown_token_(unknown_token) {
    for (int b = 0; b < 256; ++b) byte_ids_[b] = vocabulary.find(fmt::format("<0x{:02X}>", b));
    for (std::int32_t id = 0; id < vocabulary.size(); ++id) {
      longest_ = std::max(longest_, vocabulary.text(id).size());
    }
  }

  void encode(std::string_view piece, bool, const std::vector<bool>& forbidden,
              std::vector<std::int32_t>& ids) const override {
    std::vector<Symbol> symbols;
    for (std::size_t i = 0; i < piece.size();) {
      const std::size_t length = unicode::valid_length(piece[i]);
      const auto index = static_cast<std::int32_t>(symbols.size());
      symbols.push_back({static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(length), index - 1, index + 1});
      i += length;
    }
    if (symbols.empty()) return;
    symbols.back().next = -1;
    merge(piece, symbols, forbidden);
    for (std::int32_t i = 0; i >= 0; i = symbols[static_cast<std::size_t>(i)].next) {
      const Symbol& symbol = symbols[static_cast<std::size_t>(i)];
      append(piece.substr(symbol.begin, symbol.length), forbidden, ids);
    }
  }

  std::size_t tokens_min(std::size_t piece_bytes, bool) const override {
    const bool keeps_all = unknown_token_ != kNoToken ||
                           std::find(std::begin(byte_ids_), std::end(byte_ids_), kNoToken) == std::end(byte_ids_);
    return keeps_all && longest_ > 0 ? (piece_bytes + longest_ - 1) / longest_ : 0;
  }

 private:
  std::int32_t find(std::string_view text, const std::vector<bool>& forbidden) const {
    if (text.size() > longest_) return kNoToken;
    const std::int32_t id = vocabulary_.find(text);
    return id != kNoToken && is_forbidden(forbidden, id) ? kNoToken : id;
  }

  void merge(std::string_view piece, std::vector<Symbol>& symbols, const std::vector<bool>& forbidden) const {
    std::priority_queue<Candidate> queue;
    const auto consider = [&](std::int32_t left, std::int32_t right) {
      if (left < 0 || right < 0) return;
      const Symbol& first = symbols[static_cast<std::size_t>(left)];
      const std::uint32_t length = first.length + symbols[static_cast<std::size_t>(right)].length;
      const std::int32_t id = find(piece.substr(first.begin, length), forbidden);
      if (id != kNoToken) queue.push({scores_[static_cast<std::size_t>(id)], left, right, length});
    };
    for (std::int32_t i = 1; i < static_cast<std::int32_t>(symbols.size()); ++i) consider(i - 1, i);
    while (!queue.empty()) {
      const Candidate best = queue.top();
      queue.pop();
      Symbol& left = symbols[static_cast<std::size_t>(best.left)];
      Symbol& right = symbols[static_cast<std::size_t>(best.right)];
      if (left.length == 0 || right.length == 0 || left.length + right.length != best.length) continue;
      left.length += right.length;
      right.length = 0;
      left.next = right.next;
      if (right.next >= 0) symbols[static_cast<std::size_t>(right.next)].previous = best.left;
      consider(left.previous, best.left);
      consider(best.left, left.next);
    }
  }

  void append(std::string_view text, const std::vector<bool>& forbidden, std::vector<std::int32_t>& ids) const {
    const std::int32_t id = find(text, forbidden);
    if (id != kNoToken) {
      ids.push_back(id);
      return;
    }
    for (const char c : text) {
      const std::int32_t byte_id = byte_ids_[static_cast<unsigned char>(c)];
      if (byte_id != kNoToken) {
        ids.push_back(byte_id);
      } else if (unknown_token_ != kNoToken) {
        ids.push_back(unknown_token_);
      }
    }
  }

  const Vocabulary& vocabulary_;
  std::vector<float> scores_;
  std::int32_t unknown_token_;
  std::int32_t byte_ids_[256];
  std::size_t longest_ = 0;
};

}  // namespace

std::unique_ptr<TokenizerModel> make_score_model(const Vocabulary& vocabulary, std::vector<float> scores,
                                                 std::int32_t unknown_token) {
  return std::make_unique<ScoreModel>(vocabulary, std::move(scores), unknown_token);
}

}  // namespace tensorfold
