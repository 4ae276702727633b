#include "checkpoint/describe.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "checkpoint/affine.h"

namespace tensorfold {
namespace {

std::string lower_case(std::string text) {
  for (char& character : text) character = static_cast<char>(std::tolower(static_cast<unsigned char>(character)));
  return text;
}

// Without a model's K the shapes give bits · group only, so the configuration names them; the loader checks each
// matrix.
std::string affine_name(const nlohmann::json* configuration, std::string_view module) {
  const AffineDeclaration declaration = affine_declaration(configuration, module);
  if (!declaration.setting) return "affine";
  return fmt::format("affine {}-bit, group {}", declaration.setting->bits, declaration.setting->group_size);
}

// The module a tensor of an affine triple belongs to, or nullopt for any other tensor.
std::optional<std::string_view> affine_module(const Checkpoint& checkpoint, std::string_view name) {
  for (const std::string_view suffix : {".weight", ".scales", ".biases"}) {
    if (!name.ends_with(suffix)) continue;
    const std::string_view module = name.substr(0, name.size() - suffix.size());
    const std::string base(module);
    const bool triple = checkpoint.find(base + ".weight") != nullptr && checkpoint.find(base + ".scales") != nullptr &&
                        checkpoint.find(base + ".biases") != nullptr;
    if (triple) return module;
  }
  return std::nullopt;
}

}  // namespace

std::vector<FormatSummary> describe_formats(const Checkpoint& checkpoint) {
  const bool may_be_affine = checkpoint.container() != Container::kGguf;
  const nlohmann::json* configuration = may_be_affine ? affine_configuration(checkpoint.config()) : nullptr;
  std::map<std::string, FormatSummary> by_format;
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    const auto module = may_be_affine ? affine_module(checkpoint, tensor.name) : std::nullopt;
    const std::string format = module ? affine_name(configuration, *module) : lower_case(tensor.dtype);
    FormatSummary& summary = by_format[format];
    summary.format = format;
    summary.bytes += tensor.bytes;
    if (!module || tensor.name.ends_with(".weight")) ++summary.tensors;
  }
  std::vector<FormatSummary> summaries;
  for (auto& [format, summary] : by_format) summaries.push_back(std::move(summary));
  std::stable_sort(summaries.begin(), summaries.end(),
                   [](const FormatSummary& left, const FormatSummary& right) { return left.bytes > right.bytes; });
  return summaries;
}

}  // namespace tensorfold
