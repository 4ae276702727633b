// The generic weight loader: walks a description, finds each tensor under the container's name, and hands views to the
// backend. It has no family in it.
#include "model/weights.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "model/tensor_names.h"

namespace tensorfold {
namespace {

// '*' matches any run of characters.
bool matches(std::string_view pattern, std::string_view text) {
  std::size_t p = 0, t = 0, star = std::string_view::npos, mark = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      mark = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++mark;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

// llama.cpp's converter stores the rows of a head as (0, half, 1, half + 1, ...) for its interleaved RoPE. Logical row
// r = j·half + i of a head is stored row 2·i + j.
std::vector<std::int32_t> interleaved_row_order(std::int64_t rows, std::int32_t head_dim) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(rows));
  const std::int32_t half = head_dim / 2;
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto head = static_cast<std::int32_t>(row / head_dim), r = static_cast<std::int32_t>(row % head_dim);
    order[static_cast<std::size_t>(row)] = head * head_dim + 2 * (r % half) + r / half;
  }
  return order;
}

// One expert stack put together from a file that has one tensor per expert; alive until the backend has packed it.
struct GatheredStack {
  std::vector<std::byte> data, scales, biases;
};

class WeightLoader {
 public:
  WeightLoader(const Checkpoint& checkpoint, const ModelDescription& description, ops::Backend& backend,
               const std::function<void(double, const std::string&)>& progress)
      : checkpoint_(checkpoint), description_(description), backend_(backend), progress_(progress), names_(checkpoint) {
    for (const auto& tensor : checkpoint.tensors()) bytes_total_ += tensor.bytes;
  }

  ModelWeights load();

 private:
  std::unique_ptr<ops::Linear> linear(const LinearDescription& description, bool embedding = false);
  void add_part(ops::LinearSource& source, const LinearDescription& description, const LinearPart& part);
  void add_expert_parts(ops::LinearSource& source, const LinearDescription& description);
  WeightView gather_experts(const LinearPart& part, std::int64_t experts, std::int64_t columns);
  const float* vector(const std::string& canonical, std::int64_t count,
                      const std::function<float(float)>& transform = {});
  const float* norm(const NormDescription& description);
  WeightView claim_weight(const std::string& base, std::int64_t rows, std::int64_t columns, std::int64_t experts);
  void drop_source_pages(const ops::LinearSource& source);
  AttentionWeights attention(const AttentionMixer& mixer);
  GatedDeltaWeights gated_delta(const GatedDeltaMixer& mixer);
  MoeWeights moe(const MoeFeedForward& feed_forward);
  void check_every_tensor_used() const;
  void report(const std::string& what);

  const Checkpoint& checkpoint_;
  const ModelDescription& description_;
  ops::Backend& backend_;
  const std::function<void(double, const std::string&)>& progress_;
  TensorNames names_;
  std::set<std::string, std::less<>> claimed_;
  std::vector<std::unique_ptr<GatheredStack>> gathered_;
  std::uint64_t bytes_total_ = 0, bytes_done_ = 0;
  ModelWeights weights_;
};

WeightView WeightLoader::claim_weight(const std::string& base, std::int64_t rows, std::int64_t columns,
                                      std::int64_t experts) {
  const WeightView view = checkpoint_.weight(base, rows, columns, experts);
  for (const char* suffix : {"", ".weight", ".scales", ".biases"}) {
    if (checkpoint_.find(base + suffix)) claimed_.insert(base + suffix);
  }
  return view;
}

void WeightLoader::add_part(ops::LinearSource& source, const LinearDescription& description, const LinearPart& part) {
  const std::string base = names_.file_name(part.name);
  source.parts.push_back(claim_weight(base, part.rows, description.columns, 0));
  std::vector<std::int32_t> order;
  if (part.rope_head_dim > 0) order = interleaved_row_order(part.rows, part.rope_head_dim);
  std::vector<float> bias(static_cast<std::size_t>(part.rows), 0.0f);
  if (part.bias) {
    const std::string bias_name = names_.file_name(part.name + ".bias");
    const auto stored = checkpoint_.values(bias_name, part.rows);
    claimed_.insert(bias_name);
    for (std::size_t row = 0; row < bias.size(); ++row) {
      bias[row] = stored[order.empty() ? row : static_cast<std::size_t>(order[row])];
    }
  }
  source.bias.insert(source.bias.end(), bias.begin(), bias.end());
  source.row_orders.push_back(std::move(order));
}

