// Attention kernels (attention.h): the head preparation, one tile of 64 keys for a block of query rows, and the fold of
// segments. Scores and P·V run through one microkernel, dot_block, which walks a 32-block in the AMX order with
// kMicroRows query rows sharing every loaded key or value. It and the form of its factors come from attention_dot_fma.inl
// or attention_dot_bf16.inl.
#pragma once

namespace tensorfold::ops::cpu {
namespace {

void prepare_head(const HeadPrepare& h) {
  const float* x = h.x;
  if (h.norm_weight != nullptr) {
    const F32x16 inverse = splat(inverse_rms(x, h.head_dim, h.epsilon));
    for (std::int64_t i = 0; i < h.head_dim; i += 16) {
      store(h.scratch + i, normed(x, h.norm_weight, inverse, i, h.head_dim));
    }
    x = h.scratch;
  }
  const std::int64_t half = h.rotary_half;
  for (std::int64_t i = 0; i < half; i += 16) {
    const std::int64_t n = half - i;
    const F32x16 low = load_first(x + i, n), high = load_first(x + half + i, n);
    const F32x16 cosine = load_first(h.cosines + i, n), sine = load_first(h.sines + i, n);
    store_bf16_first(h.out + i, fma(low, cosine, negate(mul(high, sine))), n);
    store_bf16_first(h.out + half + i, fma(high, cosine, mul(low, sine)), n);
  }
  for (std::int64_t i = 2 * half; i < h.head_dim; i += 16) {
    store_bf16_first(h.out + i, load_first(x + i, h.head_dim - i), h.head_dim - i);
  }
}

template <int kRows, int kColumns>
void score_block(const AttentionTile& t, std::int64_t row, std::int64_t column) {
  const std::int64_t half = t.head_dim / 2;
  F32x16 acc[kRows][kColumns];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) acc[r][c] = splat(0.0f);
  }
  const std::uint32_t* words = t.keys + column * half * 16;
  const std::int64_t q_stride = round_up_16(t.head_dim);
  const float* q = t.q + row * q_stride;
  for (std::int64_t i = 0; i < half; i += 16) {
    const std::int64_t pairs = half - i < 16 ? half - i : 16;
    dot_block<kRows, kColumns, false>(acc, words + i * 16, 16, half * 16, q + kFactorFloats * i, q_stride, pairs, nullptr);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) store(t.scores + (row + r) * kTileKeys + (column + c) * 16, acc[r][c]);
  }
}

void tile_scores(const AttentionTile& t) {
  // A lone row takes several column groups at once, to have enough independent sums in flight.
  constexpr std::int64_t kLoneColumns = kMicroRows == 8 ? 4 : 2;
  for (std::int64_t column = 0; column < 4; column += kLoneColumns) {
    std::int64_t row = 0;
    for (; row + kMicroRows <= t.rows; row += kMicroRows) {
      for (std::int64_t c = 0; c < kLoneColumns; ++c) score_block<kMicroRows, 1>(t, row, column + c);
    }
    if constexpr (kMicroRows == 8) {
      for (; row + 3 <= t.rows; row += 3) {
        score_block<3, 2>(t, row, column);
        score_block<3, 2>(t, row, column + 2);
      }
    }
    for (; row < t.rows; ++row) score_block<1, kLoneColumns>(t, row, column);
  }
}

/// Scores to probabilities for one row: the running maximum, the rescale of what is summed so far, P and its sum.
void tile_softmax(const AttentionTile& t, std::int64_t row) {
  float* scores = t.scores + row * kTileKeys;
  float* record = t.records + row * record_floats(t.head_dim);
  const F32x16 scale = splat(t.scale_log2), minus_infinity = splat(-__builtin_huge_valf());
  const bool whole = t.first[row] == 0 && t.last[row] == kTileKeys - 1;
  F32x16 s[4];
  F32x16 largest = minus_infinity;
  for (int c = 0; c < 4; ++c) {
    s[c] = mul(load(scores + 16 * c), scale);
    if (!whole) {
      const I32x16 key = add(lane_indices(), splat_int(16 * c));
      const Mask16 visible =
          both(greater_int(key, splat_int(t.first[row] - 1)), greater_int(splat_int(t.last[row] + 1), key));
      s[c] = select(visible, s[c], minus_infinity);
    }
    largest = max(s[c], largest);
  }
  const float before = record[kRecordMaximum];
  const float tile_maximum = fold_max(largest);
  const float maximum = tile_maximum > before ? tile_maximum : before;
  const F32x16 factor = exp2_lanes(splat(before - maximum));
  F32x16 sums = mul(load(record + kRecordSums), factor);
  for (int c = 0; c < 4; ++c) {
    s[c] = exp2_lanes(sub(s[c], splat(maximum)));
    sums = add(sums, s[c]);
  }
  store_probabilities(s, scores);
  store(record + kRecordSums, sums);
  record[kRecordMaximum] = maximum;
  float factor_lanes[16];
  store(factor_lanes, factor);
  if (factor_lanes[0] != 1.0f) {
    float* out = record + kRecordOutput;
    for (std::int64_t d = 0; d < t.head_dim; d += 16) store(out + d, mul(load(out + d), factor));
  }
  if (whole) return;
  store_masks(t.first[row], t.last[row], t.masks + row * kTilePairs);
}

