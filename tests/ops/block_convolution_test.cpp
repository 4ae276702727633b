// What drafters added to the operations: the dynamic grouped convolution, rows rounded into columns of a wider buffer,
// and norms that keep their unrounded values. The backend under test against the reference; every row of a block alone = in any batch.
#include "operation_test.h"

namespace tensorfold::ops {
namespace {

using BlockConvolution = OperationTest;
using Rows = OperationTest;

struct Blocks {
  std::vector<std::int32_t> starts;
  std::int64_t rows = 0;
};

std::vector<float> convolve(Backend& backend, const std::vector<float>& y, const std::vector<float>& base,
                            const std::vector<float>& dynamic, const Blocks& blocks, std::int64_t width,
                            std::int64_t group, const std::vector<float>* residual) {
  BlockConvolutionParams params;
  params.y = y.data();
  params.base = base.data();
  params.dynamic = dynamic.data();
  params.dynamic_stride = 2 * (width / group) + 3;
  params.rows = blocks.rows;
  params.width = width;
  params.group_size = group;
  params.block_starts = blocks.starts.data();
  params.block_count = static_cast<std::int32_t>(blocks.starts.size());
  if (residual != nullptr) {
    auto out = *residual;
    params.residual = out.data();
    backend.block_convolution(params);
    return out;
  }
  std::vector<std::byte> out(static_cast<std::size_t>(blocks.rows * width * backend.info().activation_bytes));
  params.out = activations(out);
  backend.block_convolution(params);
  return activations_of(backend.info(), out);
}

TEST_F(BlockConvolution, IsCloseToTheReferenceAndInvariant) {
  auto reference = make_reference_backend(Rounding::kBackend);
  const Blocks blocks{{0, 1, 8, 10}, 17};
  for (const auto& [width, group] : {std::pair<std::int64_t, std::int64_t>{64, 4}, {96, 16}, {40, 8}, {30, 3}}) {
    const std::int64_t stride = 2 * (width / group) + 3;
    const auto y = random_floats(static_cast<std::size_t>(blocks.rows * width), 1);
    const auto base = random_floats(static_cast<std::size_t>(2 * width), 2);
    const auto dynamic = random_floats(static_cast<std::size_t>(blocks.rows * stride), 3);
    const auto before = random_floats(static_cast<std::size_t>(blocks.rows * width), 4);
    for (const auto* residual : {&before, static_cast<const std::vector<float>*>(nullptr)}) {
      const auto expected = convolve(*reference, y, base, dynamic, blocks, width, group, residual);
      std::vector<float> first_path;
      for (const std::string& path : available_paths()) {
        for (const int threads : thread_counts({1, 3})) {
          auto backend = backend_under_test(threads, path);
          const auto all = convolve(*backend, y, base, dynamic, blocks, width, group, residual);
          EXPECT_TRUE(close_to(all, expected, residual != nullptr ? 1e-3f : 1.0f, 1e-5f)) << width;
          if (first_path.empty()) first_path = all;
          EXPECT_TRUE(same_bits(all, first_path));
          // The block of rows [1, 8) alone.
          const auto slice = [&](const std::vector<float>& from, std::int64_t columns) {
            return std::vector<float>(from.begin() + columns, from.begin() + 8 * columns);
          };
          const auto own = slice(before, width);
          const auto alone = convolve(*backend, slice(y, width), base, slice(dynamic, stride), {{0}, 7}, width, group,
                                      residual != nullptr ? &own : nullptr);
          EXPECT_TRUE(same_bits(alone, slice(all, width)));
        }
      }
    }
  }
}

TEST_F(BlockConvolution, NothingCrossesABlocksStart) {
  auto backend = backend_under_test(2);
  const std::int64_t width = 32, group = 16, rows = 4;
  auto y = random_floats(rows * width, 6);
  const auto base = random_floats(2 * width, 7), dynamic = random_floats(rows * 7, 8);
  const Blocks blocks{{0, 2}, rows};
  const auto clean = convolve(*backend, y, base, dynamic, blocks, width, group, nullptr);
  std::fill_n(y.begin(), 2 * width, NAN);
  const auto dirty = convolve(*backend, y, base, dynamic, blocks, width, group, nullptr);
  EXPECT_TRUE(same_bits({clean.begin() + 2 * width, clean.end()}, {dirty.begin() + 2 * width, dirty.end()}));
  EXPECT_TRUE(std::isnan(dirty[width]));
}

TEST_F(Rows, RoundRowsGathersIntoColumns) {
  auto reference = make_reference_backend(Rounding::kBackend);
  const std::int64_t width = 37, stride = 80, rows = 4;
  const auto x = random_floats(9 * width, 9);
  const std::vector<std::int32_t> order = {8, 0, 3, 3};
  const auto run = [&](Backend& backend) {
    std::vector<std::byte> out(static_cast<std::size_t>(rows * stride * backend.info().activation_bytes));
    RoundRowsParams params;
    params.x = x.data();
    params.x_stride = width;
    params.row_index = order.data();
    params.rows = rows;
    params.width = width;
    params.out = activation_at(backend.info(), activations(out), 5);
    params.out_stride = stride;
    backend.round_rows(params);
    return activations_of(backend.info(), out);
  };
  const auto expected = run(*reference);
  EXPECT_EQ(expected[4], 0.0f);
  EXPECT_EQ(expected[5], to_float(to_bf16(x[8 * width])));
  for (const std::string& path : available_paths()) {
    auto backend = backend_under_test(2, path);
    EXPECT_TRUE(same_bits(run(*backend), expected));
  }
}

TEST_F(Rows, NormKeepsUnroundedValuesAndStrides) {
  const std::int64_t width = 40, stride = 100, rows = 5;
  const auto x = random_floats(rows * width, 10, 3.0f), weight = random_floats(width, 11);
  for (const std::string& path : available_paths()) {
    auto backend = backend_under_test(2, path);
    std::vector<std::byte> plain(rows * width * 2), strided(rows * stride * 2);
    std::vector<float> unrounded(rows * width), lone(rows * width);
    RmsNormParams params{x.data(), width, weight.data(), 1e-6f, rows, width, activations(plain), nullptr};
    backend->rms_norm(params);
    params.out = activations(strided);
    params.out_stride = stride;
    params.out_float = unrounded.data();
    backend->rms_norm(params);
    params.out = nullptr;
    params.out_float = lone.data();
    backend->rms_norm(params);
    EXPECT_TRUE(same_bits(unrounded, lone));
    const auto narrow = activations_of(backend->info(), plain), wide = activations_of(backend->info(), strided);
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t i = 0; i < width; ++i) {
        const auto at = static_cast<std::size_t>(row * width + i);
        EXPECT_EQ(to_float(to_bf16(unrounded[at])), narrow[at]);
        EXPECT_EQ(wide[static_cast<std::size_t>(row * stride + i)], narrow[at]);
      }
      EXPECT_EQ(wide[static_cast<std::size_t>(row * stride + width)], 0.0f);
    }
  }
}

}  // namespace
}  // namespace tensorfold::ops