WeightView WeightLoader::gather_experts(const LinearPart& part, std::int64_t experts, std::int64_t columns) {
  auto stack = std::make_unique<GatheredStack>();
  WeightView result;
  for (std::int64_t expert = 0; expert < experts; ++expert) {
    const auto view = claim_weight(names_.expert_name(part.name, expert), part.rows, columns, 0);
    if (expert == 0) {
      result = view;
    } else if (view.format != result.format || view.bits != result.bits || view.group_size != result.group_size ||
               view.scale_format != result.scale_format) {
      fail(ErrorCode::kInvalidCheckpoint, "{}: stored in another format than the layer's first expert", view.name);
    }
    stack->data.insert(stack->data.end(), view.data, view.data + view.data_bytes);
    if (view.format == WeightFormat::kAffine) {
      const std::size_t bytes = static_cast<std::size_t>(part.rows * (columns / view.group_size)) *
                                static_cast<std::size_t>(weight_format_block(view.scale_format).bytes);
      stack->scales.insert(stack->scales.end(), view.scales, view.scales + bytes);
      stack->biases.insert(stack->biases.end(), view.biases, view.biases + bytes);
    }
  }
  result.name = part.name;
  result.experts = experts;
  result.data = stack->data.data();
  result.data_bytes = stack->data.size();
  result.scales = stack->scales.data();
  result.biases = stack->biases.data();
  gathered_.push_back(std::move(stack));
  return result;
}

void WeightLoader::add_expert_parts(ops::LinearSource& source, const LinearDescription& description) {
  // A fused "gate_up_proj" stack (Hugging Face in memory and on disk) stands for both parts, gate rows first.
  if (description.parts.size() == 2 && checkpoint_.container() != Container::kGguf) {
    const auto& gate = description.parts[0].name;
    const std::string fused = gate.substr(0, gate.rfind('.')) + ".gate_up_proj";
    for (const auto& name : names_.expert_stack_names(fused)) {
      if (!checkpoint_.has_weight(name)) continue;
      source.parts.push_back(claim_weight(name, description.rows(), description.columns, description.experts));
      return;
    }
  }
  for (const auto& part : description.parts) {
    bool found = false;
    for (const auto& name : names_.expert_stack_names(part.name)) {
      if (!checkpoint_.has_weight(name)) continue;
      source.parts.push_back(claim_weight(name, part.rows, description.columns, description.experts));
      found = true;
      break;
    }
    if (!found) source.parts.push_back(gather_experts(part, description.experts, description.columns));
  }
}

void WeightLoader::drop_source_pages(const ops::LinearSource& source) {
  for (const auto& part : source.parts) {
    bytes_done_ += part.data_bytes;
    if (gathered_.empty()) checkpoint_.drop_pages(part.data, part.data_bytes);
  }
}

std::unique_ptr<ops::Linear> WeightLoader::linear(const LinearDescription& description, bool embedding) {
  ops::LinearSource source;
  source.name = description.name;
  source.embedding = embedding;
  bool any_bias = false;
  if (description.experts > 0) {
    add_expert_parts(source, description);
  } else {
    for (const auto& part : description.parts) {
      add_part(source, description, part);
      any_bias = any_bias || part.bias;
    }
    if (!any_bias) source.bias.clear();
    const bool any_order = std::any_of(source.row_orders.begin(), source.row_orders.end(),
                                       [](const auto& order) { return !order.empty(); });
    if (!any_order) source.row_orders.clear();
  }
  auto packed = backend_.load_linear(source);
  weights_.packed_bytes += packed->packed_bytes();
  drop_source_pages(source);
  gathered_.clear();
  report(description.name);
  return packed;
}

const float* WeightLoader::vector(const std::string& canonical, std::int64_t count,
                                  const std::function<float(float)>& transform) {
  const std::string name = names_.file_name(canonical);
  auto values = checkpoint_.values(name, count);
  claimed_.insert(name);
  if (transform) {
    for (float& value : values) value = transform(value);
  }
  auto buffer = backend_.allocate(values.size() * sizeof(float), canonical.c_str());
  backend_.copy_to_backend(buffer->data(), values.data(), values.size() * sizeof(float));
  const auto* result = static_cast<const float*>(buffer->data());
  weights_.vectors.push_back(std::move(buffer));
  return result;
}

const float* WeightLoader::norm(const NormDescription& description) {
  if (!description.add_one) return vector(description.weight, description.width);
  return vector(description.weight, description.width, [](float value) { return value + 1.0f; });
}

