// One decoder layer of any family; see layer_runner.h.
#include "model/layer_runner.h"

#include <algorithm>

#include "base/error.h"

namespace tensorfold {
namespace {

std::int64_t attention_width(const AttentionMixer& mixer) {
  return static_cast<std::int64_t>(mixer.heads) * mixer.head_dim;
}

}  // namespace

ops::KvGeometry kv_geometry(const AttentionMixer& mixer) {
  return {mixer.kv_heads, mixer.head_dim};
}

void LayerWidths::include(const LayerDescription& layer) {
  if (const auto* attention = std::get_if<AttentionMixer>(&layer.mixer)) {
    wide = std::max(wide, attention->qkv.rows());
    mixed = std::max(mixed, attention_width(*attention));
    queries = std::max(queries, attention_width(*attention));
  } else {
    const auto& delta = std::get<GatedDeltaMixer>(layer.mixer);
    wide = std::max(wide, delta.input.rows());
    mixed = std::max(mixed, delta.output.columns);
  }
  if (const auto* dense = std::get_if<DenseFeedForward>(&layer.feed_forward)) {
    wide = std::max(wide, 2 * dense->width);
    mixed = std::max(mixed, dense->width);
    return;
  }
  const auto& moe = std::get<MoeFeedForward>(layer.feed_forward);
  router = std::max<std::int64_t>(router, moe.experts);
  if (moe.shared) {
    wide = std::max(wide, 2 * moe.shared->width);
    mixed = std::max(mixed, moe.shared->width);
  }
}

LayerRunner::LayerRunner(ops::Backend& backend, std::int64_t hidden_size, std::int64_t rows_max,
                         const LayerWidths& widths)
    : backend_(backend), hidden_size_(hidden_size) {
  const std::int64_t element = backend.info().activation_bytes;
  const auto allocate = [&](std::int64_t width, std::int64_t bytes) {
    return backend.allocate(static_cast<std::size_t>(rows_max * std::max<std::int64_t>(width, 1) * bytes),
                            "the forward pass's workspace");
  };
  residual_ = allocate(hidden_size, 4);
  normed_ = allocate(hidden_size, element);
  wide_ = allocate(widths.wide, 4);
  mixed_ = allocate(widths.mixed, element);
  queries_ = allocate(widths.queries, element);
  output_ = allocate(hidden_size, 4);
  router_ = allocate(widths.router + 1, 4);
}

void LayerRunner::poison() {
  for (const auto* buffer : {&residual_, &normed_, &wide_, &mixed_, &queries_, &output_, &router_}) {
    const std::vector<std::uint8_t> garbage((*buffer)->bytes(), 0xff);
    backend_.copy_to_backend((*buffer)->data(), garbage.data(), garbage.size());
  }
}

void LayerRunner::run_linear(const ops::Linear& weight, const ops::Activation* x, std::int64_t rows, float* y,
                             bool accumulate) {
  ops::LinearParams params;
  params.weight = &weight;
  params.x = x;
  params.rows = rows;
  params.y = y;
  params.y_stride = weight.rows();
  params.accumulate = accumulate;
  backend_.linear(params);
}

ops::RmsNormParams LayerRunner::norm_of(const NormDescription& description, const float* weight, std::int64_t rows) {
  return {floats(residual_), hidden_size_, weight, description.epsilon, rows, hidden_size_, activations(normed_), nullptr};
}

void LayerRunner::run_normed_linear(const ops::RmsNormParams& norm, const ops::Linear& weight, float* y,
                                    bool keeps_norm) {
  if (!backend_.norms_inputs(weight, norm)) {
    backend_.rms_norm(norm);
    run_linear(weight, norm.out, norm.rows, y, false);
    return;
  }
  ops::LinearParams params;
  params.weight = &weight;
  params.x = norm.out;
  params.rows = norm.rows;
  params.y = y;
  params.y_stride = weight.rows();
  params.norm = &norm;
  params.keeps_norm = keeps_norm;
  backend_.linear(params);
}

// With a norm after the block its output goes through a buffer; otherwise the last product adds into the residual.
void LayerRunner::add_post_norm(const NormDescription& description, const float* weight, std::int64_t rows) {
  backend_.rms_norm_add({floats(output_), weight, description.epsilon, rows, hidden_size_, floats(residual_)});
}

void LayerRunner::write_keys(const LayerDescription& layer, const LayerWeights& layer_weights, const LayerCache& cache,
                             const LayerRows& rows) {
  const auto& mixer = std::get<AttentionMixer>(layer.mixer);
  const auto& weights = std::get<AttentionWeights>(layer_weights.mixer);
  const std::int64_t head_dim = mixer.head_dim;
  const std::int64_t q_rows = mixer.qkv.parts[0].rows, kv_rows = mixer.qkv.parts[1].rows;
  const auto& spans = rows.spans[static_cast<std::size_t>(mixer.cache_group)];
  run_normed_linear(norm_of(layer.input_norm, layer_weights.input_norm, rows.rows), *weights.qkv, floats(wide_));
  ops::AttentionPrepareParams prepare;
  prepare.geometry = kv_geometry(mixer);
  prepare.heads = mixer.heads;
  prepare.qkv = floats(wide_);
  prepare.stride = mixer.qkv.rows();
  prepare.q_head_stride = mixer.gated ? 2 * head_dim : head_dim;
  prepare.k_offset = q_rows;
  prepare.v_offset = q_rows + kv_rows;
  prepare.q_norm = weights.q_norm;
  prepare.k_norm = weights.k_norm;
  prepare.epsilon = mixer.q_norm ? mixer.q_norm->epsilon : 0.0f;
  prepare.rope = ropes_[static_cast<std::size_t>(mixer.rope)];
  prepare.rope_positions = rows.rope_positions.data();
  prepare.lanes = spans.data();
  prepare.lane_count = static_cast<std::int32_t>(spans.size());
  prepare.pool = cache.kv_pool();
  prepare.q_out = activations(queries_);
  backend_.attention_prepare(prepare);
}

void LayerRunner::run_attention(const AttentionMixer& mixer, const AttentionWeights& weights, const LayerCache& cache,
                                const LayerRows& rows, float* output, bool accumulate) {
  const std::int64_t head_dim = mixer.head_dim;
  const auto& spans = rows.spans[static_cast<std::size_t>(mixer.cache_group)];
  ops::AttentionParams params;
  params.geometry = kv_geometry(mixer);
  params.heads = mixer.heads;
  params.q = activations(queries_);
  params.pool = cache.kv_pool();
  params.lanes = spans.data();
  params.lane_count = static_cast<std::int32_t>(spans.size());
  params.scale = mixer.scale;
  params.window = mixer.window;
  if (mixer.gated) {
    params.gate = floats(wide_);
    params.gate_stride = mixer.qkv.rows();
    params.gate_offset = head_dim;
    params.gate_head_stride = 2 * head_dim;
  }
  params.out = activations(mixed_);
  backend_.attention(params);
  run_linear(*weights.output, activations(mixed_), rows.rows, output, accumulate);
}

void LayerRunner::run_gated_delta(const GatedDeltaMixer& mixer, const GatedDeltaWeights& weights,
                                  const LayerCache& cache, const LayerRows& rows, const ops::RmsNormParams& norm,
                                  float* output, bool accumulate) {
  run_normed_linear(norm, *weights.input, floats(wide_));
  const auto& spans = rows.spans[static_cast<std::size_t>(mixer.cache_group)];
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
  params.slots = cache.buffer->data();
  params.slot_bytes = cache.unit_bytes;
  params.lanes = spans.data();
  params.lane_count = static_cast<std::int32_t>(spans.size());
  params.out = activations(mixed_);
  backend_.gated_delta(params);
  run_linear(*weights.output, activations(mixed_), rows.rows, output, accumulate);
}

// Into mixed(): act(gate) · up of the normed rows; `norm`: they aren't there yet.
void LayerRunner::run_gate_up(const ops::Linear& weight, std::int64_t rows, std::int64_t width,
                              ops::ActivationKind kind, const ops::RmsNormParams* norm) {
  if (norm != nullptr && !backend_.norms_inputs(weight, *norm)) {
    backend_.rms_norm(*norm);
    norm = nullptr;
  }
  if (backend_.gated_linear({&weight, activations(normed_), rows, kind, activations(mixed_), norm})) return;
  if (norm != nullptr) {
    run_normed_linear(*norm, weight, floats(wide_));
  } else {
    run_linear(weight, activations(normed_), rows, floats(wide_), false);
  }
  backend_.gated_activation({floats(wide_), rows, width, kind, activations(mixed_)});
}

void LayerRunner::run_dense(const DenseFeedForward& feed_forward, const DenseWeights& weights,
                            const ops::RmsNormParams& norm, float* output, bool accumulate) {
  run_gate_up(*weights.gate_up, norm.rows, feed_forward.width, feed_forward.activation, &norm);
  run_linear(*weights.down, activations(mixed_), norm.rows, output, accumulate);
}

void LayerRunner::run_moe(const MoeFeedForward& feed_forward, const MoeWeights& weights, const ops::RmsNormParams& norm,
                          const OnExperts& on_experts) {
  const std::int64_t rows = norm.rows;
  run_normed_linear(norm, *weights.router, floats(router_), true);
  ops::MoeParams params;
  params.x = activations(normed_);
  params.router_logits = floats(router_);
  params.router_stride = weights.router->rows();
  params.rows = rows;
  params.experts = feed_forward.experts;
  params.top_k = feed_forward.top_k;
  params.normalise_top_k = feed_forward.normalise_top_k;
  params.kind = feed_forward.activation;
  params.gate_up = weights.gate_up.get();
  params.down = weights.down.get();
  params.residual = floats(residual_);
  if (feed_forward.shared) {
    params.shared_gate = floats(router_) + feed_forward.experts;
    params.shared_gate_stride = params.router_stride;
    params.shared_gate_up = weights.shared_gate_up.get();
    params.shared_down = weights.shared_down.get();
    if (!backend_.moe_runs_shared(params)) {
      run_gate_up(*weights.shared_gate_up, rows, feed_forward.shared->width, feed_forward.activation, nullptr);
      run_linear(*weights.shared_down, activations(mixed_), rows, floats(output_), false);
      params.shared_output = floats(output_);
    }
  }
  std::vector<std::int32_t> chosen;
  if (on_experts) {
    chosen.resize(static_cast<std::size_t>(rows * feed_forward.top_k));
    params.chosen_experts = chosen.data();
  }
  backend_.moe(params);
  if (on_experts) on_experts(chosen.data(), rows, feed_forward.top_k);
}

void LayerRunner::run_feed_forward(const LayerDescription& layer, const LayerWeights& weights, std::int64_t rows,
                                   const OnExperts& on_experts) {
  const ops::RmsNormParams norm = norm_of(layer.feed_forward_norm, weights.feed_forward_norm, rows);
  if (const auto* dense = std::get_if<DenseFeedForward>(&layer.feed_forward)) {
    float* output = layer.post_feed_forward_norm ? floats(output_) : floats(residual_);
    run_dense(*dense, std::get<DenseWeights>(weights.feed_forward), norm, output, !layer.post_feed_forward_norm);
    if (layer.post_feed_forward_norm) {
      add_post_norm(*layer.post_feed_forward_norm, weights.post_feed_forward_norm, rows);
    }
    return;
  }
  TF_ASSERT(!layer.post_feed_forward_norm);
  run_moe(std::get<MoeFeedForward>(layer.feed_forward), std::get<MoeWeights>(weights.feed_forward), norm, on_experts);
}

void LayerRunner::finish(const LayerDescription& layer, const LayerWeights& weights, const LayerCache& cache,
                         const LayerRows& rows, const OnExperts& on_experts) {
  float* output = layer.post_mixer_norm ? floats(output_) : floats(residual_);
  run_attention(std::get<AttentionMixer>(layer.mixer), std::get<AttentionWeights>(weights.mixer), cache, rows, output,
                !layer.post_mixer_norm);
  if (layer.post_mixer_norm) add_post_norm(*layer.post_mixer_norm, weights.post_mixer_norm, rows.rows);
  run_feed_forward(layer, weights, rows.rows, on_experts);
}

void LayerRunner::run(const LayerDescription& layer, const LayerWeights& weights, const LayerCache& cache,
                      const LayerRows& rows, const OnExperts& on_experts) {
  const auto* delta = std::get_if<GatedDeltaMixer>(&layer.mixer);
  if (!delta) {
    write_keys(layer, weights, cache, rows);
    finish(layer, weights, cache, rows, on_experts);
    return;
  }
  const ops::RmsNormParams norm = norm_of(layer.input_norm, weights.input_norm, rows.rows);
  float* output = layer.post_mixer_norm ? floats(output_) : floats(residual_);
  run_gated_delta(*delta, std::get<GatedDeltaWeights>(weights.mixer), cache, rows, norm, output, !layer.post_mixer_norm);
  if (layer.post_mixer_norm) add_post_norm(*layer.post_mixer_norm, weights.post_mixer_norm, rows.rows);
  run_feed_forward(layer, weights, rows.rows, on_experts);
}

}  // namespace tensorfold
