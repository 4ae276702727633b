// Attention on the CPU: the layout of a page and how the work is cut into items. The arithmetic is in
// kernels_attention.inl.
//
// Page: for each kv head, keys [4 blocks of 16 keys][head_dim / 2][16 keys][2], then values [32 key
// pairs][head_dim padded to 16][2], all bf16. Both are what dot_block walks: sixteen columns of pairs along the sum.
//
// An item is a block of query rows (some rows times all heads of one kv head, so that keys and values are read once for
// them) over all their segments, or, when such blocks are too few to fill the threads, over a run of segments. Then
// every segment's record is kept, and whoever finishes a block's last run folds them in ascending order: the same
// function in the same order as within one item, so the cut can't be seen in a bit.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "base/error.h"
#include "base/limits.h"
#include "ops/cpu/cpu_operations.h"

namespace tensorfold::ops::cpu {
namespace {

static_assert(kTileKeys == limits::kKvPageTokens);

constexpr std::int64_t kBlockQueryRows = 32;
constexpr float kLog2E = 1.44269504f;

struct PageLayout {
  explicit PageLayout(const KvGeometry& geometry)
      : head_dim(geometry.head_dim),
        width(round_up_16(geometry.head_dim)),
        head_elements(kTileKeys * (head_dim + width)),
        bytes(static_cast<std::size_t>(geometry.kv_heads * head_elements) * sizeof(std::uint16_t)) {
    TF_ASSERT(geometry.kv_heads > 0 && head_dim > 0 && head_dim % 2 == 0);
  }
  std::uint16_t* keys(const KvPool& pool, std::int32_t page, std::int64_t kv_head) const {
    return reinterpret_cast<std::uint16_t*>(static_cast<std::byte*>(pool.pages) +
                                            static_cast<std::size_t>(page) * pool.page_bytes) +
           kv_head * head_elements;
  }
  std::uint16_t* values(const KvPool& pool, std::int32_t page, std::int64_t kv_head) const {
    return keys(pool, page, kv_head) + kTileKeys * head_dim;
  }
  std::int64_t head_dim;
  std::int64_t width;
  std::int64_t head_elements;
  std::size_t bytes;
};

void scatter_key(std::uint16_t* keys, std::int64_t head_dim, std::int64_t key, const std::uint16_t* x) {
  std::uint16_t* block = keys + (key / 16) * 16 * head_dim + (key % 16) * 2;
  for (std::int64_t i = 0; i < head_dim; i += 2) std::memcpy(block + i * 16, x + i, 2 * sizeof(std::uint16_t));
}

void scatter_value(std::uint16_t* values, std::int64_t width, std::int64_t head_dim, std::int64_t key,
                   const std::uint16_t* x) {
  std::uint16_t* pair = values + (key / 2) * width * 2 + key % 2;
  for (std::int64_t i = 0; i < head_dim; ++i) pair[2 * i] = x[i];
}

struct PreparedRow {
  const LaneSpan* lane;
  std::int32_t row;
};

class RowPreparation {
 public:
  RowPreparation(CpuContext& context, const AttentionPrepareParams& params, float* scratch)
      : kernels_(context.kernels),
        p_(params),
        layout_(params.geometry),
        half_(params.rope.rotary_dims / 2),
        cosines_(scratch),
        sines_(scratch + round_up_16(half_)),
        normed_(sines_ + round_up_16(half_)),
        rounded_(reinterpret_cast<std::uint16_t*>(normed_ + layout_.width)) {}

  static std::int64_t scratch_floats(const AttentionPrepareParams& params) {
    return 2 * round_up_16(params.rope.rotary_dims / 2) + 2 * round_up_16(params.geometry.head_dim);
  }

