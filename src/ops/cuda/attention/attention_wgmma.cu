// The Hopper kernels' instances. See attention_wgmma.cuh.
#include "ops/cuda/attention/attention_kernels.h"
#include "ops/cuda/attention/attention_wgmma.cuh"

namespace tensorfold::ops::cuda {
namespace {

template <int kBlocks, int kWarpgroups, bool kPrompt>
KernelChoice choice_of() {
  using Shape = WgmmaShape<kBlocks, kWarpgroups, kPrompt>;
  KernelChoice choice;
  choice.kernel = attention_wgmma_kernel<kBlocks, kWarpgroups, kPrompt>;
  choice.unit_rows = Shape::kUnitRows;
  choice.threads = Shape::kThreads;
  choice.shared_bytes = Shape::kSharedBytes;
  choice.launch_registers = Shape::kLaunchRegisters;
  return choice;
}

template <int kBlocks>
KernelChoice window_choice(int packed_rows) {
  return packed_rows <= kWarpgroupRows ? choice_of<kBlocks, 1, false>() : choice_of<kBlocks, 2, false>();
}

}  // namespace

KernelChoice wgmma_window_kernel(int blocks, int packed_rows) {
  switch (blocks) {
    case 1: return window_choice<1>(packed_rows);
    case 2: return window_choice<2>(packed_rows);
    case 4: return window_choice<4>(packed_rows);
    default: return {};
  }
}

KernelChoice wgmma_prompt_kernel(int blocks) {
  switch (blocks) {
    case 1: return choice_of<1, 3, true>();
    case 2: return choice_of<2, 2, true>();
    case 4: return choice_of<4, 2, true>();
    default: return {};
  }
}

}  // namespace tensorfold::ops::cuda
