// Attention on the CPU: how the work is cut into items. The arithmetic is in kernels_attention.inl, the layout of pages
// in attention_layout.h.
//
// An item is a block of query rows (some rows times all heads of one kv head, so that keys and values are read once for
// them) over all their segments, or, when such blocks are too few to fill the threads, over a run of segments. Then
// every segment's record is kept, and whoever finishes a block's last run folds them in ascending order: the same
// function in the same order as within one item, so the cut can't be seen in a bit.
//
// The rows of a tree go through the tiles below their window as a chain's do, ordered by position. A tile that holds
// window positions is gathered into scratch: the committed keys first, then row by row, depth first, each row's key and
// value at its own position, over whatever another branch left there. So a row that is visited finds its path, and its
// mask hides what lies beyond.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "base/error.h"
#include "base/limits.h"
#include "ops/cpu/attention_layout.h"
#include "ops/cpu/cpu_operations.h"
#include "ops/row_tree.h"

namespace tensorfold::ops::cpu {
namespace {

constexpr std::int64_t kBlockQueryRows = 32;
constexpr float kLog2E = 1.44269504f;

/// Query rows of one kv head that go through the tiles together, in ascending order of position.
struct QueryBlock {
  const LaneSpan* lane = nullptr;
  const RowTree* tree = nullptr;  // of the lane's rows, null for a chain
  std::int32_t kv_head = 0;
  std::int32_t first = 0;  // rows [first, first + row_count) of the span, of a tree in the order by depth
  std::int32_t row_count = 0;

