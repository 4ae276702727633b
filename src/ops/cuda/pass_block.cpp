// See pass_block.h.
#include "ops/cuda/pass_block.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "base/limits.h"
#include "ops/attention.h"
#include "ops/row_tree.h"

namespace tensorfold::ops::cuda {
namespace {

std::int64_t power_of_two(std::int64_t value) {
  return value <= 1 ? value : static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(value)));
}

std::int32_t depth_max(const LaneSpan& span, const RowTree& tree) {
  return span.parents != nullptr ? tree.depth_max : span.row_count - 1;
}

std::int64_t segment_begin(std::int64_t position) {
  // Each length divides the position where it begins to hold, so segments start at multiples of theirs.
  const std::int64_t size = position < 2048 ? 128 : position < 8192 ? 256 : position < 32768 ? 512 : 1024;
  return position / size * size;
}

}  // namespace

std::int32_t PassBlock::append(const std::int32_t* values, std::size_t count) {
  words_.resize((words_.size() + 3) / 4 * 4);  // 16-byte aligned, for vector loads
  const auto offset = static_cast<std::int32_t>(words_.size());
  words_.insert(words_.end(), values, values + count);
  return offset;
}

/// Of every page table, over all spans that have it: an MTP head's wanted rows are spans of their own, whose earlier neighbours the
/// same pass writes.
void PassBlock::find_settled(const PassInputs& inputs) {
  settled_.clear();
  for (const auto& lanes : inputs.lanes) {
    for (const LaneSpan& span : lanes.spans) {
      settled_.emplace_back(span.pages, span.position - (span.replay_tree ? span.replay_count : 0));
    }
  }
  std::sort(settled_.begin(), settled_.end());
}

DeviceLane PassBlock::add_lane(const LaneSpan& span, const RowTree& tree) {
  DeviceLane lane = {};
  lane.slot = span.slot;
  lane.first_row = span.first_row;
  lane.row_count = span.row_count;
  lane.position = span.position;
  lane.parents = lane.depths = lane.replay = -1;
  lane.pages = 0;
  if (span.pages != nullptr) {
    const std::int64_t keys = static_cast<std::int64_t>(span.position) + std::max(depth_max(span, tree) + 1, 0);
    lane.pages = append(span.pages, static_cast<std::size_t>((keys + limits::kKvPageTokens - 1) / limits::kKvPageTokens));
  }
  if (span.parents != nullptr) {
    lane.parents = append(span.parents, static_cast<std::size_t>(span.row_count));
    lane.depths = append(tree.depth.data(), static_cast<std::size_t>(span.row_count));
  }
  lane.settled = std::lower_bound(settled_.begin(), settled_.end(), std::pair(span.pages, INT32_MIN))->second;
  lane.replay_count = span.replay_count;
  if (span.replay_count > 0) lane.replay = append(span.replay_rows, static_cast<std::size_t>(span.replay_count));
  lane.commits = span.commits;
  lane.replay_tree = span.replay_tree;
  lane.mutual = span.mutual;
  return lane;
}

void PassBlock::add_items(const PassInputs::Lanes& lanes, const std::vector<RowTree>& trees, std::vector<DeviceLane>& device,
                          PassGroup& group, Lanes& facts) {
  std::vector<AttentionItem> items;
  std::int64_t partial_rows = 0;
  for (std::size_t index = 0; index < lanes.spans.size(); ++index) {
    const LaneSpan& span = lanes.spans[index];
    if (span.pages == nullptr || span.row_count <= 0 || span.row_count > kWindowRowsMax) continue;
    device[index].partials = static_cast<std::int32_t>(partial_rows);
    const std::int64_t end = static_cast<std::int64_t>(span.position) + depth_max(span, trees[index]) + 1;
    // The oldest key that the first row sees.
    std::int64_t key = lanes.window > 0 ? std::max<std::int64_t>(0, static_cast<std::int64_t>(span.position) - lanes.window + 1) : 0;
    key = segment_begin(key);
    for (std::int32_t place = 0; key < end; ++place, key = segment_end(key)) {
      AttentionItem item;
      item.lane = static_cast<std::int32_t>(index);
      item.first_key = static_cast<std::int32_t>(key);
      item.end_key = static_cast<std::int32_t>(std::min(segment_end(key), end));
      item.index = place;
      items.push_back(item);
      partial_rows += span.row_count;
    }
  }
  std::stable_sort(items.begin(), items.end(), [](const AttentionItem& a, const AttentionItem& b) {
    return a.end_key - a.first_key > b.end_key - b.first_key;
  });
  group.item_count = static_cast<std::int32_t>(items.size());
  group.items = append_structs(items);
  facts.item_capacity = power_of_two(static_cast<std::int64_t>(items.size()));
  facts.partial_row_capacity = power_of_two(partial_rows);
}

