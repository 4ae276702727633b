// Divisor (attention/divisor.h) on the host, whose formula is the kernels'.
#include "ops/cuda/attention/divisor.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace tensorfold::ops::cuda {
namespace {

constexpr int kLargest = std::numeric_limits<int>::max();

TEST(Divisor, IsExactAroundMultiplesAndAtTheEnds) {
  std::mt19937 random(5);
  std::vector<int> divisors = {kLargest, kLargest - 1, 1 << 30, (1 << 30) + 1, (1 << 30) - 1, 65536, 65537, 2147483};
  for (int value = 1; value <= 4200; ++value) divisors.push_back(value);
  for (const int value : divisors) {
    const Divisor divisor(value);
    std::vector<int> numbers = {0, value - 1, value, kLargest, kLargest / value * value};
    for (int i = 0; i < 60; ++i) numbers.push_back(std::uniform_int_distribution<int>(0, kLargest / value)(random) * value);
    for (const int number : numbers) {
      for (const int near : {number, number > 0 ? number - 1 : number}) {
        const int quotient = divisor.quotient(near);
        ASSERT_EQ(quotient, near / value) << near << " / " << value;
        ASSERT_EQ(divisor.remainder(near, quotient), near % value) << near << " / " << value;
      }
    }
  }
}

TEST(Divisor, TellsWhichCountsItTakes) {
  EXPECT_TRUE(Divisor::takes(kLargest));
  EXPECT_FALSE(Divisor::takes(std::int64_t{kLargest} + 1));
}

}  // namespace
}  // namespace tensorfold::ops::cuda