  void run(const PreparedRow& at) {
    if (half_ > 0) split_table_row(p_.rope_positions[at.row]);
    const float* input = p_.qkv + at.row * p_.stride;
    std::uint16_t* q_out = bf16_of(p_.q_out) + static_cast<std::int64_t>(at.row) * p_.heads * layout_.head_dim;
    for (std::int32_t h = 0; h < p_.heads; ++h) {
      prepare(input + p_.q_offset + h * p_.q_head_stride, p_.q_norm, half_, q_out + h * layout_.head_dim);
    }
    const std::int64_t position = static_cast<std::int64_t>(at.lane->position) + (at.row - at.lane->first_row);
    const std::int32_t page = at.lane->pages[position / kTileKeys];
    TF_ASSERT(page >= 0);
    const std::int64_t key = position % kTileKeys;
    for (std::int64_t g = 0; g < p_.geometry.kv_heads; ++g) {
      prepare(input + p_.k_offset + g * layout_.head_dim, p_.k_norm, half_, rounded_);
      scatter_key(layout_.keys(p_.pool, page, g), layout_.head_dim, key, rounded_);
      prepare(input + p_.v_offset + g * layout_.head_dim, nullptr, 0, rounded_);
      scatter_value(layout_.values(p_.pool, page, g), layout_.width, layout_.head_dim, key, rounded_);
    }
  }

 private:
  void split_table_row(std::int32_t table_row) {
    TF_ASSERT(table_row >= 0 && table_row < p_.rope.positions);
    const float* cos_sin = p_.rope.cos_sin + static_cast<std::int64_t>(table_row) * half_ * 2;
    for (std::int64_t i = 0; i < half_; ++i) {
      cosines_[i] = cos_sin[2 * i];
      sines_[i] = cos_sin[2 * i + 1];
    }
  }
  void prepare(const float* x, const float* norm_weight, std::int64_t half, std::uint16_t* out) {
    HeadPrepare head;
    head.x = x;
    head.norm_weight = norm_weight;
    head.epsilon = p_.epsilon;
    head.head_dim = layout_.head_dim;
    head.cosines = cosines_;
    head.sines = sines_;
    head.rotary_half = half;
    head.scratch = normed_;
    head.out = out;
    kernels_.prepare_head(head);
  }

  const OpsKernels& kernels_;
  const AttentionPrepareParams& p_;
  PageLayout layout_;
  std::int64_t half_;
  float* cosines_;
  float* sines_;
  float* normed_;
  std::uint16_t* rounded_;
};

/// Query rows of one kv head that go through the tiles together.
struct QueryBlock {
  const LaneSpan* lane = nullptr;
  std::int32_t kv_head = 0;
  std::int32_t first_row = 0;  // rows of the pass
  std::int32_t row_count = 0;
  std::int64_t position = 0;           // of the first row
  std::vector<std::int64_t> segments;  // first key of every segment with visible keys, then the end; ascending
  std::int64_t runs = 1;               // items that the segments are cut into
  std::int64_t records = 0;            // offset of kept records: [segment][query row]; used when runs > 1
};

struct Item {
  std::int32_t block = 0;
  std::int32_t run = 0;
};

class AttentionPass {
 public:
  AttentionPass(CpuContext& context, const AttentionParams& params)
      : context_(context),
        kernels_(context.kernels),
        p_(params),
        layout_(params.geometry),
        group_(params.heads / params.geometry.kv_heads),
        record_(record_floats(layout_.head_dim)),
        rows_per_block_(std::max<std::int64_t>(1, kBlockQueryRows / group_)),
        query_rows_(rows_per_block_ * group_),
        scale_log2_(params.scale * kLog2E) {}

  void run() {
    plan_blocks();
    if (blocks_.empty()) return;
    plan_items();
    const std::int64_t per_thread = thread_floats();
    float* scratch = context_.thread_scratch.floats(per_thread * context_.pool.thread_count());
    records_ = kept_floats_ > 0 ? context_.shared_scratch.floats(kept_floats_) : nullptr;
    remaining_ = std::make_unique<std::atomic<std::int64_t>[]>(blocks_.size());
    for (std::size_t i = 0; i < blocks_.size(); ++i) remaining_[i].store(blocks_[i].runs, std::memory_order_relaxed);
    run_items(context_, static_cast<std::int64_t>(items_.size()), work_, [&](std::int64_t item, int thread) {
      run_item(items_[static_cast<std::size_t>(item)], scratch + per_thread * thread);
    });
  }

