// decode_row on its portable path, for tests: on a machine with AVX2 nothing else would run it.
#pragma once

#include "checkpoint/weight_format.h"

namespace tensorfold {

void decode_row_plain(const WeightView& view, std::int64_t expert, std::int64_t row, float* out);

}  // namespace tensorfold
