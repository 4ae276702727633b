// Gated DeltaNet kernels (gated_delta.h). The state is kept as [v_dim / 16][k_dim][16] per value head, so that sixteen
// columns run through all rows of a span while they stay in the first-level cache; columns don't depend on each other.
#pragma once

namespace tensorfold::ops::cpu {
namespace {

constexpr std::int64_t kTapsMax = 8;

/// rows[r · step .. + taps - 1] are the inputs of output row r. Sixteen channels at a time, whose weights are turned once.
void delta_convolve(const float* const* rows, std::int64_t step, std::int64_t count, std::int64_t first_channel,
                    std::int64_t channels, const float* weight, std::int64_t taps, float* out, std::int64_t out_stride) {
  for (std::int64_t c = 0; c < channels; c += 16) {
    const std::int64_t n = channels - c < 16 ? channels - c : 16;
    float turned[kTapsMax][16] = {};
    const float* w = weight + (first_channel + c) * taps;
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j < taps; ++j) turned[j][i] = w[i * taps + j];
    }
    for (std::int64_t r = 0; r < count; ++r) {
      F32x16 sum = splat(0.0f);
      for (std::int64_t j = 0; j < taps; ++j) {
        sum = fma(load(turned[j]), load_first(rows[r * step + j] + first_channel + c, n), sum);
      }
      store_first(out + r * out_stride + c, silu_lanes(sum), n);
    }
  }
}

void delta_normalise(float* head, std::int64_t k_dim, bool is_query) {
  const F32x16 inverse = splat(1.0f / square_root(sum_of_squares(head, k_dim) + 1e-6f));
  const F32x16 scale = splat(1.0f / square_root(static_cast<float>(k_dim)));
  for (std::int64_t i = 0; i < k_dim; i += 16) {
    F32x16 y = mul(load_first(head + i, k_dim - i), inverse);
    if (is_query) y = mul(y, scale);
    store_first(head + i, y, k_dim - i);
  }
}

void delta_gates(const float* b, const float* a, const float* decay, const float* dt_bias, std::int64_t heads,
                 float* beta, float* growth) {
  for (std::int64_t i = 0; i < heads; i += 16) {
    const std::int64_t n = heads - i;
    store_first(beta + i, sigmoid_lanes(load_first(b + i, n)), n);
    const F32x16 g =
        mul(load_first(decay + i, n), softplus_lanes(add(load_first(a + i, n), load_first(dt_bias + i, n))));
    store_first(growth + i, exp_lanes(g), n);
  }
}

/// Lane l of the decay pass: rows l, l + 16, ... of the state are scaled and their products with k summed.
inline F32x16 decay_lane(float* state, std::int64_t k_dim, const float* k, F32x16 growth, std::int64_t lane) {
  F32x16 sum = splat(0.0f);
  for (std::int64_t i = lane; i < k_dim; i += 16) {
    const F32x16 s = mul(load(state + 16 * i), growth);
    store(state + 16 * i, s);
    sum = fma(s, splat(k[i]), sum);
  }
  return sum;
}

/// Lane l of the update pass: S += k·delta by fma, and the products of the new state with q.
inline F32x16 update_lane(float* state, std::int64_t k_dim, const float* k, const float* q, F32x16 delta,
                          std::int64_t lane) {
  F32x16 sum = splat(0.0f);
  for (std::int64_t i = lane; i < k_dim; i += 16) {
    const F32x16 s = fma(splat(k[i]), delta, load(state + 16 * i));
    store(state + 16 * i, s);
    sum = fma(s, splat(q[i]), sum);
  }
  return sum;
}

/// The fold 8, 4, 2, 1 over sixteen lanes that are produced one after the other.
template <typename Lane>
inline F32x16 fold_lanes(Lane lane) {
  F32x16 sums[8];
  for (int i = 0; i < 8; ++i) sums[i] = add(lane(i), lane(i + 8));
  for (int i = 0; i < 4; ++i) sums[i] = add(sums[i], sums[i + 4]);
  for (int i = 0; i < 2; ++i) sums[i] = add(sums[i], sums[i + 2]);
  return add(sums[0], sums[1]);
}

void delta_chunk(const DeltaChunk& c) {
  for (std::int64_t row = 0; row < c.rows; ++row) {
    const std::int64_t at = row * c.row_stride;
    const float* k = c.k + at;
    const float* q = c.q + at;
    const F32x16 growth = splat(c.growth[at]);
    const F32x16 memory = fold_lanes([&](std::int64_t lane) { return decay_lane(c.state, c.k_dim, k, growth, lane); });
    const F32x16 delta = mul(splat(c.beta[at]), sub(load_first(c.v + at, c.width), memory));
    const F32x16 output =
        fold_lanes([&](std::int64_t lane) { return update_lane(c.state, c.k_dim, k, q, delta, lane); });
    if (c.outputs) store_first(c.v + at, output, c.width);
  }
}

void delta_output(const DeltaOutput& p) {
  const F32x16 inverse = splat(inverse_rms(p.o, p.v_dim, p.epsilon));
  for (std::int64_t i = 0; i < p.v_dim; i += 16) {
    const std::int64_t n = p.v_dim - i;
    const F32x16 z = load_first(p.z + i, n);
    const F32x16 gate = p.sigmoid_gate ? sigmoid_lanes(z) : silu_lanes(z);
    store_bf16_first(p.out + i, mul(normed(p.o, p.norm_weight, inverse, i, p.v_dim), gate), n);
  }
}

}  // namespace
}  // namespace tensorfold::ops::cpu
