// Loading a model: checkpoint -> description -> weights packed on a backend -> LanguageModel. Everything that a file can
// get wrong is refused before memory is taken for it, by the name of the tensor or key.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model/description.h"
#include "model/language_model.h"
#include "ops/backend.h"

namespace tensorfold {

struct LoadOptions {
  std::int32_t context_max = 0;  // caps the positions served; 0 = the model's own
  bool mtp = true;  // load the checkpoint's MTP head where there is one
  /// Folder of a block drafter; empty: the one beside the checkpoint ("dflash2"), where there is one and find_drafter says
  /// so. A drafter that doesn't fit the model stops the load.
  std::string drafter_path;
  bool find_drafter = true;
  std::vector<IdRange> draft_vocabulary;  // ids that drafts are chosen from; empty: the family's choice
  std::int32_t drafter_bits = 4;  // 4: its large projections are quantised at load; 0: kept as stored
  /// Called as loading goes on, with a fraction in [0, 1] and what is being done.
  std::function<void(double fraction, const std::string& what)> progress;
};

/// The description alone, without touching weights (for `info`). Throws Error(kUnsupported) for an unknown model_type.
ModelDescription describe_model(const Checkpoint& checkpoint);

std::unique_ptr<LanguageModel> load_language_model(std::shared_ptr<const Checkpoint> checkpoint,
                                                   std::unique_ptr<ops::Backend> backend, const LoadOptions& options);

}  // namespace tensorfold
