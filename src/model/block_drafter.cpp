// See block_drafter.h.
#include "model/block_drafter.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"
#include "base/limits.h"
#include "model/candidates.h"
#include "model/rope.h"

namespace tensorfold {
namespace {

constexpr std::int64_t kLogitsRowsMax = limits::kDraftLogitsRowsMax;

}  // namespace

DflashDrafter::DflashDrafter(LoadedDrafter drafter, const ModelDescription& model, const ModelWeights& weights,
                             ops::Backend& backend, LayerRunner& runner, const KeptRows& taps, const LayerCache* caches,
                             std::int64_t rows_max)
    : drafter_(std::move(drafter.description)),
      weights_(std::move(drafter.weights)),
      model_(model),
      model_weights_(weights),
      backend_(backend),
      runner_(runner),
      taps_(taps),
      caches_(caches),
      rows_max_(rows_max),
      output_(backend, model, weights) {
  TF_ASSERT(drafter_.candidates <= output_.size());
  if (drafter_.convolution_group == 0) return;
  dynamic_ = backend_.allocate(static_cast<std::size_t>(rows_max * 4 * groups()) * sizeof(float),
                               "the drafter's dynamic kernels");
}

void DflashDrafter::include_widths(const DrafterDescription& drafter, LayerWidths& widths) {
  const std::int64_t q_rows = static_cast<std::int64_t>(drafter.heads) * drafter.head_dim;
  const std::int64_t kv_rows = static_cast<std::int64_t>(drafter.kv_heads) * drafter.head_dim;
  widths.wide = std::max({widths.wide, q_rows + 2 * kv_rows, 2 * drafter.width});
  widths.mixed = std::max({widths.mixed, q_rows, drafter.width});
  widths.queries = std::max(widths.queries, q_rows);
}

void DflashDrafter::set_positions(std::int32_t positions) {
  const std::int32_t rows = positions + static_cast<std::int32_t>(limits::kDraftBlockRowsMax);
  const auto table = make_rope_table(drafter_.rope, rows);
  rope_table_.reset();
  rope_table_ = backend_.allocate(table.size() * sizeof(float), "the drafter's RoPE table");
  backend_.copy_to_backend(rope_table_->data(), table.data(), table.size() * sizeof(float));
  rope_ = {static_cast<const float*>(rope_table_->data()), drafter_.rope.rotary_dims(), rows};
}

ops::LaneSpan DflashDrafter::span(const std::vector<PageTable>& pages, const LayerCache& cache, std::int32_t window,
                                  std::int32_t first_row, std::int32_t row_count, std::int32_t position) const {
  const PageTable& table = pages[static_cast<std::size_t>(cache.group)];
  const std::int64_t end = static_cast<std::int64_t>(position) + row_count;
  TF_ASSERT(position >= 0 && row_count > 0 && end <= rope_.positions);
  TF_ASSERT(static_cast<std::int64_t>(table.size()) * limits::kKvPageTokens >= end);
  const std::int64_t first =
      window > 0 ? std::max<std::int64_t>(0, static_cast<std::int64_t>(position) - window + 1) : 0;
  for (std::int64_t page = first / limits::kKvPageTokens; page * limits::kKvPageTokens < end; ++page) {
    const std::int32_t unit = table[static_cast<std::size_t>(page)];
    TF_ASSERT(unit >= 0 && unit < cache.units);
  }
  ops::LaneSpan result;
  result.first_row = first_row;
  result.row_count = row_count;
  result.position = position;
  result.pages = table.data();
  return result;
}

void DflashDrafter::write_keys(const DrafterLayer& layer, const DrafterLayerWeights& weights, const LayerCache& cache,
                               const std::vector<ops::LaneSpan>& spans, const std::vector<std::int32_t>& positions,
                               bool queries) {
  const auto rows = static_cast<std::int64_t>(positions.size());
  const std::int64_t q_rows = queries ? layer.query.rows() : 0, kv_rows = layer.key_value.parts[0].rows;
  ops::LinearParams product;
  product.x = runner_.normed();
  product.rows = rows;
  product.y_stride = q_rows + 2 * kv_rows;
  if (queries) {
    product.weight = weights.query.get();
    product.y = runner_.wide();
    backend_.linear(product);
  }
  product.weight = weights.key_value.get();
  product.y = runner_.wide() + q_rows;
  backend_.linear(product);

  ops::AttentionPrepareParams prepare;
  prepare.geometry = {drafter_.kv_heads, drafter_.head_dim};
  prepare.heads = queries ? drafter_.heads : 0;
  prepare.qkv = runner_.wide();
  prepare.stride = product.y_stride;
  prepare.q_head_stride = drafter_.head_dim;
  prepare.k_offset = q_rows;
  prepare.v_offset = q_rows + kv_rows;
  prepare.q_norm = weights.q_norm;
  prepare.k_norm = weights.k_norm;
  prepare.epsilon = layer.k_norm.epsilon;
  prepare.rope = rope_;
  prepare.rope_positions = positions.data();
  prepare.lanes = spans.data();
  prepare.lane_count = static_cast<std::int32_t>(spans.size());
  prepare.pool = cache.kv_pool();
  prepare.q_out = runner_.queries();
  backend_.attention_prepare(prepare);
}

std::size_t DflashDrafter::span_owner(std::size_t layer) const {
  std::size_t owner = 0;
  const auto alike = [this, layer](std::size_t other) {
    const DrafterLayer &a = drafter_.layers[layer], &b = drafter_.layers[other];
    return caches_[layer].group == caches_[other].group && a.window == b.window && a.causal == b.causal;
  };
  while (!alike(owner)) ++owner;
  return owner;
}

ops::PassInputs DflashDrafter::pass_inputs(const std::vector<std::vector<ops::LaneSpan>>& spans,
                                           const char* name) const {
  ops::PassInputs inputs;
  for (std::size_t layer = 0; layer < spans.size(); ++layer) {
    if (span_owner(layer) == layer) inputs.lanes.push_back({spans[layer], drafter_.layers[layer].window});
  }
  if (!on_hidden_ && !on_context_) inputs.name = name;
  return inputs;
}

DflashDrafter::AbsorbBatch DflashDrafter::make_absorb_batch(const std::vector<AbsorbLane>& lanes) const {
  AbsorbBatch batch;
  batch.spans.resize(drafter_.layers.size());
  for (const auto& lane : lanes) {
    TF_ASSERT(lane.pages != nullptr);
    if (lane.rows.empty()) continue;
    const auto first_row = static_cast<std::int32_t>(batch.sources.size());
    const auto count = static_cast<std::int32_t>(lane.rows.size());
    for (std::size_t i = 0; i < lane.rows.size(); ++i) {
      TF_ASSERT(i == 0 || lane.rows[i].position == lane.rows[i - 1].position + 1);
      batch.sources.push_back(taps_.index_of(lane.rows[i].pass_row));
      batch.positions.push_back(lane.rows[i].position);
    }
    for (std::size_t index = 0; index < batch.spans.size(); ++index) {
      if (span_owner(index) != index) continue;
      // Keys are written, none is read: only the rows' own pages must be there.
      batch.spans[index].push_back(
          span(*lane.pages, caches_[index], 1, first_row, count, lane.rows.front().position));
    }
  }
  batch.rows = static_cast<std::int64_t>(batch.sources.size());
  TF_ASSERT(batch.rows <= rows_max_);
  if (batch.rows == 0) return batch;
  const auto row_count = static_cast<std::size_t>(backend_.row_bucket(batch.rows));
  batch.sources.resize(row_count, batch.sources.back());
  batch.positions.resize(row_count, 0);
  return batch;
}

void DflashDrafter::absorb(const std::vector<AbsorbLane>& lanes) {
  const AbsorbBatch batch = make_absorb_batch(lanes);
  if (batch.rows == 0) return;
  ops::PassInputs inputs = pass_inputs(batch.spans, "drafter absorb");
  inputs.rows = batch.rows;
  inputs.row_count = static_cast<std::int64_t>(batch.sources.size());
  inputs.ids = {batch.sources, batch.positions};
  ops::PassScope pass(backend_, inputs);
  if (pass.wants_operations()) absorb_operations(batch);
  pass.end();
}

void DflashDrafter::absorb_operations(const AbsorbBatch& batch) {
  const std::int64_t hidden = drafter_.hidden_size;
  const auto row_count = static_cast<std::int64_t>(batch.sources.size());
  ops::LinearParams product;
  product.weight = weights_.context.get();
  product.x = static_cast<const ops::Activation*>(taps_.buffer->data());
  product.row_index = batch.sources.data();
  product.rows = row_count;
  product.y = runner_.output();
  product.y_stride = hidden;
  backend_.linear(product);
  ops::RmsNormParams norm{runner_.output(), hidden, weights_.context_norm, drafter_.context_norm.epsilon, row_count,
                          hidden,           runner_.normed(), nullptr};
  if (on_context_) norm.out_float = runner_.residual();
  backend_.rms_norm(norm);
  if (on_context_) {
    std::vector<float> features(static_cast<std::size_t>(batch.rows * hidden));
    backend_.copy_to_host(features.data(), runner_.residual(), features.size() * sizeof(float));
    on_context_(features.data(), batch.rows);
  }
  for (std::size_t index = 0; index < drafter_.layers.size(); ++index) {
    write_keys(drafter_.layers[index], weights_.layers[index], caches_[index], batch.spans[span_owner(index)],
               batch.positions, false);
  }
}

DflashDrafter::Batch DflashDrafter::make_batch(const std::vector<Block>& blocks, std::size_t first) const {
  Batch batch;
  batch.first_block = first;
  batch.spans.resize(drafter_.layers.size());
  for (std::size_t i = first; i < blocks.size(); ++i) {
    const Block& block = blocks[i];
    TF_ASSERT(block.row_count >= 2 && block.row_count <= limits::kDraftBlockRowsMax && block.pages != nullptr);
    TF_ASSERT(block.pending_token >= 0 && block.pending_token < model_.vocabulary_size);
    if (batch.rows + block.row_count > rows_max_) break;
    const auto first_row = static_cast<std::int32_t>(batch.rows);
    batch.starts.push_back(first_row);
    for (std::int32_t row = 0; row < block.row_count; ++row) {
      batch.tokens.push_back(row == 0 ? block.pending_token : drafter_.mask_token);
      batch.positions.push_back(block.position + row);
      if (row > 0) batch.drafted.push_back(first_row + row);
    }
    for (std::size_t index = 0; index < batch.spans.size(); ++index) {
      if (span_owner(index) != index) continue;
      const DrafterLayer& layer = drafter_.layers[index];
      batch.spans[index].push_back(
          span(*block.pages, caches_[index], layer.window, first_row, block.row_count, block.position));
      batch.spans[index].back().mutual = !layer.causal;
    }
    batch.rows += block.row_count;
    ++batch.block_count;
  }
  TF_ASSERT(batch.block_count > 0);
  batch.row_count = backend_.row_bucket(batch.rows);
  batch.tokens.resize(static_cast<std::size_t>(batch.row_count), 0);
  batch.positions.resize(static_cast<std::size_t>(batch.row_count), 0);
  batch.drafted_count = static_cast<std::int64_t>(batch.drafted.size());
  const std::int64_t drafted = std::min(backend_.row_bucket(batch.drafted_count), batch.row_count);
  batch.drafted.resize(static_cast<std::size_t>(drafted), batch.drafted.back());
  return batch;
}

void DflashDrafter::convolve(const BlockConvolutionWeights& convolution, int side, const Batch& batch, float* residual,
                             ops::Activation* out) {
  ops::BlockConvolutionParams params;
  params.y = runner_.output();
  params.base = convolution.base_kernel + side * 2 * drafter_.hidden_size;
  params.dynamic = static_cast<const float*>(dynamic_->data()) + side * 2 * groups();
  params.dynamic_stride = 4 * groups();
  params.rows = batch.row_count;
  params.width = drafter_.hidden_size;
  params.group_size = drafter_.convolution_group;
  params.block_starts = batch.starts.data();
  params.block_count = static_cast<std::int32_t>(batch.starts.size());
  params.residual = residual;
  params.out = out;
  backend_.block_convolution(params);
}

void DflashDrafter::enter(const NormDescription& norm, const float* weight, const BlockConvolutionWeights& convolution,
                          const Batch& batch) {
  ops::RmsNormParams params{runner_.residual(), norm.width, weight,           norm.epsilon,
                            batch.row_count,    norm.width, runner_.normed(), nullptr};
  if (!convolution.projection) {
    backend_.rms_norm(params);
    return;
  }
  // The kernels of both sides come from the normed input.
  params.out_float = runner_.output();
  backend_.rms_norm(params);
  runner_.run_linear(*convolution.projection, runner_.normed(), batch.row_count, static_cast<float*>(dynamic_->data()),
                     false);
  convolve(convolution, 0, batch, nullptr, runner_.normed());
}

void DflashDrafter::leave(const ops::Linear& projection, const BlockConvolutionWeights& convolution,
                          const Batch& batch) {
  if (!convolution.projection) {
    runner_.run_linear(projection, runner_.mixed(), batch.row_count, runner_.residual(), true);
    return;
  }
  runner_.run_linear(projection, runner_.mixed(), batch.row_count, runner_.output(), false);
  convolve(convolution, 1, batch, runner_.residual(), nullptr);
}

void DflashDrafter::attend(const DrafterLayer& layer, const LayerCache& cache,
                           const std::vector<ops::LaneSpan>& spans) {
  ops::AttentionParams params;
  params.geometry = {drafter_.kv_heads, drafter_.head_dim};
  params.heads = drafter_.heads;
  params.q = runner_.queries();
  params.pool = cache.kv_pool();
  params.lanes = spans.data();
  params.lane_count = static_cast<std::int32_t>(spans.size());
  params.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(drafter_.head_dim)));
  params.window = layer.window;
  params.out = runner_.mixed();
  backend_.attention(params);
}