 private:
  std::int64_t first_visible(std::int64_t position) const {
    return p_.window > 0 ? std::max<std::int64_t>(0, position - p_.window + 1) : 0;
  }

  void plan_blocks() {
    for (std::int32_t l = 0; l < p_.lane_count; ++l) {
      const LaneSpan& lane = p_.lanes[l];
      for (std::int32_t row = 0; row < lane.row_count; row += static_cast<std::int32_t>(rows_per_block_)) {
        QueryBlock block;
        block.lane = &lane;
        block.first_row = lane.first_row + row;
        block.row_count = std::min(static_cast<std::int32_t>(rows_per_block_), lane.row_count - row);
        block.position = static_cast<std::int64_t>(lane.position) + row;
        const std::int64_t end = block.position + block.row_count, begin = first_visible(block.position);
        std::int64_t key = begin;
        while (key < end) {
          block.segments.push_back(key);
          key = segment_end(key);
        }
        block.segments.push_back(key);
        work_ += (end - begin) * block.row_count * p_.heads * (layout_.head_dim + 16) / 8;
        for (std::int32_t g = 0; g < p_.geometry.kv_heads; ++g) {
          block.kv_head = g;
          blocks_.push_back(block);
        }
      }
    }
  }

  /// Cuts blocks at segment ends while there are fewer items than keep the threads evenly busy.
  void plan_items() {
    const std::int64_t threads = context_.pool.thread_count();
    const auto block_count = static_cast<std::int64_t>(blocks_.size());
    const bool cut = threads > 1 && work_ >= kParallelWorkMin && block_count < 3 * threads;
    const std::int64_t runs_wanted = cut ? (4 * threads + block_count - 1) / block_count : 1;
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      QueryBlock& block = blocks_[i];
      const auto segments = static_cast<std::int64_t>(block.segments.size()) - 1;
      block.runs = std::min(segments, runs_wanted);
      if (block.runs > 1) {
        block.records = kept_floats_;
        kept_floats_ += segments * query_rows_ * record_;
      }
      for (std::int64_t run = 0; run < block.runs; ++run) {
        items_.push_back({static_cast<std::int32_t>(i), static_cast<std::int32_t>(run)});
      }
    }
    // Long items first, so that the last ones to finish are short.
    std::stable_sort(items_.begin(), items_.end(), [&](const Item& a, const Item& b) { return cost(a) > cost(b); });
  }

  std::int64_t cost(const Item& item) const {
    const QueryBlock& block = blocks_[static_cast<std::size_t>(item.block)];
    return (block.segments.back() - block.segments.front()) * block.row_count / block.runs;
  }

  struct Workspace {
    float* q;
    float* scores;
    std::uint32_t* masks;
    float* open;    // records of the segment at hand
    float* merged;  // records of all segments so far
    std::int32_t* first;
    std::int32_t* last;
    std::int32_t* started;  // whether merged holds anything, by query row
  };

  std::int64_t thread_floats() const {
    return round_up_16(query_rows_ * layout_.head_dim) + query_rows_ * (kTileKeys + kTilePairs + 2 * record_) +
           3 * round_up_16(query_rows_);
  }

  Workspace workspace(float* at) const {
    Workspace w;
    const auto take = [&](std::int64_t count) {
      float* taken = at;
      at += round_up_16(count);
      return taken;
    };
    w.q = take(query_rows_ * layout_.head_dim);
    w.scores = take(query_rows_ * kTileKeys);
    w.masks = reinterpret_cast<std::uint32_t*>(take(query_rows_ * kTilePairs));
    w.open = take(query_rows_ * record_);
    w.merged = take(query_rows_ * record_);
    w.first = reinterpret_cast<std::int32_t*>(take(query_rows_));
    w.last = reinterpret_cast<std::int32_t*>(take(query_rows_));
    w.started = reinterpret_cast<std::int32_t*>(take(query_rows_));
    return w;
  }

