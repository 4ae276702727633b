// See tensor_loader.h.
#include "model/tensor_loader.h"

#include <algorithm>

#include "base/error.h"

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

}  // namespace

TensorLoader::TensorLoader(const Checkpoint& checkpoint, TensorNames names, ops::Backend& backend,
                           std::function<void(double, const std::string&)> progress)
    : checkpoint_(checkpoint), names_(std::move(names)), backend_(backend), progress_(std::move(progress)) {
  for (const auto& tensor : checkpoint.tensors()) bytes_total_ += tensor.bytes;
}

WeightView TensorLoader::claim_weight(const std::string& base, std::int64_t rows, std::int64_t columns,
                                      std::int64_t experts) {
  const WeightView view = checkpoint_.weight(base, rows, columns, experts);
  for (const char* suffix : {"", ".weight", ".scales", ".biases"}) {
    if (checkpoint_.find(base + suffix)) claimed_.insert(base + suffix);
  }
  return view;
}

void TensorLoader::add_part(ops::LinearSource& source, const LinearDescription& description, const LinearPart& part) {
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

WeightView TensorLoader::gather_experts(const LinearPart& part, std::int64_t experts, std::int64_t columns) {
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

void TensorLoader::add_expert_parts(ops::LinearSource& source, const LinearDescription& description) {
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

// What the file's pages held is packed now, or was replaced on its way.
void TensorLoader::drop_source_pages(const ops::LinearSource& source) {
  for (const auto& part : source.parts) {
    bytes_done_ += part.data_bytes;
    if (gathered_.empty()) checkpoint_.drop_pages(part.data, part.data_bytes);
  }
}

std::unique_ptr<ops::Linear> TensorLoader::linear(const LinearDescription& description, LinearUse use) {
  ops::LinearSource source;
  source.name = description.name;
  source.embedding = use == LinearUse::kEmbedding;
  source.segment_tree = use == LinearUse::kSplitColumns;
  source.paired_halves = use == LinearUse::kGateUp;
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
  if (rework_) {
    for (auto& part : source.parts) {
      auto stack = std::make_unique<GatheredStack>();
      rework_(part, *stack);
      if (!stack->data.empty()) gathered_.push_back(std::move(stack));
    }
  }
  auto packed = backend_.load_linear(source);
  packed_bytes_ += packed->packed_bytes();
  drop_source_pages(source);
  gathered_.clear();
  report(description.name);
  return packed;
}

std::unique_ptr<ops::Linear> TensorLoader::rows_of(const LinearDescription& description,
                                                   const std::vector<IdRange>& ranges) {
  TF_ASSERT(description.parts.size() == 1 && description.experts == 0 && !description.parts[0].bias);
  const LinearPart& part = description.parts[0];
  const WeightView whole = claim_weight(names_.file_name(part.name), part.rows, description.columns, 0);
  const std::size_t row_bytes = whole.data_bytes / static_cast<std::size_t>(whole.rows);
  ops::LinearSource source;
  source.name = description.name + " for drafts";
  for (const IdRange& range : ranges) {
    TF_ASSERT(range.begin >= 0 && range.begin < range.end && range.end <= whole.rows);
    WeightView rows = whole;
    rows.rows = range.end - range.begin;
    rows.data += row_bytes * static_cast<std::size_t>(range.begin);
    rows.data_bytes = row_bytes * static_cast<std::size_t>(rows.rows);
    if (whole.format == WeightFormat::kAffine) {
      const std::size_t scale_bytes = static_cast<std::size_t>(whole.columns / whole.group_size) *
                                      static_cast<std::size_t>(weight_format_block(whole.scale_format).bytes);
      rows.scales += scale_bytes * static_cast<std::size_t>(range.begin);
      rows.biases += scale_bytes * static_cast<std::size_t>(range.begin);
    }
    source.parts.push_back(rows);
  }
  auto packed = backend_.load_linear(source);
  packed_bytes_ += packed->packed_bytes();
  checkpoint_.drop_pages(whole.data, whole.data_bytes);
  return packed;
}

const float* TensorLoader::vector(const std::string& canonical, std::int64_t count,
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
  vectors_.push_back(std::move(buffer));
  return result;
}

const float* TensorLoader::norm(const NormDescription& description) {
  if (!description.add_one) return vector(description.weight, description.width);
  return vector(description.weight, description.width, [](float value) { return value + 1.0f; });
}

WeightView TensorLoader::table(const std::string& canonical, std::int64_t rows, std::int64_t columns) {
  return claim_weight(names_.file_name(canonical), rows, columns, 0);
}

void TensorLoader::check_every_tensor_used(const std::vector<std::string>& ignored, const std::string& owner) const {
  std::string unknown;
  int count = 0;
  for (const auto& tensor : checkpoint_.tensors()) {
    if (claimed_.contains(tensor.name)) continue;
    const bool skip =
        std::any_of(ignored.begin(), ignored.end(), [&](const auto& pattern) { return matches(pattern, tensor.name); });
    if (skip) continue;
    if (++count <= 5) unknown += (unknown.empty() ? "\"" : ", \"") + tensor.name + "\"";
  }
  if (count == 0) return;
  fail(ErrorCode::kInvalidCheckpoint,
       "{}: {} tensor(s) that {} does not know: {}{}; the checkpoint may be of another model than config.json says",
       checkpoint_.path().string(), count, owner, unknown, count > 5 ? ", ..." : "");
}

void TensorLoader::report(const std::string& what) {
  if (!progress_ || bytes_total_ == 0) return;
  progress_(std::min(1.0, static_cast<double>(bytes_done_) / static_cast<double>(bytes_total_)), what);
}

}  // namespace tensorfold
