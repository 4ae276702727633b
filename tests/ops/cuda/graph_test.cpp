// Passes on the GPU: which are captured and replayed, what a replay reads, and when graphs are dropped. Operations here are
// plain ones (clearing memory, drawing), as what is tested is the pass around them.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <vector>

#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/graph_cache.h"
#include "support/cuda_device.h"

namespace tensorfold::ops {
namespace {

std::unique_ptr<Backend> backend_with(bool graphs) {
  CudaBackendOptions options;
  options.pinned_buffers = true;
  options.graphs = graphs;
  return make_cuda_backend(options);
}

PassInputs pass_of(std::int64_t rows, const char* name) {
  PassInputs inputs;
  inputs.rows = inputs.row_count = rows;
  inputs.name = name;
  return inputs;
}

/// Fills `buffer` with ones, runs a pass that clears its first half, and says whether the operations were asked for.
bool clear_half(Backend& backend, Buffer& buffer, const PassInputs& inputs) {
  backend.synchronise();
  std::memset(buffer.data(), 1, buffer.bytes());
  const bool asked = backend.begin_pass(inputs);
  if (asked) backend.zero(buffer.data(), buffer.bytes() / 2);
  backend.end_pass();
  backend.synchronise();
  const auto* bytes = static_cast<const char*>(buffer.data());
  for (std::size_t i = 0; i < buffer.bytes(); ++i) {
    EXPECT_EQ(bytes[i], i < buffer.bytes() / 2 ? 0 : 1) << i;
  }
  return asked;
}

TEST(CudaPass, IsCapturedWhenItComesAgainAndReplayedFromThenOn) {
  TF_SKIP_WITHOUT_GPU();
  const auto backend = backend_with(true);
  const auto buffer = backend->allocate(256, "test");
  EXPECT_TRUE(clear_half(*backend, *buffer, pass_of(4, "clear")));
  EXPECT_TRUE(clear_half(*backend, *buffer, pass_of(4, "clear")));
  for (int round = 0; round < 3; ++round) EXPECT_FALSE(clear_half(*backend, *buffer, pass_of(4, "clear")));
  EXPECT_TRUE(clear_half(*backend, *buffer, pass_of(5, "clear")));
  EXPECT_TRUE(clear_half(*backend, *buffer, pass_of(4, "clear again")));
}

TEST(CudaPass, IsNotReplayedWithoutANameOrGraphsOrWhenLong) {
  TF_SKIP_WITHOUT_GPU();
  const auto with = backend_with(true), without = backend_with(false);
  const auto buffer = with->allocate(256, "test"), other = without->allocate(256, "test");
  for (int round = 0; round < 4; ++round) {
    EXPECT_TRUE(clear_half(*with, *buffer, pass_of(4, "")));
    EXPECT_TRUE(clear_half(*with, *buffer, pass_of(1024, "clear")));
    EXPECT_TRUE(clear_half(*without, *other, pass_of(4, "clear")));
  }
}

TEST(CudaPass, TellsWhatItTookWhereAskedTo) {
  TF_SKIP_WITHOUT_GPU();
  const auto backend = backend_with(true);
  const auto buffer = backend->allocate(64 << 20, "test");  // clearing it takes a while, so that there is a time
  const auto run = [&](std::int64_t rows, const char* name, bool is_timed) {
    PassInputs inputs = pass_of(rows, name);
    inputs.is_timed = is_timed;
    if (backend->begin_pass(inputs)) backend->zero(buffer->data(), buffer->bytes());
    backend->end_pass();
  };
  const auto times_of = [&] {
    backend->synchronise();
    return backend->take_pass_times();
  };
  const auto start = std::chrono::steady_clock::now();
  for (int round = 0; round < 4; ++round) run(4, "clear", true);  // as it is, captured, replayed
  run(1024, "clear", true);                                       // too long to be captured
  run(5, "clear", false);
  const std::vector<PassTime> times = times_of();
  const double all_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  ASSERT_EQ(times.size(), 5u);
  double sum = 0.0;
  for (std::size_t i = 0; i < times.size(); ++i) {
    EXPECT_EQ(times[i].rows, i == 4 ? 1024 : 4);
    EXPECT_GT(times[i].seconds, 5e-6) << i;
    sum += times[i].seconds;
  }
  EXPECT_LT(sum, all_seconds);
  EXPECT_TRUE(backend->take_pass_times().empty());
  run(4, "clear", false);
  EXPECT_TRUE(times_of().empty());
  PassInputs abandoned = pass_of(4, "other");
  abandoned.is_timed = true;
  backend->begin_pass(abandoned);
  backend->abandon_pass();
  run(4, "clear", false);  // its end isn't the abandoned one's
  EXPECT_TRUE(times_of().empty());
  for (int round = 1; round <= 20; ++round) run(round, "", true);  // nobody asks: the oldest are forgotten
  const std::vector<PassTime> last = times_of();
  ASSERT_FALSE(last.empty());
  EXPECT_LT(last.size(), 20u);
  for (std::size_t i = 0; i < last.size(); ++i) EXPECT_EQ(last[i].rows, static_cast<std::int64_t>(21 - last.size() + i));
}

TEST(CudaPass, FreedMemoryDropsGraphs) {
  TF_SKIP_WITHOUT_GPU();
  const auto backend = backend_with(true);
  const auto buffer = backend->allocate(256, "test");
  auto other = backend->allocate(256, "test");
  for (int round = 0; round < 2; ++round) EXPECT_TRUE(clear_half(*backend, *buffer, pass_of(4, "clear")));
  EXPECT_FALSE(clear_half(*backend, *buffer, pass_of(4, "clear")));
  other.reset();
  EXPECT_TRUE(clear_half(*backend, *buffer, pass_of(4, "clear")));
}

TEST(CudaPass, AReplayReadsItsOwnPassesArrays) {
  TF_SKIP_WITHOUT_GPU();
  constexpr std::int64_t kVocabulary = 300, kRows = 4;
  const auto backend = backend_with(true);
  const auto logits = backend->allocate(kRows * kVocabulary * sizeof(float), "logits");
  const auto tokens = backend->allocate(kRows * sizeof(std::int32_t), "tokens");
  auto* values = static_cast<float*>(logits->data());
  for (std::int64_t i = 0; i < kRows * kVocabulary; ++i) values[i] = static_cast<float>(i * 37 % 101);
  std::vector<std::vector<std::int32_t>> drawn;
  std::vector<bool> asked;
  for (const bool graphs : {false, true}) {
    const auto other = backend_with(false);
    Backend& used = graphs ? *backend : *other;
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      std::vector<RowDraw> draws;
      for (std::int64_t row = 0; row < kRows; ++row) draws.push_back({{1.0, 0, 1.0, 0.0, seed}, 10 + row, 1});
      PassInputs inputs = pass_of(kRows, "draw");
      inputs.ids.push_back({reinterpret_cast<const std::int32_t*>(draws.data()), kRows * kRowDrawWords});
      asked.push_back(used.begin_pass(inputs));
      if (asked.back()) {
        used.draw({values, kRows, kVocabulary, draws.data(), static_cast<std::int32_t*>(tokens->data())});
      }
      used.end_pass();
      used.synchronise();
      const auto* result = static_cast<const std::int32_t*>(tokens->data());
      drawn.emplace_back(result, result + kRows);
    }
  }
  for (std::size_t i = 0; i < 6; ++i) EXPECT_TRUE(asked[i]);
  // Scratch memory that grows in the first pass drops what was noted of it, so the third may still be asked for.
  for (std::size_t i = 3; i < 6; ++i) EXPECT_FALSE(asked[6 + i]);
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(drawn[i], drawn[6 + i]) << "seed " << i;
  EXPECT_NE(drawn[0], drawn[1]);
}

TEST(CudaPass, OperationsTakeTheTestsOwnMemory) {
  TF_SKIP_WITHOUT_GPU();
  const auto backend = backend_with(true);
  std::vector<float> logits(2 * 1000, 0.0f);
  std::vector<std::int32_t> tokens(2, -5);
  logits[417] = logits[1000 + 3] = 2.0f;
  const std::vector<RowDraw> draws = {{{0.0, 0, 1.0, 0.0, 0}, 0, 1}, {{0.0, 0, 1.0, 0.0, 0}, 0, 1}};
  backend->draw({logits.data(), 2, 1000, draws.data(), tokens.data()});
  backend->synchronise();
  EXPECT_EQ(tokens, (std::vector<std::int32_t>{417, 3}));
}

TEST(GraphCache, TheLeastRecentlyUsedGoesFirst) {
  cuda::GraphCache cache;
  bool is_new = false;
  for (std::size_t i = 0; i < cuda::kGraphsMax; ++i) {
    cache.find(std::to_string(i), is_new);
    EXPECT_TRUE(is_new);
  }
  cache.find("0", is_new);
  EXPECT_FALSE(is_new);
  cache.find("one more", is_new);  // takes the place of 1
  EXPECT_TRUE(is_new);
  cache.find("0", is_new);
  EXPECT_FALSE(is_new);
  cache.find("1", is_new);
  EXPECT_TRUE(is_new);
  cache.clear();
  cache.find("0", is_new);
  EXPECT_TRUE(is_new);
}

}  // namespace
}  // namespace tensorfold::ops
