// Puts an engine's draft sources together (see source_list.h).
#include "engine/draft/source_list.h"

namespace tensorfold {

std::vector<std::shared_ptr<DraftSource>> make_draft_sources(LanguageModel& model, const EngineOptions& options) {
  (void)model;
  std::vector<std::shared_ptr<DraftSource>> sources;
  if (!options.drafts) return sources;
  sources.insert(sources.end(), options.draft_sources.begin(), options.draft_sources.end());
  return sources;
}

}  // namespace tensorfold
