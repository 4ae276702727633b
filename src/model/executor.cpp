// The forward pass of every family; see executor.h.
#include "model/executor.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/error.h"
#include "base/limits.h"
#include "model/rope.h"

namespace tensorfold {
namespace {

LayerWidths widths(const ModelDescription& description, const LoadedDrafter* drafter) {
  LayerWidths result;
  for (const auto& layer : description.layers) result.include(layer);
  if (description.mtp) {
    result.include(description.mtp->layer);
    result.mixed = std::max(result.mixed, description.mtp->join.columns);
  }
  if (drafter) DflashDrafter::include_widths(drafter->description, result);
  return result;
}

bool has_tree_replay(const std::vector<std::vector<ops::LaneSpan>>& spans) {
  const auto has_tree = [](const auto& lanes) {
    return std::any_of(lanes.begin(), lanes.end(), [](const ops::LaneSpan& span) { return span.replay_tree; });
  };
  return std::any_of(spans.begin(), spans.end(), has_tree);
}

}  // namespace

/// What one pass needs beside the plan: the layers' view of its rows, and flat index lists.
struct Executor::Pass {
  LayerRows layers;
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> parents;  // [rows] row of the own lane, -1 for its first
  std::vector<std::int32_t> logits_rows;
  std::vector<std::int32_t> hidden_rows;    // kept in backend memory
  std::vector<std::int32_t> returned_rows;  // of these, copied to the host
  std::vector<std::int32_t> tapped_rows;
  std::vector<ops::RowDraw> draws;  // per logits row
  bool any_draw = false;
  // Each list is padded with its last row to a bucket; this many are meant.
  std::size_t logits_count = 0, hidden_count = 0, tapped_count = 0;
  std::int64_t token_rows = 0;  // layers.rows is padded: tokens and positions beyond this are zero and belong to no lane
};

Executor::~Executor() = default;

Executor::Executor(ModelDescription description, ModelWeights weights, std::unique_ptr<ops::Backend> backend,
                   std::unique_ptr<LoadedDrafter> drafter)
    : description_(std::move(description)),
      weights_(std::move(weights)),
      backend_(std::move(backend)),
      layer_caches_(*backend_) {
  for (const auto& layer : description_.layers) layer_caches_.add(layer, description_.cache_groups);
  const std::size_t mtp_cache = layer_caches_.size();
  if (description_.mtp) add_mtp_cache();
  const std::size_t drafter_caches = layer_caches_.size();
  if (drafter) add_drafter_caches(drafter->description);
  facts_.family = description_.family;
  facts_.family_title = description_.title;
  facts_.checkpoint_id = description_.checkpoint_id;
  facts_.backend = backend_->info().name;
  facts_.backend_path = backend_->info().path;
  facts_.arithmetic_version = backend_->info().arithmetic_version;
  facts_.vocabulary_size = description_.vocabulary_size;
  facts_.hidden_size = static_cast<std::int32_t>(description_.hidden_size);
  facts_.context_max = description_.context_max;
  facts_.pass_rows_max = static_cast<std::int32_t>(backend_->info().pass_rows_max);
  facts_.window_rows_max = limits::kWideWindowRowsMax;
  facts_.packed_weight_bytes = weights_.packed_bytes + (drafter ? drafter->weights.packed_bytes : 0);
  for (const auto& rope : description_.ropes) facts_.position_bytes += make_rope_table(rope, 1).size() * sizeof(float);
  if (drafter) facts_.position_bytes += make_rope_table(drafter->description.rope, 1).size() * sizeof(float);
  facts_.groups = description_.cache_groups;
  runner_ = std::make_unique<LayerRunner>(*backend_, description_.hidden_size, facts_.pass_rows_max,
                                          widths(description_, drafter.get()));
  logits_ = std::make_unique<LogitsHead>(*backend_, weights_.head ? *weights_.head : *weights_.embedding,
                                         description_.logit_soft_cap);
  if (description_.mtp) {
    mtp_head_ = std::make_unique<MtpHeadRunner>(description_, weights_, *backend_, *runner_, hidden_,
                                                layer_caches_[mtp_cache], facts_.pass_rows_max);
  }
  if (drafter) {
    drafter_ = std::make_unique<DflashDrafter>(std::move(*drafter), description_, weights_, *backend_, *runner_, taps_,
                                               &layer_caches_[drafter_caches], facts_.pass_rows_max);
  }
}

void Executor::add_mtp_cache() {
  CacheGroup group;
  group.layer_count = 1;
  group.draft = true;
  auto& layer = description_.mtp->layer;
  std::get<AttentionMixer>(layer.mixer).cache_group = static_cast<std::int32_t>(description_.cache_groups.size());
  description_.cache_groups.push_back(group);
  layer_caches_.add(layer, description_.cache_groups);
}

// One group for each window that the drafter's layers have.
void Executor::add_drafter_caches(DrafterDescription& drafter) {
  auto& groups = description_.cache_groups;
  const std::size_t first = groups.size();
  for (auto& layer : drafter.layers) {
    std::size_t index = first;
    while (index < groups.size() && groups[index].window != layer.window) ++index;
    if (index == groups.size()) {
      CacheGroup group;
      group.kind = layer.window > 0 ? CacheKind::kSliding : CacheKind::kFull;
      group.window = layer.window;
      group.draft = true;
      groups.push_back(group);
    }
    ++groups[index].layer_count;
    layer.cache_group = static_cast<std::int32_t>(index);
    layer_caches_.add_draft_keys({drafter.kv_heads, drafter.head_dim}, layer.cache_group, groups);
  }
}

void Executor::allocate_caches(const std::vector<std::int32_t>& page_counts, std::int32_t slot_count,
                               std::int32_t window_rows) {
  TF_ASSERT(window_rows >= 1 && window_rows <= facts_.window_rows_max);
  TF_ASSERT(page_counts.size() == facts_.groups.size());
  bounds_.page_counts = page_counts;
  bounds_.slot_count = slot_count;
  bounds_.window_rows = window_rows;
  windows_.reset(slot_count);
  layer_caches_.allocate(page_counts, slot_count, window_rows);
  std::int64_t positions = 0;
  for (std::size_t group = 0; group < facts_.groups.size(); ++group) {
    if (facts_.groups[group].kind == CacheKind::kRecurrent || facts_.groups[group].draft) continue;
    positions =
        std::max<std::int64_t>(positions, static_cast<std::int64_t>(page_counts[group]) * limits::kKvPageTokens);
  }
  // A stream is never longer than the model's context; sliding groups alone may hold fewer pages than positions.
  const bool all_sliding = std::none_of(facts_.groups.begin(), facts_.groups.end(), [](const auto& group) {
    return group.kind == CacheKind::kFull && !group.draft;
  });
  build_rope_tables(static_cast<std::int32_t>(
      all_sliding ? description_.context_max : std::min<std::int64_t>(positions, description_.context_max)));
  if (drafter_) drafter_->set_positions(bounds_.rope_positions);
}

std::shared_ptr<std::byte[]> Executor::allocate_snapshot() {
  std::shared_ptr<ops::Buffer> memory = backend_->allocate_host(slot_state_bytes(), "a kept state");
  return {memory, static_cast<std::byte*>(memory->data())};
}

void Executor::build_rope_tables(std::int32_t positions) {
  bounds_.rope_positions = positions;
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

void Executor::poison_workspace() {
  runner_->poison();
}

void Executor::zero_slot(std::int32_t slot) {
  layer_caches_.zero_slot(slot);
  windows_.forget(slot);
}

void Executor::copy_slot(std::int32_t from, std::int32_t to) {
  layer_caches_.copy_slot(from, to);
  windows_.copy(from, to);
}

void Executor::write_slot(std::int32_t slot, const std::byte* bytes) {
  layer_caches_.write_slot(slot, bytes);
  windows_.forget(slot);
}

void Executor::settle(const PlanLane& lane) {
  if (lane.replay_rows.empty()) return;
  windows_.check_replay(lane);
  std::vector<std::vector<ops::LaneSpan>> spans;
  for (const auto& pages : lane.pages) {
    ops::LaneSpan span = span_of(lane, pages);
    span.row_count = 0;
    span.commits = true;
    spans.push_back({span});
  }
  ops::PassInputs inputs;  // without a name: settling is too rare to be worth a captured graph
  for (std::size_t group = 0; group < spans.size(); ++group) inputs.lanes.push_back({spans[group], 0});
  ops::PassScope scope(*backend_, inputs);
  replay_trees(spans);
  for (std::size_t index = 0; index < description_.layers.size(); ++index) {
    const auto* mixer = std::get_if<GatedDeltaMixer>(&description_.layers[index].mixer);
    if (!mixer) continue;
    const auto& weights = std::get<GatedDeltaWeights>(weights_.layers[index].mixer);
    const auto& own = spans[static_cast<std::size_t>(mixer->cache_group)];
    ops::GatedDeltaParams params;
    params.geometry = mixer->geometry;
    params.conv_weight = weights.conv_weight;
    params.decay = weights.decay;
    params.dt_bias = weights.dt_bias;
    params.slots = layer_caches_[index].buffer->data();
    params.slot_bytes = layer_caches_[index].unit_bytes;
    params.lanes = own.data();
    params.lane_count = static_cast<std::int32_t>(own.size());
    backend_->gated_delta(params);
  }
  scope.end();
  windows_.forget(lane.slot);
}

void Executor::replay_trees(const std::vector<std::vector<ops::LaneSpan>>& spans) {
  if (!has_tree_replay(spans)) return;
  for (std::size_t index = 0; index < description_.layers.size(); ++index) {
    const auto* mixer = std::get_if<AttentionMixer>(&description_.layers[index].mixer);
    if (!mixer) continue;
    const auto& lanes = spans[static_cast<std::size_t>(mixer->cache_group)];
    backend_->attention_replay(
        {kv_geometry(*mixer), layer_caches_[index].kv_pool(), lanes.data(), static_cast<std::int32_t>(lanes.size())});
  }
}

/// The lane's rows as a chain.
ops::LaneSpan Executor::span_of(const PlanLane& lane, const PageTable& pages) {
  ops::LaneSpan span;
  span.slot = lane.slot;
  span.first_row = lane.first_row;
  span.row_count = lane.row_count;
  span.position = lane.position;
  span.pages = pages.data();
  span.commits = lane.commits;
  span.replay_rows = lane.replay_rows.data();
  span.replay_count = static_cast<std::int32_t>(lane.replay_rows.size());
  span.replay_tree = lane.replay_tree;
  return span;
}

void Executor::add_draw(const PlanRow& row, Pass& pass) const {
  ops::RowDraw draw;
  if ((row.flags & kRowWantsDraw) != 0 && backend_->can_draw(row.sampling)) {
    draw.rule = row.sampling;
    draw.position = row.sequence_index + 1;
    draw.wanted = 1;
    pass.any_draw = true;
  }
  pass.draws.push_back(draw);
}

Executor::Pass Executor::prepare(const RoundPlan& plan) {
  Pass pass;
  pass.layers.rows = static_cast<std::int64_t>(plan.rows.size());
  for (std::size_t row = 0; row < plan.rows.size(); ++row) {
    const auto& each = plan.rows[row];
    pass.tokens.push_back(each.token);
    pass.layers.rope_positions.push_back(each.rope_position[0]);
    if (each.flags & kRowWantsLogits) {
      pass.logits_rows.push_back(static_cast<std::int32_t>(row));
      add_draw(each, pass);
    }
    const auto index = static_cast<std::int32_t>(row);
    if (each.flags & (kRowWantsHidden | kRowReturnsHidden)) pass.hidden_rows.push_back(index);
    if (each.flags & kRowReturnsHidden) pass.returned_rows.push_back(index);
    if ((each.flags & kRowIsTapped) && drafter_) pass.tapped_rows.push_back(index);
  }
  pass.parents.reserve(plan.rows.size());  // spans point into it
  std::vector<const std::int32_t*> parents_of_lane;
  for (const auto& lane : plan.lanes) {
    parents_of_lane.push_back(is_tree(plan, lane) ? pass.parents.data() + pass.parents.size() : nullptr);
    for (std::int32_t row = 0; row < lane.row_count; ++row) {
      const std::int32_t parent = plan.rows[static_cast<std::size_t>(lane.first_row + row)].parent_row;
      pass.parents.push_back(parent < 0 ? -1 : parent - lane.first_row);
    }
  }
  pass.layers.spans.resize(facts_.groups.size());
  for (std::size_t group = 0; group < facts_.groups.size(); ++group) {
    for (std::size_t index = 0; index < plan.lanes.size(); ++index) {
      const auto& lane = plan.lanes[index];
      pass.layers.spans[group].push_back(span_of(lane, lane.pages[group]));
      pass.layers.spans[group].back().parents = parents_of_lane[index];
    }
  }
  pass.logits_count = pass.logits_rows.size();
  pass.hidden_count = pass.hidden_rows.size();
  pass.tapped_count = pass.tapped_rows.size();
  pad(pass);
  return pass;
}

void Executor::pad(Pass& pass) const {
  pass.token_rows = pass.layers.rows;
  pass.layers.rows = backend_->row_bucket(pass.token_rows);
  TF_ASSERT(pass.layers.rows >= pass.token_rows && pass.layers.rows <= facts_.pass_rows_max);
  pass.tokens.resize(static_cast<std::size_t>(pass.layers.rows), 0);
  pass.layers.rope_positions.resize(static_cast<std::size_t>(pass.layers.rows), 0);
  for (auto* list : {&pass.logits_rows, &pass.hidden_rows, &pass.tapped_rows}) {
    if (list->empty()) continue;
    const std::int64_t bucket = backend_->row_bucket(static_cast<std::int64_t>(list->size()));
    list->resize(static_cast<std::size_t>(std::min(bucket, pass.layers.rows)), list->back());
  }
  pass.draws.resize(pass.logits_rows.size());
}

ops::PassInputs Executor::inputs_of(const Pass& pass) const {
  ops::PassInputs inputs;
  inputs.rows = pass.token_rows;
  inputs.row_count = pass.layers.rows;
  for (std::size_t group = 0; group < facts_.groups.size(); ++group) {
    inputs.lanes.push_back({pass.layers.spans[group], facts_.groups[group].window});
  }
  for (const auto* list :
       {&pass.tokens, &pass.layers.rope_positions, &pass.logits_rows, &pass.hidden_rows, &pass.tapped_rows}) {
    inputs.ids.push_back(*list);
  }
  inputs.ids.push_back({reinterpret_cast<const std::int32_t*>(pass.draws.data()),
                        pass.any_draw ? pass.draws.size() * static_cast<std::size_t>(ops::kRowDrawWords) : 0});
  if (!observer_.on_layer && !observer_.on_experts) inputs.name = "model";
  // Nothing of the pass is wanted by the host: it doesn't wait.
  inputs.is_timed = !backend_->info().host_memory && pass.logits_rows.empty() && pass.returned_rows.empty();
  return inputs;
}

void Executor::reserve_outputs(const Pass& pass) {
  // By doubling: a buffer that moves takes captured passes with it.
  const auto grow = [this](std::unique_ptr<ops::Buffer>& buffer, std::size_t rows, std::size_t row_bytes,
                           const char* purpose) {
    if (buffer && buffer->bytes() >= rows * row_bytes) return;
    buffer.reset();
    buffer = backend_->allocate(std::bit_ceil(rows) * row_bytes, purpose);
  };
  const auto hidden = static_cast<std::size_t>(description_.hidden_size);
  if (!pass.hidden_rows.empty()) {
    grow(hidden_.buffer, pass.hidden_rows.size(), hidden * sizeof(float), "hidden states for drafters");
  }
  if (!pass.tapped_rows.empty()) {
    const std::size_t width = drafter_->description().taps.size() * hidden;
    grow(taps_.buffer, pass.tapped_rows.size(), width * static_cast<std::size_t>(backend_->info().activation_bytes),
         "tapped rows for the drafter");
  }
  logits_->reserve(static_cast<std::int64_t>(pass.logits_rows.size()));
  if (!pass.any_draw) return;
  reserve_draws(pass.draws.size());
  std::fill_n(static_cast<std::int32_t*>(drawn_->data()), pass.draws.size(), ops::kDrawPending);
}

// The residual stream after a layer that the drafter reads: columns of its context's input.
void Executor::keep_taps(std::int32_t layer, const Pass& pass) {
  const auto& taps = drafter_->description().taps;
  const auto found = std::find(taps.begin(), taps.end(), layer);
  if (found == taps.end()) return;
  const std::int64_t hidden = description_.hidden_size, width = static_cast<std::int64_t>(taps.size()) * hidden;
  ops::RoundRowsParams params;
  params.x = runner_->residual();
  params.x_stride = hidden;
  params.row_index = pass.tapped_rows.data();
  params.rows = static_cast<std::int64_t>(pass.tapped_rows.size());
  params.width = hidden;
  params.out = ops::activation_at(backend_->info(), static_cast<ops::Activation*>(taps_.buffer->data()),
                                  (found - taps.begin()) * hidden);
  params.out_stride = width;
  backend_->round_rows(params);
}

void Executor::run_operations(const Pass& pass) {
  const LayerRows& layers = pass.layers;  // announced by address: no copies
  const std::int64_t hidden = description_.hidden_size;
  backend_->embed(
      {weights_.embedding.get(), pass.tokens.data(), layers.rows, description_.embedding_scale, runner_->residual()});
  for (std::size_t index = 0; index < description_.layers.size(); ++index) {
    const auto layer = static_cast<std::int32_t>(index);
    LayerRunner::OnExperts on_experts;
    if (observer_.on_experts) {
      on_experts = [&](const std::int32_t* experts, std::int64_t count, std::int32_t top_k) {
        observer_.on_experts(layer, experts, std::min(count, pass.token_rows), top_k);
      };
    }
    runner_->run(description_.layers[index], weights_.layers[index], layer_caches_[index], layers, on_experts);
    if (!pass.tapped_rows.empty()) keep_taps(layer, pass);
    if (!observer_.on_layer) continue;
    std::vector<float> residual(static_cast<std::size_t>(pass.token_rows * hidden));
    backend_->copy_to_host(residual.data(), runner_->residual(), residual.size() * sizeof(float));
    observer_.on_layer(layer, residual.data(), pass.token_rows);
  }
  ops::RmsNormParams norm{runner_->residual(), hidden, weights_.final_norm, description_.final_norm.epsilon,
                          static_cast<std::int64_t>(pass.hidden_rows.size()), hidden, nullptr,
                          pass.hidden_rows.data()};
  // Rows that a drafter or the caller wants, unrounded: what a drafter feeds on is not a committed row's arithmetic.
  if (norm.rows > 0) {
    norm.out_float = static_cast<float*>(hidden_.buffer->data());
    backend_->rms_norm(norm);
  }
  if (pass.logits_rows.empty()) return;
  norm.rows = static_cast<std::int64_t>(pass.logits_rows.size());
  norm.row_index = pass.logits_rows.data();
  norm.out = runner_->normed();
  norm.out_float = nullptr;
  backend_->rms_norm(norm);
  logits_->run(runner_->normed(), norm.rows);
  if (!pass.any_draw) return;
  backend_->draw({logits_->data(), norm.rows, description_.vocabulary_size, pass.draws.data(),
                  static_cast<std::int32_t*>(drawn_->data())});
}

void Executor::read_results(Pass& pass, ForwardResult& result) {
  pass.logits_rows.resize(pass.logits_count);
  pass.hidden_rows.resize(pass.hidden_count);
  pass.tapped_rows.resize(pass.tapped_count);
  result.logits = nullptr;
  result.draws.clear();
  if (pass.any_draw) {
    const auto* drawn = static_cast<const std::int32_t*>(drawn_->data());
    // Padding rows' as well: nothing of this pass may write when the next one's are pending.
    backend_->await_draws(drawn, static_cast<std::int64_t>(pass.draws.size()));
    result.draws.assign(drawn, drawn + pass.logits_rows.size());
  } else if (!pass.logits_rows.empty()) {
    result.logits = logits_->read(static_cast<std::int64_t>(pass.logits_rows.size()));
  }
  result.logits_rows = std::move(pass.logits_rows);
  if (drafter_) taps_.pass_rows = std::move(pass.tapped_rows);
  hidden_.pass_rows = std::move(pass.hidden_rows);
  result.hidden_rows = pass.returned_rows;
  result.hidden = nullptr;
  if (result.hidden_rows.empty()) return;
  const auto hidden = static_cast<std::size_t>(description_.hidden_size);
  host_hidden_.resize(result.hidden_rows.size() * hidden);
  float* out = host_hidden_.data();
  for (const std::int32_t row : result.hidden_rows) {
    const auto index = static_cast<std::size_t>(hidden_.index_of(row));
    backend_->copy_to_host(out, static_cast<const float*>(hidden_.buffer->data()) + index * hidden,
                           hidden * sizeof(float));
    out += hidden;
  }
  result.hidden = host_hidden_.data();
}

const float* Executor::logits_row(const ForwardResult& result, std::size_t index) {
  TF_ASSERT(index < result.logits_rows.size());
  if (result.logits != nullptr) return LanguageModel::logits_row(result, index);
  return logits_->read_row(static_cast<std::int64_t>(index));
}

void Executor::forward(const RoundPlan& plan, ForwardResult& result) {
  forward_beside(plan, result, [] {});
}

void Executor::forward_beside(const RoundPlan& plan, ForwardResult& result, const std::function<void()>& host_work) {
  check_plan(plan, facts_, bounds_);
  for (const auto& lane : plan.lanes) windows_.check_replay(lane);
  Pass pass = prepare(plan);
  reserve_outputs(pass);
  const bool replays_trees = has_tree_replay(pass.layers.spans);
  ops::PassInputs inputs = inputs_of(pass);
  if (replays_trees && !inputs.name.empty()) inputs.name += ", trees first";
  ops::PassScope running(*backend_, inputs);
  if (running.wants_operations()) {
    if (replays_trees) replay_trees(pass.layers.spans);
    run_operations(pass);
  }
  running.end();
  host_work();
  result.is_awaited = !inputs.is_timed;
  read_results(pass, result);
  windows_.keep(plan);
}

}  // namespace tensorfold
