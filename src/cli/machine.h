// What the machine is, for receipts: a figure without it says nothing.
#pragma once

#include <cstdint>
#include <string>

namespace tensorfold::cli {

struct Machine {
  std::string processor;  // "AMD EPYC 9B14"
  int cores = 0;          // that this process may use
  std::uint64_t memory_bytes = 0;
};
Machine this_machine();
/// Most memory of the host that this process has had at once.
std::uint64_t peak_resident_bytes();

}  // namespace tensorfold::cli
