// The backend that tests of whole models run on. The same sources make two programs: the CPU's, and with
// TENSORFOLD_TEST_CUDA the GPU's (tests/model/cuda), where tests skip themselves on a machine without one.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/isa.h"
#include "ops/reference/reference_backend.h"
#if defined(TENSORFOLD_TEST_CUDA)
#include "support/cuda_device.h"
#endif

namespace tensorfold::test {

struct BackendCase {
  std::string name;
  std::function<std::unique_ptr<ops::Backend>()> make;
};

#if defined(TENSORFOLD_TEST_CUDA)

constexpr bool kTestsCuda = true;

inline std::unique_ptr<ops::Backend> cuda_backend(bool graphs, bool hopper_paths) {
  ops::CudaBackendOptions options;
  options.graphs = graphs;
  options.hopper_paths = hopper_paths;
  return ops::make_cuda_backend(options);
}

/// What the backend must be the same for.
inline std::vector<BackendCase> backend_variants() {
  std::vector<BackendCase> result = {
      {"kernels for every GPU", [] { return cuda_backend(true, false); }},
      {"without graphs", [] { return cuda_backend(false, true); }},
  };
  if (gpu_has_hopper_paths()) result.push_back({"hopper", [] { return cuda_backend(true, true); }});
  return result;
}

/// `plain`: the way that shares least with the usual one.
inline std::unique_ptr<ops::Backend> backend_under_test(int /*threads*/ = 2, bool plain = false) {
  return cuda_backend(!plain, !plain);
}

#define TF_SKIP_WITHOUT_BACKEND() TF_SKIP_WITHOUT_GPU()

#else

constexpr bool kTestsCuda = false;

inline std::vector<BackendCase> backend_variants() {
  std::vector<BackendCase> result;
  for (const auto path : ops::cpu::kCpuPaths) {
    if (!ops::cpu::cpu_path_available(path)) continue;
    const std::string name = ops::cpu::cpu_path_name(path);
    result.push_back({name, [name] { return ops::make_cpu_backend({.threads = 2, .path = name}); }});
  }
  result.push_back({"reference", [] { return ops::make_reference_backend(ops::Rounding::kNone, 2); }});
  return result;
}

inline std::unique_ptr<ops::Backend> backend_under_test(int threads = 2, bool plain = false) {
  ops::CpuBackendOptions options;
  options.threads = threads;
#if defined(__x86_64__)
  if (plain) options.path = "avx2";
#endif
  return ops::make_cpu_backend(options);
}

#define TF_SKIP_WITHOUT_BACKEND() (void)0

#endif

/// For fixtures of parametrised tests.
template <typename Parameter>
class BackendTest : public ::testing::TestWithParam<Parameter> {
 protected:
  void SetUp() override { TF_SKIP_WITHOUT_BACKEND(); }
};

}  // namespace tensorfold::test