void DflashDrafter::run_layer(std::size_t index, const Batch& batch) {
  const DrafterLayer& layer = drafter_.layers[index];
  const DrafterLayerWeights& weights = weights_.layers[index];
  const LayerCache& cache = caches_[index];
  const std::vector<ops::LaneSpan>& spans = batch.spans[span_owner(index)];
  enter(layer.input_norm, weights.input_norm, weights.attention_convolution, batch);
  write_keys(layer, weights, cache, spans, batch.positions, true);
  attend(layer, cache, spans);
  leave(*weights.attention_output, weights.attention_convolution, batch);

  enter(layer.feed_forward_norm, weights.feed_forward_norm, weights.feed_forward_convolution, batch);
  runner_.run_linear(*weights.gate_up, runner_.normed(), batch.row_count, runner_.wide(), false);
  backend_.gated_activation({runner_.wide(), batch.row_count, drafter_.width, drafter_.activation, runner_.mixed()});
  leave(*weights.down, weights.feed_forward_convolution, batch);
}

void DflashDrafter::reserve() {
  reserve_outputs(rows_max_);
  output_.reserve_on_host(kLogitsRowsMax);
}

void DflashDrafter::reserve_outputs(std::int64_t rows) {
  output_.reserve(std::min(kLogitsRowsMax, rows));
  if (!weights_.hidden_projection) return;
  const auto room = std::bit_ceil(static_cast<std::size_t>(rows));
  const std::size_t bytes = room * static_cast<std::size_t>(weights_.hidden_projection->rows()) * sizeof(float);
  if (projected_ && projected_->bytes() >= bytes) return;
  projected_.reset();
  projected_ = backend_.allocate(bytes, "the drafter's projected states");
}

