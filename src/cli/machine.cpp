// See machine.h.
#include "cli/machine.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <thread>

namespace tensorfold::cli {
namespace {

/// What stands after the colon of the first line of `file` that begins with `key`.
std::string value_in(const char* file, const std::string& key) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    if (line.compare(0, key.size(), key) != 0) continue;
    const auto at = line.find_first_not_of(" \t", line.find(':') + 1);
    return at == std::string::npos ? "" : line.substr(at);
  }
  return "";
}

}  // namespace

Machine this_machine() {
  Machine machine;
  machine.processor = value_in("/proc/cpuinfo", "model name");
  if (machine.processor.empty()) machine.processor = "unknown";
  machine.cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  machine.memory_bytes = std::strtoull(value_in("/proc/meminfo", "MemTotal").c_str(), nullptr, 10) * 1024;
  return machine;
}

std::uint64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace tensorfold::cli