  void run_item(const Item& item, float* scratch) {
    const QueryBlock& block = blocks_[static_cast<std::size_t>(item.block)];
    const Workspace w = workspace(scratch);
    const std::int64_t query_rows = block.row_count * group_;
    const std::uint16_t* q = bf16_of(p_.q);
    for (std::int32_t r = 0; r < block.row_count; ++r) {
      const std::int64_t row = block.first_row + r;
      kernels_.widen(q + (row * p_.heads + block.kv_head * group_) * layout_.head_dim, group_ * layout_.head_dim,
                     w.q + r * group_ * layout_.head_dim);
    }
    std::fill_n(w.started, query_rows, 0);
    const auto segments = static_cast<std::int64_t>(block.segments.size()) - 1;
    const std::int64_t begin = segments * item.run / block.runs, end = segments * (item.run + 1) / block.runs;
    for (std::int64_t s = begin; s < end; ++s) {
      float* open = block.runs > 1 ? records_ + block.records + s * query_rows_ * record_ : w.open;
      run_segment(block, s, w, open);
      if (block.runs == 1) fold_segment(block, s, open, w);
    }
    if (block.runs > 1) {
      if (remaining_[static_cast<std::size_t>(item.block)].fetch_sub(1, std::memory_order_acq_rel) != 1) return;
      for (std::int64_t s = 0; s < segments; ++s) {
        fold_segment(block, s, records_ + block.records + s * query_rows_ * record_, w);
      }
    }
    finish(block, w);
  }

  struct RowRange {
    std::int64_t begin, end;
  };

  /// Rows of the block that see a key in [first, end): a run, as positions ascend.
  RowRange rows_seeing(const QueryBlock& block, std::int64_t first, std::int64_t end) const {
    const std::int64_t from = std::max<std::int64_t>(0, first - block.position);
    std::int64_t to = block.row_count;
    if (p_.window > 0) to = std::min(to, end - 1 + p_.window - block.position);
    return {from, std::max(from, to)};
  }

  void run_segment(const QueryBlock& block, std::int64_t s, const Workspace& w, float* open) {
    const std::int64_t first_key = block.segments[static_cast<std::size_t>(s)];
    const std::int64_t end_key = std::min(segment_end(first_key), block.position + block.row_count);
    const RowRange seeing = rows_seeing(block, first_key, end_key);
    for (std::int64_t i = seeing.begin * group_; i < seeing.end * group_; ++i) {
      kernels_.attention_open(open + i * record_, layout_.head_dim);
    }
    for (std::int64_t tile = first_key / kTileKeys; tile * kTileKeys < end_key; ++tile) {
      run_tile(block, tile, w, open);
    }
    for (std::int64_t i = seeing.begin * group_; i < seeing.end * group_; ++i) {
      kernels_.attention_close(open + i * record_);
    }
  }

  void run_tile(const QueryBlock& block, std::int64_t tile, const Workspace& w, float* open) {
    const std::int64_t tile_key = tile * kTileKeys;
    const RowRange seeing = rows_seeing(block, tile_key, tile_key + kTileKeys);
    if (seeing.begin == seeing.end) return;
    for (std::int64_t r = seeing.begin; r < seeing.end; ++r) {
      const std::int64_t position = block.position + r;
      const std::int64_t first = std::max<std::int64_t>(0, first_visible(position) - tile_key);
      const std::int64_t last = std::min<std::int64_t>(kTileKeys - 1, position - tile_key);
      std::fill_n(w.first + (r - seeing.begin) * group_, group_, static_cast<std::int32_t>(first));
      std::fill_n(w.last + (r - seeing.begin) * group_, group_, static_cast<std::int32_t>(last));
    }
    const std::int32_t page = block.lane->pages[tile];
    TF_ASSERT(page >= 0);
    AttentionTile t;
    t.keys = reinterpret_cast<const std::uint32_t*>(layout_.keys(p_.pool, page, block.kv_head));
    t.values = reinterpret_cast<const std::uint32_t*>(layout_.values(p_.pool, page, block.kv_head));
    t.head_dim = layout_.head_dim;
    t.q = w.q + seeing.begin * group_ * layout_.head_dim;
    t.rows = (seeing.end - seeing.begin) * group_;
    t.first = w.first;
    t.last = w.last;
    t.scale_log2 = scale_log2_;
    t.scores = w.scores;
    t.masks = w.masks;
    t.records = open + seeing.begin * group_ * record_;
    kernels_.attention_tile(t);
  }

