// See selective_backend.h.
#include "engine/measure/selective_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

namespace tensorfold::measure {
namespace {

constexpr double kFloatBytes = 4.0;
constexpr double kKeyBytes = 2.0;  // keys and values are bf16

/// "layers.3.mlp.down_proj" -> "mlp.down_proj"; the MTP head's keep their "mtp.".
std::string without_layer(std::string name) {
  const auto at = name.find("layers.");
  if (at == std::string::npos) return name;
  const auto end = name.find('.', at + 7);
  if (end != std::string::npos) name.erase(at, end + 1 - at);
  return name;
}

double as_double(std::int64_t value) {
  return static_cast<double>(value);
}

std::int64_t rows_of(const ops::LaneSpan* lanes, std::int32_t count) {
  std::int64_t rows = 0;
  for (std::int32_t i = 0; i < count; ++i) rows += lanes[i].row_count;
  return rows;
}

/// Keys that some row of the span sees.
double visible_keys(const ops::LaneSpan& span, std::int32_t window) {
  const std::int64_t keys = static_cast<std::int64_t>(span.position) + span.row_count;
  return as_double(window > 0 ? std::min<std::int64_t>(keys, window + span.row_count - 1) : keys);
}

}  // namespace

SelectiveBackend::SelectiveBackend(std::unique_ptr<ops::Backend> inner) : inner_(std::move(inner)) {}
SelectiveBackend::~SelectiveBackend() = default;

void SelectiveBackend::select(const std::string& operation) {
  selected_ = operation;
  mode_ = Mode::kOne;
}

void SelectiveBackend::leave_out(const std::string& operation) {
  selected_ = operation;
  mode_ = Mode::kAllBut;
}

std::map<std::string, OperationCalls> SelectiveBackend::take_calls() {
  return std::exchange(calls_, {});
}

template <typename Bytes>
void SelectiveBackend::count(const std::string& operation, const Bytes& bytes) {
  if (mode_ != Mode::kRecord) return;
  OperationCalls& entry = calls_[operation];
  ++entry.calls;
  entry.bytes += bytes();
}

std::string SelectiveBackend::label(const ops::Linear& weight) const {
  const auto found = labels_.find(&weight);
  const std::string name = found == labels_.end() ? "linear" : found->second;
  return fmt::format("{} {} x {}", name, weight.rows(), weight.columns());
}

std::unique_ptr<ops::Buffer> SelectiveBackend::allocate(std::size_t bytes, const char* purpose) {
  return inner_->allocate(bytes, purpose);
}
void SelectiveBackend::copy_to_backend(void* destination, const void* source, std::size_t bytes) {
  inner_->copy_to_backend(destination, source, bytes);
}
void SelectiveBackend::copy_to_host(void* destination, const void* source, std::size_t bytes) {
  inner_->copy_to_host(destination, source, bytes);
}

// A pass that leaves operations out may be replayed for its like alone (an empty one, too: what others are compared with should be
// queued like them); one that is recorded, for none.
bool SelectiveBackend::begin_pass(const ops::PassInputs& inputs) {
  if (mode_ == Mode::kAll) return inner_->begin_pass(inputs);
  inputs_ = std::make_unique<ops::PassInputs>(inputs);
  const bool is_named = mode_ != Mode::kRecord && !inputs.name.empty();
  const std::string what = mode_ == Mode::kNone ? "nothing" : (mode_ == Mode::kOne ? "only " : "without ") + selected_;
  inputs_->name = is_named ? inputs.name + ", " + what : "";
  return inner_->begin_pass(*inputs_);
}

void SelectiveBackend::end_pass() {
  inner_->end_pass();
  inputs_.reset();
}

void SelectiveBackend::abandon_pass() {
  inner_->abandon_pass();
  inputs_.reset();
}

std::unique_ptr<ops::Linear> SelectiveBackend::load_linear(const ops::LinearSource& source) {
  auto linear = inner_->load_linear(source);
  labels_[linear.get()] = without_layer(source.name);
  return linear;
}

void SelectiveBackend::linear(const ops::LinearParams& params) {
  const std::string operation = label(*params.weight) + (params.norm != nullptr ? ", norm first" : "");
  if (!runs(operation)) return;
  count(operation, [&] {
    const double written = as_double(params.weight->rows()) * kFloatBytes * (params.accumulate ? 2.0 : 1.0);
    return as_double(static_cast<std::int64_t>(params.weight->packed_bytes())) +
           as_double(params.rows) * (as_double(params.weight->columns()) * activation_bytes() + written);
  });
  inner_->linear(params);
}

// Where the backend has it, the two operations that stand for it elsewhere are never asked for, whoever is selected.
bool SelectiveBackend::gated_linear(const ops::GatedLinearParams& params) {
  const std::string operation = label(*params.weight) + (params.norm != nullptr ? ", norm first, gated" : ", gated");
  const std::pair key(params.weight, params.rows);
  if (!runs(operation)) return gated_.count(key) > 0;
  if (!inner_->gated_linear(params)) return false;
  gated_.insert(key);
  count(operation, [&] {
    return as_double(static_cast<std::int64_t>(params.weight->packed_bytes())) +
           as_double(params.rows) * as_double(params.weight->columns() + params.weight->rows() / 2) * activation_bytes();
  });
  return true;
}

void SelectiveBackend::embed(const ops::EmbedParams& params) {
  const std::string operation = "embedding lookup";
  if (!runs(operation)) return;
  count(operation, [&] {
    const double row_bytes = static_cast<double>(params.table->packed_bytes()) / as_double(params.table->rows());
    return as_double(params.rows) * (row_bytes + as_double(params.table->columns()) * kFloatBytes);
  });
  inner_->embed(params);
}

void SelectiveBackend::rms_norm(const ops::RmsNormParams& params) {
  const std::string operation = fmt::format("norm {}", params.width);
  if (!runs(operation)) return;
  count(operation, [&] {
    const double written = (params.out != nullptr ? activation_bytes() : 0.0) +
                           (params.out_float != nullptr ? kFloatBytes : 0.0);
    return as_double(params.rows * params.width) * (kFloatBytes + written);
  });
  inner_->rms_norm(params);
}

void SelectiveBackend::rms_norm_add(const ops::RmsNormAddParams& params) {
  const std::string operation = fmt::format("norm and add {}", params.width);
  if (!runs(operation)) return;
  count(operation, [&] { return as_double(params.rows * params.width) * 3.0 * kFloatBytes; });
  inner_->rms_norm_add(params);
}

void SelectiveBackend::attention_prepare(const ops::AttentionPrepareParams& params) {
  const std::string operation = "queries, keys, values";
  if (!runs(operation)) return;
  count(operation, [&] {
    const double query = as_double(static_cast<std::int64_t>(params.heads) * params.geometry.head_dim);
    const double kv = 2.0 * as_double(static_cast<std::int64_t>(params.geometry.kv_heads) * params.geometry.head_dim);
    return as_double(rows_of(params.lanes, params.lane_count)) *
           (query * (kFloatBytes + activation_bytes()) + kv * (kFloatBytes + kKeyBytes));
  });
  inner_->attention_prepare(params);
}

void SelectiveBackend::attention(const ops::AttentionParams& params) {
  const std::string operation =
      params.window > 0 ? fmt::format("attention, window {}", params.window) : std::string("attention");
  if (!runs(operation)) return;
  count(operation, [&] {
    const double kv = 2.0 * as_double(static_cast<std::int64_t>(params.geometry.kv_heads) * params.geometry.head_dim);
    const double query = as_double(static_cast<std::int64_t>(params.heads) * params.geometry.head_dim);
    double bytes = as_double(rows_of(params.lanes, params.lane_count)) * query *
                   (2.0 * activation_bytes() + (params.gate != nullptr ? kFloatBytes : 0.0));
    for (std::int32_t i = 0; i < params.lane_count; ++i) bytes += visible_keys(params.lanes[i], params.window) * kv * kKeyBytes;
    return bytes;
  });
  inner_->attention(params);
}

void SelectiveBackend::attention_replay(const ops::AttentionReplayParams& params) {
  const std::string operation = "attention, accepted rows of trees";
  if (!runs(operation)) return;
  count(operation, [] { return 0.0; });
  inner_->attention_replay(params);
}

void SelectiveBackend::gated_activation(const ops::GatedActivationParams& params) {
  const std::string operation = fmt::format("gated activation {}", params.width);
  if (!runs(operation)) return;
  count(operation, [&] { return as_double(params.rows * params.width) * (2.0 * kFloatBytes + activation_bytes()); });
  inner_->gated_activation(params);
}

void SelectiveBackend::soft_cap(const ops::SoftCapParams& params) {
  const std::string operation = "soft cap";
  if (!runs(operation)) return;
  count(operation, [&] { return as_double(params.count) * 2.0 * kFloatBytes; });
  inner_->soft_cap(params);
}

void SelectiveBackend::round_rows(const ops::RoundRowsParams& params) {
  const std::string operation = "rounding";
  if (!runs(operation)) return;
  count(operation, [&] { return as_double(params.rows * params.width) * (kFloatBytes + activation_bytes()); });
  inner_->round_rows(params);
}

void SelectiveBackend::block_convolution(const ops::BlockConvolutionParams& params) {
  const std::string operation = "block convolution";
  if (!runs(operation)) return;
  count(operation, [&] { return as_double(params.rows * params.width) * 2.0 * kFloatBytes; });
  inner_->block_convolution(params);
}

void SelectiveBackend::gated_delta(const ops::GatedDeltaParams& params) {
  const std::string operation = "gated delta";
  if (!runs(operation)) return;
  count(operation, [&] {
    const auto& geometry = params.geometry;
    const auto state = static_cast<double>(inner_->gated_delta_state_bytes(geometry));
    const double value = as_double(static_cast<std::int64_t>(geometry.v_heads) * geometry.v_dim);
    double bytes = as_double(rows_of(params.lanes, params.lane_count)) *
                   ((as_double(geometry.conv_channels()) + value) * kFloatBytes + value * activation_bytes());
    for (std::int32_t i = 0; i < params.lane_count; ++i) {
      const ops::LaneSpan& lane = params.lanes[i];
      bytes += lane.commits || lane.replay_count > 0 ? 2.0 * state : state;
      if (!lane.commits) {
        bytes += static_cast<double>(inner_->gated_delta_window_row_bytes(geometry)) * (lane.row_count + lane.replay_count);
      }
    }
    return bytes;
  });
  inner_->gated_delta(params);
}

void SelectiveBackend::moe(const ops::MoeParams& params) {
  const std::string operation =
      fmt::format("experts {} of {}, width {}", params.top_k, params.experts, params.down->columns());
  if (!runs(operation)) return;
  if (mode_ != Mode::kRecord) return inner_->moe(params);
  std::vector<std::int32_t> chosen(static_cast<std::size_t>(params.rows * params.top_k));
  ops::MoeParams watched = params;
  if (watched.chosen_experts == nullptr) watched.chosen_experts = chosen.data();
  inner_->moe(watched);
  count(operation, [&] {
    const std::set<std::int32_t> distinct(watched.chosen_experts, watched.chosen_experts + chosen.size());
    const double all = static_cast<double>(params.gate_up->packed_bytes() + params.down->packed_bytes());
    const double hidden = as_double(params.gate_up->columns());
    const bool runs_shared = params.shared_output == nullptr && params.shared_gate_up != nullptr;
    const std::size_t shared = runs_shared ? params.shared_gate_up->packed_bytes() + params.shared_down->packed_bytes() : 0;
    return static_cast<double>(shared) + all * static_cast<double>(distinct.size()) / params.experts +
           as_double(params.rows) * hidden * (activation_bytes() + 2.0 * kFloatBytes);
  });
}

void SelectiveBackend::draw(const ops::DrawParams& params) {
  const std::string operation = "draw";
  if (!runs(operation)) return;
  count(operation, [&] { return as_double(params.rows * params.vocabulary) * kFloatBytes; });
  inner_->draw(params);
}

}  // namespace tensorfold::measure
