// Mixture of experts, row by row: no plan, no grouping.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "ops/reference/reference_operations.h"

namespace tensorfold::ops {
namespace {

struct Routing {
  std::vector<std::int32_t> experts;  // in slot order
  std::vector<float> weights;
};

/// Softmax over all experts, then the best `top_k` by (probability descending, id ascending).
Routing route(const MoeParams& params, const float* logits) {
  const auto count = static_cast<std::size_t>(params.experts);
  const double maximum = static_cast<double>(*std::max_element(logits, logits + params.experts));
  std::vector<double> exponentials(count);
  double sum = 0.0;
  for (std::size_t e = 0; e < count; ++e) sum += exponentials[e] = std::exp(static_cast<double>(logits[e]) - maximum);
  std::vector<float> probabilities(count);
  for (std::size_t e = 0; e < count; ++e) probabilities[e] = static_cast<float>(exponentials[e] / sum);

  Routing routing;
  routing.experts.resize(count);
  std::iota(routing.experts.begin(), routing.experts.end(), 0);
  std::sort(routing.experts.begin(), routing.experts.end(), [&](std::int32_t a, std::int32_t b) {
    const float of_a = probabilities[static_cast<std::size_t>(a)];
    const float of_b = probabilities[static_cast<std::size_t>(b)];
    return of_a != of_b ? of_a > of_b : a < b;
  });
  routing.experts.resize(static_cast<std::size_t>(params.top_k));
  double selected = 0.0;
  for (const std::int32_t expert : routing.experts)
    selected += static_cast<double>(probabilities[static_cast<std::size_t>(expert)]);
  for (const std::int32_t expert : routing.experts) {
    const double probability = static_cast<double>(probabilities[static_cast<std::size_t>(expert)]);
    routing.weights.push_back(static_cast<float>(params.normalise_top_k ? probability / selected : probability));
  }
  return routing;
}

}  // namespace

void ReferenceBackend::expert_output(const MoeParams& params, std::int32_t expert, const float* x, float* out) const {
  const auto& gate_up = static_cast<const ReferenceLinear&>(*params.gate_up);
  const auto& down = static_cast<const ReferenceLinear&>(*params.down);
  const std::int64_t width = down.columns();
  std::vector<float> inner(static_cast<std::size_t>(width));
  for (std::int64_t i = 0; i < width; ++i) {
    // The outputs of a linear layer are fp32 in every backend, so the reference stores them as such.
    const auto gate = static_cast<float>(dot(gate_up.row(expert, i), x, gate_up.columns()));
    const auto up = static_cast<float>(dot(gate_up.row(expert, width + i), x, gate_up.columns()));
    inner[static_cast<std::size_t>(i)] =
        round_point(activate(params.kind, static_cast<double>(gate)) * static_cast<double>(up));
  }
  for (std::int64_t i = 0; i < down.rows(); ++i)
    out[i] = static_cast<float>(dot(down.row(expert, i), inner.data(), width));
}

void ReferenceBackend::moe_row(const MoeParams& params, std::int64_t row) const {
  const auto& gate_up = static_cast<const ReferenceLinear&>(*params.gate_up);
  const auto& down = static_cast<const ReferenceLinear&>(*params.down);
  const std::int64_t hidden = gate_up.columns();
  TF_ASSERT(down.rows() == hidden && gate_up.rows() == 2 * down.columns());
  float* residual = params.residual + row * hidden;
  const float* logits = params.router_logits + row * params.router_stride;
  if (!std::all_of(logits, logits + params.experts, [](float logit) { return std::isfinite(logit); })) {
    std::fill_n(residual, hidden, std::numeric_limits<float>::quiet_NaN());
    if (params.chosen_experts != nullptr)
      std::iota(params.chosen_experts + row * params.top_k, params.chosen_experts + (row + 1) * params.top_k, 0);
    return;
  }
  const Routing routing = route(params, logits);
  std::vector<float> output(static_cast<std::size_t>(hidden));
  for (std::int32_t slot = 0; slot < params.top_k; ++slot) {
    const std::int32_t expert = routing.experts[static_cast<std::size_t>(slot)];
    if (params.chosen_experts != nullptr) params.chosen_experts[row * params.top_k + slot] = expert;
    expert_output(params, expert, values_of(params.x) + row * hidden, output.data());
    const float weight = routing.weights[static_cast<std::size_t>(slot)];
    for (std::int64_t i = 0; i < hidden; ++i)
      residual[i] = std::fma(weight, output[static_cast<std::size_t>(i)], residual[i]);
  }
  if (params.shared_output != nullptr) {
    const auto weight =
        static_cast<float>(sigmoid(static_cast<double>(params.shared_gate[row * params.shared_gate_stride])));
    for (std::int64_t i = 0; i < hidden; ++i)
      residual[i] = std::fma(weight, params.shared_output[row * hidden + i], residual[i]);
  }
}

void ReferenceBackend::moe(const MoeParams& params) {
  TF_ASSERT(params.top_k >= 1 && params.top_k <= params.experts);
  TF_ASSERT(params.gate_up->experts() == params.experts && params.down->experts() == params.experts);
  TF_ASSERT(params.shared_output == nullptr || params.shared_gate != nullptr);
  pool_.parallel_for(params.rows, [&](std::int64_t row, int) { moe_row(params, row); });
}

}  // namespace tensorfold::ops
