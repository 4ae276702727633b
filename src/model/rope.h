// Rotary embedding frequencies from config.json (families-a.md 0.5), and the one table that every kernel reads
// (one-arithmetic.md rule 9): computed in double on the host, rounded once to fp32.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config_reader.h"
#include "model/description.h"

namespace tensorfold {

/// Frequencies for heads of `head_dim`: plain, or scaled by `parameters` (rope_type default, linear, llama3, yarn). The
/// first `rotary_dims` dims rotate. `dynamic` and `longrope` are refused by name: their factors follow the total length,
/// so a row's bits would depend on rows after it. `context_max`: max_position_embeddings.
RopeDescription make_rope(double theta, std::int32_t rotary_dims, const std::optional<ConfigReader>& parameters,
                          std::int64_t context_max);

/// [positions, rotary_dims / 2, 2] = cos, sin, times the attention factor.
std::vector<float> make_rope_table(const RopeDescription& rope, std::int32_t positions);

}  // namespace tensorfold
