// Builds the block of pass_data.h from host arrays: the one place that turns LaneSpans into what kernels read. Apart from
// passes and graphs because operations outside a pass need the same for their own lanes.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "ops/backend.h"
#include "ops/cuda/cuda_context.h"
#include "ops/cuda/pass_data.h"
#include "ops/row_tree.h"

namespace tensorfold::ops::cuda {

class PassBlock {
 public:
  /// Throws Error(kInternal) when the pass has more groups or lists than the header holds.
  void build(const PassInputs& inputs);
  const std::vector<std::int32_t>& words() const { return words_; }
  std::size_t bytes() const { return words_.size() * sizeof(std::int32_t); }

  /// No pass within `bounds` has a larger block.
  static std::size_t bytes_max(const PassBounds& bounds);

  /// Group and list facts for launches; `header` is where the block will stand in device memory.
  Lanes lanes(std::size_t group, const PassHeader* header) const;
  std::size_t group_count() const { return facts_.size(); }

 private:
  void add_group(const PassInputs::Lanes& lanes, std::int64_t row_count, PassGroup& group, Lanes& facts);
  DeviceLane add_lane(const LaneSpan& span, const RowTree& tree);
  void find_settled(const PassInputs& inputs);
  void add_items(const PassInputs::Lanes& lanes, const std::vector<RowTree>& trees, std::vector<DeviceLane>& device,
                 PassGroup& group, Lanes& facts);
  std::int32_t append(const std::int32_t* values, std::size_t count);
  template <typename Struct>
  std::int32_t append_structs(const std::vector<Struct>& values) {
    return append(reinterpret_cast<const std::int32_t*>(values.data()), values.size() * sizeof(Struct) / 4);
  }

  std::vector<std::pair<const std::int32_t*, std::int32_t>> settled_;  // page table, first key that the pass may write; in order
  std::vector<std::int32_t> words_;
  std::vector<Lanes> facts_;
};

}  // namespace tensorfold::ops::cuda
