#include "checkpoint/tensor_table.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "checkpoint/json_file.h"

namespace tensorfold {

std::optional<std::uint64_t> multiply(std::uint64_t left, std::uint64_t right) {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(left, right, &product)) return std::nullopt;
  return product;
}

std::optional<std::uint64_t> element_count(std::span<const std::int64_t> shape) {
  // A zero must not hide an overflow of the other dimensions: [2^40, 2^40, 0] would pass here and trap elsewhere.
  std::uint64_t without_zeros = 1;
  bool empty = false;
  for (const std::int64_t dimension : shape) {
    if (dimension < 0) return std::nullopt;
    if (dimension == 0) {
      empty = true;
      continue;
    }
    const auto product = multiply(without_zeros, static_cast<std::uint64_t>(dimension));
    if (!product || *product > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      return std::nullopt;
    without_zeros = *product;
  }
  return empty ? 0 : without_zeros;
}

std::string shape_text(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

void sort_and_refuse_overlaps(const std::filesystem::path& path, std::vector<TensorInfo>& tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& left, const TensorInfo& right) {
    return std::pair(left.data, left.bytes) < std::pair(right.data, right.bytes);
  });
  const TensorInfo* previous = nullptr;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.bytes == 0) continue;
    if (previous != nullptr && previous->data + previous->bytes > tensor.data) {
      fail(ErrorCode::kInvalidCheckpoint,
           "{}: the tensors {} and {} overlap in the file; it is damaged, download the file again", path.string(),
           in_quotes(previous->name), in_quotes(tensor.name));
    }
    previous = &tensor;
  }
}

std::optional<WeightFormat> matrix_format(std::string_view dtype) {
  struct Entry {
    std::string_view dtype;
    WeightFormat format;
  };
  static constexpr Entry kEntries[] = {
      {"F32", WeightFormat::kF32},   {"F16", WeightFormat::kF16},   {"BF16", WeightFormat::kBF16},
      {"Q4_0", WeightFormat::kQ4_0}, {"Q4_1", WeightFormat::kQ4_1}, {"Q5_0", WeightFormat::kQ5_0},
      {"Q5_1", WeightFormat::kQ5_1}, {"Q8_0", WeightFormat::kQ8_0}, {"Q4_K", WeightFormat::kQ4_K},
      {"Q5_K", WeightFormat::kQ5_K}, {"Q6_K", WeightFormat::kQ6_K},
  };
  for (const Entry& entry : kEntries) {
    if (entry.dtype == dtype) return entry.format;
  }
  return std::nullopt;
}

}  // namespace tensorfold