  /// Row of the span.
  std::int32_t row(std::int64_t i) const {
    const auto at = static_cast<std::size_t>(first + i);
    return tree != nullptr ? tree->by_depth[at] : static_cast<std::int32_t>(at);
  }
  std::int64_t position(std::int64_t i) const {
    const std::int32_t at = row(i);
    return static_cast<std::int64_t>(lane->position) +
           (tree != nullptr ? tree->depth[static_cast<std::size_t>(at)] : at);
  }
  /// The last key that a row sees.
  std::int64_t last_seen(std::int64_t i) const {
    return lane->mutual ? static_cast<std::int64_t>(lane->position) + lane->row_count - 1 : position(i);
  }
  /// One past the last key that any row sees.
  std::int64_t end() const { return last_seen(row_count - 1) + 1; }

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
    trees_.reserve(static_cast<std::size_t>(p_.lane_count));  // blocks point into it
    for (std::int32_t l = 0; l < p_.lane_count; ++l) {
      const LaneSpan& lane = p_.lanes[l];
      const RowTree* tree = nullptr;
      if (lane.parents != nullptr) {
        TF_ASSERT(!lane.mutual);
        TF_ASSERT(p_.pool.tree_bytes >= layout_.tree_bytes);
        trees_.push_back(row_tree(lane));
        tree = &trees_.back();
      }
      for (std::int32_t row = 0; row < lane.row_count; row += static_cast<std::int32_t>(rows_per_block_)) {
        QueryBlock block;
        block.lane = &lane;
        block.tree = tree;
        block.first = row;
        block.row_count = std::min(static_cast<std::int32_t>(rows_per_block_), lane.row_count - row);
        const std::int64_t end = block.end(), begin = first_visible(block.position(0));
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
    std::int32_t* started;    // whether merged holds anything, by query row
    std::uint16_t* gathered;  // one head's tile of a path, when there are trees
  };

  std::int64_t thread_floats() const {
    return query_rows_ * layout_.width + query_rows_ * (kTileKeys + kTilePairs + 2 * record_) +
           3 * round_up_16(query_rows_) + (trees_.empty() ? 0 : round_up_16(layout_.head_elements / 2));
  }

  Workspace workspace(float* at) const {
    Workspace w;
    const auto take = [&](std::int64_t count) {
      float* taken = at;
      at += round_up_16(count);
      return taken;
    };
    w.q = take(query_rows_ * layout_.width);
    w.scores = take(query_rows_ * kTileKeys);
    w.masks = reinterpret_cast<std::uint32_t*>(take(query_rows_ * kTilePairs));
    w.open = take(query_rows_ * record_);
    w.merged = take(query_rows_ * record_);
    w.first = reinterpret_cast<std::int32_t*>(take(query_rows_));
    w.last = reinterpret_cast<std::int32_t*>(take(query_rows_));
    w.started = reinterpret_cast<std::int32_t*>(take(query_rows_));
    w.gathered = trees_.empty() ? nullptr : reinterpret_cast<std::uint16_t*>(take(layout_.head_elements / 2));
    return w;
  }

  void run_item(const Item& item, float* scratch) {
    const QueryBlock& block = blocks_[static_cast<std::size_t>(item.block)];
    const Workspace w = workspace(scratch);
    const std::int64_t query_rows = block.row_count * group_;
    const std::uint16_t* q = bf16_of(p_.q);
    for (std::int32_t r = 0; r < block.row_count; ++r) {
      const std::int64_t row = block.lane->first_row + block.row(r);
      kernels_.pack_queries(q + (row * p_.heads + block.kv_head * group_) * layout_.head_dim, group_, layout_.head_dim,
                            w.q + r * group_ * layout_.width);
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
    std::int64_t from = 0, to = block.row_count;
    while (from < to && block.last_seen(from) < first) ++from;
    if (p_.window > 0) {
      while (to > from && block.position(to - 1) - p_.window + 1 >= end) --to;
    }
    return {from, to};
  }

  void run_segment(const QueryBlock& block, std::int64_t s, const Workspace& w, float* open) {
    const std::int64_t first_key = block.segments[static_cast<std::size_t>(s)];
    const std::int64_t end_key = std::min(segment_end(first_key), block.end());
    const RowRange seeing = rows_seeing(block, first_key, end_key);
    for (std::int64_t i = seeing.begin * group_; i < seeing.end * group_; ++i) {
      kernels_.attention_open(open + i * record_, layout_.head_dim);
    }
    for (std::int64_t tile = first_key / kTileKeys; tile * kTileKeys < end_key; ++tile) {
      if (block.tree != nullptr && (tile + 1) * kTileKeys > block.lane->position) {
        run_path_tile(block, tile, w, open);
      } else {
        run_tile(block, tile, w, open);
      }
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
      set_visible(block.position(r), block.last_seen(r), tile_key, w, (r - seeing.begin) * group_);
    }
    const std::int32_t page = block.lane->pages[tile];
    TF_ASSERT(page >= 0);
    run_rows(seeing, layout_.keys(p_.pool, page, block.kv_head), w, open);
  }

  /// A tile that holds window positions of a tree: one row after the other, each with its own path in the tile.
  void run_path_tile(const QueryBlock& block, std::int64_t tile, const Workspace& w, float* open) {
    const RowTree& tree = *block.tree;
    const LaneSpan& lane = *block.lane;
    const std::int64_t tile_key = tile * kTileKeys;
    if (tile_key < lane.position) {
      const std::int32_t page = lane.pages[tile];
      TF_ASSERT(page >= 0);
      std::memcpy(w.gathered, layout_.keys(p_.pool, page, block.kv_head),
                  static_cast<std::size_t>(layout_.head_elements) * sizeof(std::uint16_t));
    }
    for (std::int32_t visited = 0; visited < tree.row_count; ++visited) {
      const std::int32_t row = tree.preorder[static_cast<std::size_t>(visited)];
      const std::int64_t position =
          static_cast<std::int64_t>(lane.position) + tree.depth[static_cast<std::size_t>(row)];
      if (position < tile_key) continue;
      if (position < tile_key + kTileKeys) place_on_path(lane, row, position - tile_key, block.kv_head, w.gathered);
      const std::int64_t r = tree.rank[static_cast<std::size_t>(row)] - block.first;
      if (r < 0 || r >= block.row_count || first_visible(position) >= tile_key + kTileKeys) continue;
      set_visible(position, position, tile_key, w, 0);
      run_rows({r, r + 1}, w.gathered, w, open);
    }
  }

  void place_on_path(const LaneSpan& lane, std::int32_t row, std::int64_t key, std::int32_t kv_head,
                     std::uint16_t* gathered) const {
    scatter_key(gathered, layout_.head_dim, key, layout_.tree_key(p_.pool, lane.slot, row, kv_head));
    scatter_value(gathered + kTileKeys * layout_.head_dim, layout_.width, layout_.head_dim, key,
                  layout_.tree_value(p_.pool, lane.slot, row, kv_head));
  }

  /// The keys of the tile that a row at `position` sees, up to `last_seen`, for its heads, whose query rows start at `at`.
  void set_visible(std::int64_t position, std::int64_t last_seen, std::int64_t tile_key, const Workspace& w,
                   std::int64_t at) const {
    const std::int64_t first = std::max<std::int64_t>(0, first_visible(position) - tile_key);
    const std::int64_t last = std::min<std::int64_t>(kTileKeys - 1, last_seen - tile_key);
    std::fill_n(w.first + at, group_, static_cast<std::int32_t>(first));
    std::fill_n(w.last + at, group_, static_cast<std::int32_t>(last));
  }

  /// Rows of the block against one head's tile, keys then values.
  void run_rows(RowRange rows, const std::uint16_t* head, const Workspace& w, float* open) const {
    AttentionTile t;
    t.keys = reinterpret_cast<const std::uint32_t*>(head);
    t.values = reinterpret_cast<const std::uint32_t*>(head + kTileKeys * layout_.head_dim);
    t.head_dim = layout_.head_dim;
    t.q = w.q + rows.begin * group_ * layout_.width;
    t.rows = (rows.end - rows.begin) * group_;
    t.first = w.first;
    t.last = w.last;
    t.scale_log2 = scale_log2_;
    t.scores = w.scores;
    t.masks = w.masks;
    t.records = open + rows.begin * group_ * record_;
    kernels_.attention_tile(t);
  }

  void fold_segment(const QueryBlock& block, std::int64_t s, const float* open, const Workspace& w) {
    const std::int64_t first_key = block.segments[static_cast<std::size_t>(s)];
    const std::int64_t end_key = std::min(segment_end(first_key), block.end());
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
      const std::int64_t row = block.lane->first_row + block.row(i / group_),
                         head = block.kv_head * group_ + i % group_;
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
  std::vector<RowTree> trees_;
  std::vector<QueryBlock> blocks_;
  std::vector<Item> items_;
  std::unique_ptr<std::atomic<std::int64_t>[]> remaining_;
  std::int64_t work_ = 0;
  std::int64_t kept_floats_ = 0;
  float* records_ = nullptr;
};

}  // namespace

void attention(CpuContext& context, const AttentionParams& p) {
  TF_ASSERT(p.geometry.kv_heads > 0 && p.heads % p.geometry.kv_heads == 0);
  TF_ASSERT(p.pool.page_bytes >= PageLayout(p.geometry).bytes);
  AttentionPass(context, p).run();
}

}  // namespace tensorfold::ops::cpu
