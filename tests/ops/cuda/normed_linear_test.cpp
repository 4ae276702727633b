// Layers that norm their input themselves (Backend::norms_inputs) give the bits of the norm and the layer one after the other,
// plain, gated and in several parts, and keep the normed rows when asked.
#include "checkpoint/weight_format.h"
#include "ops/linear/sample_weights.h"
#include "ops/operation_test.h"

namespace tensorfold::ops {
namespace {

using cpu::make_sample;
using cpu::SampleFormat;
using cpu::SampleMatrix;
using NormedLinear = OperationTest;
using enum WeightFormat;

constexpr std::uint8_t kUntouched = 0x5a;

/// A norm over rows that lie apart from each other, with elements of very different sizes.
struct NormCase {
  std::int64_t width;
  std::vector<float> x, weight;
  std::vector<std::byte> out;
  RmsNormParams params;

  NormCase(std::int64_t columns, std::int64_t rows, unsigned seed) : width(columns) {
    const std::int64_t stride = columns + 8;
    x = random_floats(static_cast<std::size_t>(rows * stride), seed, 30.0f);
    for (std::size_t i = 0; i < x.size(); i += 7) x[i] *= 1e-4f;
    weight = random_floats(static_cast<std::size_t>(columns), seed + 1, 2.0f);
    out.assign(static_cast<std::size_t>(rows * columns * 2), std::byte{kUntouched});
    params = {x.data(), stride, weight.data(), 1e-5f, rows, columns, reinterpret_cast<Activation*>(out.data())};
  }
  bool is_untouched() const {
    return std::all_of(out.begin(), out.end(), [](std::byte b) { return b == std::byte{kUntouched}; });
  }
};

LinearSource gate_up_source(const SampleMatrix& gate, const SampleMatrix& up, bool paired) {
  LinearSource source;
  source.name = "gate_up";
  source.parts = {gate.view, up.view};
  source.paired_halves = paired;
  return source;
}

std::vector<float> run(Backend& backend, const Linear& weight, const RmsNormParams& norm, bool inside, bool keeps) {
  std::vector<float> y(static_cast<std::size_t>(norm.rows * weight.rows()), 7.0f);
  if (!inside) backend.rms_norm(norm);
  LinearParams params;
  params.weight = &weight;
  params.x = norm.out;
  params.rows = norm.rows;
  params.y = y.data();
  params.y_stride = weight.rows();
  params.norm = inside ? &norm : nullptr;
  params.keeps_norm = inside && keeps;
  backend.linear(params);
  return y;
}

/// Plain and gated, for one backend, layer and row count. False: this backend doesn't take the norm.
bool expect_equal(Backend& backend, const Linear& plain, const Linear& paired, std::int64_t columns, std::int64_t rows,
                  const std::string& what) {
  NormCase apart(columns, rows, 21), within(columns, rows, 21), kept(columns, rows, 21), gated(columns, rows, 21);
  if (!backend.norms_inputs(plain, within.params)) return false;
  const auto expected = run(backend, plain, apart.params, false, false);
  EXPECT_TRUE(same_bits(run(backend, plain, within.params, true, false), expected)) << what;
  EXPECT_TRUE(within.is_untouched()) << what;
  EXPECT_TRUE(same_bits(run(backend, plain, kept.params, true, true), expected)) << what;
  EXPECT_EQ(kept.out, apart.out) << what;

  const std::int64_t width = paired.rows() / 2;
  for (const ActivationKind kind : {ActivationKind::kSilu, ActivationKind::kGeluTanh}) {
    std::vector<std::byte> one(static_cast<std::size_t>(rows * width * 2)), two(one.size());
    EXPECT_TRUE(backend.norms_inputs(paired, gated.params)) << what;
    EXPECT_TRUE(backend.gated_linear({&paired, gated.params.out, rows, kind, activations(one), &gated.params})) << what;
    EXPECT_TRUE(backend.gated_linear({&paired, apart.params.out, rows, kind, activations(two)})) << what;
    EXPECT_EQ(one, two) << what;
  }
  EXPECT_TRUE(gated.is_untouched()) << what;
  return true;
}

TEST_F(NormedLinear, HasTheBitsOfTheNormAndTheLayer) {
  std::mt19937 random(31);
  const std::vector<SampleFormat> formats = {{kAffine, 4, 64, kBF16}, {kBF16}, {kQ4_1}, {kQ8_0}, {kAffine, 6, 32, kF16}};
  int ran = 0;
  for (const SampleFormat& format : formats) {
    for (const std::int64_t columns : {64, 192, 576, 640, 1536, 2048, 3136, 5120, 8192}) {
      const std::int64_t width = columns > 2048 ? 96 : 1104;  // whole tiles of pairs
      const SampleMatrix gate = make_sample(format, 1, width, columns, random);
      const SampleMatrix up = make_sample(format, 1, width, columns, random);
      for (const std::string& path : available_paths()) {
        const auto backend = backend_under_test(1, path);
        const auto plain = backend->load_linear(gate_up_source(gate, up, false));
        const auto paired = backend->load_linear(gate_up_source(gate, up, true));
        for (const std::int64_t rows : {1, 2, 3, 8, 17}) {
          const std::string what = path + ", " + sample_format_name(format) + ", " + std::to_string(columns) + " columns, " +
                                   std::to_string(rows) + " rows";
          const bool taken = expect_equal(*backend, *plain, *paired, columns, rows, what);
          ran += taken ? 1 : 0;
          if (path == "hopper" && rows == 1) {
            EXPECT_TRUE(taken) << what;
          }
          if (path != "hopper" || rows > 16) {
            EXPECT_FALSE(taken) << what;
          }
        }
      }
    }
  }
  if (available_paths().back() == "hopper") {
    EXPECT_GT(ran, 70);  // one row of any width and two of most
  }
}

TEST_F(NormedLinear, PartsOfSeveralFormatsNormTheirInputEach) {
  std::mt19937 random(32);
  const std::int64_t columns = 1024;
  const SampleMatrix q = make_sample({kQ4_K}, 1, 80, columns, random);
  const SampleMatrix k = make_sample({kQ6_K}, 1, 16, columns, random);
  const SampleMatrix v = make_sample({kAffine, 5, 64, kF16}, 1, 7, columns, random);
  LinearSource source;
  source.name = "qkv";
  source.parts = {q.view, k.view, v.view};
  for (const std::string& path : available_paths()) {
    const auto backend = backend_under_test(1, path);
    const auto weight = backend->load_linear(source);
    for (const std::int64_t rows : {1, 3, 8}) {
      NormCase apart(columns, rows, 5), within(columns, rows, 5);
      if (!backend->norms_inputs(*weight, within.params)) continue;
      const auto expected = run(*backend, *weight, apart.params, false, false);
      EXPECT_TRUE(same_bits(run(*backend, *weight, within.params, true, true), expected)) << path << ", " << rows << " rows";
      EXPECT_EQ(within.out, apart.out) << path << ", " << rows << " rows";
    }
  }
}

TEST_F(NormedLinear, IsRefusedWhereTheNormIsAnotherOne) {
  std::mt19937 random(33);
  const SampleMatrix matrix = make_sample({kBF16}, 1, 48, 256, random);
  LinearSource source;
  source.name = "layer";
  source.parts = {matrix.view};
  const std::int32_t rows[] = {0};
  for (const std::string& path : available_paths()) {
    const auto backend = backend_under_test(1, path);
    const auto weight = backend->load_linear(source);
    const NormCase norm(256, 1, 6), other(512, 1, 6);
    std::vector<float> floats(256);
    EXPECT_EQ(backend->norms_inputs(*weight, norm.params), path == "hopper");
    EXPECT_FALSE(backend->norms_inputs(*weight, other.params));
    for (int i = 0; i < 5; ++i) {
      RmsNormParams params = norm.params;
      if (i == 0) params.weight = nullptr;
      if (i == 1) params.row_index = rows;
      if (i == 2) params.out_float = floats.data();
      if (i == 3) params.out_stride = 300;
      if (i == 4) params.x = norm.x.data() + 1;
      EXPECT_FALSE(backend->norms_inputs(*weight, params)) << i;
    }
  }
}

}  // namespace
}  // namespace tensorfold::ops
