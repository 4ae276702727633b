// The log lines that say how a generating request ended (api.md 1.10): ids, counts and hashes, never text.
#pragma once

#include "serve/generation.h"

namespace tensorfold {

void log_generation(const Generation& generation, bool client_left);

}  // namespace tensorfold