void PassBlock::add_group(const PassInputs::Lanes& lanes, std::int64_t row_count, PassGroup& group, Lanes& facts) {
  std::vector<DeviceLane> device;
  std::vector<RowTree> trees;
  std::vector<std::int32_t> row_lane(static_cast<std::size_t>(row_count), -1);
  for (const LaneSpan& span : lanes.spans) {
    TF_ASSERT(span.first_row >= 0 && span.row_count >= 0 && span.first_row + span.row_count <= row_count);
    std::fill_n(row_lane.begin() + span.first_row, span.row_count, static_cast<std::int32_t>(device.size()));
    trees.push_back(span.parents != nullptr ? row_tree(span) : RowTree{});
    device.push_back(add_lane(span, trees.back()));
    facts.rows_max = std::max(facts.rows_max, span.row_count);
    facts.any_tree |= span.parents != nullptr;
    facts.any_tree_replay |= span.replay_tree;
  }
  facts.rows_max = static_cast<std::int32_t>(power_of_two(facts.rows_max));
  facts.lane_count = static_cast<std::int32_t>(device.size());
  facts.row_count = row_count;
  group.lane_count = facts.lane_count;
  add_items(lanes, trees, device, group, facts);
  group.lanes = append_structs(device);
  group.row_lane = append(row_lane.data(), row_lane.size());
}

std::size_t PassBlock::bytes_max(const PassBounds& bounds) {
  constexpr std::int64_t kWord = sizeof(std::int32_t), kAlignment = 16;
  // A drafter's pass may have a group a layer and two spans a lane (pairs whose result is wanted, and the others).
  const std::int64_t groups = std::max<std::int64_t>(bounds.groups, 4), spans = 2 * bounds.lanes;
  const std::int64_t positions = bounds.positions + kWindowRowsMax;
  const std::int64_t pages = positions / limits::kKvPageTokens + 1;
  std::int64_t items = 1;
  for (std::int64_t key = 0; key < positions; key = segment_end(key)) ++items;
  const std::int64_t lists = 5 * kAlignment + 2 * limits::kTreeRowsMax * kWord + limits::kWideWindowRowsMax * kWord;
  const std::int64_t span = static_cast<std::int64_t>(sizeof(DeviceLane)) + pages * kWord + lists +
                            items * static_cast<std::int64_t>(sizeof(AttentionItem));
  const std::int64_t group = spans * span + bounds.rows * kWord + 4 * kAlignment;
  const std::int64_t ids = bounds.rows * kWord * (kPassIdsMax + kRowDrawWords) + kPassIdsMax * kAlignment;
  return sizeof(PassHeader) + static_cast<std::size_t>(groups * group + ids);
}

void PassBlock::build(const PassInputs& inputs) {
  if (inputs.lanes.size() > kPassGroupsMax || inputs.ids.size() > kPassIdsMax) {
    fail(ErrorCode::kInternal, "CUDA: a pass of {} cache groups and {} lists; {} and {} are built in",
         inputs.lanes.size(), inputs.ids.size(), kPassGroupsMax, kPassIdsMax);
  }
  PassHeader header = {};
  words_.assign(sizeof(PassHeader) / sizeof(std::int32_t), 0);
  facts_.assign(inputs.lanes.size(), {});
  header.rows = static_cast<std::int32_t>(inputs.rows);
  header.row_count = static_cast<std::int32_t>(inputs.row_count);
  header.group_count = static_cast<std::int32_t>(inputs.lanes.size());
  header.id_count = static_cast<std::int32_t>(inputs.ids.size());
  find_settled(inputs);
  for (std::size_t group = 0; group < inputs.lanes.size(); ++group) {
    add_group(inputs.lanes[group], inputs.row_count, header.groups[group], facts_[group]);
  }
  for (std::size_t list = 0; list < inputs.ids.size(); ++list) {
    header.ids[list] = append(inputs.ids[list].data(), inputs.ids[list].size());
    header.id_counts[list] = static_cast<std::int32_t>(inputs.ids[list].size());
  }
  std::memcpy(words_.data(), &header, sizeof(header));
}

Lanes PassBlock::lanes(std::size_t group, const PassHeader* header) const {
  Lanes result = facts_[group];
  result.ref = {header, static_cast<std::int32_t>(group)};
  return result;
}

}  // namespace tensorfold::ops::cuda
