// Mixture of experts on the CPU: routing row by row, a plan that groups the rows of the pass by expert so that each
// chosen expert's weights are read once, the experts' linears in two batched loops, and the combination in slot order.
// Which rows share a batch can't be seen in a bit, because a linear's rows don't depend on each other.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "ops/cpu/cpu_operations.h"
#include "ops/cpu/linear.h"

namespace tensorfold::ops::cpu {
namespace {

class MoePass {
 public:
  MoePass(CpuContext& context, const MoeParams& params)
      : context_(context),
        kernels_(context.kernels),
        p_(params),
        gate_up_(static_cast<const CpuLinear&>(*params.gate_up)),
        down_(static_cast<const CpuLinear&>(*params.down)),
        hidden_(gate_up_.columns()),
        width_(down_.columns()) {
    TF_ASSERT(p_.top_k >= 1 && p_.top_k <= p_.experts);
    TF_ASSERT(gate_up_.experts() == p_.experts && down_.experts() == p_.experts);
    TF_ASSERT(down_.rows() == hidden_ && gate_up_.rows() == 2 * width_);
    TF_ASSERT(p_.shared_output == nullptr || p_.shared_gate != nullptr);
  }

  void run() {
    route();
    plan();
    run_experts();
    combine();
  }

 private:
  static constexpr std::int32_t kUnrouted = -1;

  void route() {
    const auto slots = static_cast<std::size_t>(p_.rows * p_.top_k);
    chosen_.assign(slots, kUnrouted);
    weights_.assign(slots, 0.0f);
    const std::int64_t per_thread = round_up_16(p_.experts) * 2;
    float* scratch = context_.thread_scratch.floats(per_thread * context_.pool.thread_count());
    run_items(context_, p_.rows, p_.rows * p_.experts * 4, [&](std::int64_t row, int thread) {
      float* probabilities = scratch + per_thread * thread;
      route_row(row, probabilities, reinterpret_cast<std::int32_t*>(probabilities + round_up_16(p_.experts)));
    });
  }

  void route_row(std::int64_t row, float* probabilities, std::int32_t* order) {
    const float* logits = p_.router_logits + row * p_.router_stride;
    if (!std::all_of(logits, logits + p_.experts, [](float logit) { return std::isfinite(logit); })) return;
    kernels_.softmax(logits, p_.experts, probabilities);
    std::iota(order, order + p_.experts, 0);
    std::partial_sort(order, order + p_.top_k, order + p_.experts, [&](std::int32_t a, std::int32_t b) {
      return probabilities[a] != probabilities[b] ? probabilities[a] > probabilities[b] : a < b;
    });
    float sum = 0.0f;
    for (std::int32_t slot = 0; slot < p_.top_k; ++slot) sum += probabilities[order[slot]];
    for (std::int32_t slot = 0; slot < p_.top_k; ++slot) {
      const auto at = static_cast<std::size_t>(row * p_.top_k + slot);
      chosen_[at] = order[slot];
      weights_[at] = p_.normalise_top_k ? probabilities[order[slot]] / sum : probabilities[order[slot]];
    }
  }

  /// Pairs (row, slot) in ascending order of expert, then row; counting sort.
  void plan() {
    std::vector<std::int32_t> ends(static_cast<std::size_t>(p_.experts) + 1, 0);
    for (const std::int32_t expert : chosen_) {
      if (expert != kUnrouted) ++ends[static_cast<std::size_t>(expert) + 1];
    }
    std::partial_sum(ends.begin(), ends.end(), ends.begin());
    pairs_ = ends.back();
    place_.assign(chosen_.size(), 0);
    pair_rows_.assign(static_cast<std::size_t>(pairs_), 0);
    std::vector<std::int32_t> next(ends.begin(), ends.end() - 1);
    for (std::size_t at = 0; at < chosen_.size(); ++at) {
      if (chosen_[at] == kUnrouted) continue;
      const std::int32_t place = next[static_cast<std::size_t>(chosen_[at])]++;
      place_[at] = place;
      pair_rows_[static_cast<std::size_t>(place)] = static_cast<std::int32_t>(static_cast<std::int64_t>(at) / p_.top_k);
    }
    expert_ends_ = std::move(ends);
  }

