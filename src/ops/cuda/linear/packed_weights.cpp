// Loading a linear layer: which rows share a part, and tiles packed by all processors while the copy engine takes the ones
// before. Host memory is three staging buffers, whatever the checkpoint's size. Device memory is what the format takes: at
// most 1.06 times the file's bytes where K is a multiple of 128 and rows of 16 (Q4_K: each half of a superblock keeps d and
// dmin, 5.6 %); up to 127 columns and 15 rows are padding otherwise.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "base/thread_pool.h"
#include "ops/cuda/cuda_error.h"
#include "ops/cuda/cuda_memory.h"
#include "ops/cuda/cuda_operations.h"
#include "ops/cuda/linear/cuda_linear.h"
#include "ops/cuda/linear/pack_tile.h"
#include "ops/linear_source.h"

namespace tensorfold::ops::cuda {
namespace {

constexpr std::size_t kStagingBytes = 16u << 20;
constexpr std::size_t kStagingBuffers = 3;
constexpr std::size_t kAlonePackedBytes = 256u << 10;  // waking threads takes longer than packing so much

std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

/// A part before it has memory: which matrices it stacks.
struct PartPlan {
  PackedPart part;
  PackedStorage storage;
  std::size_t first_view = 0, view_count = 0;
};

}  // namespace

/// Threads and staging that loads share.
class WeightLoader {
 public:
  static std::shared_ptr<WeightLoader> shared();

  std::unique_ptr<CudaLinear> load(CudaContext& context, const LinearSource& source);

 private:
  /// Pinned memory that is free again when its copy is done.
  struct Staging {
    ~Staging() {
      if (copied != nullptr) cudaEventDestroy(copied);
    }
    PinnedBytes memory;
    cudaEvent_t copied = nullptr;
  };

  ScaleRange range_of(const WeightView& view);
  std::vector<PartPlan> plan(const LinearSource& source);
  void upload_part(cudaStream_t stream, const LinearSource& source, const PartPlan& plan, std::uint8_t* to);
  std::uint8_t* next_staging(std::size_t bytes);
  void copy_staged(cudaStream_t stream, void* to, std::size_t bytes);

  std::mutex mutex_;
  ThreadPool pool_{std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 32)};
  std::vector<TilePacker> packers_ = std::vector<TilePacker>(static_cast<std::size_t>(pool_.thread_count()));
  std::array<Staging, kStagingBuffers> staging_;
  std::size_t turn_ = 0;
};

std::shared_ptr<WeightLoader> WeightLoader::shared() {
  static std::mutex mutex;
  static std::weak_ptr<WeightLoader> known;
  std::lock_guard lock(mutex);
  std::shared_ptr<WeightLoader> loader = known.lock();
  if (loader == nullptr) known = loader = std::make_shared<WeightLoader>();
  return loader;
}

ScaleRange WeightLoader::range_of(const WeightView& view) {
  constexpr std::int64_t kRowsPerItem = 64;
  const std::int64_t rows = view.experts * view.rows;
  std::vector<ScaleRange> ranges(static_cast<std::size_t>(divide_up(rows, kRowsPerItem)));
  const std::int64_t per_loop = ThreadPool::kItemsMax;
  for (std::int64_t first = 0; first < static_cast<std::int64_t>(ranges.size()); first += per_loop) {
    const std::int64_t count = std::min(per_loop, static_cast<std::int64_t>(ranges.size()) - first);
    pool_.parallel_for(count, [&](std::int64_t item, int) {
      const std::int64_t row = (first + item) * kRowsPerItem;
      ranges[static_cast<std::size_t>(first + item)] = scale_range(view, row, std::min(kRowsPerItem, rows - row));
    });
  }
  ScaleRange range;
  for (const ScaleRange& other : ranges) range.join(other);
  return range;
}

std::vector<PartPlan> WeightLoader::plan(const LinearSource& source) {
  std::vector<PartPlan> plans;
  std::vector<ScaleRange> ranges;
  std::int64_t first_row = 0;
  for (std::size_t i = 0; i < source.parts.size(); ++i) {
    const WeightView& view = source.parts[i];
    const ScaleRange range = range_of(view);
    PackedStorage storage = packed_storage(view);
    if (range.extreme) storage = {16, ScaleKind::kNone, kBlockColumns, 0};
    if (plans.empty() || !(plans.back().storage == storage)) {
      PartPlan next;
      next.storage = storage;
      next.first_view = i;
      next.part.first_row = static_cast<std::int32_t>(first_row);
      plans.push_back(next);
      ranges.emplace_back();
    }
    plans.back().view_count += 1;
    plans.back().part.rows += static_cast<std::int32_t>(view.rows);
    ranges.back().join(range);
    first_row += view.rows;
  }
  const std::int64_t columns = source.parts.front().columns;
  const std::int64_t segment = segment_length(static_cast<std::int32_t>(columns));
  for (std::size_t i = 0; i < plans.size(); ++i) {
    PackedPart& part = plans[i].part;
    const PackedStorage& storage = plans[i].storage;
    part.bits = storage.bits;
    part.scale_kind = storage.scale_kind;
    part.group_size = storage.group_size;
    part.group_shift = std::countr_zero(static_cast<unsigned>(storage.group_size));
    part.zero_point = storage.zero_point;
    part.small_scales = storage.scale_kind == ScaleKind::kBf16Pair && storage.bits == 4 && storage.group_size == 64 &&
                        ranges[i].small;
    part.block_bytes = packed_block_bytes(storage);
    part.tiles = static_cast<std::int32_t>(divide_up(part.rows, kTileRows));
    part.columns = static_cast<std::int32_t>(columns);
    part.k_blocks = static_cast<std::int32_t>(divide_up(columns, kBlockColumns));
    part.segment_blocks = static_cast<std::int32_t>(segment / kBlockColumns);
    part.segments = static_cast<std::int32_t>(divide_up(columns, segment));
    part.segment_tree = source.segment_tree;
    part.paired_halves = source.paired_halves && plans.size() == 1 && part.rows % kTileRows == 0;
    part.expert_bytes = static_cast<std::int64_t>(part.tiles) * part.k_blocks * part.block_bytes;
  }
  return plans;
}

