// Quantising a matrix at load: MLX affine, 4 bits in groups of 64, as the reference does with a drafter's projections
// (families-a.md 4.3): scale = max((max − min) / 15, 1e-8) and bias = min, both rounded to bf16; codes round half to
// even. Drafts never decide a token, so this trades a little acceptance for a quarter of the bytes.
#pragma once

#include "checkpoint/weight_format.h"
#include "model/tensor_loader.h"

namespace tensorfold {

inline constexpr int kQuantisedGroup = 64;

/// The view of `view` quantised; its data lie in `stack`. `view` is dense, its columns a multiple of the group.
WeightView quantise_4bit(const WeightView& view, GatheredStack& stack);

}  // namespace tensorfold
