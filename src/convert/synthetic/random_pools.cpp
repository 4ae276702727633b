// See random_pools.h.
#include "convert/synthetic/random_pools.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/bf16.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "checkpoint/affine_quantiser.h"

namespace tensorfold {
namespace {

constexpr std::size_t kChunkUnits = 16384;   // filled by one thread at a time, from a seed of its own
constexpr std::size_t kSlackBytes = 64 << 10;
constexpr std::size_t kDenseUnitBytes = 8;   // four bf16 values, one draw
constexpr float kUniformSpread = 0.28867513f;  // standard deviation of a uniform number in [0, 1)

/// Standard deviation of uniform codes of `bits` bits, in steps.
float code_spread(int bits) {
  const float levels = static_cast<float>(1 << bits);
  return levels * kUniformSpread;
}

/// Scales vary by a quarter either way, so that no format's scale is a constant.
float varied(float scale, RandomBits& random) {
  return scale * (0.75f + 0.5f * random.uniform());
}

void fill_codes(RandomBits random, std::byte* out, std::size_t units) {
  for (std::size_t i = 0; i < units; ++i) {
    const std::uint64_t bits = random.next();
    std::memcpy(out + i * sizeof(bits), &bits, sizeof(bits));
  }
}

void fill_scales(const RandomContent& content, RandomBits random, std::byte* out, std::size_t units) {
  const float scale = content.spread / code_spread(content.bits);
  const float middle = static_cast<float>((1 << content.bits) - 1) / 2.0f;
  for (std::size_t i = 0; i < units; ++i) {
    Bf16 value = to_bf16(varied(scale, random));
    if (content.kind == RandomKind::kAffineBiases) value = to_bf16(-middle * to_float(value));
    std::memcpy(out + i * sizeof(value), &value, sizeof(value));
  }
}

void fill_dense(const RandomContent& content, RandomBits random, std::byte* out, std::size_t units) {
  const float step = content.spread / (kUniformSpread * 65536.0f);
  for (std::size_t i = 0; i < units; ++i) {
    const std::uint64_t bits = random.next();
    Bf16 values[4];
    for (int j = 0; j < 4; ++j) {
      values[j] = to_bf16(step * static_cast<float>(static_cast<std::int16_t>(bits >> (16 * j))));
    }
    std::memcpy(out + i * sizeof(values), values, sizeof(values));
  }
}

// GGUF's blocks of 32: fp16 scale (and minimum), then codes.
void fill_blocks(const RandomContent& content, RandomBits random, std::byte* out, std::size_t units) {
  const bool eight_bit = content.format == WeightFormat::kQ8_0, has_minimum = content.format == WeightFormat::kQ4_1;
  const float scale = content.spread / code_spread(eight_bit ? 8 : 4);
  const auto block_bytes = static_cast<std::size_t>(weight_format_block(content.format).bytes);
  const std::size_t head = has_minimum ? 4 : 2;
  for (std::size_t i = 0; i < units; ++i) {
    std::byte* block = out + i * block_bytes;
    const float own = varied(scale, random);
    store_scalar(WeightFormat::kF16, own, block);
    if (has_minimum) store_scalar(WeightFormat::kF16, -7.5f * own, block + 2);
    for (std::size_t at = head; at < block_bytes; at += 8) {
      const std::uint64_t bits = random.next();
      std::memcpy(block + at, &bits, std::min<std::size_t>(8, block_bytes - at));
    }
  }
}

/// Bytes of what is drawn at once, and of what a stretch may begin with.
std::size_t unit_bytes(const RandomContent& content) {
  switch (content.kind) {
    case RandomKind::kCodes:
      return sizeof(std::uint64_t);
    case RandomKind::kAffineScales:
    case RandomKind::kAffineBiases:
      return sizeof(Bf16);
    case RandomKind::kMatrix:
      break;
  }
  if (content.format == WeightFormat::kBF16) return kDenseUnitBytes;
  return static_cast<std::size_t>(weight_format_block(content.format).bytes);
}

void fill_units(const RandomContent& content, const RandomBits& random, std::byte* out, std::size_t units) {
  switch (content.kind) {
    case RandomKind::kCodes:
      return fill_codes(random, out, units);
    case RandomKind::kAffineScales:
    case RandomKind::kAffineBiases:
      return fill_scales(content, random, out, units);
    case RandomKind::kMatrix:
      break;
  }
  if (content.format == WeightFormat::kBF16) return fill_dense(content, random, out, units);
  TF_ASSERT(content.format == WeightFormat::kQ4_0 || content.format == WeightFormat::kQ4_1 ||
            content.format == WeightFormat::kQ8_0);
  fill_blocks(content, random, out, units);
}

}  // namespace

std::uint64_t hash_of(std::uint64_t seed, std::string_view name) {
  std::uint64_t hash = 1469598103934665603ull ^ seed;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return RandomBits(hash).next();
}

void RandomPools::reserve(const RandomContent& content, std::size_t bytes) {
  Pool& pool = pools_[content.key()];
  TF_ASSERT(pool.data == nullptr);
  pool.content = content;
  pool.largest = std::max(pool.largest, bytes);
}

void RandomPools::fill(int threads) {
  ThreadPool workers(threads);
  for (auto& [key, pool] : pools_) {
    const std::size_t unit = unit_bytes(pool.content);
    const std::size_t units = (pool.largest + pool.largest / 8 + kSlackBytes) / unit + 1;
    pool.bytes = units * unit;
    pool.data = std::make_unique_for_overwrite<std::byte[]>(pool.bytes);
    const std::size_t chunks = (units + kChunkUnits - 1) / kChunkUnits;
    workers.parallel_for(static_cast<std::int64_t>(chunks), [&](std::int64_t chunk, int) {
      const std::size_t first = static_cast<std::size_t>(chunk) * kChunkUnits;
      // Scales and biases of one spread draw alike.
      const auto seed = seed_ + static_cast<std::uint64_t>(chunk) * 0xD1B54A32D192ED03u;
      fill_units(pool.content, RandomBits(seed), pool.data.get() + first * unit, std::min(kChunkUnits, units - first));
    });
  }
}

const std::byte* RandomPools::stretch(const RandomContent& content, std::size_t bytes, std::string_view name) const {
  const Pool& pool = pools_.at(content.key());
  TF_ASSERT(pool.data != nullptr && bytes <= pool.largest);
  const std::size_t unit = unit_bytes(content), places = (pool.bytes - bytes) / unit + 1;
  return pool.data.get() + hash_of(seed_, name) % places * unit;
}

}  // namespace tensorfold