void DflashDrafter::block_operations(const Batch& batch) {
  const std::int64_t hidden = drafter_.hidden_size;
  const auto rows = static_cast<std::int64_t>(batch.drafted.size());
  backend_.embed({model_weights_.embedding.get(), batch.tokens.data(), batch.row_count, drafter_.embedding_scale,
                  runner_.residual()});
  for (std::size_t index = 0; index < drafter_.layers.size(); ++index) run_layer(index, batch);
  ops::RmsNormParams norm{
      runner_.residual(),  hidden, weights_.final_norm, drafter_.final_norm.epsilon, rows, hidden, runner_.normed(),
      batch.drafted.data()};
  if (on_hidden_) norm.out_float = runner_.output();
  backend_.rms_norm(norm);
  if (on_hidden_) {
    std::vector<float> states(static_cast<std::size_t>(batch.drafted_count * hidden));
    backend_.copy_to_host(states.data(), runner_.output(), states.size() * sizeof(float));
    on_hidden_(states.data(), batch.drafted_count);
  }
  if (weights_.hidden_projection) {
    runner_.run_linear(*weights_.hidden_projection, runner_.normed(), rows, static_cast<float*>(projected_->data()),
                       false);
  }
  output_.run(runner_.normed(), std::min(kLogitsRowsMax, rows));
}

