// Whether a model that was never trained computes anything worth timing: finite numbers, and experts that share the
// work about as trained ones do.
#pragma once

#include <cstdint>
#include <optional>

#include "model/language_model.h"

namespace tensorfold::measure {

/// Over the layers with experts, for the rows of one pass.
struct RoutingSpread {
  std::int32_t layers = 0, experts = 0, top_k = 0;
  std::int64_t rows = 0;
  std::int32_t used_min = 0;       // experts with any row, in the layer with the fewest
  double used_mean = 0.0;          // ... over the layers
  double load_max_over_mean = 0.0;  // rows of the busiest expert over those of an average one; the worst layer's
};

struct ModelCheck {
  std::int64_t rows = 0;         // that were computed
  std::int64_t logits_rows = 0;  // ... and whose logits were looked at
  std::int64_t not_finite = 0;   // logits
  double largest = 0.0;          // of the finite ones, without sign
  std::optional<RoutingSpread> routing;
};

/// Allocates the model's caches; whatever runs next allocates them anew.
ModelCheck check_model(LanguageModel& model);

}  // namespace tensorfold::measure
