// The kernels that attention() may launch, as choices: which kernel, how many packed rows a CTA takes, its shared memory.
// One translation unit a form, so that they compile side by side and attention.cu sees no kernel's inside.
#pragma once

#include <cstddef>

namespace tensorfold::ops::cuda {

struct AttentionArguments;

struct KernelChoice {
  void (*kernel)(AttentionArguments) = nullptr;
  int unit_rows = 0;  // packed rows of a unit (attention_work.cuh)
  int threads = 0;
  int launch_registers = 0;  // of a thread, that the kernel's warpgroups share out; 0: they don't
  std::size_t shared_bytes = 0;
};

/// mma.sync: windows whose widest lane has `packed_rows` packed rows, at most `shared_max` bytes a CTA.
KernelChoice mma_window_kernel(int blocks, int packed_rows, int shared_max);
/// The same where some lanes are trees.
KernelChoice mma_tree_kernel(int blocks, int packed_rows, int shared_max);
KernelChoice mma_prompt_kernel(int blocks, int shared_max);

/// wgmma (Hopper). Null where there is no such kernel for this head.
KernelChoice wgmma_window_kernel(int blocks, int packed_rows);
KernelChoice wgmma_prompt_kernel(int blocks);

}  // namespace tensorfold::ops::cuda
