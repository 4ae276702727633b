// Faults on purpose: allocations and file operations of this process that fail at random. The test binary brings its own
// operator new and its own write, pread, fsync ... in front of the C library's, so that the product under test is the
// product, compiled as ever. Threads that are exempt (the test's own) never meet a fault.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tensorfold::testing {

struct FaultRates {
  std::uint32_t allocations = 0;         // one in so many fails; 0: none
  std::size_t allocation_bytes_min = 0;  // smaller ones never do
  std::uint32_t files = 0;               // file operations: one in so many
};

/// From now on, on all threads that aren't exempt.
void arm_faults(const FaultRates& rates, std::uint32_t seed);
void disarm_faults();

struct FaultCounts {
  std::uint64_t allocations = 0;  // that failed
  std::uint64_t files = 0;
};
FaultCounts fault_counts();

/// No faults on this thread while it lives.
class FaultExemption {
 public:
  FaultExemption();
  ~FaultExemption();
  FaultExemption(const FaultExemption&) = delete;
  FaultExemption& operator=(const FaultExemption&) = delete;
};

/// Faults on this thread again, inside an exemption.
class FaultExposure {
 public:
  FaultExposure();
  ~FaultExposure();
  FaultExposure(const FaultExposure&) = delete;
  FaultExposure& operator=(const FaultExposure&) = delete;

 private:
  int exemptions_;
};

}  // namespace tensorfold::testing