template <int kRows, int kColumns, bool kMasked>
void value_block(const AttentionTile& t, std::int64_t row, std::int64_t d) {
  const std::int64_t width = round_up_16(t.head_dim), stride = record_floats(t.head_dim);
  float* out = t.records + row * stride + kRecordOutput + d;
  const float* p = t.scores + row * kTileKeys;
  const std::uint32_t* masks = t.masks + row * kTilePairs;
  F32x16 acc[kRows][kColumns];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) acc[r][c] = load(out + r * stride + 16 * c);
  }
  for (std::int64_t block = 0; block < 2; ++block) {
    dot_block<kRows, kColumns, kMasked>(acc, t.values + block * 16 * width + d, width, 16,
                                        p + block * 16 * kFactorFloats, kTileKeys, 16, masks + block * 16);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) store(out + r * stride + 16 * c, acc[r][c]);
  }
}

template <bool kMasked>
void tile_values(const AttentionTile& t, std::int64_t row_begin, std::int64_t row_end) {
  constexpr std::int64_t kLoneColumns = kMicroRows == 8 ? 4 : 2;
  const std::int64_t width = round_up_16(t.head_dim);
  for (std::int64_t d = 0; d < width; d += 16 * kLoneColumns) {
    const std::int64_t columns = (width - d) / 16 < kLoneColumns ? (width - d) / 16 : kLoneColumns;
    std::int64_t row = row_begin;
    for (; row + kMicroRows <= row_end; row += kMicroRows) {
      for (std::int64_t c = 0; c < columns; ++c) value_block<kMicroRows, 1, kMasked>(t, row, d + 16 * c);
    }
    for (; row < row_end; ++row) {
      if (columns == kLoneColumns) {
        value_block<1, kLoneColumns, kMasked>(t, row, d);
      } else {
        for (std::int64_t c = 0; c < columns; ++c) value_block<1, 1, kMasked>(t, row, d + 16 * c);
      }
    }
  }
}

void attention_tile(const AttentionTile& t) {
  tile_scores(t);
  for (std::int64_t row = 0; row < t.rows; ++row) tile_softmax(t, row);
  // Rows are in ascending order of position, so those that see the whole tile stand together.
  std::int64_t row = 0;
  while (row < t.rows) {
    const bool whole = t.first[row] == 0 && t.last[row] == kTileKeys - 1;
    std::int64_t end = row + 1;
    while (end < t.rows && (t.first[end] == 0 && t.last[end] == kTileKeys - 1) == whole) ++end;
    if (whole) {
      tile_values<false>(t, row, end);
    } else {
      tile_values<true>(t, row, end);
    }
    row = end;
  }
}

void pack_queries(const std::uint16_t* q, std::int64_t heads, std::int64_t head_dim, float* out) {
  for (std::int64_t h = 0; h < heads; ++h) pack_query(q + h * head_dim, head_dim, out + h * round_up_16(head_dim));
}

void attention_open(float* record, std::int64_t head_dim) {
  for (std::int64_t i = 0; i < record_floats(head_dim); i += 16) store(record + i, splat(0.0f));
  record[kRecordMaximum] = -__builtin_huge_valf();
}

void attention_close(float* record) {
  record[kRecordSum] = fold_add(load(record + kRecordSums));
}

/// The one fold of two closed records; `next` covers later keys.
void attention_merge(float* into, const float* next, std::int64_t head_dim) {
  const float a = into[kRecordMaximum], b = next[kRecordMaximum];
  const float maximum = b > a ? b : a;
  const F32x16 into_factor = exp2_lanes(splat(a - maximum)), next_factor = exp2_lanes(splat(b - maximum));
  const F32x16 sum = fma(splat(next[kRecordSum]), next_factor, mul(splat(into[kRecordSum]), into_factor));
  float sums[16];
  store(sums, sum);
  into[kRecordMaximum] = maximum;
  into[kRecordSum] = sums[0];
  for (std::int64_t d = kRecordOutput; d < record_floats(head_dim); d += 16) {
    store(into + d, fma(load(next + d), next_factor, mul(load(into + d), into_factor)));
  }
}

void attention_finish(const float* record, std::int64_t head_dim, const float* gate, std::uint16_t* out) {
  const F32x16 sum = splat(record[kRecordSum]);
  for (std::int64_t d = 0; d < head_dim; d += 16) {
    F32x16 y = div(load(record + kRecordOutput + d), sum);
    if (gate != nullptr) y = mul(y, sigmoid_lanes(load_first(gate + d, head_dim - d)));
    store_bf16_first(out + d, y, head_dim - d);
  }
}

}  // namespace
}  // namespace tensorfold::ops::cpu
