// Random weights of every format without a model's worth of memory: one pool a kind of content, as long as the largest
// tensor of that kind, from which each tensor takes a stretch at an offset of its own. So 15 GB of weights are less
// than one GB to make and to hold, nothing repeats inside a tensor, and no two matrices of a layer are alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <tuple>

#include "checkpoint/weight_format.h"

namespace tensorfold {

enum class RandomKind : std::uint8_t {
  kCodes,         // of affine matrices: every code as likely as any other
  kAffineScales,  // bf16
  kAffineBiases,  // bf16: those that centre the codes of the scales at the same offset
  kMatrix,        // a dense or block format: whole rows of it
};

/// What a stretch holds. `spread` is the standard deviation of the weights it stands for.
struct RandomContent {
  RandomKind kind = RandomKind::kCodes;
  WeightFormat format = WeightFormat::kBF16;  // kMatrix: BF16, Q4_0, Q4_1 or Q8_0
  int bits = 0;                               // kAffine...: of a code
  float spread = 0.0f;

  auto key() const { return std::make_tuple(kind, format, bits, spread); }
};

class RandomPools {
 public:
  explicit RandomPools(std::uint64_t seed) : seed_(seed) {}

  /// Announces a tensor; all of them come before fill().
  void reserve(const RandomContent& content, std::size_t bytes);
  void fill(int threads);
  /// The stretch of the tensor `name` (of its matrix, where three tensors make one: the parts' stretches match).
  const std::byte* stretch(const RandomContent& content, std::size_t bytes, std::string_view name) const;

 private:
  struct Pool {
    RandomContent content;
    std::size_t largest = 0;  // tensor
    std::size_t bytes = 0;
    std::unique_ptr<std::byte[]> data;
  };

  std::uint64_t seed_;
  std::map<decltype(RandomContent{}.key()), Pool> pools_;
};

/// A well-mixed 64-bit number from a seed and a name.
std::uint64_t hash_of(std::uint64_t seed, std::string_view name);

/// A small fast generator; its sequence is the seed's alone.
class RandomBits {
 public:
  explicit RandomBits(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {  // splitmix64
    state_ += 0x9E3779B97F4A7C15u;
    std::uint64_t bits = (state_ ^ (state_ >> 30)) * 0xBF58476D1CE4E5B9u;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBu;
    return bits ^ (bits >> 31);
  }
  /// Uniform in [0, 1).
  float uniform() { return static_cast<float>(next() >> 40) * 0x1p-24f; }

 private:
  std::uint64_t state_;
};

}  // namespace tensorfold
