// Logging: one process-wide logger on stderr, so that stdout stays for what a command was asked to print.
#pragma once

#include <spdlog/spdlog.h>

namespace tensorfold {

/// Installs the stderr logger at the start of main; called again it sets the level. `level` is a spdlog level name
/// ("info", "debug", ...).
void log_initialise(const char* level);

}  // namespace tensorfold
