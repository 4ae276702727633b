// Puts an engine's draft sources together (see source_list.h).
#include "engine/draft/source_list.h"

#include <algorithm>

#include "engine/draft/block_source.h"
#include "engine/draft/copy_source.h"
#include "engine/draft/mtp_source.h"
#include "engine/draft/recall_source.h"

namespace tensorfold {

std::vector<std::shared_ptr<DraftSource>> make_draft_sources(LanguageModel& model, const EngineOptions& options) {
  if (!options.drafts) return {};
  if (!options.draft_sources.empty()) return options.draft_sources;
  const std::int32_t vocabulary_size = model.facts().vocabulary_size;
  std::vector<std::shared_ptr<DraftSource>> sources;
  sources.push_back(std::make_shared<CopySource>());
  if (options.recall != nullptr) {
    sources.push_back(std::make_shared<RecallSource>(options.recall, vocabulary_size, options.prompt_cache_shared));
  }
  if (MtpHead* head = model.mtp_head(); head != nullptr && options.mtp_drafts != 0) {
    MtpOptions mtp;
    mtp.depth_max = std::max(options.mtp_drafts, 0);
    if (options.mtp_confidence >= 0.0) mtp.confidence_min = options.mtp_confidence;
    sources.push_back(std::make_shared<MtpSource>(*head, vocabulary_size, mtp));
  }
  if (BlockDrafter* drafter = model.block_drafter()) sources.push_back(std::make_shared<BlockSource>(*drafter));
  return sources;
}

}  // namespace tensorfold
