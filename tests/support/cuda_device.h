// The GPU as tests ask for it.
#pragma once

#include <memory>
#include <string>

#include "ops/cuda/cuda_backend.h"

namespace tensorfold::test {

/// Why tests can't run on a GPU here; empty: they can.
inline std::string no_gpu_reason() {
  std::string reason;
  for (const ops::CudaDevice& device : ops::cuda_devices(reason)) {
    if (device.unusable.empty()) return {};
    reason = device.name + ": " + device.unusable;
  }
  return reason;
}

inline bool gpu_has_hopper_paths() {
  std::string reason;
  const auto devices = ops::cuda_devices(reason);
  return !devices.empty() && devices[0].compute_capability == 90;
}

}  // namespace tensorfold::test

/// At the start of a test that needs a GPU.
#define TF_SKIP_WITHOUT_GPU()                                             \
  if (const std::string reason = tensorfold::test::no_gpu_reason(); !reason.empty()) \
  GTEST_SKIP() << "no GPU: " << reason
