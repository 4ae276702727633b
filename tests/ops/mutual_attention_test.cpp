// A drafter's block in attention (LaneSpan::mutual): each row must have the bits of the same row as a span of its own
// that stands at the block's end, its window longer by the distance. Blocks over page borders, several lanes in a call.
#include "operation_test.h"

namespace tensorfold::ops {
namespace {

using MutualAttention = OperationTest;

constexpr std::int32_t kHeads = 4, kKvHeads = 2, kHeadDim = 16, kStride = (kHeads + 2 * kKvHeads) * kHeadDim;

struct BlockCase {
  std::int32_t context, rows, window;
};

/// Lanes with pages of their own; lane i's page table is {1 + 4i, 2 + 4i, ...}.
class Lanes {
 public:
  Lanes(Backend& backend, std::vector<std::int32_t> contexts) : backend_(backend), contexts_(std::move(contexts)) {
    page_bytes_ = backend.kv_page_bytes({kKvHeads, kHeadDim});
    pages_.resize(page_bytes_ * (1 + 4 * contexts_.size()));
    for (std::size_t lane = 0; lane < contexts_.size(); ++lane) {
      for (std::int32_t page = 0; page < 4; ++page) tables_.push_back(1 + 4 * static_cast<std::int32_t>(lane) + page);
      if (contexts_[lane] > 0) write(lane, 0, contexts_[lane], 100 + static_cast<unsigned>(lane), 0);
    }
  }

  LaneSpan span(std::size_t lane, std::int32_t first_row, std::int32_t rows, std::int32_t position) const {
    LaneSpan span;
    span.first_row = first_row;
    span.row_count = rows;
    span.position = position;
    span.pages = tables_.data() + 4 * lane;
    return span;
  }
  /// Writes keys of `rows` rows and keeps their queries as rows [first_row, ..) of q.
  void write(std::size_t lane, std::int32_t position, std::int32_t rows, unsigned seed, std::int32_t first_row) {
    const auto qkv = random_floats(static_cast<std::size_t>(rows * kStride), seed);
    std::vector<std::byte> q(static_cast<std::size_t>(rows * kHeads * kHeadDim * backend_.info().activation_bytes));
    const LaneSpan own = span(lane, 0, rows, position);
    AttentionPrepareParams params;
    params.geometry = {kKvHeads, kHeadDim};
    params.heads = kHeads;
    params.qkv = qkv.data();
    params.stride = kStride;
    params.q_head_stride = kHeadDim;
    params.k_offset = kHeads * kHeadDim;
    params.v_offset = (kHeads + kKvHeads) * kHeadDim;
    params.lanes = &own;
    params.lane_count = 1;
    params.pool.pages = pages_.data();
    params.pool.page_bytes = page_bytes_;
    params.q_out = activations(q);
    backend_.attention_prepare(params);
    const std::size_t row_bytes = q.size() / static_cast<std::size_t>(rows);
    q_.resize(std::max(q_.size(), (static_cast<std::size_t>(first_row) + static_cast<std::size_t>(rows)) * row_bytes));
    std::copy(q.begin(), q.end(), q_.begin() + static_cast<std::ptrdiff_t>(first_row * row_bytes));
  }
  std::vector<float> attend(const std::vector<LaneSpan>& spans, std::int32_t window) {
    std::vector<std::byte> out(q_.size());
    AttentionParams params;
    params.geometry = {kKvHeads, kHeadDim};
    params.heads = kHeads;
    params.q = activations(q_);
    params.pool.pages = pages_.data();
    params.pool.page_bytes = page_bytes_;
    params.lanes = spans.data();
    params.lane_count = static_cast<std::int32_t>(spans.size());
    params.scale = 0.25f;
    params.window = window;
    params.out = activations(out);
    backend_.attention(params);
    return activations_of(backend_.info(), out);
  }

 private:
  Backend& backend_;
  std::vector<std::int32_t> contexts_;
  std::size_t page_bytes_ = 0;
  std::vector<std::byte> pages_, q_;
  std::vector<std::int32_t> tables_;
};

const std::vector<std::vector<BlockCase>> kCases = {
    {{12, 4, 8}}, {{60, 16, 20}}, {{0, 7, 0}, {130, 16, 0}, {63, 2, 0}}, {{120, 16, 40}, {5, 9, 40}, {64, 16, 40}}};

/// The blocks in one call; then row by row. Both [row, heads · head_dim].
std::pair<std::vector<float>, std::vector<float>> both(Backend& backend, const std::vector<BlockCase>& blocks) {
  std::vector<std::int32_t> contexts;
  for (const auto& block : blocks) contexts.push_back(block.context);
  Lanes lanes(backend, contexts);
  std::vector<LaneSpan> spans;
  std::int32_t rows = 0;
  for (std::size_t lane = 0; lane < blocks.size(); ++lane) {
    lanes.write(lane, blocks[lane].context, blocks[lane].rows, 7 + static_cast<unsigned>(lane), rows);
    spans.push_back(lanes.span(lane, rows, blocks[lane].rows, blocks[lane].context));
    spans.back().mutual = true;
    rows += blocks[lane].rows;
  }
  const auto together = lanes.attend(spans, blocks[0].window);
  std::vector<float> apart(together.size());
  constexpr std::size_t kWidth = kHeads * kHeadDim;
  for (std::size_t lane = 0; lane < blocks.size(); ++lane) {
    for (std::int32_t row = 0; row < blocks[lane].rows; ++row) {
      const std::int32_t distance = blocks[lane].rows - 1 - row, first = spans[lane].first_row + row;
      const auto own = lanes.attend({lanes.span(lane, first, 1, blocks[lane].context + blocks[lane].rows - 1)},
                                    blocks[0].window > 0 ? blocks[0].window + distance : 0);
      const auto at = static_cast<std::ptrdiff_t>(static_cast<std::size_t>(first) * kWidth);
      std::copy_n(own.begin() + at, kWidth, apart.begin() + at);
    }
  }
  return {together, apart};
}

TEST_F(MutualAttention, RowsSeeTheirWholeBlock) {
  auto exact = make_reference_backend(Rounding::kNone);
  auto rounded = make_reference_backend(Rounding::kBackend);
  for (const auto& blocks : kCases) {
    const auto [exact_together, exact_apart] = both(*exact, blocks);
    EXPECT_TRUE(same_bits(exact_together, exact_apart));
    const auto expected = both(*rounded, blocks).first;
    std::vector<float> first_path;
    for (const std::string& path : available_paths()) {
      for (const int threads : thread_counts({1, 2, 5})) {
        auto backend = backend_under_test(threads, path);
        const auto [together, apart] = both(*backend, blocks);
        EXPECT_TRUE(same_bits(together, apart)) << path;
        EXPECT_TRUE(close_to(together, expected, 1.0f, 0.01f)) << path;
        if (first_path.empty()) first_path = together;
        EXPECT_TRUE(same_bits(together, first_path)) << path;
      }
    }
  }
}

}  // namespace
}  // namespace tensorfold::ops
