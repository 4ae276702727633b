// Kernels that work on one row at a time: norms, element-wise steps, the router's softmax (norm.h, elementwise.h,
// moe.h).
#pragma once

namespace tensorfold::ops::cpu {
namespace {

inline F32x16 normed(const float* x, const float* weight, F32x16 inverse, std::int64_t i, std::int64_t width) {
  const F32x16 scaled = mul(load_first(x + i, width - i), inverse);
  return weight == nullptr ? scaled : mul(scaled, load_first(weight + i, width - i));
}

void rms_norm_row(const float* x, const float* weight, float epsilon, std::int64_t width, std::uint16_t* out) {
  const F32x16 inverse = splat(inverse_rms(x, width, epsilon));
  for (std::int64_t i = 0; i < width; i += 16)
    store_bf16_first(out + i, normed(x, weight, inverse, i, width), width - i);
}

void rms_norm_row_float(const float* x, const float* weight, float epsilon, std::int64_t width, float* out) {
  const F32x16 inverse = splat(inverse_rms(x, width, epsilon));
  for (std::int64_t i = 0; i < width; i += 16) store_first(out + i, normed(x, weight, inverse, i, width), width - i);
}

void rms_norm_add_row(const float* x, const float* weight, float epsilon, std::int64_t width, float* residual) {
  const F32x16 inverse = splat(inverse_rms(x, width, epsilon));
  for (std::int64_t i = 0; i < width; i += 16) {
    const F32x16 rounded = rounded_to_bf16(normed(x, weight, inverse, i, width));
    store_first(residual + i, add(load_first(residual + i, width - i), rounded), width - i);
  }
}

void gated_silu(const float* gate, const float* up, std::int64_t count, std::uint16_t* out) {
  for (std::int64_t i = 0; i < count; i += 16) {
    const F32x16 y = mul(silu_lanes(load_first(gate + i, count - i)), load_first(up + i, count - i));
    store_bf16_first(out + i, y, count - i);
  }
}

inline F32x16 gelu_lanes(F32x16 x) {
  const F32x16 cube = mul(mul(x, x), x);
  const F32x16 inner = mul(splat(0.797884561f), add(x, mul(splat(0.044715f), cube)));
  return mul(mul(splat(0.5f), x), add(splat(1.0f), tanh_lanes(inner)));
}

void gated_gelu(const float* gate, const float* up, std::int64_t count, std::uint16_t* out) {
  for (std::int64_t i = 0; i < count; i += 16) {
    const F32x16 y = mul(gelu_lanes(load_first(gate + i, count - i)), load_first(up + i, count - i));
    store_bf16_first(out + i, y, count - i);
  }
}

void soft_cap(float* values, std::int64_t count, float cap) {
  const F32x16 caps = splat(cap);
  for (std::int64_t i = 0; i < count; i += 16) {
    const F32x16 y = mul(caps, tanh_lanes(div(load_first(values + i, count - i), caps)));
    store_first(values + i, y, count - i);
  }
}

/// The value of each lane's group, for sixteen channels from `i` on.
inline F32x16 expand_groups(const float* groups, std::int64_t i, std::int64_t width, std::int64_t group_size) {
  if (group_size % 16 == 0) return splat(groups[i / group_size]);
  float lanes[16] = {};
  for (std::int64_t lane = 0; lane < 16 && i + lane < width; ++lane) lanes[lane] = groups[(i + lane) / group_size];
  return load(lanes);
}

void block_convolve(const BlockConvolveRow& row) {
  for (std::int64_t i = 0; i < row.width; i += 16) {
    const std::int64_t n = row.width - i;
    const auto weight = [&](int tap) {
      return add(load_first(row.base[tap] + i, n), expand_groups(row.dynamic[tap], i, row.width, row.group_size));
    };
    F32x16 sum = mul(weight(0), load_first(row.y + i, n));
    if (row.previous != nullptr) sum = fma(weight(1), load_first(row.previous + i, n), sum);
    if (row.residual != nullptr) {
      store_first(row.residual + i, add(load_first(row.residual + i, n), sum), n);
    } else {
      store_bf16_first(row.out + i, sum, n);
    }
  }
}

void softmax(const float* logits, std::int64_t count, float* probabilities) {
  F32x16 largest = splat(-__builtin_huge_valf());
  for (std::int64_t i = 0; i < count; i += 16) {
    const std::int64_t n = count - i;
    const F32x16 value = load_first(logits + i, n);
    const Mask16 real = greater_int(splat_int(n < 16 ? static_cast<std::int32_t>(n) : 16), lane_indices());
    largest = select(real, max(value, largest), largest);
  }
  const F32x16 maximum = splat(fold_max(largest));
  F32x16 sum = splat(0.0f);
  for (std::int64_t i = 0; i < count; i += 16) {
    const std::int64_t n = count - i;
    const Mask16 real = greater_int(splat_int(n < 16 ? static_cast<std::int32_t>(n) : 16), lane_indices());
    const F32x16 e = select(real, exp_lanes(sub(load_first(logits + i, n), maximum)), splat(0.0f));
    sum = add(sum, e);
    store_first(probabilities + i, e, n);
  }
  const F32x16 total = splat(fold_add(sum));
  for (std::int64_t i = 0; i < count; i += 16) {
    store_first(probabilities + i, div(load_first(probabilities + i, count - i), total), count - i);
  }
}

void add_scaled(float* residual, const float* x, float scale, std::int64_t count) {
  const F32x16 scales = splat(scale);
  for (std::int64_t i = 0; i < count; i += 16) {
    const F32x16 y = fma(scales, load_first(x + i, count - i), load_first(residual + i, count - i));
    store_first(residual + i, y, count - i);
  }
}

float sigmoid_scalar(float x) {
  float lanes[16];
  store(lanes, sigmoid_lanes(splat(x)));
  return lanes[0];
}

void transcendental(Transcendental which, const float* x, std::int64_t count, float* out) {
  for (std::int64_t i = 0; i < count; i += 16) {
    const F32x16 value = load_first(x + i, count - i);
    F32x16 y = value;
    switch (which) {
      case Transcendental::kExp:
        y = exp_lanes(value);
        break;
      case Transcendental::kExp2:
        y = exp2_lanes(value);
        break;
      case Transcendental::kTanh:
        y = tanh_lanes(value);
        break;
      case Transcendental::kSigmoid:
        y = sigmoid_lanes(value);
        break;
      case Transcendental::kSoftplus:
        y = softplus_lanes(value);
        break;
    }
    store_first(out + i, y, count - i);
  }
}

void round_bf16(const float* x, std::int64_t count, std::uint16_t* out) {
  for (std::int64_t i = 0; i < count; i += 16) store_bf16_first(out + i, load_first(x + i, count - i), count - i);
}

}  // namespace
}  // namespace tensorfold::ops::cpu
