// The transcendentals of the CPU kernels against libm in double, the vector rounding to bf16 against base/bf16.h, and
// every path of this machine against each other.
#include <cstdlib>

#include "operation_test.h"
#include "ops/cpu/cpu_context.h"

namespace tensorfold::ops {
namespace {

using cpu::Transcendental;

std::vector<const cpu::OpsKernels*> tables() {
  std::vector<const cpu::OpsKernels*> result;
  for (const cpu::CpuPath path : cpu::kCpuPaths) {
    if (cpu::cpu_path_available(path)) result.push_back(&cpu::ops_kernels(path));
  }
  return result;
}

double exact(Transcendental which, double x) {
  switch (which) {
    case Transcendental::kExp:
      return std::exp(x);
    case Transcendental::kExp2:
      return std::exp2(x);
    case Transcendental::kTanh:
      return std::tanh(x);
    case Transcendental::kSigmoid:
      return 1.0 / (1.0 + std::exp(-x));
    case Transcendental::kSoftplus:
      return x > 20.0 ? x : std::log1p(std::exp(x));
  }
  return 0.0;
}

/// Distance in units of the last place of the exact value; subnormal results may be zero.
double ulp_error(float actual, double expected) {
  const double magnitude = std::abs(expected);
  if (magnitude < 1.18e-38) return std::abs(static_cast<double>(actual)) <= 1.18e-38 ? 0.0 : 1e9;
  const double ulp = std::ldexp(1.0, std::ilogb(magnitude) - 23);
  return std::abs(static_cast<double>(actual) - expected) / ulp;
}

class Flushing : public testing::Test {
  cpu::ComputeModeScope mode_;
};
using CpuMath = Flushing;

/// Every `stride`-th bit pattern whose value lies in [low, high].
std::vector<float> sweep(float low, float high, std::uint32_t stride) {
  std::vector<float> values;
  for (std::uint64_t bits = 0; bits < (1ull << 32); bits += stride) {
    const float value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (std::isnormal(value) && value >= low && value <= high) values.push_back(value);
  }
  return values;
}

struct Range {
  Transcendental which;
  float low, high;
  double ulp_max;
};

TEST_F(CpuMath, TranscendentalsAreWithinTheirStatedUlp) {
  const Range ranges[] = {{Transcendental::kExp, -87.33f, 88.72f, 1.1},
                          {Transcendental::kExp2, -126.0f, 127.9f, 1.1},
                          {Transcendental::kTanh, -100.0f, 100.0f, 2.0},
                          {Transcendental::kSigmoid, -87.0f, 100.0f, 2.5},
                          {Transcendental::kSoftplus, -87.0f, 1000.0f, 2.5}};
  for (const Range& range : ranges) {
    const std::vector<float> x = sweep(range.low, range.high, 1021);
    std::vector<float> first;
    for (const cpu::OpsKernels* kernels : tables()) {
      std::vector<float> y(x.size());
      kernels->transcendental(range.which, x.data(), static_cast<std::int64_t>(x.size()), y.data());
      double worst = 0.0;
      float worst_x = 0.0f;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double error = ulp_error(y[i], exact(range.which, static_cast<double>(x[i])));
        if (error > worst) worst = error, worst_x = x[i];
      }
      EXPECT_LE(worst, range.ulp_max) << "function " << static_cast<int>(range.which) << " at " << worst_x;
      RecordProperty("ulp_" + std::to_string(static_cast<int>(range.which)), std::to_string(worst));
      if (first.empty()) first = y;
      EXPECT_TRUE(same_bits(y, first));
    }
  }
}

TEST_F(CpuMath, TranscendentalsAtTheEdges) {
  const float inf = INFINITY;
  for (const cpu::OpsKernels* kernels : tables()) {
    const auto at = [&](Transcendental which, float x) {
      float y = 0.0f;
      kernels->transcendental(which, &x, 1, &y);
      return y;
    };
    for (const Transcendental which : {Transcendental::kExp, Transcendental::kExp2, Transcendental::kTanh,
                                       Transcendental::kSigmoid, Transcendental::kSoftplus}) {
      EXPECT_TRUE(std::isnan(at(which, NAN)));
      EXPECT_TRUE(std::isnan(at(which, -NAN)));
    }
    for (const Transcendental which : {Transcendental::kExp, Transcendental::kExp2}) {
      EXPECT_EQ(at(which, 0.0f), 1.0f);
      EXPECT_EQ(at(which, -0.0f), 1.0f);
      EXPECT_EQ(at(which, inf), inf);
      EXPECT_EQ(at(which, 1e30f), inf);
      EXPECT_EQ(at(which, 128.0f), inf);
      EXPECT_EQ(at(which, -inf), 0.0f);
      EXPECT_EQ(at(which, -1e30f), 0.0f);
      EXPECT_EQ(at(which, -127.0f), 0.0f);
    }
    EXPECT_EQ(at(Transcendental::kExp, 88.8f), inf);
    EXPECT_EQ(at(Transcendental::kExp2, -126.0f), 0x1p-126f);
    EXPECT_EQ(at(Transcendental::kTanh, inf), 1.0f);
    EXPECT_EQ(at(Transcendental::kTanh, -inf), -1.0f);
    EXPECT_EQ(at(Transcendental::kSigmoid, inf), 1.0f);
    EXPECT_EQ(at(Transcendental::kSigmoid, -inf), 0.0f);
    EXPECT_EQ(at(Transcendental::kSoftplus, inf), inf);
    EXPECT_EQ(at(Transcendental::kSoftplus, -inf), 0.0f);
  }
}

void check_bf16(std::uint64_t stride) {
  constexpr std::size_t kBatch = 4096;
  std::vector<float> x(kBatch);
  std::vector<std::uint16_t> y(kBatch);
  for (const cpu::OpsKernels* kernels : tables()) {
    for (std::uint64_t bits = 0; bits < (1ull << 32);) {
      std::size_t count = 0;
      for (; count < kBatch && bits < (1ull << 32); ++count, bits += stride) {
        x[count] = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
      }
      kernels->round_bf16(x.data(), static_cast<std::int64_t>(count), y.data());
      for (std::size_t i = 0; i < count; ++i) {
        if (y[i] == to_bf16(x[i]).bits) continue;
        FAIL() << std::hex << std::bit_cast<std::uint32_t>(x[i]) << " became " << y[i];
      }
    }
  }
}

TEST_F(CpuMath, Bf16RoundingOnASample) {
  check_bf16(251);
}

TEST_F(CpuMath, Bf16RoundingOfEveryInput) {
  const char* guard = std::getenv("TENSORFOLD_LONG");
  if (guard == nullptr || std::string(guard) != "1") GTEST_SKIP() << "set TENSORFOLD_LONG=1";
  check_bf16(1);
}

TEST(ComputeMode, IsGivenBackAfterAnOperation) {
  const volatile float tiny = 1e-39f;
  auto backend = backend_under_test(2);
  std::vector<float> values(100'000, 1.0f);
  SoftCapParams params;
  params.values = values.data();
  params.count = static_cast<std::int64_t>(values.size());
  params.cap = 30.0f;
  backend->soft_cap(params);
  const float doubled = tiny * 2.0f;
  EXPECT_GT(doubled, 0.0f);
}

}  // namespace
}  // namespace tensorfold::ops
