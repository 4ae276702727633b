#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

namespace tensorfold {

void log_initialise(const char* level) {
  auto logger = spdlog::get("tensorfold");
  if (!logger) logger = spdlog::stderr_color_mt("tensorfold");
  logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
  logger->set_level(spdlog::level::from_str(level));
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace tensorfold
