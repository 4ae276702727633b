// The flags that `serve` and `chat` share, as options for loading a model.
#pragma once

#include "cli/flags.h"
#include "serve/load_served_model.h"

namespace tensorfold::cli {

/// Throws UsageError.
ServedModelOptions model_options(const Arguments& arguments);

}  // namespace tensorfold::cli
