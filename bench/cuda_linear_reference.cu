// See cuda_linear_reference.h.
#include "cuda_linear_reference.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/cuda/activation.cuh"
#include "ops/cuda/cuda_error.h"

namespace tensorfold::ops::cuda::bench {
namespace {

__device__ std::uint32_t bits_at(const __nv_bfloat16* row, int k, int columns) {
  return row != nullptr && k < columns ? __bfloat16_as_ushort(row[k]) : 0;
}

// One warp: 16 output rows of one row of x. B's token 0 is the row, the other seven are zeros.
__global__ void literal_kernel(LiteralLayer layer, const __nv_bfloat16* x, const std::int32_t* x_rows, int count, float* y,
                               std::int64_t y_stride, bool accumulate) {
  const int warp = static_cast<int>((blockIdx.x * blockDim.x + threadIdx.x) / 32), lane = threadIdx.x % 32;
  const int tile = warp / count, row = warp % count;
  const int tiles = (layer.rows + 15) / 16;
  if (tile >= tiles) return;
  const int g = lane / 4, t = lane % 4;
  const auto* weights = static_cast<const __nv_bfloat16*>(layer.weights);
  const __nv_bfloat16* input = g == 0 ? x + static_cast<std::int64_t>(x_rows[row]) * layer.columns : nullptr;
  const int length = segment_length(layer.columns);
  const int segments = (layer.columns + length - 1) / length;
  float sums[8][2];
  for (int segment = 0; segment < segments; ++segment) {
    float d[4] = {0, 0, 0, 0};
    const int end = min((segment + 1) * length, (layer.columns + 127) / 128 * 128);
    for (int k0 = segment * length; k0 < end; k0 += 16) {
      std::uint32_t a[4], b[2];
      for (int p = 0; p < 4; ++p) {
        const int n = tile * 16 + g + 8 * (p & 1), k = k0 + 2 * t + 8 * (p >> 1);
        const __nv_bfloat16* from = n < layer.rows ? weights + static_cast<std::int64_t>(n) * layer.columns : nullptr;
        a[p] = bits_at(from, k, layer.columns) | bits_at(from, k + 1, layer.columns) << 16;
      }
      for (int i = 0; i < 2; ++i) {
        const int k = k0 + 2 * t + 8 * i;
        b[i] = bits_at(input, k, layer.columns) | bits_at(input, k + 1, layer.columns) << 16;
      }
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
    sums[segment][0] = d[0];  // token 2·t = 0 in lanes with t = 0: rows g and g + 8
    sums[segment][1] = d[2];
  }
  if (t != 0) return;
  for (int i = 0; i < 2; ++i) {
    const int n = tile * 16 + g + 8 * i;
    if (n >= layer.rows) continue;
    const auto node = [&](auto&& self, int first, int leaves) -> float {
      if (leaves == 1) return sums[first][i];
      const float left = self(self, first, leaves / 2);
      return first + leaves / 2 < segments ? left + self(self, first + leaves / 2, leaves / 2) : left;
    };
    float value = sums[0][i];
    if (layer.segment_tree) {
      value = node(node, 0, 8);
    } else {
      for (int segment = 1; segment < segments; ++segment) value = value + sums[segment][i];
    }
    if (layer.bias != nullptr) value = value + layer.bias[n];
    float& to = y[static_cast<std::int64_t>(row) * y_stride + n];
    to = accumulate ? to + value : value;
  }
}

__global__ void literal_gate_kernel(const float* y, std::int64_t y_stride, int width, ActivationKind kind, __nv_bfloat16* out) {
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    const float* row = y + blockIdx.x * y_stride;
    out[static_cast<std::int64_t>(blockIdx.x) * width + i] = __float2bfloat16_rn(activate(kind, row[i]) * row[width + i]);
  }
}

__device__ std::uint32_t hash(std::uint32_t x) {
  x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu, x ^= x >> 16;
  return x;
}
__device__ float unit(std::uint32_t h) { return static_cast<float>(h & 0xffff) / 65536.0f; }
__device__ std::uint32_t bf16_bits(float value) { return __bfloat16_as_ushort(__float2bfloat16(value)); }
__device__ std::uint32_t half_bits(float value) { return __half_as_ushort(__float2half(value)); }

// Four bytes of a block: codes are random bits; scales by their kind.
__device__ std::uint32_t block_word(const PackedPart& part, int word, std::uint32_t h) {
  const std::uint32_t other = hash(h + 77);
  if (part.bits == 16) return bf16_bits(0.1f * (unit(h) - 0.5f)) | bf16_bits(0.1f * (unit(other) - 0.5f)) << 16;
  const int at = 4 * word - 256 * part.bits;
  if (at < 0) return h;
  const float scale = 0.0015f + 0.006f * unit(h);
  const float bias = -scale * static_cast<float>((1 << part.bits) - 1) * (0.4f + 0.2f * unit(other));
  switch (part.scale_kind) {
    case ScaleKind::kBf16Pair: {
      const int exponent = scale_exponent(part.bits, part.small_scales != 0, at / 4 % 2 != 0);
      return bf16_bits(ldexpf(__bfloat162float(__float2bfloat16(scale)), exponent)) | bf16_bits(bias) << 16;
    }
    case ScaleKind::kHalfPair:
      return half_bits(scale) | half_bits(bias) << 16;
    case ScaleKind::kFloatPair:
      return __float_as_uint(at / 4 % 2 == 0 ? scale : bias);
    case ScaleKind::kHalf:
      return half_bits(scale) | half_bits(0.002f + 0.004f * unit(other)) << 16;
    case ScaleKind::kScaleMin:
      return at < 128 ? h & 0x3f3f3f3fu : half_bits(0.0001f * (1 + unit(h))) | half_bits(0.0008f * (1 + unit(other))) << 16;
    default:
      return at < 128 ? h : half_bits(0.00005f * (1 + unit(h))) | half_bits(0.00005f * (1 + unit(other))) << 16;
  }
}

__global__ void fill_blocks_kernel(PackedPart part, std::int64_t words, std::uint32_t seed) {
  const int block_words = part.block_bytes / 4;
  auto* out = reinterpret_cast<std::uint32_t*>(const_cast<std::uint8_t*>(part.blocks));
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; i < words;
       i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const std::uint32_t h = hash(static_cast<std::uint32_t>(i) * 2654435761u + hash(seed + static_cast<std::uint32_t>(i >> 32)));
    out[i] = block_word(part, static_cast<int>(i % block_words), h);
  }
}

}  // namespace

void literal_product(const LiteralLayer& layer, const void* x, const std::int32_t* x_rows, int count, float* y,
                     std::int64_t y_stride, bool accumulate, cudaStream_t stream) {
  const int warps = (layer.rows + 15) / 16 * count;
  literal_kernel<<<(warps + 3) / 4, 128, 0, stream>>>(layer, static_cast<const __nv_bfloat16*>(x), x_rows, count, y, y_stride,
                                                      accumulate);
  check(cudaGetLastError(), "the literal product");
}

void literal_gate(const float* y, std::int64_t y_stride, int rows, int width, ActivationKind kind, void* out,
                  cudaStream_t stream) {
  literal_gate_kernel<<<rows, 256, 0, stream>>>(y, y_stride, width, kind, static_cast<__nv_bfloat16*>(out));
  check(cudaGetLastError(), "the literal activation");
}

void fill_blocks(const PackedPart& part, std::int64_t count, std::uint32_t seed, cudaStream_t stream) {
  fill_blocks_kernel<<<1024, 256, 0, stream>>>(part, count * part.block_bytes / 4, seed);
  check(cudaGetLastError(), "filling weights");
}

}  // namespace tensorfold::ops::cuda::bench
