// See host_memory.h.
#include "base/host_memory.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

namespace tensorfold {

std::uint64_t host_memory_available() {
  std::uint64_t available = 0;
  std::ifstream meminfo("/proc/meminfo");
  for (std::string line; std::getline(meminfo, line);) {
    if (line.rfind("MemAvailable:", 0) == 0) available = std::strtoull(line.c_str() + 13, nullptr, 10) * 1024;
  }
  std::uint64_t limit = 0, used = 0;
  std::ifstream limit_file("/sys/fs/cgroup/memory.max"), used_file("/sys/fs/cgroup/memory.current");
  if (limit_file >> limit && used_file >> used) available = std::min(available, limit > used ? limit - used : 0);
  return available;
}

}  // namespace tensorfold
