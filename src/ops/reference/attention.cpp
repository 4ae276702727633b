// Attention over pages, and the steps before it. A page is [keys | values], each [kv_heads, 64, head_dim] in fp32; a
// slot's tree is [keys | values], each [kv_heads, kTreeRowsMax, head_dim].
//
// Without rounding the softmax is the textbook one. With the backend's rounding it walks the same segments and tiles as
// the kernels, because a probability is rounded to bf16 relative to its tile's running maximum and where it is rounded
// is part of the specification; sums stay in fp64.
#include <algorithm>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "ops/reference/reference_operations.h"
#include "ops/row_tree.h"

namespace tensorfold::ops {
namespace {

constexpr std::int64_t kTile = limits::kKvPageTokens;
constexpr double kLog2E = 1.4426950408889634074;

/// Key (part 0) or value (part 1) of one head at one position of the pages.
float* page_entry(const KvPool& pool, const KvGeometry& geometry, const LaneSpan& lane, std::int64_t position,
                  std::int32_t kv_head, int part) {
  const std::int32_t page = lane.pages[position / kTile];
  TF_ASSERT(page >= 0);
  auto* base =
      reinterpret_cast<float*>(static_cast<std::byte*>(pool.pages) + static_cast<std::size_t>(page) * pool.page_bytes);
  return base + ((static_cast<std::int64_t>(part) * geometry.kv_heads + kv_head) * kTile + position % kTile) *
                    geometry.head_dim;
}

/// The same of one row of the slot's tree.
float* tree_entry(const KvPool& pool, const KvGeometry& geometry, std::int32_t slot, std::int32_t row,
                  std::int32_t kv_head, int part) {
  TF_ASSERT(pool.trees != nullptr && row >= 0 && row < limits::kTreeRowsMax);
  auto* base =
      reinterpret_cast<float*>(static_cast<std::byte*>(pool.trees) + static_cast<std::size_t>(slot) * pool.tree_bytes);
  return base + ((static_cast<std::int64_t>(part) * geometry.kv_heads + kv_head) * limits::kTreeRowsMax + row) *
                    geometry.head_dim;
}

/// Where a row's own key and value are written.
float* own_entry(const AttentionPrepareParams& params, const LaneRow& at, std::int32_t kv_head, int part) {
  if (at.lane->parents == nullptr) {
    return page_entry(params.pool, params.geometry, *at.lane, at.position(), kv_head, part);
  }
  return tree_entry(params.pool, params.geometry, at.lane->slot, at.row - at.lane->first_row, kv_head, part);
}

/// Rotates the first rotary_dims elements in place; pairs are (i, i + rotary_dims / 2).
void rotate(const RopeTable& rope, std::int32_t table_row, double* x) {
  if (rope.rotary_dims == 0) return;
  TF_ASSERT(table_row >= 0 && table_row < rope.positions);
  const std::int32_t half = rope.rotary_dims / 2;
  const float* cos_sin = rope.cos_sin + static_cast<std::int64_t>(table_row) * half * 2;
  for (std::int32_t i = 0; i < half; ++i) {
    const double cosine = static_cast<double>(cos_sin[2 * i]);
    const double sine = static_cast<double>(cos_sin[2 * i + 1]);
    const double low = x[i];
    const double high = x[i + half];
    x[i] = low * cosine - high * sine;
    x[i + half] = high * cosine + low * sine;
  }
}

}  // namespace

/// The keys and values that one row of the pass may see, by position.
class ReferenceBackend::RowKeys {
 public:
  RowKeys(const AttentionParams& params, const LaneRow& at)
      : params_(params),
        lane_(*at.lane),
        position_(at.position()),
        last_(lane_.mutual ? static_cast<std::int64_t>(lane_.position) + lane_.row_count - 1 : position_) {
    if (lane_.parents == nullptr) return;
    const RowTree tree = row_tree(lane_);
    for (std::int32_t row = at.row - lane_.first_row; row >= 0; row = tree.parent[static_cast<std::size_t>(row)]) {
      path_[static_cast<std::size_t>(tree.depth[static_cast<std::size_t>(row)])] = row;
    }
  }

  std::int64_t last() const { return last_; }
  std::int64_t first() const {
    return params_.window > 0 ? std::max<std::int64_t>(0, position_ - params_.window + 1) : 0;
  }
  const float* key(std::int64_t position, std::int32_t kv_head) const { return entry(position, kv_head, 0); }
  const float* value(std::int64_t position, std::int32_t kv_head) const { return entry(position, kv_head, 1); }

