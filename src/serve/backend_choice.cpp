// See backend_choice.h.
#include "serve/backend_choice.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/isa.h"
#include "ops/reference/reference_backend.h"

namespace tensorfold {
namespace {

#if defined(TENSORFOLD_HAS_CUDA)
constexpr double kGib = 1024.0 * 1024.0 * 1024.0;

std::uint64_t memory_bytes_max() {
  const char* text = std::getenv("TENSORFOLD_GPU_MEMORY_GIB");
  if (text == nullptr || *text == '\0') return 0;
  char* end = nullptr;
  const double gib = std::strtod(text, &end);
  if (*end != '\0' || !std::isfinite(gib) || gib <= 0.0 || gib > 1e6) {
    fail(ErrorCode::kInvalidArgument, "TENSORFOLD_GPU_MEMORY_GIB is '{}'; give a number of GiB above 0", text);
  }
  return static_cast<std::uint64_t>(gib * kGib);
}

bool is_set_to(const char* name, const char* value) {
  const char* text = std::getenv(name);
  return text != nullptr && std::strcmp(text, value) == 0;
}

std::unique_ptr<ops::Backend> make_on_gpu(int device) {
  ops::CudaBackendOptions options;
  options.device = device;
  options.memory_bytes_max = memory_bytes_max();
  options.graphs = std::getenv("TENSORFOLD_NO_GRAPHS") == nullptr;
  options.hopper_paths = !is_set_to("TENSORFOLD_CUDA_PATH", "sm_80");
  return ops::make_cuda_backend(options);
}
#else
std::unique_ptr<ops::Backend> make_on_gpu(int) {
  fail(ErrorCode::kUnsupported,
       "This tensorfold was built without CUDA. Build it where the CUDA toolkit is installed (README, GPU), or use "
       "--backend cpu.");
}
#endif

/// The GPU that the choice comes to; -1: none. A GPU that was asked for by number or by name is returned as it is: making a
/// backend on it says what is wrong.
int chosen_gpu(const BackendChoice& choice) {
  if (choice.backend == "cpu" || choice.backend == "reference") return -1;
  if (choice.device >= 0) return choice.device;
  std::string reason;
  for (const ops::CudaDevice& gpu : gpus(reason)) {
    if (gpu.unusable.empty()) return gpu.index;
  }
  return choice.backend == "cuda" ? 0 : -1;
}

}  // namespace

std::vector<std::string> backend_names() {
#if defined(TENSORFOLD_HAS_CUDA)
  return {"cpu", "cuda", "reference"};
#else
  return {"cpu", "reference"};
#endif
}

std::vector<ops::CudaDevice> gpus(std::string& reason) {
#if defined(TENSORFOLD_HAS_CUDA)
  return ops::cuda_devices(reason);
#else
  reason = "this tensorfold was built without CUDA";
  return {};
#endif
}

std::string backend_title(const BackendChoice& choice) {
  if (choice.backend == "reference") return "reference";
  const int chosen = chosen_gpu(choice);
  if (chosen < 0) return fmt::format("cpu ({})", ops::cpu::cpu_path_name(ops::cpu::select_cpu_path()));
  std::string reason;
  for (const ops::CudaDevice& gpu : gpus(reason)) {
    if (gpu.index == chosen && gpu.unusable.empty()) return fmt::format("cuda (GPU {}: {})", gpu.index, gpu.name);
  }
  return make_on_gpu(chosen)->info().name;  // throws
}

bool runs_on_gpu(const BackendChoice& choice) {
  return chosen_gpu(choice) >= 0;
}

std::unique_ptr<ops::Backend> make_backend(const BackendChoice& choice) {
  if (choice.backend == "reference") {
    const auto rounding = choice.rounding == "backend" ? ops::Rounding::kBackend : ops::Rounding::kNone;
    return ops::make_reference_backend(rounding, std::max(choice.threads, 1));
  }
  const int gpu = chosen_gpu(choice);
  if (gpu >= 0) return make_on_gpu(gpu);
  return ops::make_cpu_backend({.threads = choice.threads, .path = ""});
}

}  // namespace tensorfold
