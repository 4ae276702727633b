// What the tests of operations share: the backend under test and its paths on this machine, random buffers, and comparisons.
// The same sources make two programs: the CPU's, and with TENSORFOLD_TEST_CUDA the GPU's (tests/ops/cuda), where buffers and
// the heap are memory that both sides reach.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/bf16.h"
#include "ops/reference/reference_backend.h"
#if defined(TENSORFOLD_TEST_CUDA)
#include "support/cuda_device.h"
#include "support/synced_backend.h"
#else
#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/isa.h"
#endif

namespace tensorfold::ops {

#if defined(TENSORFOLD_TEST_CUDA)

constexpr bool kTestsCuda = true;

/// Kernels for every GPU, and those for this one where it has its own.
inline std::vector<std::string> available_paths() {
  std::vector<std::string> paths = {"every GPU"};
  if (test::gpu_has_hopper_paths()) paths.push_back("hopper");
  return paths;
}

/// Every operation is done when its call returns.
inline std::unique_ptr<Backend> backend_under_test(int, const std::string& path = "") {
  CudaBackendOptions options;
  options.pinned_buffers = true;
  options.hopper_paths = path != "every GPU";
  return std::make_unique<test::SyncedBackend>(make_cuda_backend(options));
}

inline std::vector<int> thread_counts(const std::vector<int>&) { return {1}; }

class OperationTest : public testing::Test {
 protected:
  void SetUp() override { TF_SKIP_WITHOUT_GPU(); }
};

#else

constexpr bool kTestsCuda = false;

inline std::vector<std::string> available_paths() {
  std::vector<std::string> paths;
  for (const cpu::CpuPath path : cpu::kCpuPaths) {
    if (cpu::cpu_path_available(path)) paths.push_back(cpu::cpu_path_name(path));
  }
  return paths;
}

inline std::unique_ptr<Backend> backend_under_test(int threads, const std::string& path = "") {
  CpuBackendOptions options;
  options.threads = threads;
  options.path = path;
  return make_cpu_backend(options);
}

/// Thread counts worth comparing; a GPU has none.
inline std::vector<int> thread_counts(const std::vector<int>& counts) { return counts; }

using OperationTest = testing::Test;

#endif

inline std::vector<float> random_floats(std::size_t count, unsigned seed, float scale = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

/// Activations of any backend as floats.
inline std::vector<float> activations_of(const BackendInfo& info, const std::vector<std::byte>& raw) {
  std::vector<float> values(raw.size() / static_cast<std::size_t>(info.activation_bytes));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (info.activation_bytes == 4) {
      std::memcpy(&values[i], raw.data() + 4 * i, 4);
    } else {
      Bf16 element;
      std::memcpy(&element, raw.data() + 2 * i, 2);
      values[i] = to_float(element);
    }
  }
  return values;
}

inline Activation* activations(std::vector<std::byte>& raw) {
  return reinterpret_cast<Activation*>(raw.data());
}

/// Counts differing bit patterns and names the first.
inline testing::AssertionResult same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return testing::AssertionFailure() << "sizes " << a.size() << " and " << b.size();
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i])) {
      return testing::AssertionFailure() << "element " << i << ": " << a[i] << " and " << b[i];
    }
  }
  return testing::AssertionSuccess();
}

/// Every element within `steps` / 128 of the expected one, plus `floor`: 2^-7 of a value is at least one bf16 step of it and
/// less than two.
inline testing::AssertionResult close_to(const std::vector<float>& actual, const std::vector<float>& expected,
                                         float steps, float floor) {
  if (actual.size() != expected.size()) return testing::AssertionFailure() << "sizes differ";
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const float allowed = std::abs(expected[i]) * steps / 128.0f + floor;
    if (!(std::abs(actual[i] - expected[i]) <= allowed)) {
      return testing::AssertionFailure() << "element " << i << ": " << actual[i] << ", expected " << expected[i];
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace tensorfold::ops
