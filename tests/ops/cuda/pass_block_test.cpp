// The block that a pass's arrays travel in (ops/cuda/pass_block.h): what kernels find through its offsets must be what the
// host said. Runs without a GPU.
#include "ops/cuda/pass_block.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <random>
#include <tuple>

#include "base/error.h"
#include "base/limits.h"
#include "ops/random_trees.h"
#include "ops/row_tree.h"

namespace tensorfold::ops::cuda {
namespace {

/// The block as kernels read it.
class View {
 public:
  explicit View(const PassBlock& block) : block_(block), words_(block.words().data()) {}
  const PassHeader& header() const { return *reinterpret_cast<const PassHeader*>(words_); }
  const PassGroup& group(std::size_t index) const { return header().groups[index]; }
  const DeviceLane& lane(std::size_t group_index, std::size_t lane) const {
    return reinterpret_cast<const DeviceLane*>(words_ + group(group_index).lanes)[lane];
  }
  const std::int32_t* words(std::int32_t offset) const {
    EXPECT_EQ(offset % 4, 0) << "lists start at 16 bytes";
    return words_ + offset;
  }
  std::vector<std::int32_t> list(std::int32_t offset, std::int64_t count) const {
    return {words(offset), words(offset) + count};
  }
  std::vector<AttentionItem> items(std::size_t group_index) const {
    const PassGroup& g = group(group_index);
    const auto* first = reinterpret_cast<const AttentionItem*>(words(g.items));
    return {first, first + g.item_count};
  }
  Lanes facts_of(std::size_t group_index) const { return block_.lanes(group_index, nullptr); }

