// Drafts from a block drafter loaded beside the model (engine.md 4.2: DFlash2 and DFlash). After every pass the tapped
// rows that were committed become its context; one forward of it drafts a whole block, which draft_tree.h turns into a
// tree (with a candidate selector, where trees are wanted) or a chain. Blocks grow while drafts land at their end and
// shrink towards the length the drafter was trained for when they don't.
#pragma once

#include <cstdint>

#include "engine/draft/draft_source.h"

namespace tensorfold {

class BlockSource : public DraftSource {
 public:
  /// `drafter` outlives the source.
  explicit BlockSource(BlockDrafter& drafter);

  const DraftSourceFacts& facts() const override { return facts_; }
  std::unique_ptr<DraftState> open(const DraftStream& stream) override;
  void absorb(std::vector<DraftAbsorb>& batch) override;
  void propose(std::vector<DraftRequest>& batch) override;
  void observe(const DraftStream& stream, const DraftProposal& proposal, std::int32_t fed_count,
               const std::vector<std::int32_t>& landed) override;

 private:
  void fill(DraftRequest& request, const BlockCandidates& candidates) const;

  BlockDrafter& drafter_;
  DraftSourceFacts facts_;
};

}  // namespace tensorfold
