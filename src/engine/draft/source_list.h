// The draft sources of an engine, in the order in which a round asks them: sources that cost nothing before those that
// run a model. Each source has a file of its own; here they are put together from what the model and the options offer.
#pragma once

#include <memory>
#include <vector>

#include "engine/draft/draft_source.h"
#include "engine/engine.h"
#include "model/language_model.h"

namespace tensorfold {

/// Empty with EngineOptions::drafts off. Throws Error when an option asks for a source that can't be had.
std::vector<std::shared_ptr<DraftSource>> make_draft_sources(LanguageModel& model, const EngineOptions& options);

}  // namespace tensorfold
