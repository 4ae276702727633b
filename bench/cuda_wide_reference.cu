// See cuda_wide_reference.h.
#include "cuda_wide_reference.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/cuda/activation.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/linear/dequantise.cuh"

namespace tensorfold::ops::cuda::bench {
namespace {

__device__ __forceinline__ std::uint32_t hash(std::uint32_t x) {
  x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu, x ^= x >> 16;
  return x;
}
__device__ __forceinline__ float unit(std::uint32_t h) {
  return static_cast<float>(h & 0xffff) / 65536.0f;
}
__device__ __forceinline__ std::uint32_t bf16_bits(float value) {
  return __bfloat16_as_ushort(__float2bfloat16(value));
}
__device__ __forceinline__ std::uint32_t half_bits(float value) {
  return __half_as_ushort(__float2half(value));
}

// Word `word` (4 bytes) of a block: codes are random bits; scales by their kind.
__device__ std::uint32_t block_word(const PackedPart& part, int word, std::uint32_t h) {
  const std::uint32_t g = hash(h + 77);
  if (part.bits == 16) {
    return bf16_bits(0.1f * (unit(h) - 0.5f)) | bf16_bits(0.1f * (unit(g) - 0.5f)) << 16;
  }
  const int at = 4 * word - 256 * part.bits;
  if (at < 0) return h;
  const float scale = 0.0015f + 0.006f * unit(h);
  const float bias = -scale * static_cast<float>((1 << part.bits) - 1) * (0.4f + 0.2f * unit(g));
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
      return half_bits(scale) | half_bits(0.002f + 0.004f * unit(g)) << 16;
    case ScaleKind::kScaleMin:
      return at < 128 ? h & 0x3f3f3f3fu : half_bits(0.0001f * (1 + unit(h))) | half_bits(0.0008f * (1 + unit(g))) << 16;
    default:
      return at < 128 ? h : half_bits(0.00005f * (1 + unit(h))) | half_bits(0.00005f * (1 + unit(g))) << 16;
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

__global__ void fill_activations_kernel(__nv_bfloat16* x, std::int64_t count, std::uint32_t seed) {
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const std::uint32_t h = hash(static_cast<std::uint32_t>(i) * 2654435761u + seed * 977u);
    x[i] = __float2bfloat16((2 * unit(h) - 1) * (hash(h + 1) % 97 == 0 ? 12.0f : 1.0f));
  }
}

__global__ void fill_floats_kernel(float* y, std::int64_t count, std::uint32_t seed) {
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    y[i] = 4 * unit(hash(static_cast<std::uint32_t>(i) * 2654435761u + seed * 31u)) - 2;
  }
}

// One warp: 16 output rows of one row of x. B's token 0 is the row, the other seven are zeros.
template <typename F>
__global__ void literal_kernel(PackedPart part, const __nv_bfloat16* x, const std::int32_t* rows, int count, float* y,
                               std::int64_t y_stride, bool accumulate) {
  const int warp = static_cast<int>((blockIdx.x * blockDim.x + threadIdx.x) / 32), lane = threadIdx.x % 32;
  const int tile = warp / count, row = warp % count;
  if (tile >= part.tiles) return;
  const __nv_bfloat16* input = x + static_cast<std::int64_t>(rows[row]) * part.columns;
  const int token = lane / 4, t = lane % 4;
  float sums[kSegmentsMax][2];
  for (int segment = 0; segment < part.segments; ++segment) {
    float d[4] = {0, 0, 0, 0};
    const int end = min((segment + 1) * part.segment_blocks, part.k_blocks);
    for (int block = segment * part.segment_blocks; block < end; ++block) {
      const GlobalBlock from{part.blocks + (static_cast<std::int64_t>(tile) * part.k_blocks + block) * part.block_bytes};
      for (int half = 0; half < 2; ++half) {
        const HalfCodes<F> codes = load_codes<F>(from, half, lane);
        const HalfScales<F> scales = load_scales<F>(from, part, half, lane);
        std::uint32_t a[4][4];
        fragment<F, 0>(codes, scales, a[0]);
        fragment<F, 1>(codes, scales, a[1]);
        fragment<F, 2>(codes, scales, a[2]);
        fragment<F, 3>(codes, scales, a[3]);
        for (int step = 0; step < 4; ++step) {
          std::uint32_t b[2];
          for (int i = 0; i < 2; ++i) {
            const int k = block * kBlockColumns + half * 64 + step * 16 + 2 * t + 8 * i;
            const std::uint32_t low = token == 0 && k < part.columns ? __bfloat16_as_ushort(input[k]) : 0;
            const std::uint32_t high = token == 0 && k + 1 < part.columns ? __bfloat16_as_ushort(input[k + 1]) : 0;
            b[i] = low | high << 16;
          }
          asm volatile(
              "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
              : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
              : "r"(a[step][0]), "r"(a[step][1]), "r"(a[step][2]), "r"(a[step][3]), "r"(b[0]), "r"(b[1]));
        }
      }
    }
    sums[segment][0] = d[0];  // token 2·t = 0 in lanes with t = 0: rows g and g + 8
    sums[segment][1] = d[2];
  }
  if (t != 0) return;
  for (int i = 0; i < 2; ++i) {
    const int tile_row = lane / 4 + 8 * i;
    const int out = packed_row(part, tile, tile_row);
    if (part.paired_halves ? tile * 8 + lane / 4 >= part.rows / 2 : out >= part.rows) continue;
    const auto node = [&](auto&& self, int first, int leaves) -> float {
      if (leaves == 1) return sums[first][i];
      const float left = self(self, first, leaves / 2);
      return first + leaves / 2 < part.segments ? left + self(self, first + leaves / 2, leaves / 2) : left;
    };
    float value = 0;
    if (part.segment_tree) {
      value = node(node, 0, kSegmentsMax);
    } else {
      value = sums[0][i];
      for (int segment = 1; segment < part.segments; ++segment) value = value + sums[segment][i];
    }
    if (part.bias != nullptr) value = value + part.bias[out];
    float& to = y[static_cast<std::int64_t>(rows[row]) * y_stride + part.first_row + out];
    to = accumulate ? to + value : value;
  }
}

__global__ void literal_gate_kernel(const float* y, std::int64_t y_stride, const std::int32_t* rows, std::int64_t width,
                                    ActivationKind kind, __nv_bfloat16* out) {
  const std::int64_t row = rows[blockIdx.x];
  for (std::int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    out[row * width + i] = __float2bfloat16_rn(activate(kind, y[row * y_stride + i]) * y[row * y_stride + width + i]);
  }
}

__global__ void count_differences_kernel(const float* a, std::int64_t a_stride, const float* b, std::int64_t b_stride,
                                         const std::int32_t* rows, std::int64_t columns, Difference* difference) {
  const std::int64_t row = rows[blockIdx.y];
  for (std::int64_t c = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; c < columns;
       c += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    if (__float_as_uint(a[row * a_stride + c]) != __float_as_uint(b[row * b_stride + c])) {
      if (atomicAdd(&difference->count, 1ull) == 0) difference->first = row * columns + c;
    }
  }
}

__global__ void count_unpoisoned_kernel(const float* y, std::int64_t stride, std::int64_t from, std::int64_t to,
                                        Difference* difference) {
  for (std::int64_t c = from + blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; c < to;
       c += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    if (__float_as_uint(y[blockIdx.y * stride + c]) != 0xffffffffu) {
      if (atomicAdd(&difference->count, 1ull) == 0) difference->first = blockIdx.y * stride + c;
    }
  }
}

__global__ void to_activations_kernel(const float* from, std::int64_t from_stride, __nv_bfloat16* to, std::int64_t columns,
                                      std::int64_t count, float scale) {
  allow_next();
  wait_for_previous();
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    to[i] = __float2bfloat16(from[i / columns * from_stride + i % columns] * scale);
  }
}

}  // namespace

