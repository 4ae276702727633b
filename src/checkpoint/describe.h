// A checkpoint's tensors counted by how they are stored, for `tensorfold info`. No printing here: the command decides
// how the lines look.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace tensorfold {

struct FormatSummary {
  std::string format;  // "bf16", "q4_k", "affine 4-bit, group 64", or the file's own dtype in lower case
  std::int64_t tensors = 0;
  std::uint64_t bytes = 0;  // of an affine matrix: codes, scales and biases
};

/// Largest first. An affine matrix (weight, scales, biases) counts as one tensor.
std::vector<FormatSummary> describe_formats(const Checkpoint& checkpoint);

}  // namespace tensorfold
