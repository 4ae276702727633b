// Packing loses nothing, stays within its memory promise, and refuses what doesn't fit; embeddings; path selection.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "base/error.h"
#include "linear_spec.h"
#include "ops/cpu/linear.h"
#include "sample_weights.h"

namespace tensorfold::ops::cpu {
namespace {

ThreadPool& pool() {
  static ThreadPool instance(2, set_compute_thread_mode);
  return instance;
}

LinearSource source_of(const WeightView& view) {
  LinearSource source;
  source.name = view.name;
  source.parts = {view};
  return source;
}

bool is_plain(const SampleFormat& format) {
  return sample_column_multiple(format) == 1;
}

TEST(PackLinear, EveryFormatDecodesToTheStoredWeights) {
  std::mt19937 random(11);
  for (const ScaleRange range : {ScaleRange::kOrdinary, ScaleRange::kSmall, ScaleRange::kTiny}) {
    for (const SampleFormat& format : all_sample_formats()) {
      SCOPED_TRACE(sample_format_name(format));
      const std::int64_t columns = is_plain(format) ? 77 : 3 * sample_column_multiple(format);
      const SampleMatrix sample = make_sample(format, 2, 37, columns, random, range);
      const auto weight = pack_linear(source_of(sample.view), select_cpu_path(), pool());
      std::vector<float> expected(static_cast<std::size_t>(columns));
      std::vector<float> actual(expected.size());
      const DefaultModeScope scope;  // decode_row is defined in the default mode
      for (std::int64_t expert = 0; expert < 2; ++expert) {
        for (std::int64_t row = 0; row < 37; ++row) {
          decode_row(sample.view, expert, row, expected.data());
          decode_packed_row(*weight, expert, row, actual.data());
          for (std::size_t k = 0; k < expected.size(); ++k) {
            if (is_plain(format)) expected[k] = to_float(to_bf16(expected[k]));
            ASSERT_TRUE(same_value(expected[k], actual[k])) << row << ", " << k;
          }
        }
      }
    }
  }
}

TEST(PackLinear, TakesAtMostFivePercentMoreThanTheFile) {
  std::mt19937 random(12);
  for (const SampleFormat& format : all_sample_formats()) {
    const SampleMatrix sample = make_sample(format, 1, 576, 768, random);
    const auto weight = pack_linear(source_of(sample.view), select_cpu_path(), pool());
    const std::size_t stored = sample.data.size() + sample.scales.size() + sample.biases.size();
    EXPECT_LE(static_cast<double>(weight->packed_bytes()), 1.05 * static_cast<double>(stored))
        << sample_format_name(format);
  }
}

TEST(PackLinear, RefusesWhatDoesNotFit) {
  std::mt19937 random(13);
  const SampleMatrix sample = make_sample({WeightFormat::kQ4_0}, 1, 8, 64, random);
  const SampleMatrix other = make_sample({WeightFormat::kQ4_0}, 1, 8, 96, random);
  const auto refused = [&](const LinearSource& source) {
    EXPECT_THROW(pack_linear(source, select_cpu_path(), pool()), Error);
  };
  LinearSource source = source_of(sample.view);
  source.parts[0].data_bytes -= 1;
  refused(source);
  source = source_of(sample.view);
  source.parts[0].columns = 63;
  refused(source);
  source = source_of(sample.view);
  source.parts[0].rows = std::int64_t{1} << 60;
  refused(source);
  source = source_of(sample.view);
  source.parts.push_back(other.view);
  refused(source);
  source = source_of(sample.view);
  source.bias.resize(7);
  refused(source);
  source = source_of(sample.view);
  source.row_orders = {{0, 1, 2, 3, 4, 5, 6, 8}};
  refused(source);
  source = source_of(sample.view);
  source.parts.clear();
  refused(source);
  SampleMatrix affine = make_sample({WeightFormat::kAffine, 4, 64, WeightFormat::kBF16}, 1, 8, 64, random);
  source = source_of(affine.view);
  source.parts[0].bits = 7;
  refused(source);
}

TEST(Embed, RowsAreRoundedAndScaled) {
  std::mt19937 random(14);
  for (const SampleFormat& format :
       {SampleFormat{WeightFormat::kQ8_0}, SampleFormat{WeightFormat::kQ6_K}, SampleFormat{WeightFormat::kF32},
        SampleFormat{WeightFormat::kAffine, 4, 64, WeightFormat::kBF16}}) {
    const SampleMatrix sample = make_sample(format, 1, 50, 256, random);
    const auto weight = pack_linear(source_of(sample.view), select_cpu_path(), pool());
    const std::int32_t tokens[] = {49, 0, 17, 17, 16};
    std::vector<float> out(5 * 256);
    embed(pool(), EmbedParams{weight.get(), tokens, 5, 22.627f, out.data()});
    for (std::size_t r = 0; r < 5; ++r) {
      const auto expected = spec_weight_row(sample.view, 0, tokens[r]);
      for (std::size_t k = 0; k < 256; ++k) {
        ASSERT_TRUE(same_value(out[r * 256 + k], to_float(expected[k]) * 22.627f)) << sample_format_name(format);
      }
    }
  }
}

TEST(CpuPaths, AForcedPathIsTakenOrRefusedByName) {
  const char* before = std::getenv("TENSORFOLD_CPU_PATH");
  const std::string saved = before == nullptr ? "" : before;
  for (const CpuPath path : kCpuPaths) {
    setenv("TENSORFOLD_CPU_PATH", cpu_path_name(path), 1);
    if (cpu_path_available(path)) {
      EXPECT_EQ(select_cpu_path(), path);
    } else {
      EXPECT_THROW(select_cpu_path(), Error);
    }
  }
  setenv("TENSORFOLD_CPU_PATH", "sse2", 1);
  EXPECT_THROW(select_cpu_path(), Error);
  if (before == nullptr) {
    unsetenv("TENSORFOLD_CPU_PATH");
  } else {
    setenv("TENSORFOLD_CPU_PATH", saved.c_str(), 1);
  }
}

}  // namespace
}  // namespace tensorfold::ops::cpu
