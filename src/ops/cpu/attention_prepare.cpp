// Before attention on the CPU: per-head norms, RoPE and rounding, and where keys and values are written: into the
// pages, or, for the rows of a tree, into the slot until the accepted path is replayed into the pages.
#include <algorithm>
#include <vector>

#include "base/error.h"
#include "ops/cpu/attention_layout.h"
#include "ops/cpu/cpu_operations.h"

namespace tensorfold::ops::cpu {
namespace {

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
    if (at.lane->parents != nullptr) {
      keep_in_slot(at, input);
    } else {
      write_to_page(at, input);
    }
  }

 private:
  void write_to_page(const PreparedRow& at, const float* input) {
    const std::int64_t position = static_cast<std::int64_t>(at.lane->position) + (at.row - at.lane->first_row);
    const std::int32_t page = at.lane->pages[position / kTileKeys];
    TF_ASSERT(page >= 0);
    const std::int64_t key = position % kTileKeys;
    for (std::int64_t g = 0; g < p_.geometry.kv_heads; ++g) {
      prepare_key(input, g, rounded_);
      scatter_key(layout_.keys(p_.pool, page, g), layout_.head_dim, key, rounded_);
      prepare_value(input, g, rounded_);
      scatter_value(layout_.values(p_.pool, page, g), layout_.width, layout_.head_dim, key, rounded_);
    }
  }
  void keep_in_slot(const PreparedRow& at, const float* input) {
    const std::int32_t row = at.row - at.lane->first_row;
    for (std::int64_t g = 0; g < p_.geometry.kv_heads; ++g) {
      prepare_key(input, g, layout_.tree_key(p_.pool, at.lane->slot, row, g));
      prepare_value(input, g, layout_.tree_value(p_.pool, at.lane->slot, row, g));
    }
  }
  void prepare_key(const float* input, std::int64_t kv_head, std::uint16_t* out) {
    prepare(input + p_.k_offset + kv_head * layout_.head_dim, p_.k_norm, half_, out);
  }
  void prepare_value(const float* input, std::int64_t kv_head, std::uint16_t* out) {
    prepare(input + p_.v_offset + kv_head * layout_.head_dim, nullptr, 0, out);
  }
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

}  // namespace

std::size_t kv_page_bytes(const KvGeometry& geometry) {
  return PageLayout(geometry).bytes;
}

std::size_t kv_tree_bytes(const KvGeometry& geometry) {
  return PageLayout(geometry).tree_bytes;
}

void attention_prepare(CpuContext& context, const AttentionPrepareParams& p) {
  const PageLayout layout(p.geometry);
  TF_ASSERT(p.pool.page_bytes >= layout.bytes);
  TF_ASSERT(p.rope.rotary_dims % 2 == 0 && p.rope.rotary_dims <= p.geometry.head_dim);
  std::vector<PreparedRow> rows;
  for (std::int32_t l = 0; l < p.lane_count; ++l) {
    TF_ASSERT(p.lanes[l].parents == nullptr || p.pool.tree_bytes >= layout.tree_bytes);
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

void attention_replay(CpuContext& context, const AttentionReplayParams& p) {
  const PageLayout layout(p.geometry);
  for (std::int32_t l = 0; l < p.lane_count; ++l) {
    const LaneSpan& lane = p.lanes[l];
    if (!lane.replay_tree) continue;
    TF_ASSERT(p.pool.page_bytes >= layout.bytes && p.pool.tree_bytes >= layout.tree_bytes);
    const std::int64_t work = lane.replay_count * 2ll * p.geometry.kv_heads * layout.head_dim;
    run_items(context, p.geometry.kv_heads, work, [&](std::int64_t g, int) {
      for (std::int32_t i = 0; i < lane.replay_count; ++i) {
        const std::int64_t position = static_cast<std::int64_t>(lane.position) - lane.replay_count + i;
        TF_ASSERT(position >= 0);
        const std::int32_t page = lane.pages[position / kTileKeys];
        if (page < 0) continue;  // slid out of the window meanwhile
        scatter_key(layout.keys(p.pool, page, g), layout.head_dim, position % kTileKeys,
                    layout.tree_key(p.pool, lane.slot, lane.replay_rows[i], g));
        scatter_value(layout.values(p.pool, page, g), layout.width, layout.head_dim, position % kTileKeys,
                      layout.tree_value(p.pool, lane.slot, lane.replay_rows[i], g));
      }
    });
  }
}

}  // namespace tensorfold::ops::cpu
