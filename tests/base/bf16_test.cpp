// to_bf16 against its definition: nearest even by comparing the two neighbours in double.
#include "base/bf16.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tensorfold {
namespace {

TEST(Bf16, RoundsToNearestEvenOnASample) {
  for (std::uint64_t step = 0; step < (1ull << 32); step += 4099) {
    const auto bits = static_cast<std::uint32_t>(step);
    const float value = std::bit_cast<float>(bits);
    if (!std::isnormal(value)) continue;
    const std::uint32_t low_bits = bits & 0xffff0000u;
    const float low = std::bit_cast<float>(low_bits);
    const double high = std::isinf(std::bit_cast<float>(low_bits + 0x10000u))
                            ? std::copysign(std::ldexp(1.0, 128), value)
                            : static_cast<double>(std::bit_cast<float>(low_bits + 0x10000u));
    const double below = std::abs(static_cast<double>(value) - low), above = std::abs(high - value);
    const bool up = above < below || (above == below && (low_bits >> 16 & 1u));
    EXPECT_EQ(to_bf16(value).bits, static_cast<std::uint16_t>((up ? low_bits + 0x10000u : low_bits) >> 16));
  }
}

TEST(Bf16, SpecialValues) {
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x00000001u)).bits, 0x0000);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x807fffffu)).bits, 0x8000);
  EXPECT_EQ(to_bf16(INFINITY).bits, 0x7f80);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x7f800001u)).bits, 0x7fc0);
}

}  // namespace
}  // namespace tensorfold
