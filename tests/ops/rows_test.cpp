// Norms and element-wise steps of the CPU and CUDA backends: close to the reference, and every row alone = that row in any batch.
#include <functional>

#include "operation_test.h"

namespace tensorfold::ops {
namespace {

using Rows = OperationTest;

constexpr std::int64_t kWidths[] = {1, 15, 16, 17, 40, 64, 576, 4100};

std::vector<float> norm(Backend& backend, const std::vector<float>& x, const float* weight, std::int64_t rows,
                        std::int64_t width, std::int64_t stride, const std::int32_t* row_index = nullptr) {
  std::vector<std::byte> out(static_cast<std::size_t>(rows * width * backend.info().activation_bytes));
  RmsNormParams params;
  params.x = x.data();
  params.x_stride = stride;
  params.weight = weight;
  params.epsilon = 1e-5f;
  params.rows = rows;
  params.width = width;
  params.out = activations(out);
  params.row_index = row_index;
  backend.rms_norm(params);
  return activations_of(backend.info(), out);
}

TEST_F(Rows, NormIsCloseToTheReferenceAndInvariant) {
  auto reference = make_reference_backend(Rounding::kBackend);
  for (const std::int64_t width : kWidths) {
    const std::int64_t rows = 67, stride = width + 3;
    const auto x = random_floats(static_cast<std::size_t>(rows * stride), 1, 3.0f);
    const auto weight = random_floats(static_cast<std::size_t>(width), 2);
    for (const float* w : {weight.data(), static_cast<const float*>(nullptr)}) {
      const auto expected = norm(*reference, x, w, rows, width, stride);
      for (const std::string& path : available_paths()) {
        for (const int threads : thread_counts({1, 2, 5})) {
          auto backend = backend_under_test(threads, path);
          const auto all = norm(*backend, x, w, rows, width, stride);
          EXPECT_TRUE(close_to(all, expected, 1.0f, 0.0f)) << width;
          const std::vector<std::int32_t> order = {66, 0, 3, 3, 41};
          const auto some = norm(*backend, x, w, 5, width, stride, order.data());
          for (std::size_t i = 0; i < order.size(); ++i) {
            const auto row = all.begin() + order[i] * width;
            EXPECT_TRUE(same_bits({row, row + width}, {some.begin() + static_cast<std::int64_t>(i) * width,
                                                       some.begin() + static_cast<std::int64_t>(i + 1) * width}));
          }
        }
      }
    }
  }
}

TEST_F(Rows, NormOfARowIgnoresNaNNeighbours) {
  auto backend = backend_under_test(2);
  const std::int64_t width = 37;
  auto x = random_floats(3 * width, 5);
  const auto weight = random_floats(width, 6);
  const auto clean = norm(*backend, x, weight.data(), 3, width, width);
  std::fill_n(x.begin(), width, NAN);
  std::fill_n(x.begin() + 2 * width, width, NAN);
  const auto dirty = norm(*backend, x, weight.data(), 3, width, width);
  EXPECT_TRUE(same_bits({clean.begin() + width, clean.begin() + 2 * width},
                        {dirty.begin() + width, dirty.begin() + 2 * width}));
}

TEST_F(Rows, NormAddRoundsTheNormBeforeAdding) {
  auto reference = make_reference_backend(Rounding::kBackend);
  for (const std::int64_t width : kWidths) {
    const std::int64_t rows = 33;
    const auto x = random_floats(static_cast<std::size_t>(rows * width), 3);
    const auto weight = random_floats(static_cast<std::size_t>(width), 4);
    const auto before = random_floats(static_cast<std::size_t>(rows * width), 5);
    const auto run = [&](Backend& backend, std::int64_t first, std::int64_t count) {
      auto residual = std::vector<float>(before.begin() + first * width, before.begin() + (first + count) * width);
      RmsNormAddParams params;
      params.x = x.data() + first * width;
      params.weight = weight.data();
      params.epsilon = 1e-6f;
      params.rows = count;
      params.width = width;
      params.residual = residual.data();
      backend.rms_norm_add(params);
      return residual;
    };
    const auto expected = run(*reference, 0, rows);
    for (const std::string& path : available_paths()) {
      auto backend = backend_under_test(2, path);
      const auto all = run(*backend, 0, rows);
      // One bf16 step of a norm of up to about four.
      EXPECT_TRUE(close_to(all, expected, 0.0f, 0.04f)) << width;
      std::size_t equal = 0;
      for (std::size_t i = 0; i < all.size(); ++i) equal += all[i] == expected[i] ? 1 : 0;
      EXPECT_GT(equal, all.size() * 95 / 100);
      for (const std::int64_t row : {0, 7, 32}) {
        EXPECT_TRUE(same_bits({all.begin() + row * width, all.begin() + (row + 1) * width}, run(*backend, row, 1)));
      }
    }
  }
}

TEST_F(Rows, GatedActivationIsCloseToTheReferenceAndInvariant) {
  auto reference = make_reference_backend(Rounding::kBackend);
  for (const ActivationKind kind : {ActivationKind::kSilu, ActivationKind::kGeluTanh}) {
    for (const std::int64_t width : kWidths) {
      const std::int64_t rows = 19;
      const auto gate_up = random_floats(static_cast<std::size_t>(rows * 2 * width), 7, 2.0f);
      const auto run = [&](Backend& backend, std::int64_t first, std::int64_t count) {
        std::vector<std::byte> out(static_cast<std::size_t>(count * width * backend.info().activation_bytes));
        GatedActivationParams params;
        params.gate_up = gate_up.data() + first * 2 * width;
        params.rows = count;
        params.width = width;
        params.kind = kind;
        params.out = activations(out);
        backend.gated_activation(params);
        return activations_of(backend.info(), out);
      };
      const auto expected = run(*reference, 0, rows);
      std::vector<float> first_path;
      for (const std::string& path : available_paths()) {
        for (const int threads : thread_counts({1, 2, 5})) {
          auto backend = backend_under_test(threads, path);
          const auto all = run(*backend, 0, rows);
          EXPECT_TRUE(close_to(all, expected, 1.0f, 1e-6f)) << width;
          if (first_path.empty()) first_path = all;
          EXPECT_TRUE(same_bits(all, first_path));
          EXPECT_TRUE(same_bits({all.begin() + 11 * width, all.begin() + 12 * width}, run(*backend, 11, 1)));
        }
      }
    }
  }
}

TEST_F(Rows, SoftCap) {
  auto reference = make_reference_backend(Rounding::kBackend);
  const auto values = random_floats(50'001, 9, 40.0f);
  const auto run = [&](Backend& backend, std::vector<float> x) {
    SoftCapParams params;
    params.values = x.data();
    params.count = static_cast<std::int64_t>(x.size());
    params.cap = 30.0f;
    backend.soft_cap(params);
    return x;
  };
  const auto expected = run(*reference, values);
  for (const std::string& path : available_paths()) {
    auto backend = backend_under_test(3, path);
    const auto all = run(*backend, values);
    for (std::size_t i = 0; i < all.size(); ++i) ASSERT_NEAR(all[i], expected[i], 1e-5f);
    EXPECT_TRUE(
        same_bits({all.begin() + 7, all.begin() + 30}, run(*backend, {values.begin() + 7, values.begin() + 30})));
  }
}

}  // namespace
}  // namespace tensorfold::ops