std::uint8_t* WeightLoader::next_staging(std::size_t bytes) {
  turn_ = (turn_ + 1) % kStagingBuffers;
  Staging& staging = staging_[turn_];
  if (staging.copied == nullptr) {
    check(cudaEventCreateWithFlags(&staging.copied, cudaEventDisableTiming), "creating an event");
  } else {
    check(cudaEventSynchronize(staging.copied), "copying weights to the GPU");
  }
  return reinterpret_cast<std::uint8_t*>(staging.memory.reserve(bytes));
}

void WeightLoader::copy_staged(cudaStream_t stream, void* to, std::size_t bytes) {
  Staging& staging = staging_[turn_];
  check(cudaMemcpyAsync(to, staging.memory.reserve(bytes), bytes, cudaMemcpyHostToDevice, stream),
        "copying weights to the GPU");
  check(cudaEventRecord(staging.copied, stream), "copying weights to the GPU");
}

namespace {

/// Where row `row` of a part is stored.
TileRow find_row(const LinearSource& source, const PartPlan& plan, std::int64_t expert, std::int64_t row) {
  for (std::size_t i = plan.first_view; i < plan.first_view + plan.view_count; ++i) {
    const WeightView& view = source.parts[i];
    if (row < view.rows) {
      const bool ordered = !source.row_orders.empty() && !source.row_orders[i].empty();
      const std::int64_t stored = ordered ? source.row_orders[i][static_cast<std::size_t>(row)] : row;
      return {&view, expert * view.rows + stored};
    }
    row -= view.rows;
  }
  return {};
}

}  // namespace

void WeightLoader::upload_part(cudaStream_t stream, const LinearSource& source, const PartPlan& plan, std::uint8_t* to) {
  const PackedPart& part = plan.part;
  const std::size_t tile_bytes = static_cast<std::size_t>(part.k_blocks) * static_cast<std::size_t>(part.block_bytes);
  const std::int64_t tiles = source.parts.front().experts * part.tiles;
  const std::int64_t tiles_at_once = std::clamp<std::int64_t>(static_cast<std::int64_t>(kStagingBytes / tile_bytes), 1,
                                                              std::min(tiles, ThreadPool::kItemsMax));
  for (std::int64_t first = 0; first < tiles; first += tiles_at_once) {
    const std::int64_t count = std::min(tiles_at_once, tiles - first);
    std::uint8_t* staged = next_staging(static_cast<std::size_t>(tiles_at_once) * tile_bytes);
    const auto pack = [&](std::int64_t item, int thread) {
      const std::int64_t expert = (first + item) / part.tiles;
      const auto tile = static_cast<std::int32_t>((first + item) % part.tiles);
      std::array<TileRow, kTileRows> rows;
      for (std::int32_t row = 0; row < kTileRows; ++row) {
        rows[static_cast<std::size_t>(row)] = find_row(source, plan, expert, packed_row(part, tile, row));
      }
      packers_[static_cast<std::size_t>(thread)].pack(part, rows, staged + static_cast<std::size_t>(item) * tile_bytes);
    };
    if (static_cast<std::size_t>(count) * tile_bytes <= kAlonePackedBytes) {
      for (std::int64_t item = 0; item < count; ++item) pack(item, 0);
    } else {
      pool_.parallel_for(count, pack);
    }
    copy_staged(stream, to + static_cast<std::size_t>(first) * tile_bytes, static_cast<std::size_t>(count) * tile_bytes);
  }
}

std::unique_ptr<CudaLinear> WeightLoader::load(CudaContext& context, const LinearSource& source) {
  check_linear_source(source);
  std::lock_guard lock(mutex_);
  auto result = std::make_unique<CudaLinear>();
  const auto allocate = [&](std::size_t bytes) {
    result->memory_.push_back(context.allocate(bytes, source.name.c_str()));
    result->packed_bytes_ += bytes;
    return static_cast<std::uint8_t*>(result->memory_.back()->data());
  };
  result->experts_ = source.parts.front().experts;
  result->columns_ = source.parts.front().columns;
  const float* bias = nullptr;
  if (!source.bias.empty()) {
    const std::size_t bytes = source.bias.size() * sizeof(float);
    bias = reinterpret_cast<const float*>(allocate(bytes));
    std::memcpy(next_staging(bytes), source.bias.data(), bytes);
    copy_staged(context.stream(), const_cast<float*>(bias), bytes);
  }
  for (const PartPlan& plan : plan(source)) {
    PackedPart part = plan.part;
    std::uint8_t* blocks = allocate(static_cast<std::size_t>(result->experts_ * part.expert_bytes));
    upload_part(context.stream(), source, plan, blocks);
    part.blocks = blocks;
    part.bias = bias != nullptr ? bias + part.first_row : nullptr;
    result->rows_ += part.rows;
    result->parts_.push_back(part);
  }
  return result;
}

std::unique_ptr<Linear> load_linear(CudaContext& context, const LinearSource& source) {
  return WeightLoader::shared()->load(context, source);
}

std::shared_ptr<void> weight_loader() {
  return WeightLoader::shared();
}

}  // namespace tensorfold::ops::cuda