void fill_blocks(const PackedPart& part, std::int64_t count, std::uint32_t seed, cudaStream_t stream) {
  fill_blocks_kernel<<<1024, 256, 0, stream>>>(part, count * part.block_bytes / 4, seed);
  check(cudaGetLastError(), "filling weights");
}

void fill_activations(void* x, std::int64_t count, std::uint32_t seed, cudaStream_t stream) {
  fill_activations_kernel<<<1024, 256, 0, stream>>>(static_cast<__nv_bfloat16*>(x), count, seed);
  check(cudaGetLastError(), "filling activations");
}

void fill_floats(float* y, std::int64_t count, std::uint32_t seed, cudaStream_t stream) {
  fill_floats_kernel<<<1024, 256, 0, stream>>>(y, count, seed);
  check(cudaGetLastError(), "filling floats");
}

void literal_product(const PackedPart& part, const void* x, const std::int32_t* rows, int count, float* y, std::int64_t y_stride,
                     bool accumulate, cudaStream_t stream) {
  const int blocks = (part.tiles * count + 3) / 4;
  visit_format(part, [&]<typename F>() {
    literal_kernel<F><<<blocks, 128, 0, stream>>>(part, static_cast<const __nv_bfloat16*>(x), rows, count, y, y_stride, accumulate);
  });
  check(cudaGetLastError(), "the literal product");
}

void literal_gate(const float* y, std::int64_t y_stride, const std::int32_t* rows, int count, std::int64_t width, ActivationKind kind,
                  void* out, cudaStream_t stream) {
  literal_gate_kernel<<<count, 256, 0, stream>>>(y, y_stride, rows, width, kind, static_cast<__nv_bfloat16*>(out));
  check(cudaGetLastError(), "the literal gate");
}

void count_differences(const float* a, std::int64_t a_stride, const float* b, std::int64_t b_stride, const std::int32_t* rows,
                       int count, std::int64_t columns, Difference* difference, cudaStream_t stream) {
  count_differences_kernel<<<dim3(32, count), 256, 0, stream>>>(a, a_stride, b, b_stride, rows, columns, difference);
  check(cudaGetLastError(), "comparing");
}

void count_unpoisoned(const float* y, std::int64_t stride, int rows, std::int64_t from, std::int64_t to, Difference* difference,
                      cudaStream_t stream) {
  if (from >= to) return;
  count_unpoisoned_kernel<<<dim3(8, rows), 256, 0, stream>>>(y, stride, from, to, difference);
  check(cudaGetLastError(), "comparing");
}

void to_activations(const float* from, std::int64_t from_stride, void* to, std::int64_t rows, std::int64_t columns, float scale,
                    cudaStream_t stream) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = 256, config.blockDim = 256, config.stream = stream, config.attrs = &attribute, config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, to_activations_kernel, from, from_stride, static_cast<__nv_bfloat16*>(to), columns,
                           rows * columns, scale),
        "rounding activations");
}

}  // namespace tensorfold::ops::cuda::bench