  void fold_segment(const QueryBlock& block, std::int64_t s, const float* open, const Workspace& w) {
    const std::int64_t first_key = block.segments[static_cast<std::size_t>(s)];
    const std::int64_t end_key = std::min(segment_end(first_key), block.position + block.row_count);
    const RowRange seeing = rows_seeing(block, first_key, end_key);
    for (std::int64_t i = seeing.begin * group_; i < seeing.end * group_; ++i) {
      if (w.started[i] != 0) {
        kernels_.attention_merge(w.merged + i * record_, open + i * record_, layout_.head_dim);
      } else {
        std::memcpy(w.merged + i * record_, open + i * record_, static_cast<std::size_t>(record_) * sizeof(float));
        w.started[i] = 1;
      }
    }
  }

  void finish(const QueryBlock& block, const Workspace& w) {
    for (std::int64_t i = 0; i < block.row_count * group_; ++i) {
      const std::int64_t row = block.first_row + i / group_, head = block.kv_head * group_ + i % group_;
      const float* gate =
          p_.gate == nullptr ? nullptr : p_.gate + row * p_.gate_stride + p_.gate_offset + head * p_.gate_head_stride;
      kernels_.attention_finish(w.merged + i * record_, layout_.head_dim, gate,
                                bf16_of(p_.out) + (row * p_.heads + head) * layout_.head_dim);
    }
  }

  CpuContext& context_;
  const OpsKernels& kernels_;
  const AttentionParams& p_;
  PageLayout layout_;
  std::int64_t group_;
  std::int64_t record_;
  std::int64_t rows_per_block_;
  std::int64_t query_rows_;
  float scale_log2_;
  std::vector<QueryBlock> blocks_;
  std::vector<Item> items_;
  std::unique_ptr<std::atomic<std::int64_t>[]> remaining_;
  std::int64_t work_ = 0;
  std::int64_t kept_floats_ = 0;
  float* records_ = nullptr;
};

}  // namespace

std::size_t kv_page_bytes(const KvGeometry& geometry) {
  return PageLayout(geometry).bytes;
}

void attention_prepare(CpuContext& context, const AttentionPrepareParams& p) {
  TF_ASSERT(p.pool.page_bytes >= PageLayout(p.geometry).bytes);
  TF_ASSERT(p.rope.rotary_dims % 2 == 0 && p.rope.rotary_dims <= p.geometry.head_dim);
  std::vector<PreparedRow> rows;
  for (std::int32_t l = 0; l < p.lane_count; ++l) {
    for (std::int32_t r = 0; r < p.lanes[l].row_count; ++r) rows.push_back({&p.lanes[l], p.lanes[l].first_row + r});
  }
  const auto count = static_cast<std::int64_t>(rows.size());
  const std::int64_t blocks = std::min<std::int64_t>(count, 4ll * context.pool.thread_count());
  const std::int64_t per_thread = RowPreparation::scratch_floats(p);
  float* scratch = context.thread_scratch.floats(per_thread * context.pool.thread_count());
  const std::int64_t work = count * (p.heads + 3ll * p.geometry.kv_heads) * p.geometry.head_dim;
  run_items(context, blocks, work, [&](std::int64_t block, int thread) {
    RowPreparation preparation(context, p, scratch + per_thread * thread);
    for (std::int64_t row = count * block / blocks; row < count * (block + 1) / blocks; ++row) {
      preparation.run(rows[static_cast<std::size_t>(row)]);
    }
  });
}

void attention(CpuContext& context, const AttentionParams& p) {
  TF_ASSERT(p.geometry.kv_heads > 0 && p.heads % p.geometry.kv_heads == 0);
  TF_ASSERT(p.pool.page_bytes >= PageLayout(p.geometry).bytes);
  AttentionPass(context, p).run();
}

}  // namespace tensorfold::ops::cpu
