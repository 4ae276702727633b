// See kernel_facts.h.
#include "ops/cuda/kernel_facts.h"

#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <tuple>

#include "ops/cuda/cuda_error.h"

namespace tensorfold::ops::cuda {
namespace {

/// The value of `key`, found by `find()` when it is first asked for. Several backends may ask at once.
template <typename Key, typename Find>
int remembered(const Key& key, Find find) {
  static std::mutex mutex;
  static std::map<Key, int> known;
  std::lock_guard lock(mutex);
  const auto place = known.find(key);
  return place != known.end() ? place->second : known.emplace(key, find()).first->second;
}

}  // namespace

int kernel_registers(const DeviceFacts& facts, const void* kernel) {
  return remembered(std::tuple(facts.device, kernel), [&] {
    cudaFuncAttributes attributes = {};
    check(cudaFuncGetAttributes(&attributes, kernel), "reading a kernel's attributes");
    return attributes.numRegs;
  });
}

int resident_ctas(const DeviceFacts& facts, const void* kernel, int threads, std::size_t shared_bytes) {
  return remembered(std::tuple(facts.device, kernel, threads, shared_bytes), [&] {
    // As launch() does: an attribute below what every launch may have would be in the way of the next one.
    if (shared_bytes > kPlainSharedBytes) {
      check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)),
            "setting a kernel's shared memory");
    }
    int resident = 0;
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads, shared_bytes), "asking for a kernel's occupancy");
    return resident;
  });
}

}  // namespace tensorfold::ops::cuda