std::vector<float> DflashDrafter::read_projected(std::int64_t rows) {
  if (!weights_.hidden_projection) return {};
  std::vector<float> result(static_cast<std::size_t>(rows * weights_.hidden_projection->rows()));
  backend_.synchronise();
  backend_.copy_to_host(result.data(), projected_->data(), result.size() * sizeof(float));
  return result;
}

void DflashDrafter::take_candidates(const Batch& batch, const std::vector<Block>& blocks,
                                    std::vector<BlockCandidates>& result) {
  const std::int64_t rows = batch.drafted_count, hidden = drafter_.hidden_size, entries = output_.size();
  const std::vector<float> projected = read_projected(rows);
  const auto count = static_cast<std::size_t>(drafter_.candidates);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(rows) * count);
  std::vector<float> values(ids.size());
  for (std::int64_t first = 0; first < rows; first += kLogitsRowsMax) {
    const std::int64_t part = std::min(kLogitsRowsMax, rows - first);
    // The pass ran the first part.
    if (first > 0) output_.run(ops::activation_at(backend_.info(), runner_.normed(), first * hidden), part);
    const float* logits = output_.read(part);
    for (std::int64_t row = 0; row < part; ++row) {
      const std::size_t at = static_cast<std::size_t>(first + row) * count;
      best_candidates(logits + row * entries, entries, drafter_.candidates, ids.data() + at, values.data() + at);
    }
  }
  for (std::int32_t& id : ids) id = output_.id(id);  // ranges ascend, so ties keep their order
  for (float& value : values) value *= drafter_.logit_scale;

  const std::size_t rank = projected.empty() ? 0 : projected.size() / static_cast<std::size_t>(rows);
  std::size_t row = 0;
  for (std::size_t i = 0; i < batch.block_count; ++i) {
    BlockCandidates& out = result[batch.first_block + i];
    out.depth_count = blocks[batch.first_block + i].row_count - 1;
    out.candidate_count = drafter_.candidates;
    const std::size_t end = row + static_cast<std::size_t>(out.depth_count);
    const auto slice = [&](const auto& all, std::size_t width) {
      return std::vector(all.begin() + static_cast<std::ptrdiff_t>(row * width),
                         all.begin() + static_cast<std::ptrdiff_t>(end * width));
    };
    out.tokens = slice(ids, count);
    out.unary = slice(values, count);
    out.hidden_projection = slice(projected, rank);
    row = end;
  }
}

