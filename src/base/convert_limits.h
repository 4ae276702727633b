// Limits of `tensorfold convert`. Beside limits.h rather than in it: no other room reads them, and every room reads that.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tensorfold::limits {

inline constexpr std::uint64_t kConvertShardBytesMax = 5ull << 30;  // data of one file that a conversion writes
inline constexpr std::uint64_t kConvertBlockBytes = 32ull << 20;    // encoded rows held at once, for each output tensor
inline constexpr std::size_t kConversionRulesMax = 1024;

}  // namespace tensorfold::limits
