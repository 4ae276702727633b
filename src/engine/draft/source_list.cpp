// Puts an engine's draft sources together (see source_list.h).
#include "engine/draft/source_list.h"

#include "engine/draft/copy_source.h"

namespace tensorfold {

std::vector<std::shared_ptr<DraftSource>> make_draft_sources(LanguageModel& model, const EngineOptions& options) {
  (void)model;
  if (!options.drafts) return {};
  if (!options.draft_sources.empty()) return options.draft_sources;
  std::vector<std::shared_ptr<DraftSource>> sources;
  sources.push_back(std::make_shared<CopySource>());
  return sources;
}

}  // namespace tensorfold
