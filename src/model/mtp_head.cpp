// See mtp_head.h.
#include "model/mtp_head.h"

#include <bit>

#include "base/error.h"
#include "base/limits.h"

namespace tensorfold {

MtpHeadRunner::MtpHeadRunner(const ModelDescription& model, const ModelWeights& weights, ops::Backend& backend,
                             LayerRunner& runner, const KeptRows& hidden, const LayerCache& cache,
                             std::int64_t rows_max)
    : model_(model),
      weights_(weights),
      head_(*model.mtp),
      backend_(backend),
      runner_(runner),
      hidden_(hidden),
      cache_(cache),
      rows_max_(rows_max),
      output_(backend, model, weights) {}

void MtpHeadRunner::Batch::add(std::int32_t token, std::int32_t source, std::int32_t position) {
  tokens.push_back(token);
  sources.push_back(source);
  rows.rope_positions.push_back(position);
}

ops::LaneSpan MtpHeadRunner::span(std::int32_t slot, const std::vector<PageTable>& pages, std::int32_t first_row,
                                  std::int32_t row_count, std::int32_t position) const {
  const PageTable& table = pages[static_cast<std::size_t>(cache_.group)];
  const std::int64_t end = static_cast<std::int64_t>(position) + row_count;
  TF_ASSERT(position >= 0 && row_count > 0);
  TF_ASSERT(static_cast<std::int64_t>(table.size()) * limits::kKvPageTokens >= end);
  for (std::int64_t page = 0; page * limits::kKvPageTokens < end; ++page) {
    const std::int32_t unit = table[static_cast<std::size_t>(page)];
    TF_ASSERT(unit >= 0 && unit < cache_.units);
  }
  ops::LaneSpan result;
  result.slot = slot;
  result.first_row = first_row;
  result.row_count = row_count;
  result.position = position;
  result.pages = table.data();
  return result;
}

void MtpHeadRunner::check(const Batch& batch) const {
  TF_ASSERT(static_cast<std::int64_t>(batch.tokens.size()) <= rows_max_);
  for (const std::int32_t token : batch.tokens) TF_ASSERT(token >= 0 && token < model_.vocabulary_size);
}

void MtpHeadRunner::absorb(const std::vector<AbsorbLane>& lanes, DraftLogits& result) {
  Batch batch;
  batch.rows.spans.resize(static_cast<std::size_t>(cache_.group) + 1);
  auto& own = batch.spans();
  const auto add_row = [&](const AbsorbRow& row) {
    batch.add(row.next_token, hidden_.index_of(row.pass_row), row.position);
  };
  for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
    const auto& each = lanes[lane];
    TF_ASSERT(!each.rows.empty() && each.pages != nullptr);
    for (std::size_t i = 1; i < each.rows.size(); ++i) {
      TF_ASSERT(each.rows[i].position == each.rows[i - 1].position + 1);
    }
    if (!each.wants_result) continue;
    own.push_back(
        span(each.slot, *each.pages, static_cast<std::int32_t>(batch.tokens.size()), 1, each.rows.back().position));
    add_row(each.rows.back());
    batch.entries.push_back(static_cast<std::int32_t>(lane));
  }
  for (const auto& each : lanes) {
    const std::size_t count = each.rows.size() - (each.wants_result ? 1 : 0);
    if (count == 0) continue;
    own.push_back(span(each.slot, *each.pages, static_cast<std::int32_t>(batch.tokens.size()),
                       static_cast<std::int32_t>(count), each.rows.front().position));
    for (std::size_t i = 0; i < count; ++i) add_row(each.rows[i]);
  }
  run(batch, hidden_.buffer ? static_cast<const float*>(hidden_.buffer->data()) : nullptr, 0, "mtp absorb", result);
}

void MtpHeadRunner::step(const std::vector<Step>& steps, DraftLogits& result) {
  Batch batch;
  batch.rows.spans.resize(static_cast<std::size_t>(cache_.group) + 1);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const Step& each = steps[i];
    TF_ASSERT(each.source >= 0 && each.source < state_rows_ && each.pages != nullptr);
    const auto row = static_cast<std::int32_t>(i);
    batch.spans().push_back(span(each.slot, *each.pages, row, 1, each.position));
    batch.add(each.token, each.source, each.position);
    batch.entries.push_back(row);
  }
  // The two buffers take turns along a chain; a captured pass knows which it reads and which it writes.
  const std::size_t target = 1 - current_;
  run(batch, steps.empty() ? nullptr : static_cast<const float*>(states_[current_]->data()), target,
      target == 0 ? "mtp step to 0" : "mtp step to 1", result);
}

