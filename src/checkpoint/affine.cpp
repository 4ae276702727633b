#include "checkpoint/affine.h"

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/json_file.h"
#include "checkpoint/tensor_table.h"

namespace tensorfold {
namespace {

using nlohmann::json;

constexpr std::array kBits = {2, 3, 4, 5, 6, 8};
constexpr std::array kGroupSizes = {32, 64, 128};

template <std::size_t count>
bool contains(const std::array<int, count>& values, std::int64_t value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

int integer_field(const json& object, const char* key, int absent, std::string_view where) {
  const auto found = object.find(key);
  if (found == object.end()) return absent;
  const bool small = found->is_number_integer() && *found >= 1 && *found <= 1024;
  if (!small) fail(ErrorCode::kInvalidCheckpoint, "config.json: {} of {} isn't a small positive integer", key, where);
  return found->get<int>();
}

AffineSetting read_setting(const json& object, std::string_view where) {
  const auto mode = object.find("mode");
  if (mode != object.end() && *mode != "affine") {
    fail(ErrorCode::kInvalidCheckpoint, "config.json: {} has the quantization mode {}; only \"affine\" is supported",
         where, mode->dump());
  }
  // An entry stands on its own defaults: {"bits": 8} is group 64 whatever the global group is.
  const AffineSetting setting{integer_field(object, "bits", 4, where), integer_field(object, "group_size", 64, where)};
  if (!contains(kBits, setting.bits) || !contains(kGroupSizes, setting.group_size)) {
    fail(ErrorCode::kInvalidCheckpoint,
         "config.json: {} has {} bits at group {}; supported are 2, 3, 4, 5, 6, 8 bits at group 32, 64, 128", where,
         setting.bits, setting.group_size);
  }
  return setting;
}

// The spellings under which one module may be configured: files and configurations disagree on the prefix of the text
// part of a multimodal model.
std::vector<std::string> spellings(std::string_view path) {
  constexpr std::string_view kOuter = "language_model.", kInner = "model.language_model.";
  std::vector<std::string> names{std::string(path)};
  if (path.starts_with(kInner)) {
    const auto rest = std::string(path.substr(kInner.size()));
    names.push_back("language_model.model." + rest);
    names.push_back("model." + rest);
  } else if (path.starts_with(kOuter)) {
    names.emplace_back(path.substr(kOuter.size()));
  } else {
    names.push_back(std::string(kOuter) + std::string(path));
  }
  return names;
}

const json* member_object(const json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found != object.end() && found->is_object() ? &*found : nullptr;
}

// Copies of MLX's object carry no quant_method; the other schemes that use this key all do.
const json* mlx_style(const json* object) {
  return object != nullptr && !object->contains("quant_method") ? object : nullptr;
}

[[noreturn]] void refuse_shapes(const std::filesystem::path& file, const AffineTensors& tensors, std::int64_t columns,
                                std::string_view why) {
  fail(ErrorCode::kInvalidCheckpoint,
       "{}: the tensor {} {} with scales {} and biases {} {} (expected {} columns); convert the model again",
       file.string(), in_quotes(tensors.weight->name), shape_text(tensors.weight->shape),
       shape_text(tensors.scales->shape), shape_text(tensors.biases->shape), why, columns);
}

bool starts_with(std::span<const std::int64_t> shape, std::span<const std::int64_t> leading) {
  return shape.size() == leading.size() + 1 && std::equal(leading.begin(), leading.end(), shape.begin());
}

void check_shapes(const std::filesystem::path& file, const AffineTensors& tensors,
                  std::span<const std::int64_t> leading, std::int64_t columns) {
  if (tensors.weight->dtype != "U32") refuse_shapes(file, tensors, columns, "isn't stored as U32");
  if (tensors.scales->dtype != tensors.biases->dtype) refuse_shapes(file, tensors, columns, "mixes two scale dtypes");
  const auto format = matrix_format(tensors.scales->dtype);
  if (!format || weight_format_block(*format).elements != 1) {
    refuse_shapes(file, tensors, columns, "has scales that are neither F32, F16 nor BF16");
  }
  if (tensors.scales->shape != tensors.biases->shape) refuse_shapes(file, tensors, columns, "differ in shape");
  if (!starts_with(tensors.weight->shape, leading) || !starts_with(tensors.scales->shape, leading)) {
    refuse_shapes(file, tensors, columns, fmt::format("don't have the leading dimensions {}", shape_text(leading)));
  }
}

}  // namespace

const json* affine_configuration(const json& config) {
  const json* text = member_object(config, "text_config");
  for (const json* place : {&config, text}) {
    if (place == nullptr) continue;
    const json* current = member_object(*place, "quantization");
    const json* legacy = mlx_style(member_object(*place, "quantization_config"));
    if (current != nullptr && legacy != nullptr && *current != *legacy) {
      fail(ErrorCode::kInvalidCheckpoint,
           "config.json: \"quantization\" and \"quantization_config\" contradict each other; remove the wrong one");
    }
    if (current != nullptr) return current;
    if (legacy != nullptr) return legacy;
  }
  return nullptr;
}

AffineDeclaration affine_declaration(const json* configuration, std::string_view path) {
  if (configuration == nullptr) return {};
  const bool has_global = configuration->contains("bits") || configuration->contains("group_size");
  const auto global = [&] { return read_setting(*configuration, "\"quantization\""); };
  for (const std::string& name : spellings(path)) {
    const auto entry = configuration->find(name);
    if (entry == configuration->end()) continue;
    if (entry->is_boolean()) {
      if (!entry->get<bool>()) return {AffineRule::kNotQuantized, std::nullopt};
      return {AffineRule::kQuantized, global()};
    }
    if (!entry->is_object()) {
      fail(ErrorCode::kInvalidCheckpoint, "config.json: the quantization of {} is neither an object nor true or false",
           in_quotes(name));
    }
    if (entry->empty()) return {AffineRule::kNotQuantized, std::nullopt};
    return {AffineRule::kQuantized, read_setting(*entry, in_quotes(name))};
  }
  if (!has_global) return {};
  return {AffineRule::kGlobal, global()};
}

WeightView affine_view(const std::filesystem::path& file, const AffineTensors& tensors,
                       const AffineDeclaration& declaration, std::span<const std::int64_t> leading,
                       std::int64_t columns) {
  if (declaration.rule == AffineRule::kNotQuantized) {
    refuse_shapes(file, tensors, columns, "is quantized although config.json says that it isn't");
  }
  check_shapes(file, tensors, leading, columns);
  const std::int64_t words = tensors.weight->shape.back(), groups = tensors.scales->shape.back();
  // Both shapes come from files of at most 2^63 bytes, so words * 32 can't be taken for granted: compare by division.
  const bool divides = columns > 0 && columns % 32 == 0 && words > 0 && words % (columns / 32) == 0 && groups > 0 &&
                       columns % groups == 0;
  if (!divides)
    refuse_shapes(file, tensors, columns, "don't satisfy words * 32 / bits = groups * group size = columns");
  const std::int64_t bits = words / (columns / 32), group_size = columns / groups;
  if (!contains(kBits, bits) || !contains(kGroupSizes, group_size)) {
    refuse_shapes(file, tensors, columns, fmt::format("would mean {} bits at group {}", bits, group_size));
  }
  if (declaration.setting && (declaration.setting->bits != bits || declaration.setting->group_size != group_size)) {
    refuse_shapes(file, tensors, columns,
                  fmt::format("mean {} bits at group {}, but config.json says {} bits at group {}", bits, group_size,
                              declaration.setting->bits, declaration.setting->group_size));
  }
  WeightView view;
  view.name = tensors.weight->name;
  view.format = WeightFormat::kAffine;
  view.experts = leading.size() == 2 ? leading[0] : 1;
  view.rows = leading.back();
  view.columns = columns;
  view.data = tensors.weight->data;
  view.data_bytes = tensors.weight->bytes;
  view.bits = static_cast<int>(bits);
  view.group_size = static_cast<int>(group_size);
  view.scales = tensors.scales->data;
  view.biases = tensors.biases->data;
  view.scale_format = *matrix_format(tensors.scales->dtype);
  return view;
}

}  // namespace tensorfold
