// How many warps a CTA of the mma.sync kernel gets, for the three files that instantiate it.
#pragma once

#include "base/assert.h"
#include "ops/cuda/attention/attention_kernels.h"
#include "ops/cuda/attention/attention_mma.cuh"

namespace tensorfold::ops::cuda {

template <int kBlocks, MmaMode kMode>
KernelChoice mma_choice(int packed_rows, int shared_max) {
  int warps = (packed_rows + kFragmentRows - 1) / kFragmentRows;
  if (warps > kMmaWarpsMax) warps = kMmaWarpsMax;
  while (warps > 1 && MmaShared<kBlocks, kMode>::bytes(warps) > shared_max) --warps;
  TF_ASSERT((MmaShared<kBlocks, kMode>::bytes(warps)) <= shared_max);
  KernelChoice choice;
  choice.kernel = attention_mma_kernel<kBlocks, kMode>;
  choice.unit_rows = warps * kFragmentRows;
  choice.threads = warps * 32;
  choice.shared_bytes = static_cast<std::size_t>(MmaShared<kBlocks, kMode>::bytes(warps));
  return choice;
}

template <MmaMode kMode>
KernelChoice mma_choice(int blocks, int packed_rows, int shared_max) {
  switch (blocks) {
    case 1: return mma_choice<1, kMode>(packed_rows, shared_max);
    case 2: return mma_choice<2, kMode>(packed_rows, shared_max);
    case 3: return mma_choice<3, kMode>(packed_rows, shared_max);
    default: TF_ASSERT(blocks == 4); return mma_choice<4, kMode>(packed_rows, shared_max);
  }
}

}  // namespace tensorfold::ops::cuda
