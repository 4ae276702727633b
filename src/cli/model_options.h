// The flags that commands which load a model share, as options for loading it.
#pragma once

#include "cli/flags.h"
#include "serve/backend_choice.h"
#include "serve/load_served_model.h"

namespace tensorfold::cli {

/// Throws UsageError.
BackendChoice backend_choice(const Arguments& arguments);

/// Throws UsageError.
ServedModelOptions model_options(const Arguments& arguments);

}  // namespace tensorfold::cli
