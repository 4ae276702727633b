// See wide_maps.h.
#include "ops/cuda/linear/wide_maps.h"

#include <cuda_runtime_api.h>
#include <cudaTypedefs.h>

#include "base/error.h"
#include "ops/cuda/cuda_error.h"

namespace tensorfold::ops::cuda {
namespace {

PFN_cuTensorMapEncodeTiled_v12000 find_encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
        "looking for cuTensorMapEncodeTiled");
  if (found != cudaDriverEntryPointSuccess || function == nullptr) {
    fail(ErrorCode::kUnsupported, "The NVIDIA driver doesn't know tensor maps (cuTensorMapEncodeTiled); version 525 or later does.");
  }
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

template <int rank>
CUtensorMap encode(CUtensorMapDataType type, const void* base, const cuuint64_t (&sizes)[rank],
                   const cuuint64_t (&strides)[rank - 1], const cuuint32_t (&box)[rank], CUtensorMapSwizzle swizzle) {
  static const PFN_cuTensorMapEncodeTiled_v12000 encoder = find_encoder();
  cuuint32_t steps[rank];
  for (cuuint32_t& step : steps) step = 1;
  CUtensorMap map;
  const CUresult status = encoder(&map, type, rank, const_cast<void*>(base), sizes, strides, box, steps,
                                  CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    fail(ErrorCode::kInternal, "CUDA: a tensor map was refused ({}): sizes {} x {}, box {} x {}", static_cast<int>(status),
         sizes[0], sizes[rank - 1], box[0], box[rank - 1]);
  }
  return map;
}

}  // namespace

CUtensorMap weight_map(const PackedPart& part, int tiles) {
  // A block as rows of up to 128 bytes, which the copy engine may bring faster than longer ones (to be measured).
  const auto block = static_cast<cuuint64_t>(part.block_bytes);
  cuuint64_t piece = 128;
  while (block % piece != 0) piece /= 2;
  const cuuint64_t pieces = block / piece;
  const auto blocks = static_cast<cuuint64_t>(part.k_blocks);
  return encode<4>(CU_TENSOR_MAP_DATA_TYPE_UINT64, part.blocks,
                   {piece / 8, pieces, blocks, static_cast<cuuint64_t>(part.tiles)}, {piece, block, blocks * block},
                   {static_cast<cuuint32_t>(piece / 8), static_cast<cuuint32_t>(pieces), 1, static_cast<cuuint32_t>(tiles)},
                   CU_TENSOR_MAP_SWIZZLE_NONE);
}

CUtensorMap activation_map(const void* x, std::int64_t rows, std::int64_t columns, int box_rows) {
  return encode<2>(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, x,
                   {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)},
                   {static_cast<cuuint64_t>(columns) * 2}, {64, static_cast<cuuint32_t>(box_rows)},
                   CU_TENSOR_MAP_SWIZZLE_128B);
}

}  // namespace tensorfold::ops::cuda
