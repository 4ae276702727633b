// exp_exact and log_exact against long double libm, over the ranges a sampler meets and at the ends.
#include "base/math_exact.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace tensorfold {
namespace {

double units_off(double value, long double exact) {
  const double rounded = static_cast<double>(exact);
  const double unit = std::nextafter(std::abs(rounded), INFINITY) - std::abs(rounded);
  return static_cast<double>(std::abs(static_cast<long double>(value) - exact) / unit);
}

TEST(MathExact, ExpIsWithinOneUnit) {
  std::mt19937_64 random(1);
  double worst = 0;
  for (int i = 0; i < 400000; ++i) {
    const double range = i % 3 == 0 ? 700.0 : i % 3 == 1 ? 30.0 : 0.5;
    const double x = std::uniform_real_distribution<double>(-range, range)(random);
    worst = std::max(worst, units_off(exp_exact(x), std::exp(static_cast<long double>(x))));
    ASSERT_EQ(exp_exact(x), exp_exact_bounded(x));
  }
  EXPECT_LT(worst, 1.0);
}

TEST(MathExact, ExpAtTheEnds) {
  EXPECT_EQ(exp_exact(0.0), 1.0);
  EXPECT_EQ(exp_exact(-0.0), 1.0);
  EXPECT_EQ(exp_exact(INFINITY), INFINITY);
  EXPECT_EQ(exp_exact(-INFINITY), 0.0);
  EXPECT_EQ(exp_exact(710.0), INFINITY);
  EXPECT_EQ(exp_exact(-746.0), 0.0);
  EXPECT_TRUE(std::isnan(exp_exact(NAN)));
  EXPECT_LT(units_off(exp_exact(709.5), std::exp(709.5L)), 1.0);
  EXPECT_LT(units_off(exp_exact(-720.0), std::exp(-720.0L)), 1.0);
  EXPECT_LT(units_off(exp_exact(-745.0), std::exp(-745.0L)), 1.0);
}

TEST(MathExact, LogIsWithinOneUnit) {
  std::mt19937_64 random(2);
  double worst = 0;
  for (int i = 0; i < 400000; ++i) {
    double x = std::uniform_real_distribution<double>(0.0, 1.0)(random);
    if (i % 4 == 1) x = std::exp(x * 1400.0 - 700.0);
    if (i % 4 == 2) x = 1.0 - x * 1e-6;
    if (i % 4 == 3) x = 1.0 + (x - 0.5);
    if (x == 0.0 || x == 1.0) continue;
    worst = std::max(worst, units_off(log_exact(x), std::log(static_cast<long double>(x))));
  }
  EXPECT_LT(worst, 1.0);
}

TEST(MathExact, LogAtTheEnds) {
  EXPECT_EQ(log_exact(1.0), 0.0);
  EXPECT_EQ(log_exact(0.0), -INFINITY);
  EXPECT_EQ(log_exact(-0.0), -INFINITY);
  EXPECT_EQ(log_exact(INFINITY), INFINITY);
  EXPECT_TRUE(std::isnan(log_exact(NAN)));
  EXPECT_LT(units_off(log_exact(5e-324), std::log(static_cast<long double>(5e-324))), 1.0);
  EXPECT_LT(units_off(log_exact(1e308), std::log(1e308L)), 1.0);
}

}  // namespace
}  // namespace tensorfold