  std::vector<ExpertJob> jobs(const std::vector<std::int32_t>& row_index, float* y, std::int64_t y_stride) const {
    std::vector<ExpertJob> result;
    for (std::int32_t expert = 0; expert < p_.experts; ++expert) {
      const std::int64_t begin = expert_ends_[static_cast<std::size_t>(expert)];
      const std::int64_t end = expert_ends_[static_cast<std::size_t>(expert) + 1];
      if (begin == end) continue;
      ExpertJob job;
      job.expert = expert;
      job.row_index = row_index.data() + begin;
      job.rows = end - begin;
      job.y = y + begin * y_stride;
      result.push_back(job);
    }
    return result;
  }

  void run_experts() {
    if (pairs_ == 0) return;
    const std::int64_t gate_up_floats = round_up_16(pairs_ * 2 * width_);
    const std::int64_t inner_floats = round_up_16((pairs_ * width_ + 1) / 2);
    float* gate_up = context_.expert_scratch.floats(gate_up_floats + inner_floats + pairs_ * hidden_);
    auto* inner = reinterpret_cast<std::uint16_t*>(gate_up + gate_up_floats);
    outputs_ = gate_up + gate_up_floats + inner_floats;

    linear_experts(context_.pool, gate_up_, reinterpret_cast<const Bf16*>(p_.x), jobs(pair_rows_, gate_up, 2 * width_),
                   2 * width_);
    GatedActivationParams activation;
    activation.gate_up = gate_up;
    activation.rows = pairs_;
    activation.width = width_;
    activation.kind = p_.kind;
    activation.out = reinterpret_cast<Activation*>(inner);
    gated_activation(context_, activation);
    std::vector<std::int32_t> identity(static_cast<std::size_t>(pairs_));
    std::iota(identity.begin(), identity.end(), 0);
    linear_experts(context_.pool, down_, reinterpret_cast<const Bf16*>(inner), jobs(identity, outputs_, hidden_),
                   hidden_);
  }

  void combine() {
    run_items(context_, p_.rows, p_.rows * hidden_ * p_.top_k / 4, [&](std::int64_t row, int) { combine_row(row); });
  }

  void combine_row(std::int64_t row) {
    float* residual = p_.residual + row * hidden_;
    const auto first = static_cast<std::size_t>(row * p_.top_k);
    const bool routed = chosen_[first] != kUnrouted;
    for (std::int32_t slot = 0; slot < p_.top_k; ++slot) {
      const std::size_t at = first + static_cast<std::size_t>(slot);
      if (p_.chosen_experts != nullptr) p_.chosen_experts[at] = routed ? chosen_[at] : slot;
      if (routed) kernels_.add_scaled(residual, outputs_ + place_[at] * hidden_, weights_[at], hidden_);
    }
    if (!routed) {
      std::fill_n(residual, hidden_, std::numeric_limits<float>::quiet_NaN());
      return;
    }
    if (p_.shared_output == nullptr) return;
    const float weight = kernels_.sigmoid(p_.shared_gate[row * p_.shared_gate_stride]);
    kernels_.add_scaled(residual, p_.shared_output + row * hidden_, weight, hidden_);
  }

  CpuContext& context_;
  const OpsKernels& kernels_;
  const MoeParams& p_;
  const CpuLinear& gate_up_;
  const CpuLinear& down_;
  std::int64_t hidden_;
  std::int64_t width_;
  std::vector<std::int32_t> chosen_;  // [rows, top_k], kUnrouted for a row without finite logits
  std::vector<float> weights_;        // [rows, top_k]
  std::vector<std::int32_t> place_;   // [rows, top_k]: the pair's place in the order by expert
  std::vector<std::int32_t> pair_rows_;
  std::vector<std::int32_t> expert_ends_;  // pairs of expert e: [expert_ends_[e], expert_ends_[e + 1])
  std::int32_t pairs_ = 0;
  float* outputs_ = nullptr;  // [pairs, hidden]
};

}  // namespace

void moe(CpuContext& context, const MoeParams& p) {
  if (p.rows == 0) return;
  MoePass(context, p).run();
}

}  // namespace tensorfold::ops::cpu
