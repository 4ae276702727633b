// A GGUF file's metadata as the config.json of the same model, so that families are written once. Only keys that families
// read are made; everything stays checked by the same readers.
#pragma once

#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint.h"

namespace tensorfold {

/// Throws Error(kUnsupported) naming the architecture when no family serves it.
nlohmann::json gguf_to_config(const Checkpoint& checkpoint);

}  // namespace tensorfold
