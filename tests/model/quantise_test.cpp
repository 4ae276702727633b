// Quantising at load against its definition in doubles, and the pick of the best candidates against a sort.
#include "model/quantise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "base/bf16.h"
#include "model/candidates.h"

namespace tensorfold {
namespace {

WeightView view_of(const std::vector<float>& values, std::int64_t rows, std::int64_t columns) {
  WeightView view;
  view.name = "test";
  view.format = WeightFormat::kF32;
  view.rows = rows;
  view.columns = columns;
  view.data = reinterpret_cast<const std::byte*>(values.data());
  view.data_bytes = values.size() * sizeof(float);
  return view;
}

TEST(Quantise, FollowsItsDefinition) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  const std::int64_t rows = 5, columns = 192;
  std::vector<float> values(static_cast<std::size_t>(rows * columns));
  for (float& value : values) value = normal(random);
  std::fill_n(values.begin(), 64, 0.0f);  // a group without spread
  values[64 + 3] = 5.0f;                  // an outlier
  GatheredStack stack;
  const WeightView quantised = quantise_4bit(view_of(values, rows, columns), stack);
  EXPECT_EQ(quantised.format, WeightFormat::kAffine);
  std::vector<float> decoded(static_cast<std::size_t>(columns));
  for (std::int64_t row = 0; row < rows; ++row) {
    decode_row(quantised, 0, row, decoded.data());
    for (std::int64_t group = 0; group < columns / 64; ++group) {
      const float* w = values.data() + row * columns + group * 64;
      const auto [low, high] = std::minmax_element(w, w + 64);
      const double scale = static_cast<double>(to_float(to_bf16(std::max((*high - *low) / 15.0f, 1e-8f))));
      const double bias = static_cast<double>(to_float(to_bf16(*low)));
      for (int i = 0; i < 64; ++i) {
        const double code = std::clamp(std::nearbyint((static_cast<double>(w[i]) - bias) / scale), 0.0, 15.0);
        EXPECT_NEAR(static_cast<double>(decoded[static_cast<std::size_t>(group * 64 + i)]), code * scale + bias,
                    1e-7 + 1e-6 * std::abs(static_cast<double>(w[i])))
            << "row " << row << " column " << group * 64 + i;
      }
    }
  }
}

TEST(Candidates, AreThoseOfASort) {
  std::mt19937 random(5);
  for (const std::int64_t size : {std::int64_t{4}, std::int64_t{17}, std::int64_t{256}, std::int64_t{5000}}) {
    std::vector<float> logits(static_cast<std::size_t>(size));
    for (float& value : logits) value = static_cast<float>(static_cast<int>(random() % 97)) * 0.25f;  // many ties
    if (size > 100) logits[40] = NAN;
    std::vector<std::int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    const auto value = [&](std::int32_t id) {
      const float logit = logits[static_cast<std::size_t>(id)];
      return std::isnan(logit) ? -INFINITY : logit;
    };
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return value(a) > value(b); });
    for (const std::int32_t count : {1, 4, 16}) {
      if (count > size) continue;
      std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
      std::vector<float> values(ids.size());
      best_candidates(logits.data(), size, count, ids.data(), values.data());
      EXPECT_TRUE(std::equal(ids.begin(), ids.end(), order.begin())) << size << " " << count;
      for (std::size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(values[i], value(ids[i]));
    }
  }
}

}  // namespace
}  // namespace tensorfold