AttentionWeights WeightLoader::attention(const AttentionMixer& mixer) {
  AttentionWeights result;
  result.qkv = linear(mixer.qkv);
  result.output = linear(mixer.output);
  if (mixer.q_norm) result.q_norm = norm(*mixer.q_norm);
  if (mixer.k_norm) result.k_norm = norm(*mixer.k_norm);
  return result;
}

GatedDeltaWeights WeightLoader::gated_delta(const GatedDeltaMixer& mixer) {
  GatedDeltaWeights result;
  const auto& geometry = mixer.geometry;
  result.input = linear(mixer.input);
  result.output = linear(mixer.output);
  result.conv_weight = vector(mixer.conv_weight, geometry.conv_channels() * geometry.conv_kernel);
  result.decay = vector(mixer.a_log, geometry.v_heads,
                        [](float value) { return static_cast<float>(-std::exp(static_cast<double>(value))); });
  result.dt_bias = vector(mixer.dt_bias, geometry.v_heads);
  result.norm = norm(mixer.norm);
  return result;
}

MoeWeights WeightLoader::moe(const MoeFeedForward& feed_forward) {
  MoeWeights result;
  result.router = linear(feed_forward.router);
  result.gate_up = linear(feed_forward.gate_up);
  result.down = linear(feed_forward.down);
  if (feed_forward.shared) {
    result.shared_gate_up = linear(feed_forward.shared->gate_up);
    result.shared_down = linear(feed_forward.shared->down);
    result.shared_gate = linear(feed_forward.shared->gate);
  }
  return result;
}

void WeightLoader::check_every_tensor_used() const {
  auto ignored = description_.ignored_tensors;
  if (!description_.head) ignored.insert(ignored.end(), {"lm_head.*", "language_model.lm_head.*", "output.weight"});
  if (checkpoint_.container() == Container::kGguf) ignored.push_back("rope_freqs.weight");  // read by describe_model
  std::string unknown;
  int count = 0;
  for (const auto& tensor : checkpoint_.tensors()) {
    if (claimed_.contains(tensor.name)) continue;
    const bool skip = std::any_of(ignored.begin(), ignored.end(),
                                  [&](const auto& pattern) { return matches(pattern, tensor.name); });
    if (skip) continue;
    if (++count <= 5) unknown += (unknown.empty() ? "\"" : ", \"") + tensor.name + "\"";
  }
  if (count == 0) return;
  fail(ErrorCode::kInvalidCheckpoint,
       "{}: {} tensor(s) that family {} does not know: {}{}; the checkpoint may be of another model than config.json says",
       checkpoint_.path().string(), count, description_.family, unknown, count > 5 ? ", ..." : "");
}

void WeightLoader::report(const std::string& what) {
  if (!progress_ || bytes_total_ == 0) return;
  progress_(std::min(1.0, static_cast<double>(bytes_done_) / static_cast<double>(bytes_total_)), what);
}

ModelWeights WeightLoader::load() {
  weights_.embedding = linear(description_.embedding, true);
  if (description_.head) weights_.head = linear(*description_.head);
  weights_.final_norm = norm(description_.final_norm);
  for (const auto& layer : description_.layers) {
    LayerWeights result;
    result.input_norm = norm(layer.input_norm);
    result.feed_forward_norm = norm(layer.feed_forward_norm);
    if (layer.post_mixer_norm) result.post_mixer_norm = norm(*layer.post_mixer_norm);
    if (layer.post_feed_forward_norm) result.post_feed_forward_norm = norm(*layer.post_feed_forward_norm);
    if (const auto* mixer = std::get_if<AttentionMixer>(&layer.mixer)) {
      result.mixer = attention(*mixer);
    } else {
      result.mixer = gated_delta(std::get<GatedDeltaMixer>(layer.mixer));
    }
    if (const auto* dense = std::get_if<DenseFeedForward>(&layer.feed_forward)) {
      DenseWeights dense_weights;
      dense_weights.gate_up = linear(dense->gate_up);
      dense_weights.down = linear(dense->down);
      result.feed_forward = std::move(dense_weights);
    } else {
      result.feed_forward = moe(std::get<MoeFeedForward>(layer.feed_forward));
    }
    weights_.layers.push_back(std::move(result));
  }
  check_every_tensor_used();
  return std::move(weights_);
}

}  // namespace

ModelWeights load_weights(const Checkpoint& checkpoint, const ModelDescription& description, ops::Backend& backend,
                          const std::function<void(double, const std::string&)>& progress) {
  return WeightLoader(checkpoint, description, backend, progress).load();
}

}  // namespace tensorfold
