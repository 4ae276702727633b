// The arithmetic of ops/linear.h in plain scalar loops: what every path must reproduce bit for bit.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bf16.h"
#include "checkpoint/weight_format.h"

namespace tensorfold::ops::cpu {

/// The row's weights as they reach the product.
std::vector<Bf16> spec_weight_row(const WeightView& view, std::int64_t expert, std::int64_t row);

/// One output: `columns` products in the order of blocks of 32, denormals flushed.
float spec_dot(const std::vector<Bf16>& weights, const Bf16* x);

/// The same bits, or NaN both.
bool same_value(float a, float b);

}  // namespace tensorfold::ops::cpu