 private:
  const float* entry(std::int64_t position, std::int32_t kv_head, int part) const {
    if (lane_.parents == nullptr || position < lane_.position) {
      return page_entry(params_.pool, params_.geometry, lane_, position, kv_head, part);
    }
    const std::int32_t row = path_[static_cast<std::size_t>(position - lane_.position)];
    return tree_entry(params_.pool, params_.geometry, lane_.slot, row, kv_head, part);
  }

  const AttentionParams& params_;
  const LaneSpan& lane_;
  std::int64_t position_;
  std::int64_t last_;
  RowTree::Rows path_{};  // of a tree: the row at each depth
};

std::size_t ReferenceBackend::kv_tree_bytes(const KvGeometry& geometry) const {
  return static_cast<std::size_t>(2 * limits::kTreeRowsMax) * static_cast<std::size_t>(geometry.kv_heads) *
         static_cast<std::size_t>(geometry.head_dim) * sizeof(float);
}

std::size_t ReferenceBackend::kv_page_bytes(const KvGeometry& geometry) const {
  return static_cast<std::size_t>(2 * kTile) * static_cast<std::size_t>(geometry.kv_heads) *
         static_cast<std::size_t>(geometry.head_dim) * sizeof(float);
}

void ReferenceBackend::attention_prepare(const AttentionPrepareParams& params) {
  const std::vector<LaneRow> rows = rows_of_lanes(params.lanes, params.lane_count);
  const std::int32_t width = params.geometry.head_dim;
  TF_ASSERT(params.rope.rotary_dims <= width && params.rope.rotary_dims % 2 == 0);
  pool_.parallel_for(static_cast<std::int64_t>(rows.size()), [&](std::int64_t item, int) {
    const LaneRow& at = rows[static_cast<std::size_t>(item)];
    const float* input = params.qkv + at.row * params.stride;
    std::vector<double> head(static_cast<std::size_t>(width));
    const auto prepare_head = [&](const float* x, const float* norm_weight, float* out) {
      if (norm_weight != nullptr) {
        normalise(x, norm_weight, params.epsilon, width, head.data());
      } else {
        for (std::int32_t i = 0; i < width; ++i) head[static_cast<std::size_t>(i)] = static_cast<double>(x[i]);
      }
      rotate(params.rope, params.rope.rotary_dims == 0 ? 0 : params.rope_positions[at.row], head.data());
      for (std::int32_t i = 0; i < width; ++i) out[i] = round_point(head[static_cast<std::size_t>(i)]);
    };
    float* queries = values_of(params.q_out) + static_cast<std::int64_t>(at.row) * params.heads * width;
    for (std::int32_t h = 0; h < params.heads; ++h) {
      prepare_head(input + params.q_offset + h * params.q_head_stride, params.q_norm, queries + h * width);
    }
    for (std::int32_t g = 0; g < params.geometry.kv_heads; ++g) {
      prepare_head(input + params.k_offset + g * width, params.k_norm, own_entry(params, at, g, 0));
      const float* value = input + params.v_offset + g * width;
      float* stored = own_entry(params, at, g, 1);
      for (std::int32_t i = 0; i < width; ++i) stored[i] = round_point(static_cast<double>(value[i]));
    }
  });
}

void ReferenceBackend::plain_softmax(const AttentionParams& params, const RowKeys& keys, std::int32_t head,
                                     const float* query, double* out) const {
  const std::int64_t first = keys.first(), last = keys.last();
  const std::int32_t width = params.geometry.head_dim;
  const std::int32_t kv_head = head / (params.heads / params.geometry.kv_heads);
  std::vector<double> scores;
  double maximum = -std::numeric_limits<double>::infinity();
  for (std::int64_t key = first; key <= last; ++key) {
    const float* k = keys.key(key, kv_head);
    scores.push_back(dot(query, k, width) * static_cast<double>(params.scale));
    maximum = std::max(maximum, scores.back());
  }
  double sum = 0.0;
  for (double& score : scores) {
    score = std::exp(score - maximum);
    sum += score;
  }
  for (std::int64_t key = first; key <= last; ++key) {
    const float* v = keys.value(key, kv_head);
    const double probability = scores[static_cast<std::size_t>(key - first)] / sum;
    for (std::int32_t i = 0; i < width; ++i) out[i] += probability * static_cast<double>(v[i]);
  }
}

void ReferenceBackend::tiled_softmax(const AttentionParams& params, const RowKeys& keys, std::int32_t head,
                                     const float* query, double* out) const {
  const std::int64_t first = keys.first(), last = keys.last();
  const std::int32_t width = params.geometry.head_dim;
  const std::int32_t kv_head = head / (params.heads / params.geometry.kv_heads);
  const double scale = static_cast<double>(static_cast<float>(static_cast<double>(params.scale) * kLog2E));
  const double kNothing = -std::numeric_limits<double>::infinity();
  double merged_maximum = kNothing;
  double merged_sum = 0.0;
  std::vector<double> segment_out(static_cast<std::size_t>(width));
  std::vector<double> scores(static_cast<std::size_t>(kTile));
  for (std::int64_t key = first; key <= last;) {
    const std::int64_t segment_last = std::min(segment_end(key) - 1, last);
    double maximum = kNothing;
    double sum = 0.0;
    std::fill(segment_out.begin(), segment_out.end(), 0.0);
    while (key <= segment_last) {
      const std::int64_t tile_last = std::min((key / kTile + 1) * kTile - 1, segment_last);
      double tile_maximum = maximum;
      for (std::int64_t j = key; j <= tile_last; ++j) {
        const float* k = keys.key(j, kv_head);
        scores[static_cast<std::size_t>(j - key)] = dot(query, k, width) * scale;
        tile_maximum = std::max(tile_maximum, scores[static_cast<std::size_t>(j - key)]);
      }
      const double rescale = std::exp2(maximum - tile_maximum);
      sum *= rescale;
      for (double& value : segment_out) value *= rescale;
      for (std::int64_t j = key; j <= tile_last; ++j) {
        const double probability = std::exp2(scores[static_cast<std::size_t>(j - key)] - tile_maximum);
        const double rounded = static_cast<double>(round_point(probability));
        const float* v = keys.value(j, kv_head);
        for (std::int32_t i = 0; i < width; ++i) {
          segment_out[static_cast<std::size_t>(i)] += rounded * static_cast<double>(v[i]);
        }
        sum += probability;
      }
      maximum = tile_maximum;
      key = tile_last + 1;
    }
    const double new_maximum = std::max(merged_maximum, maximum);
    const double keep = std::exp2(merged_maximum - new_maximum);
    const double add = std::exp2(maximum - new_maximum);
    merged_sum = merged_sum * keep + sum * add;
    for (std::int32_t i = 0; i < width; ++i) out[i] = out[i] * keep + segment_out[static_cast<std::size_t>(i)] * add;
    merged_maximum = new_maximum;
  }
  for (std::int32_t i = 0; i < width; ++i) out[i] /= merged_sum;
}

void ReferenceBackend::softmax_attention(const AttentionParams& params, const LaneRow& at, std::int32_t head) const {
  const std::int32_t width = params.geometry.head_dim, row = at.row;
  const RowKeys keys(params, at);
  const std::int64_t element = (static_cast<std::int64_t>(row) * params.heads + head) * width;
  std::vector<double> out(static_cast<std::size_t>(width));
  const float* query = values_of(params.q) + element;
  if (rounding_ == Rounding::kNone) {
    plain_softmax(params, keys, head, query, out.data());
  } else {
    tiled_softmax(params, keys, head, query, out.data());
  }
  for (std::int32_t i = 0; i < width; ++i) {
    double value = out[static_cast<std::size_t>(i)];
    if (params.gate != nullptr) {
      const float* gate = params.gate + row * params.gate_stride + params.gate_offset + head * params.gate_head_stride;
      value *= sigmoid(static_cast<double>(gate[i]));
    }
    values_of(params.out)[element + i] = round_point(value);
  }
}

void ReferenceBackend::attention(const AttentionParams& params) {
  TF_ASSERT(params.geometry.kv_heads > 0 && params.heads % params.geometry.kv_heads == 0);
  const std::vector<LaneRow> rows = rows_of_lanes(params.lanes, params.lane_count);
  pool_.parallel_for(static_cast<std::int64_t>(rows.size()) * params.heads, [&](std::int64_t item, int) {
    const LaneRow& at = rows[static_cast<std::size_t>(item / params.heads)];
    softmax_attention(params, at, static_cast<std::int32_t>(item % params.heads));
  });
}

void ReferenceBackend::attention_replay(const AttentionReplayParams& params) {
  const std::size_t bytes = static_cast<std::size_t>(params.geometry.head_dim) * sizeof(float);
  for (std::int32_t l = 0; l < params.lane_count; ++l) {
    const LaneSpan& lane = params.lanes[l];
    for (std::int32_t i = 0; lane.replay_tree && i < lane.replay_count; ++i) {
      const std::int64_t position = static_cast<std::int64_t>(lane.position) - lane.replay_count + i;
      TF_ASSERT(position >= 0);
      if (lane.pages[position / kTile] < 0) continue;  // slid out of the window meanwhile
      for (std::int32_t g = 0; g < params.geometry.kv_heads; ++g) {
        for (const int part : {0, 1}) {
          std::memcpy(page_entry(params.pool, params.geometry, lane, position, g, part),
                      tree_entry(params.pool, params.geometry, lane.slot, lane.replay_rows[i], g, part), bytes);
        }
      }
    }
  }
}

}  // namespace tensorfold::ops
