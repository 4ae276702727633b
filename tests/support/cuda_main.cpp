// main() of CUDA test programs: opens the heap that the GPU reaches before any test allocates. Without a GPU the tests run
// on the usual heap, and those that need one skip themselves.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "ops/cuda/cuda_backend.h"
#include "support/cuda_heap.h"

namespace {

constexpr std::size_t kHeapBytes = std::size_t{2} << 30;

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  std::string reason;
  if (!GTEST_FLAG_GET(list_tests) && !tensorfold::ops::cuda_devices(reason).empty() &&
      !tensorfold::test::open_cuda_heap(kHeapBytes)) {
    std::fprintf(stderr, "%zu MiB of pinned memory can't be had for the tests' heap.\n", kHeapBytes >> 20);
    return 1;
  }
  return RUN_ALL_TESTS();
}
