// Drafts copied from the stream's own text (engine.md 4.3): where the last tokens stood before, what followed them then
// is proposed again. Costs nothing but a look into an index of three-token places; pays where a reply repeats its
// prompt (edits, quotes, code) or itself. Wide windows once copying goes well; silent for a while where it never lands.
#pragma once

#include "engine/draft/draft_source.h"

namespace tensorfold {

/// Where a context's last tokens stood before. Grows with the context; O(1) a token.
class CopyIndex {
 public:
  struct Match {
    std::int32_t end = -1;    // index of the earlier place's last token; -1: none
    std::int32_t length = 0;  // tokens that agree, backwards from there
  };
  /// The longest earlier match of the context's end, the latest of equals; needs three tokens to agree. Takes in what
  /// the context gained since the last call, and starts afresh when it isn't the same text any more.
  Match find(const std::vector<std::int32_t>& context);

 private:
  void add(const std::vector<std::int32_t>& context, std::int32_t end);
  void grow(const std::vector<std::int32_t>& context);
  std::size_t bucket(const std::vector<std::int32_t>& context, std::int32_t end) const;

  std::vector<std::int32_t> latest_;    // by bucket: 1 + the last token's index of the latest such place; 0: none
  std::vector<std::int32_t> previous_;  // by token index: the place before it in its bucket, likewise
  std::int32_t last_token_ = -1;        // of the text that was indexed
};

class CopySource : public DraftSource {
 public:
  CopySource();
  const DraftSourceFacts& facts() const override { return facts_; }
  std::unique_ptr<DraftState> open(const DraftStream& stream) override;
  void propose(std::vector<DraftRequest>& batch) override;
  void observe(const DraftStream& stream, const DraftProposal& proposal, std::int32_t fed_count,
               const std::vector<std::int32_t>& landed) override;

 private:
  DraftSourceFacts facts_;
};

}  // namespace tensorfold
