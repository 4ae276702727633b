// The forward pass of every family; see executor.h.
#include "model/executor.h"

#include <algorithm>

#include "base/bf16.h"
#include "base/error.h"
#include "base/limits.h"
#include "model/rope.h"

namespace tensorfold {
namespace {

LayerWidths widths(const ModelDescription& description) {
  LayerWidths result;
  for (const auto& layer : description.layers) result.include(layer);
  return result;
}

}  // namespace

/// What one pass needs beside the plan: the layers' view of its rows, and flat index lists.
struct Executor::Pass {
  LayerRows layers;
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> logits_rows;
  std::vector<std::int32_t> hidden_rows;
};

Executor::~Executor() = default;

Executor::Executor(ModelDescription description, ModelWeights weights, std::unique_ptr<ops::Backend> backend)
    : description_(std::move(description)), weights_(std::move(weights)), backend_(std::move(backend)) {
  for (const auto& layer : description_.layers) {
    LayerCache cache;
    if (const auto* attention = std::get_if<AttentionMixer>(&layer.mixer)) {
      cache.group = attention->cache_group;
      cache.unit_bytes = backend_->kv_page_bytes(kv_geometry(*attention));
      description_.cache_groups[static_cast<std::size_t>(cache.group)].page_bytes += cache.unit_bytes;
    } else {
      const auto& delta = std::get<GatedDeltaMixer>(layer.mixer);
      cache.group = delta.cache_group;
      cache.unit_bytes = backend_->gated_delta_slot_bytes(delta.geometry);
      description_.cache_groups[static_cast<std::size_t>(cache.group)].slot_bytes += cache.unit_bytes;
    }
    layer_caches_.push_back(std::move(cache));
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
  runner_ = std::make_unique<LayerRunner>(*backend_, description_.hidden_size, facts_.pass_rows_max,
                                          widths(description_));
}

void Executor::allocate_caches(const std::vector<std::int32_t>& page_counts, std::int32_t slot_count,
                               std::int32_t window_rows) {
  TF_ASSERT(window_rows >= 1 && window_rows <= facts_.window_rows_max);
  TF_ASSERT(page_counts.size() == facts_.groups.size());
  page_counts_ = page_counts;
  slot_count_ = slot_count;
  std::int64_t positions = 0;
  for (auto& cache : layer_caches_) {
    const auto& group = facts_.groups[static_cast<std::size_t>(cache.group)];
    const bool recurrent = group.kind == CacheKind::kRecurrent;
    cache.units = recurrent ? slot_count : page_counts[static_cast<std::size_t>(cache.group)];
    if (!recurrent && !group.draft) {
      positions = std::max<std::int64_t>(positions, static_cast<std::int64_t>(cache.units) * limits::kKvPageTokens);
    }
    cache.buffer = backend_->allocate(cache.unit_bytes * static_cast<std::size_t>(cache.units), "the KV cache");
  }
  // A stream is never longer than the model's context; sliding groups alone may hold fewer pages than positions.
  const bool all_sliding = std::none_of(facts_.groups.begin(), facts_.groups.end(), [](const auto& group) {
    return group.kind == CacheKind::kFull && !group.draft;
  });
  build_rope_tables(static_cast<std::int32_t>(
      all_sliding ? description_.context_max : std::min<std::int64_t>(positions, description_.context_max)));
}

void Executor::build_rope_tables(std::int32_t positions) {
  rope_positions_ = positions;
  rope_tables_.clear();
  std::vector<ops::RopeTable> tables;
  for (const auto& rope : description_.ropes) {
    const auto table = make_rope_table(rope, positions);
    auto buffer = backend_->allocate(std::max<std::size_t>(table.size(), 1) * sizeof(float), "the RoPE table");
    backend_->copy_to_backend(buffer->data(), table.data(), table.size() * sizeof(float));
    tables.push_back({static_cast<const float*>(buffer->data()), rope.rotary_dims(), positions});
    rope_tables_.push_back(std::move(buffer));
  }
  runner_->set_ropes(std::move(tables));
}

void Executor::for_each_unit(std::int32_t group, std::int32_t unit,
                             const std::function<void(std::byte*, std::size_t)>& visit) {
  for (auto& cache : layer_caches_) {
    if (cache.group != group) continue;
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

void Executor::poison_workspace() { runner_->poison(); }

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
  pass.layers.rows = static_cast<std::int64_t>(plan.rows.size());
  for (std::size_t row = 0; row < plan.rows.size(); ++row) {
    const auto& each = plan.rows[row];
    pass.tokens.push_back(each.token);
    pass.layers.rope_positions.push_back(each.rope_position[0]);
    if (each.flags & kRowWantsLogits) pass.logits_rows.push_back(static_cast<std::int32_t>(row));
    if (each.flags & kRowWantsHidden) pass.hidden_rows.push_back(static_cast<std::int32_t>(row));
  }
  pass.layers.spans.resize(facts_.groups.size());
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
      pass.layers.spans[group].push_back(span);
    }
  }
  return pass;
}

void Executor::run_head(const Pass& pass, ForwardResult& result) {
  result.logits_rows = pass.logits_rows;
  result.logits = nullptr;
  const auto rows = static_cast<std::int64_t>(pass.logits_rows.size());
  if (rows == 0) return;
  const std::size_t bytes = static_cast<std::size_t>(rows) * static_cast<std::size_t>(facts_.vocabulary_size) * 4;
  if (!logits_ || logits_->bytes() < bytes) logits_ = backend_->allocate(bytes, "logits");
  backend_->rms_norm({runner_->residual(), description_.hidden_size, weights_.final_norm,
                      description_.final_norm.epsilon, rows, description_.hidden_size, runner_->normed(),
                      pass.logits_rows.data()});
  const auto& head = weights_.head ? *weights_.head : *weights_.embedding;
  runner_->run_linear(head, runner_->normed(), rows, floats(logits_), false);
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
  backend_->rms_norm({runner_->residual(), description_.hidden_size, weights_.final_norm,
                      description_.final_norm.epsilon, rows, description_.hidden_size, runner_->normed(),
                      pass.hidden_rows.data()});
  const std::size_t count = static_cast<std::size_t>(rows * description_.hidden_size);
  host_hidden_.resize(count);
  if (backend_->info().activation_bytes == 4) {
    backend_->copy_to_host(host_hidden_.data(), runner_->normed(), count * 4);
  } else {
    std::vector<Bf16> rounded(count);
    backend_->copy_to_host(rounded.data(), runner_->normed(), count * sizeof(Bf16));
    std::transform(rounded.begin(), rounded.end(), host_hidden_.begin(), [](Bf16 value) { return to_float(value); });
  }
  result.hidden = host_hidden_.data();
}

void Executor::forward(const RoundPlan& plan, ForwardResult& result) {
  check_plan(plan);
  const Pass pass = prepare(plan);
  const std::int64_t rows = pass.layers.rows;
  backend_->embed({weights_.embedding.get(), pass.tokens.data(), rows, description_.embedding_scale,
                   runner_->residual()});
  for (std::size_t index = 0; index < description_.layers.size(); ++index) {
    const auto layer = static_cast<std::int32_t>(index);
    LayerRunner::OnExperts on_experts;
    if (observer_.on_experts) {
      on_experts = [&](const std::int32_t* experts, std::int64_t count, std::int32_t top_k) {
        observer_.on_experts(layer, experts, count, top_k);
      };
    }
    runner_->run(description_.layers[index], weights_.layers[index], layer_caches_[index], pass.layers, on_experts);
    if (!observer_.on_layer) continue;
    std::vector<float> residual(static_cast<std::size_t>(rows * description_.hidden_size));
    backend_->copy_to_host(residual.data(), runner_->residual(), residual.size() * sizeof(float));
    observer_.on_layer(layer, residual.data(), rows);
  }
  return_hidden(pass, result);
  run_head(pass, result);
}

}  // namespace tensorfold
