// The forward pass of every family; see executor.h.
#include "model/executor.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/bf16.h"
#include "base/error.h"
#include "base/limits.h"
#include "model/rope.h"

namespace tensorfold {
namespace {

std::int64_t attention_width(const AttentionMixer& mixer) {
  return static_cast<std::int64_t>(mixer.heads) * mixer.head_dim;
}

ops::KvGeometry kv_geometry(const AttentionMixer& mixer) { return {mixer.kv_heads, mixer.head_dim}; }

// The widths that decide the workspace, over all layers.
struct Widths {
  std::int64_t wide = 0;      // fp32 projections
  std::int64_t mixed = 0;     // activations after mixers and gates
  std::int64_t queries = 0;
  std::int64_t router = 0;
};

Widths widths(const ModelDescription& description) {
  Widths result;
  for (const auto& layer : description.layers) {
    if (const auto* attention = std::get_if<AttentionMixer>(&layer.mixer)) {
      result.wide = std::max(result.wide, attention->qkv.rows());
      result.mixed = std::max(result.mixed, attention_width(*attention));
      result.queries = std::max(result.queries, attention_width(*attention));
    } else {
      const auto& delta = std::get<GatedDeltaMixer>(layer.mixer);
      result.wide = std::max(result.wide, delta.input.rows());
      result.mixed = std::max(result.mixed, delta.output.columns);
    }
    if (const auto* dense = std::get_if<DenseFeedForward>(&layer.feed_forward)) {
      result.wide = std::max(result.wide, 2 * dense->width);
      result.mixed = std::max(result.mixed, dense->width);
    } else {
      const auto& moe = std::get<MoeFeedForward>(layer.feed_forward);
      result.router = std::max<std::int64_t>(result.router, moe.experts);
      if (moe.shared) {
        result.wide = std::max(result.wide, 2 * moe.shared->width);
        result.mixed = std::max(result.mixed, moe.shared->width);
      }
    }
  }
  return result;
}

}  // namespace

/// What one pass needs beside the plan: spans with page pointers per cache group, and flat index lists.
struct Executor::Pass {
  std::int64_t rows = 0;
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> rope_positions;
  std::vector<std::vector<ops::LaneSpan>> spans;  // [cache group][lane]
  std::vector<std::int32_t> logits_rows;
  std::vector<std::int32_t> hidden_rows;
};

Executor::~Executor() = default;

Executor::Executor(ModelDescription description, ModelWeights weights, std::unique_ptr<ops::Backend> backend)
    : description_(std::move(description)), weights_(std::move(weights)), backend_(std::move(backend)) {
  layer_caches_.resize(description_.layers.size());
  for (std::size_t index = 0; index < description_.layers.size(); ++index) {
    const auto& mixer = description_.layers[index].mixer;
    auto& cache = layer_caches_[index];
    if (const auto* attention = std::get_if<AttentionMixer>(&mixer)) {
      cache.unit_bytes = backend_->kv_page_bytes(kv_geometry(*attention));
      description_.cache_groups[static_cast<std::size_t>(attention->cache_group)].page_bytes += cache.unit_bytes;
    } else {
      const auto& delta = std::get<GatedDeltaMixer>(mixer);
      cache.unit_bytes = backend_->gated_delta_slot_bytes(delta.geometry);
      description_.cache_groups[static_cast<std::size_t>(delta.cache_group)].slot_bytes += cache.unit_bytes;
    }
  }
  facts_.family = description_.family;
  facts_.family_title = description_.title;
  facts_.backend = backend_->info().name;
  facts_.backend_path = backend_->info().path;
  facts_.arithmetic_version = backend_->info().arithmetic_version;
  facts_.vocabulary_size = description_.vocabulary_size;
  facts_.hidden_size = static_cast<std::int32_t>(description_.hidden_size);
  facts_.context_max = description_.context_max;
  facts_.pass_rows_max = limits::kPassRowsMax;
  facts_.packed_weight_bytes = weights_.packed_bytes;
  facts_.groups = description_.cache_groups;
  allocate_workspace();
}

void Executor::allocate_workspace() {
  const auto sizes = widths(description_);
  const std::int64_t rows = facts_.pass_rows_max, hidden = description_.hidden_size;
  const std::int64_t element = backend_->info().activation_bytes;
  const auto allocate = [&](std::int64_t width, std::int64_t bytes) {
    return backend_->allocate(static_cast<std::size_t>(rows * std::max<std::int64_t>(width, 1) * bytes),
                              "the forward pass's workspace");
  };
  residual_ = allocate(hidden, 4);
  normed_ = allocate(hidden, element);
  wide_ = allocate(sizes.wide, 4);
  mixed_ = allocate(sizes.mixed, element);
  queries_ = allocate(sizes.queries, element);
  output_ = allocate(hidden, 4);
  router_ = allocate(sizes.router + 1, 4);
}

void Executor::allocate_caches(const std::vector<std::int32_t>& page_counts, std::int32_t slot_count,
                               std::int32_t window_rows) {
  TF_ASSERT(window_rows >= 1 && window_rows <= facts_.window_rows_max);
  TF_ASSERT(page_counts.size() == facts_.groups.size());
  page_counts_ = page_counts;
  slot_count_ = slot_count;
  std::int64_t positions = 0;
  for (std::size_t index = 0; index < description_.layers.size(); ++index) {
    auto& cache = layer_caches_[index];
    if (const auto* attention = std::get_if<AttentionMixer>(&description_.layers[index].mixer)) {
      cache.units = page_counts[static_cast<std::size_t>(attention->cache_group)];
      positions = std::max<std::int64_t>(positions, static_cast<std::int64_t>(cache.units) * limits::kKvPageTokens);
    } else {
      cache.units = slot_count;
    }
    cache.buffer = backend_->allocate(cache.unit_bytes * static_cast<std::size_t>(cache.units), "the KV cache");
  }
  // A stream is never longer than the model's context; sliding groups alone may hold fewer pages than positions.
  const bool all_sliding = std::none_of(facts_.groups.begin(), facts_.groups.end(),
                                        [](const auto& group) { return group.kind == CacheKind::kFull; });
  build_rope_tables(static_cast<std::int32_t>(
      all_sliding ? description_.context_max : std::min<std::int64_t>(positions, description_.context_max)));
}

void Executor::build_rope_tables(std::int32_t positions) {
  rope_positions_ = positions;
  rope_tables_.clear();
  for (const auto& rope : description_.ropes) {
    const auto table = make_rope_table(rope, positions);
    auto buffer = backend_->allocate(std::max<std::size_t>(table.size(), 1) * sizeof(float), "the RoPE table");
    backend_->copy_to_backend(buffer->data(), table.data(), table.size() * sizeof(float));
    rope_tables_.push_back(std::move(buffer));
  }
}

void Executor::for_each_unit(std::int32_t group, std::int32_t unit,
                             const std::function<void(std::byte*, std::size_t)>& visit) {
  for (std::size_t index = 0; index < description_.layers.size(); ++index) {
    const auto& mixer = description_.layers[index].mixer;
    const std::int32_t own = std::holds_alternative<AttentionMixer>(mixer)
                                 ? std::get<AttentionMixer>(mixer).cache_group
                                 : std::get<GatedDeltaMixer>(mixer).cache_group;
    if (own != group) continue;
    auto& cache = layer_caches_[index];
    TF_ASSERT(unit >= 0 && unit < cache.units);
    visit(static_cast<std::byte*>(cache.buffer->data()) + cache.unit_bytes * static_cast<std::size_t>(unit),
          cache.unit_bytes);
  }
}

void Executor::zero_page(std::int32_t group, std::int32_t page) {
  for_each_unit(group, page, [&](std::byte* data, std::size_t bytes) { backend_->zero(data, bytes); });
}

void Executor::copy_page(std::int32_t group, std::int32_t from, std::int32_t to) {
  const std::int64_t distance = static_cast<std::int64_t>(to) - from;
  for_each_unit(group, from, [&](std::byte* data, std::size_t bytes) {
    backend_->copy_to_backend(data + distance * static_cast<std::int64_t>(bytes), data, bytes);
  });
}

void Executor::zero_slot(std::int32_t slot) {
  for (std::size_t group = 0; group < facts_.groups.size(); ++group) {
    if (facts_.groups[group].kind != CacheKind::kRecurrent) continue;
    zero_page(static_cast<std::int32_t>(group), slot);
  }
}

void Executor::copy_slot(std::int32_t from, std::int32_t to) {
  for (std::size_t group = 0; group < facts_.groups.size(); ++group) {
    if (facts_.groups[group].kind != CacheKind::kRecurrent) continue;
    copy_page(static_cast<std::int32_t>(group), from, to);
  }
}

void Executor::poison_page(std::int32_t group, std::int32_t page) {
  for_each_unit(group, page, [&](std::byte* data, std::size_t bytes) {
    const std::vector<std::uint8_t> garbage(bytes, 0xff);  // NaN in fp32 and in bf16
    backend_->copy_to_backend(data, garbage.data(), bytes);
  });
}

void Executor::poison_workspace() {
  for (const auto* buffer : {&residual_, &normed_, &wide_, &mixed_, &queries_, &output_, &router_}) {
    const std::vector<std::uint8_t> garbage((*buffer)->bytes(), 0xff);
    backend_->copy_to_backend((*buffer)->data(), garbage.data(), garbage.size());
  }
}

void Executor::read_page(std::int32_t group, std::int32_t page, std::byte* out) {
  for_each_unit(group, page, [&](std::byte* data, std::size_t bytes) {
    backend_->copy_to_host(out, data, bytes);
    out += bytes;
  });
}

void Executor::write_page(std::int32_t group, std::int32_t page, const std::byte* bytes) {
  for_each_unit(group, page, [&](std::byte* data, std::size_t size) {
    backend_->copy_to_backend(data, bytes, size);
    bytes += size;
  });
}

std::size_t Executor::slot_state_bytes() const {
  std::size_t bytes = 0;
  for (const CacheGroup& group : facts_.groups) bytes += group.slot_bytes;
  return bytes;
}

void Executor::read_slot(std::int32_t slot, std::byte* out) {
  for (std::size_t group = 0; group < facts_.groups.size(); ++group) {
    if (facts_.groups[group].kind != CacheKind::kRecurrent) continue;
    read_page(static_cast<std::int32_t>(group), slot, out);
    out += facts_.groups[group].slot_bytes;
  }
}

void Executor::write_slot(std::int32_t slot, const std::byte* bytes) {
  for (std::size_t group = 0; group < facts_.groups.size(); ++group) {
    if (facts_.groups[group].kind != CacheKind::kRecurrent) continue;
    write_page(static_cast<std::int32_t>(group), slot, bytes);
    bytes += facts_.groups[group].slot_bytes;
  }
}

void Executor::settle(const PlanLane& lane) {
  if (lane.replay_rows.empty()) return;
  TF_ASSERT(!lane.replay_tree);
  for (std::size_t index = 0; index < description_.layers.size(); ++index) {
    const auto* mixer = std::get_if<GatedDeltaMixer>(&description_.layers[index].mixer);
    if (!mixer) continue;
    const auto& weights = std::get<GatedDeltaWeights>(weights_.layers[index].mixer);
    ops::GatedDeltaSettleParams params;
    params.geometry = mixer->geometry;
    params.conv_weight = weights.conv_weight;
    params.decay = weights.decay;
    params.dt_bias = weights.dt_bias;
    params.slots = layer_caches_[index].buffer->data();
    params.slot_bytes = layer_caches_[index].unit_bytes;
    params.slot = lane.slot;
    params.replay_rows = lane.replay_rows.data();
    params.replay_count = static_cast<std::int32_t>(lane.replay_rows.size());
    backend_->gated_delta_settle(params);
  }
}

void Executor::check_plan(const RoundPlan& plan) const {
  TF_ASSERT(static_cast<std::int64_t>(plan.rows.size()) <= facts_.pass_rows_max);
  std::int32_t next_row = 0;
  for (std::size_t lane_index = 0; lane_index < plan.lanes.size(); ++lane_index) {
    const auto& lane = plan.lanes[lane_index];
    TF_ASSERT(lane.first_row == next_row && lane.row_count > 0);
    TF_ASSERT(lane.commits || lane.row_count <= limits::kWindowRowsMax);
    TF_ASSERT(lane.slot >= 0 && lane.slot < slot_count_);
    TF_ASSERT(lane.pages.size() == facts_.groups.size());
    next_row += lane.row_count;
    const std::int32_t end = lane.position + lane.row_count;
    TF_ASSERT(lane.position >= 0 && end <= rope_positions_);
    for (std::size_t group = 0; group < facts_.groups.size(); ++group) {
      if (facts_.groups[group].kind == CacheKind::kRecurrent) continue;
      const auto& pages = lane.pages[group];
      TF_ASSERT(static_cast<std::int64_t>(pages.size()) * limits::kKvPageTokens >= end);
      for (const std::int32_t page : pages) TF_ASSERT(page >= -1 && page < page_counts_[group]);
    }
    for (std::int32_t row = lane.first_row; row < next_row; ++row) {
      const auto& each = plan.rows[static_cast<std::size_t>(row)];
      TF_ASSERT(each.lane == static_cast<std::int32_t>(lane_index));
      TF_ASSERT(each.sequence_index == lane.position + row - lane.first_row);
      TF_ASSERT(each.embedding_row < 0 && each.adapter < 0);  // what facts() doesn't offer isn't planned
      TF_ASSERT(each.token >= 0 && each.token < facts_.vocabulary_size);
      TF_ASSERT(each.rope_position[0] >= 0 && each.rope_position[0] < rope_positions_);
      TF_ASSERT(each.rope_position[1] == each.rope_position[0] && each.rope_position[2] == each.rope_position[0]);
    }
  }
  TF_ASSERT(next_row == static_cast<std::int32_t>(plan.rows.size()));
}

Executor::Pass Executor::prepare(const RoundPlan& plan) {
  Pass pass;
  pass.rows = static_cast<std::int64_t>(plan.rows.size());
  for (std::size_t row = 0; row < plan.rows.size(); ++row) {
    const auto& each = plan.rows[row];
    pass.tokens.push_back(each.token);
    pass.rope_positions.push_back(each.rope_position[0]);
    if (each.flags & kRowWantsLogits) pass.logits_rows.push_back(static_cast<std::int32_t>(row));
    if (each.flags & kRowWantsHidden) pass.hidden_rows.push_back(static_cast<std::int32_t>(row));
  }
  pass.spans.resize(facts_.groups.size());
  for (std::size_t group = 0; group < facts_.groups.size(); ++group) {
    for (const auto& lane : plan.lanes) {
      ops::LaneSpan span;
      span.slot = lane.slot;
      span.first_row = lane.first_row;
      span.row_count = lane.row_count;
      span.position = lane.position;
      span.pages = lane.pages[group].data();
      span.commits = lane.commits;
      span.replay_rows = lane.replay_rows.data();
      span.replay_count = static_cast<std::int32_t>(lane.replay_rows.size());
      pass.spans[group].push_back(span);
    }
  }
  return pass;
}

void Executor::run_linear(const ops::Linear& weight, const ops::Activation* x, std::int64_t rows, float* y,
                          bool accumulate) {
  ops::LinearParams params;
  params.weight = &weight;
  params.x = x;
  params.rows = rows;
  params.y = y;
  params.y_stride = weight.rows();
  params.accumulate = accumulate;
  backend_->linear(params);
}

void Executor::run_attention(std::size_t index, const AttentionMixer& mixer, const AttentionWeights& weights,
                             const Pass& pass, float* output, bool accumulate) {
  const std::int64_t stride = mixer.qkv.rows(), head_dim = mixer.head_dim;
  const std::int64_t q_rows = mixer.qkv.parts[0].rows, kv_rows = mixer.qkv.parts[1].rows;
  const auto& spans = pass.spans[static_cast<std::size_t>(mixer.cache_group)];
  const ops::KvPool pool{layer_caches_[index].buffer->data(), layer_caches_[index].unit_bytes};
  run_linear(*weights.qkv, activations(normed_), pass.rows, floats(wide_), false);

  ops::AttentionPrepareParams prepare;
  prepare.geometry = kv_geometry(mixer);
  prepare.heads = mixer.heads;
  prepare.qkv = floats(wide_);
  prepare.stride = stride;
  prepare.q_head_stride = mixer.gated ? 2 * head_dim : head_dim;
  prepare.k_offset = q_rows;
  prepare.v_offset = q_rows + kv_rows;
  prepare.q_norm = weights.q_norm;
  prepare.k_norm = weights.k_norm;
  prepare.epsilon = mixer.q_norm ? mixer.q_norm->epsilon : 0.0f;
  const auto rope = static_cast<std::size_t>(mixer.rope);
  prepare.rope = {floats(rope_tables_[rope]), description_.ropes[rope].rotary_dims(), rope_positions_};
  prepare.rope_positions = pass.rope_positions.data();
  prepare.lanes = spans.data();
  prepare.lane_count = static_cast<std::int32_t>(spans.size());
  prepare.pool = pool;
  prepare.q_out = activations(queries_);
  backend_->attention_prepare(prepare);

  ops::AttentionParams params;
  params.geometry = prepare.geometry;
  params.heads = mixer.heads;
  params.q = activations(queries_);
  params.pool = pool;
  params.lanes = spans.data();
  params.lane_count = prepare.lane_count;
  params.scale = mixer.scale;
  params.window = mixer.window;
  if (mixer.gated) {
    params.gate = floats(wide_);
    params.gate_stride = stride;
    params.gate_offset = head_dim;
    params.gate_head_stride = 2 * head_dim;
  }
  params.out = activations(mixed_);
  backend_->attention(params);
  run_linear(*weights.output, activations(mixed_), pass.rows, output, accumulate);
}

void Executor::run_gated_delta(std::size_t index, const GatedDeltaMixer& mixer, const GatedDeltaWeights& weights,
                               const Pass& pass, float* output, bool accumulate) {
  run_linear(*weights.input, activations(normed_), pass.rows, floats(wide_), false);
  const auto& spans = pass.spans[static_cast<std::size_t>(mixer.cache_group)];
  ops::GatedDeltaParams params;
  params.geometry = mixer.geometry;
  params.projected = floats(wide_);
  params.stride = mixer.input.rows();
  params.z_offset = mixer.input.parts[0].rows;
  params.b_offset = params.z_offset + mixer.input.parts[1].rows;
  params.a_offset = params.b_offset + mixer.input.parts[2].rows;
  params.conv_weight = weights.conv_weight;
  params.decay = weights.decay;
  params.dt_bias = weights.dt_bias;
  params.norm_weight = weights.norm;
  params.epsilon = mixer.norm.epsilon;
  params.sigmoid_gate = mixer.sigmoid_gate;
  params.slots = layer_caches_[index].buffer->data();
  params.slot_bytes = layer_caches_[index].unit_bytes;
  params.lanes = spans.data();
  params.lane_count = static_cast<std::int32_t>(spans.size());
  params.out = activations(mixed_);
  backend_->gated_delta(params);
  run_linear(*weights.output, activations(mixed_), pass.rows, output, accumulate);
}

void Executor::run_dense(const DenseFeedForward& feed_forward, const DenseWeights& weights, const Pass& pass,
                         float* output, bool accumulate) {
  run_linear(*weights.gate_up, activations(normed_), pass.rows, floats(wide_), false);
  backend_->gated_activation(
      {floats(wide_), pass.rows, feed_forward.width, feed_forward.activation, activations(mixed_)});
  run_linear(*weights.down, activations(mixed_), pass.rows, output, accumulate);
}

void Executor::run_moe(std::size_t index, const MoeFeedForward& feed_forward, const MoeWeights& weights,
                       const Pass& pass) {
  run_linear(*weights.router, activations(normed_), pass.rows, floats(router_), false);
  ops::MoeParams params;
  params.x = activations(normed_);
  params.router_logits = floats(router_);
  params.rows = pass.rows;
  params.experts = feed_forward.experts;
  params.top_k = feed_forward.top_k;
  params.normalise_top_k = feed_forward.normalise_top_k;
  params.kind = feed_forward.activation;
  params.gate_up = weights.gate_up.get();
  params.down = weights.down.get();
  params.residual = floats(residual_);
  if (feed_forward.shared) {
    const auto& shared = *feed_forward.shared;
    run_linear(*weights.shared_gate_up, activations(normed_), pass.rows, floats(wide_), false);
    backend_->gated_activation({floats(wide_), pass.rows, shared.width, feed_forward.activation, activations(mixed_)});
    run_linear(*weights.shared_down, activations(mixed_), pass.rows, floats(output_), false);
    // The shared expert's gate lies behind the router's logits of all rows.
    float* gate = floats(router_) + pass.rows * feed_forward.experts;
    run_linear(*weights.shared_gate, activations(normed_), pass.rows, gate, false);
    params.shared_output = floats(output_);
    params.shared_gate = gate;
  }
  std::vector<std::int32_t> chosen;
  if (observer_.on_experts) {
    chosen.resize(static_cast<std::size_t>(pass.rows * feed_forward.top_k));
    params.chosen_experts = chosen.data();
  }
  backend_->moe(params);
  if (observer_.on_experts) {
    observer_.on_experts(static_cast<std::int32_t>(index), chosen.data(), pass.rows, feed_forward.top_k);
  }
}

void Executor::run_layer(std::size_t index, const Pass& pass) {
  const auto& layer = description_.layers[index];
  const auto& weights = weights_.layers[index];
  const std::int64_t hidden = description_.hidden_size;
  const auto norm = [&](const NormDescription& description, const float* weight) {
    backend_->rms_norm({floats(residual_), hidden, weight, description.epsilon, pass.rows, hidden,
                        activations(normed_), nullptr});
  };
  // With a norm after the block its output goes through a buffer; otherwise the last product adds into the residual.
  const auto post_norm = [&](const NormDescription& description, const float* weight) {
    backend_->rms_norm_add({floats(output_), weight, description.epsilon, pass.rows, hidden, floats(residual_)});
  };

  norm(layer.input_norm, weights.input_norm);
  float* mixer_output = layer.post_mixer_norm ? floats(output_) : floats(residual_);
  if (const auto* attention = std::get_if<AttentionMixer>(&layer.mixer)) {
    run_attention(index, *attention, std::get<AttentionWeights>(weights.mixer), pass, mixer_output,
                  !layer.post_mixer_norm);
  } else {
    run_gated_delta(index, std::get<GatedDeltaMixer>(layer.mixer), std::get<GatedDeltaWeights>(weights.mixer), pass,
                    mixer_output, !layer.post_mixer_norm);
  }
  if (layer.post_mixer_norm) post_norm(*layer.post_mixer_norm, weights.post_mixer_norm);

  norm(layer.feed_forward_norm, weights.feed_forward_norm);
  if (const auto* dense = std::get_if<DenseFeedForward>(&layer.feed_forward)) {
    float* output = layer.post_feed_forward_norm ? floats(output_) : floats(residual_);
    run_dense(*dense, std::get<DenseWeights>(weights.feed_forward), pass, output, !layer.post_feed_forward_norm);
    if (layer.post_feed_forward_norm) post_norm(*layer.post_feed_forward_norm, weights.post_feed_forward_norm);
  } else {
    TF_ASSERT(!layer.post_feed_forward_norm);
    run_moe(index, std::get<MoeFeedForward>(layer.feed_forward), std::get<MoeWeights>(weights.feed_forward), pass);
  }
}

void Executor::run_head(const Pass& pass, ForwardResult& result) {
  result.logits_rows = pass.logits_rows;
  result.logits = nullptr;
  const auto rows = static_cast<std::int64_t>(pass.logits_rows.size());
  if (rows == 0) return;
  const std::size_t bytes = static_cast<std::size_t>(rows) * static_cast<std::size_t>(facts_.vocabulary_size) * 4;
  if (!logits_ || logits_->bytes() < bytes) logits_ = backend_->allocate(bytes, "logits");
  backend_->rms_norm({floats(residual_), description_.hidden_size, weights_.final_norm,
                      description_.final_norm.epsilon, rows, description_.hidden_size, activations(normed_),
                      pass.logits_rows.data()});
  const auto& head = weights_.head ? *weights_.head : *weights_.embedding;
  run_linear(head, activations(normed_), rows, floats(logits_), false);
  if (description_.logit_soft_cap > 0.0f) {
    backend_->soft_cap({floats(logits_), rows * facts_.vocabulary_size, description_.logit_soft_cap});
  }
  backend_->synchronise();
  if (backend_->info().host_memory) {
    result.logits = floats(logits_);
    return;
  }
  host_logits_.resize(bytes / 4);
  backend_->copy_to_host(host_logits_.data(), logits_->data(), bytes);
  result.logits = host_logits_.data();
}

void Executor::return_hidden(const Pass& pass, ForwardResult& result) {
  result.hidden_rows = pass.hidden_rows;
  result.hidden = nullptr;
  const auto rows = static_cast<std::int64_t>(pass.hidden_rows.size());
  if (rows == 0) return;
  backend_->rms_norm({floats(residual_), description_.hidden_size, weights_.final_norm,
                      description_.final_norm.epsilon, rows, description_.hidden_size, activations(normed_),
                      pass.hidden_rows.data()});
  const std::size_t count = static_cast<std::size_t>(rows * description_.hidden_size);
  host_hidden_.resize(count);
  if (backend_->info().activation_bytes == 4) {
    backend_->copy_to_host(host_hidden_.data(), normed_->data(), count * 4);
  } else {
    std::vector<Bf16> rounded(count);
    backend_->copy_to_host(rounded.data(), normed_->data(), count * sizeof(Bf16));
    std::transform(rounded.begin(), rounded.end(), host_hidden_.begin(), [](Bf16 value) { return to_float(value); });
  }
  result.hidden = host_hidden_.data();
}

void Executor::forward(const RoundPlan& plan, ForwardResult& result) {
  check_plan(plan);
  const Pass pass = prepare(plan);
  backend_->embed({weights_.embedding.get(), pass.tokens.data(), pass.rows, description_.embedding_scale,
                   floats(residual_)});
  for (std::size_t index = 0; index < description_.layers.size(); ++index) {
    run_layer(index, pass);
    if (!observer_.on_layer) continue;
    std::vector<float> residual(static_cast<std::size_t>(pass.rows * description_.hidden_size));
    backend_->copy_to_host(residual.data(), residual_->data(), residual.size() * sizeof(float));
    observer_.on_layer(static_cast<std::int32_t>(index), residual.data(), pass.rows);
  }
  return_hidden(pass, result);
  run_head(pass, result);
}

}  // namespace tensorfold