 private:
  const PassBlock& block_;
  const std::int32_t* words_;
};

struct TestLane {
  LaneSpan span;
  std::vector<std::int32_t> pages, parents, replay;
};

/// Lanes of random positions, shapes and replays; rows follow one another.
std::vector<TestLane> random_lanes(std::mt19937& random, int count, std::int32_t position_max) {
  std::vector<TestLane> lanes(static_cast<std::size_t>(count));
  std::int32_t rows = 0;
  const auto draw = [&](std::int32_t n) { return static_cast<std::int32_t>(random() % static_cast<unsigned>(n)); };
  for (TestLane& lane : lanes) {
    lane.span.slot = 1 + draw(50);
    lane.span.first_row = rows;
    const bool is_prompt = draw(6) == 0;
    lane.span.row_count = is_prompt ? 120 + draw(40) : 1 + draw(16);
    lane.span.position = draw(position_max);
    rows += lane.span.row_count;
    for (int page = 0; page <= (lane.span.position + 160) / 64; ++page) lane.pages.push_back(draw(1000) - 1);
    if (!is_prompt && draw(2) == 0) lane.parents = random_tree(random, lane.span.row_count);
    if (draw(2) == 0) {
      lane.replay.resize(static_cast<std::size_t>(1 + draw(5)));
      std::iota(lane.replay.begin(), lane.replay.end(), 0);
      lane.span.replay_tree = draw(2) == 0;
    }
    lane.span.commits = lane.parents.empty() && draw(2) == 0;
    lane.span.pages = lane.pages.data();
    if (!lane.parents.empty()) lane.span.parents = lane.parents.data();
    lane.span.replay_rows = lane.replay.data();
    lane.span.replay_count = static_cast<std::int32_t>(lane.replay.size());
  }
  return lanes;
}

std::vector<LaneSpan> spans_of(const std::vector<TestLane>& lanes) {
  std::vector<LaneSpan> spans;
  for (const TestLane& lane : lanes) spans.push_back(lane.span);
  return spans;
}

std::int32_t last_depth(const LaneSpan& span) {
  return span.parents != nullptr ? row_tree(span).depth_max : span.row_count - 1;
}

void expect_lane(const View& view, std::size_t group, std::size_t index, const TestLane& expected) {
  const DeviceLane& lane = view.lane(group, index);
  const LaneSpan& span = expected.span;
  EXPECT_EQ(lane.slot, span.slot);
  EXPECT_EQ(lane.first_row, span.first_row);
  EXPECT_EQ(lane.row_count, span.row_count);
  EXPECT_EQ(lane.position, span.position);
  EXPECT_EQ(lane.commits, span.commits ? 1 : 0);
  EXPECT_EQ(lane.replay_tree, span.replay_tree ? 1 : 0);
  EXPECT_EQ(lane.replay_count, span.replay_count);
  EXPECT_EQ(lane.settled, span.position - (span.replay_tree ? span.replay_count : 0));
  if (span.replay_count > 0) {
    EXPECT_EQ(view.list(lane.replay, span.replay_count), expected.replay);
  }
  const std::int32_t keys = span.position + last_depth(span) + 1, pages = (keys + 63) / 64;
  EXPECT_EQ(view.list(lane.pages, pages),
            (std::vector<std::int32_t>{expected.pages.begin(), expected.pages.begin() + pages}));
  if (expected.parents.empty()) {
    EXPECT_EQ(lane.parents, -1);
    EXPECT_EQ(lane.depths, -1);
    return;
  }
  EXPECT_EQ(view.list(lane.parents, span.row_count), expected.parents);
  for (std::int32_t row = 0; row < span.row_count; ++row) {
    EXPECT_EQ(view.words(lane.depths)[row], static_cast<std::int32_t>(path_to(expected.parents, row).size()) - 1);
  }
}

/// Items of a window tile its visible keys by segments; prompts have none. The longest come first.
void expect_items(const View& view, std::size_t group, const std::vector<LaneSpan>& spans, std::int32_t window) {
  auto items = view.items(group);
  EXPECT_TRUE(std::is_sorted(items.begin(), items.end(), [](const AttentionItem& a, const AttentionItem& b) {
    return a.end_key - a.first_key > b.end_key - b.first_key;
  }));
  std::sort(items.begin(), items.end(), [](const AttentionItem& a, const AttentionItem& b) {
    return std::tie(a.lane, a.index) < std::tie(b.lane, b.index);
  });
  std::size_t at = 0;
  std::int32_t partials = 0;
  for (std::size_t lane = 0; lane < spans.size(); ++lane) {
    const LaneSpan& span = spans[lane];
    if (span.row_count > kWindowRowsMax) continue;
    const std::int32_t oldest = window > 0 ? std::max(0, span.position - window + 1) : 0;
    const std::int32_t end = span.position + last_depth(span) + 1;
    EXPECT_EQ(view.lane(group, lane).partials, partials);
    ASSERT_LT(at, items.size());
    std::int32_t next = items[at].first_key;
    EXPECT_LE(next, oldest);
    EXPECT_GT(segment_end(next), oldest) << "no item before the first that is seen";
    EXPECT_TRUE(next == 0 || segment_end(next - 1) == next) << "items begin where segments do";
    for (std::int32_t index = 0; next < end; ++index, ++at) {
      ASSERT_LT(at, items.size());
      EXPECT_EQ(items[at].lane, static_cast<std::int32_t>(lane));
      EXPECT_EQ(items[at].index, index);
      EXPECT_EQ(items[at].first_key, next);
      EXPECT_EQ(items[at].end_key, std::min<std::int64_t>(segment_end(next), end));
      next = items[at].end_key;
      partials += span.row_count;
    }
  }
  EXPECT_EQ(at, items.size());
  EXPECT_GE(view.facts_of(group).partial_row_capacity, partials);
}

/// An MTP head's wanted row is a span of its own, in a group of its own as well; the same pass writes keys before it.
TEST(PassBlock, SpansOfOnePageTableAreSettledBelowAllOfThem) {
  const std::vector<std::int32_t> pages = {5, 6}, others = {7, 8};
  LaneSpan wanted, earlier, other;
  wanted.pages = earlier.pages = pages.data();
  other.pages = others.data();
  wanted.row_count = other.row_count = 1;
  earlier.row_count = 10;
  wanted.position = 70;
  earlier.position = 60;
  other.position = 75;
  other.first_row = 1;
  earlier.first_row = 2;
  const std::vector<LaneSpan> all = {wanted, other, earlier}, few = {wanted, other};
  PassInputs inputs;
  inputs.rows = inputs.row_count = 12;
  inputs.lanes = {{all, 0}, {few, 0}};
  PassBlock block;
  block.build(inputs);
  const View view(block);
  EXPECT_EQ(view.lane(0, 0).settled, 60);
  EXPECT_EQ(view.lane(0, 1).settled, 75);
  EXPECT_EQ(view.lane(0, 2).settled, 60);
  EXPECT_EQ(view.lane(1, 0).settled, 60);
  EXPECT_EQ(view.lane(1, 1).settled, 75);
}

TEST(PassBlock, HoldsWhatLanesSay) {
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    const std::int32_t position_max = round % 3 == 0 ? 200 : round % 3 == 1 ? 9000 : 70'000;
    const auto lanes = random_lanes(random, 1 + round % 7, position_max);
    const auto spans = spans_of(lanes);
    PassInputs inputs;
    inputs.rows = spans.back().first_row + spans.back().row_count;
    inputs.row_count = inputs.rows + round % 5;
    inputs.lanes = {{spans, 0}, {spans, 100}, {spans, 4096}};
    PassBlock block;
    block.build(inputs);
    const View view(block);
    EXPECT_EQ(view.header().rows, inputs.rows);
    EXPECT_EQ(view.header().row_count, inputs.row_count);
    ASSERT_EQ(view.header().group_count, 3);
    for (std::size_t group = 0; group < 3; ++group) {
      ASSERT_EQ(view.group(group).lane_count, static_cast<std::int32_t>(lanes.size()));
      for (std::size_t lane = 0; lane < lanes.size(); ++lane) expect_lane(view, group, lane, lanes[lane]);
      expect_items(view, group, spans, inputs.lanes[group].window);
      const auto row_lane = view.list(view.group(group).row_lane, inputs.row_count);
      for (std::int64_t row = 0; row < inputs.row_count; ++row) {
        std::int32_t owner = -1;
        for (std::size_t lane = 0; lane < spans.size(); ++lane) {
          const LaneSpan& span = spans[lane];
          if (row >= span.first_row && row < span.first_row + span.row_count) owner = static_cast<std::int32_t>(lane);
        }
        EXPECT_EQ(row_lane[static_cast<std::size_t>(row)], owner) << "row " << row;
      }
    }
  }
}

TEST(PassBlock, FactsBoundEveryPassOfTheirShape) {
  std::mt19937 random(4);
  for (int round = 0; round < 40; ++round) {
    const auto lanes = random_lanes(random, 1 + round % 9, 5000);
    const auto spans = spans_of(lanes);
    PassInputs inputs;
    inputs.rows = inputs.row_count = spans.back().first_row + spans.back().row_count;
    inputs.lanes = {{spans, round % 2 == 0 ? 0 : 300}};
    PassBlock block;
    block.build(inputs);
    const View view(block);
    const Lanes facts = block.lanes(0, nullptr);
    std::int32_t widest = 0;
    std::int64_t partial_rows = 0;
    bool tree = false, replay = false;
    for (const AttentionItem& item : view.items(0)) partial_rows += spans[static_cast<std::size_t>(item.lane)].row_count;
    for (const LaneSpan& span : spans) {
      widest = std::max(widest, span.row_count);
      tree |= span.parents != nullptr;
      replay |= span.replay_tree;
    }
    EXPECT_EQ(facts.lane_count, static_cast<std::int32_t>(spans.size()));
    EXPECT_EQ(facts.any_tree, tree);
    EXPECT_EQ(facts.any_tree_replay, replay);
    EXPECT_GE(facts.rows_max, widest);
    EXPECT_GE(facts.item_capacity, view.group(0).item_count);
    EXPECT_GE(facts.partial_row_capacity, partial_rows);
    for (const std::int64_t capacity : {static_cast<std::int64_t>(facts.rows_max), facts.item_capacity,
                                        facts.partial_row_capacity}) {
      EXPECT_TRUE(capacity == 0 || std::has_single_bit(static_cast<std::uint64_t>(capacity))) << capacity;
    }
  }
}

TEST(PassBlock, KeepsListsAndRefusesTooMany) {
  const std::vector<std::int32_t> first = {5, 6, 7}, second, third = {9};
  PassInputs inputs;
  inputs.rows = 1;
  inputs.row_count = 2;
  inputs.ids = {first, second, third};
  PassBlock block;
  block.build(inputs);
  const View view(block);
  ASSERT_EQ(view.header().id_count, 3);
  EXPECT_EQ(view.list(view.header().ids[0], 3), first);
  EXPECT_EQ(view.header().id_counts[1], 0);
  EXPECT_EQ(view.list(view.header().ids[2], 1), third);
  inputs.ids.assign(kPassIdsMax + 1, first);
  EXPECT_THROW(block.build(inputs), Error);
  inputs.ids.clear();
  inputs.lanes.resize(kPassGroupsMax + 1);
  EXPECT_THROW(block.build(inputs), Error);
}

TEST(PassBlock, NoPassIsLargerThanItsBounds) {
  std::mt19937 random(23);
  for (const std::int64_t positions : {100, 2000, 40'000, 200'000}) {
    for (const int count : {1, 7, 64}) {
      PassBounds bounds;
      bounds.rows = 2048;
      bounds.lanes = count;
      bounds.positions = positions;
      bounds.groups = 2;
      const std::size_t bytes_max = PassBlock::bytes_max(bounds);
      // Lanes at the very end of what they may hold, in two groups; lists for every row.
      std::vector<std::int32_t> pages(static_cast<std::size_t>(positions / limits::kKvPageTokens + 3), 1);
      std::vector<std::vector<std::int32_t>> parents(static_cast<std::size_t>(count));
      std::vector<LaneSpan> spans(static_cast<std::size_t>(count));
      std::vector<std::int32_t> replay(limits::kTreeRowsMax);
      std::iota(replay.begin(), replay.end(), 0);
      std::int32_t rows = 0;
      for (std::size_t i = 0; i < spans.size(); ++i) {
        parents[i] = random_tree(random, static_cast<std::int32_t>(limits::kTreeRowsMax));
        spans[i].slot = 1;
        spans[i].first_row = rows;
        spans[i].row_count = static_cast<std::int32_t>(limits::kTreeRowsMax);
        spans[i].position = static_cast<std::int32_t>(positions) - spans[i].row_count;
        spans[i].pages = pages.data();
        spans[i].parents = parents[i].data();
        spans[i].commits = false;
        spans[i].replay_rows = replay.data();
        spans[i].replay_count = static_cast<std::int32_t>(replay.size());
        rows += spans[i].row_count;
      }
      const std::vector<std::int32_t> list(static_cast<std::size_t>(bounds.rows), 0);
      const std::vector<std::int32_t> draws(static_cast<std::size_t>(bounds.rows * kRowDrawWords), 0);
      PassInputs inputs;
      inputs.rows = rows;
      inputs.row_count = bounds.rows;
      inputs.lanes = {{spans, 0}, {spans, 0}};
      inputs.ids.assign(6, list);
      inputs.ids.push_back(draws);
      PassBlock block;
      block.build(inputs);
      EXPECT_LE(block.bytes(), bytes_max) << count << " lanes of " << positions;
      EXPECT_GE(8 * block.bytes() + (1u << 20), bytes_max) << "far more than is needed";
    }
  }
}

TEST(PassBlock, LanesWithoutPagesHaveNoItems) {
  LaneSpan span;
  span.slot = 2;
  span.row_count = 4;
  span.position = 7;
  PassInputs inputs;
  inputs.rows = inputs.row_count = 4;
  inputs.lanes = {{std::span(&span, 1), 0}};
  PassBlock block;
  block.build(inputs);
  const View view(block);
  EXPECT_EQ(view.group(0).item_count, 0);
  EXPECT_EQ(view.lane(0, 0).slot, 2);
  EXPECT_EQ(block.lanes(0, nullptr).item_capacity, 0);
}

}  // namespace
}  // namespace tensorfold::ops::cuda