void DflashDrafter::propose(const std::vector<Block>& blocks, std::vector<BlockCandidates>& result) {
  result.assign(blocks.size(), {});
  for (std::size_t first = 0; first < blocks.size();) {
    const Batch batch = make_batch(blocks, first);
    reserve_outputs(static_cast<std::int64_t>(batch.drafted.size()));
    ops::PassInputs inputs = pass_inputs(batch.spans, "drafter blocks");
    inputs.rows = batch.rows;
    inputs.row_count = batch.row_count;
    inputs.ids = {batch.tokens, batch.positions, batch.starts, batch.drafted};
    ops::PassScope pass(backend_, inputs);
    if (pass.wants_operations()) block_operations(batch);
    pass.end();
    take_candidates(batch, blocks, result);
    first += batch.block_count;
  }
}

void DflashDrafter::pair_scores(const BlockCandidates& candidates, std::int32_t depth, std::int32_t predecessor,
                                float* scores) const {
  const auto count = static_cast<std::size_t>(candidates.candidate_count);
  std::fill_n(scores, count, 0.0f);
  if (!drafter_.selector) return;
  TF_ASSERT(depth >= 0 && depth < candidates.depth_count);
  TF_ASSERT(predecessor >= 0 && predecessor < model_.vocabulary_size);
  const auto rank = static_cast<std::size_t>(drafter_.selector->rank);
  std::vector<float> weight(rank), successor(rank);
  decode_row(weights_.predecessors, 0, predecessor, weight.data());
  const float* hidden = candidates.hidden_projection.data() + static_cast<std::size_t>(depth) * rank;
  for (std::size_t r = 0; r < rank; ++r) weight[r] *= hidden[r];
  for (std::size_t c = 0; c < count; ++c) {
    decode_row(weights_.successors, 0, candidates.tokens[static_cast<std::size_t>(depth) * count + c],
               successor.data());
    for (std::size_t r = 0; r < rank; ++r) scores[c] += weight[r] * successor[r];
  }
}

}  // namespace tensorfold
