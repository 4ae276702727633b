// The checks that every container shares: sizes multiplied without overflow, ranges inside the file, no two tensors on
// the same bytes, no name twice. Readers fill in TensorInfo from their own header and pass it through here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace tensorfold {

/// nullopt on overflow of 64 bits or a negative factor.
std::optional<std::uint64_t> multiply(std::uint64_t left, std::uint64_t right);
/// Product of the dimensions; nullopt on overflow (beyond 2^63 - 1) or a negative dimension. 1 for a scalar.
std::optional<std::uint64_t> element_count(std::span<const std::int64_t> shape);
/// "[2, 3]"
std::string shape_text(std::span<const std::int64_t> shape);

/// Refuses two tensors of one file that share bytes; both names are in the message. Sorts `tensors` by their place.
void sort_and_refuse_overlaps(const std::filesystem::path& path, std::vector<TensorInfo>& tensors);

/// The matrix format that a dtype spelling names ("BF16", "Q4_K"), or nullopt when no matrix is stored that way.
std::optional<WeightFormat> matrix_format(std::string_view dtype);

}  // namespace tensorfold
