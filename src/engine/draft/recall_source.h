// Drafts from the recall store: where the last tokens of a stream stood in an earlier request of the same owner, what
// followed there is proposed as a chain. A search costs microseconds, so it runs every round. When a stream ends, its
// text goes to the store (behind the reply). The stream's own text is the copy source's.
#pragma once

#include <memory>

#include "engine/draft/draft_source.h"
#include "engine/draft/recall_store.h"

namespace tensorfold {

class RecallSource : public DraftSource {
 public:
  /// `shared_by_all`: one scope for every owner. Ids from `vocabulary_size` on are never drafted.
  RecallSource(std::shared_ptr<RecallStore> store, std::int32_t vocabulary_size, bool shared_by_all);

  const DraftSourceFacts& facts() const override { return facts_; }
  std::unique_ptr<DraftState> open(const DraftStream& stream) override;
  void propose(std::vector<DraftRequest>& batch) override;
  void observe(const DraftStream& stream, const DraftProposal& proposal, std::int32_t fed_count,
               const std::vector<std::int32_t>& landed) override;
  void close(const DraftStream& stream) override;

 private:
  void propose(DraftRequest& request);

  std::shared_ptr<RecallStore> store_;
  const std::int32_t vocabulary_size_;
  const bool shared_by_all_;
  DraftSourceFacts facts_;
};

}  // namespace tensorfold