void MtpHeadRunner::reserve(std::int64_t lanes) {
  for (std::size_t target = 0; target < states_.size(); ++target) reserve_states(target, lanes);
  output_.reserve(lanes);
  output_.reserve_on_host(lanes);
}

void MtpHeadRunner::reserve_states(std::size_t target, std::int64_t rows) {
  auto& buffer = states_[target];
  const auto room = std::bit_ceil(static_cast<std::size_t>(rows));
  const std::size_t bytes = room * static_cast<std::size_t>(model_.hidden_size) * sizeof(float);
  if (buffer && buffer->bytes() >= bytes) return;
  buffer.reset();
  buffer = backend_.allocate(bytes, "the MTP head's states");
}

void MtpHeadRunner::run(Batch& batch, const float* states, std::size_t target, const char* name, DraftLogits& result) {
  result = {};
  check(batch);
  const auto rows = static_cast<std::int64_t>(batch.tokens.size());
  const auto wanted_count = static_cast<std::int64_t>(batch.entries.size());
  state_rows_ = 0;
  if (rows == 0) return;
  const auto row_count = static_cast<std::size_t>(backend_.row_bucket(rows));
  TF_ASSERT(static_cast<std::int64_t>(row_count) <= rows_max_);
  batch.tokens.resize(row_count, 0);
  batch.sources.resize(row_count, batch.sources.back());
  batch.rows.rope_positions.resize(row_count, 0);
  batch.rows.rows = static_cast<std::int64_t>(row_count);
  LayerRows wanted;
  wanted.rows = wanted_count;
  wanted.rope_positions = batch.rows.rope_positions;
  wanted.spans.resize(batch.rows.spans.size());
  wanted.spans.back().assign(batch.spans().begin(), batch.spans().begin() + wanted_count);
  if (wanted_count > 0) {
    reserve_states(target, wanted_count);
    output_.reserve(wanted_count);
  }

  ops::PassInputs inputs;
  inputs.rows = rows;
  inputs.row_count = batch.rows.rows;
  const std::int32_t window = std::get<AttentionMixer>(head_.layer.mixer).window;
  inputs.lanes = {{batch.spans(), window}, {wanted.spans.back(), window}};
  for (const auto* list : {&batch.tokens, &batch.sources, &batch.rows.rope_positions}) inputs.ids.push_back(*list);
  inputs.name = name;
  ops::PassScope pass(backend_, inputs);
  if (pass.wants_operations()) run_operations(batch, states, wanted, target);
  pass.end();
  if (wanted_count == 0) return;
  current_ = target;
  state_rows_ = wanted_count;
  result.entries = batch.entries;
  result.logits = output_.read_whole(wanted_count);
}

void MtpHeadRunner::run_operations(Batch& batch, const float* states, const LayerRows& wanted, std::size_t target) {
  const MtpWeights& weights = *weights_.mtp;
  const std::int64_t hidden = model_.hidden_size, rows = batch.rows.rows;
  // [norm(embedding); norm(state)] -> join -> the layer's residual stream.
  backend_.embed({weights_.embedding.get(), batch.tokens.data(), rows, model_.embedding_scale, runner_.output()});
  ops::RmsNormParams half{runner_.output(), hidden, weights.embedding_norm, head_.embedding_norm.epsilon, rows, hidden,
                          runner_.mixed(),  nullptr};
  half.out_stride = 2 * hidden;
  backend_.rms_norm(half);
  half.x = states;
  half.row_index = batch.sources.data();
  half.weight = weights.hidden_norm;
  half.epsilon = head_.hidden_norm.epsilon;
  half.out = ops::activation_at(backend_.info(), runner_.mixed(), hidden);
  backend_.rms_norm(half);
  runner_.run_linear(*weights.join, runner_.mixed(), rows, runner_.residual(), false);

  // Keys and values of all pairs; the rest for the wanted ones, which come first.
  runner_.write_keys(head_.layer, weights.layer, cache_, batch.rows);
  if (wanted.rows == 0) return;
  runner_.finish(head_.layer, weights.layer, cache_, wanted);
  ops::RmsNormParams final_norm{runner_.residual(),       hidden,      weights.final_norm,
                                head_.final_norm.epsilon, wanted.rows, hidden,
                                runner_.normed(),         nullptr};
  final_norm.out_float = static_cast<float*>(states_[target]->data());
  backend_.rms_norm(final_norm);
  output_.run(runner_.normed(), wanted.rows);
}

}  // namespace tensorfold
