// Field readers; see fields.h.
#include "serve/api/fields.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "base/limits.h"
#include "serve/api_error.h"

namespace tensorfold {
namespace {

using Json = nlohmann::ordered_json;

std::string_view trim(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

/// Digits with an optional sign, nothing else.
bool is_whole(std::string_view text) {
  if (!text.empty() && (text.front() == '-' || text.front() == '+')) text.remove_prefix(1);
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

std::optional<double> parse_number(std::string_view text) {
  text = trim(text);
  if (!text.empty() && text.front() == '+') text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range && is_whole(text)) {
    return text.front() == '-' ? -std::numeric_limits<double>::max() : std::numeric_limits<double>::max();
  }
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::uint64_t whole_modulo_2_64(std::string_view text) {
  bool negative = false;
  if (text.front() == '-' || text.front() == '+') {
    negative = text.front() == '-';
    text.remove_prefix(1);
  }
  std::uint64_t value = 0;
  for (const char c : text) value = value * 10 + static_cast<std::uint64_t>(c - '0');
  return negative ? 0 - value : value;
}

/// An integral double modulo 2^64 (exact: a double is an integer times a power of two).
std::uint64_t double_modulo_2_64(double value) {
  const double magnitude = std::fmod(std::fabs(value), 18446744073709551616.0);
  const std::uint64_t bits = static_cast<std::uint64_t>(magnitude);
  return value < 0 ? 0 - bits : bits;
}

bool asks_for_nothing(const Json& value) {
  if (value.is_null()) return true;
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_array() || value.is_object()) return value.empty();
  return value.is_string() && value.get_ref<const std::string&>().empty();
}

[[noreturn]] void refuse_unbuilt(const std::string& field) {
  throw field_error(field, "not supported by this server yet; leave it out");
}

void refuse_numbers(const Fields& fields) {
  for (const char* name : {"presence_penalty", "frequency_penalty"}) {
    if (fields.number(name).value_or(0.0) != 0.0) refuse_unbuilt(name);
  }
  if (fields.number("repetition_penalty").value_or(1.0) != 1.0) refuse_unbuilt("repetition_penalty");
  if (fields.integer("n").value_or(1) != 1) throw field_error("n", "only 1 reply for each request is supported");
  if (fields.integer("best_of").value_or(1) != 1) throw field_error("best_of", "only 1 is supported");
}

void refuse_tools(const Fields& fields) {
  const Json* choice = fields.find("tool_choice");
  if (choice != nullptr && !choice->is_string() && !choice->is_object()) {
    throw field_error("tool_choice", "must be a string or an object");
  }
  bool hidden = false;
  if (choice != nullptr && choice->is_string()) {
    const std::string& text = choice->get_ref<const std::string&>();
    hidden = equals_ignoring_case(text, "none");
    if (!hidden && !equals_ignoring_case(text, "auto")) refuse_unbuilt("tool_choice");
  } else if (choice != nullptr) {
    refuse_unbuilt("tool_choice");
  }
  const Json* tools = fields.array("tools");
  if (tools != nullptr && !tools->empty() && !hidden) refuse_unbuilt("tools");
  const Json* functions = fields.array("functions");
  if (functions != nullptr && !functions->empty()) refuse_unbuilt("functions");
  fields.boolean("parallel_tool_calls");
}

void refuse_formats(const Fields& fields) {
  for (const char* name : {"logit_bias", "suffix"}) {
    const Json* value = fields.find(name);
    if (value != nullptr && !asks_for_nothing(*value)) refuse_unbuilt(name);
  }
  if (const Json* modalities = fields.array("modalities")) {
    if (modalities->size() != 1 || modalities->front() != "text")
      throw field_error("modalities", "only [\"text\"] is supported");
  }
  for (const char* name : {"audio", "image", "images", "image_url", "input_audio", "video", "videos", "video_url"}) {
    if (fields.find(name) != nullptr) throw field_error(name, "media is not supported by this server");
  }
}

}  // namespace

const Json* Fields::find(std::string_view name) const {
  const auto found = object_.find(std::string(name));
  if (found == object_.end() || found->is_null()) return nullptr;
  return &*found;
}

std::optional<double> Fields::number(std::string_view name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  std::optional<double> number;
  if (value->is_number()) number = value->get<double>();
  if (value->is_string()) number = parse_number(value->get_ref<const std::string&>());
  if (!number || !std::isfinite(*number)) throw field_error(full_name(name), "must be a finite number");
  return number;
}

std::optional<std::int64_t> Fields::integer(std::string_view name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number_integer() && !value->is_number_unsigned()) return value->get<std::int64_t>();
  const std::optional<double> number = this->number(name);
  if (std::trunc(*number) != *number) throw field_error(full_name(name), "must be an integer");
  if (*number >= 9223372036854775807.0) return std::numeric_limits<std::int64_t>::max();
  if (*number <= -9223372036854775808.0) return std::numeric_limits<std::int64_t>::min();
  return static_cast<std::int64_t>(*number);
}

std::optional<bool> Fields::boolean(std::string_view name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) throw field_error(full_name(name), "must be true or false");
  return value->get<bool>();
}

std::optional<std::string> Fields::string(std::string_view name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) throw field_error(full_name(name), "must be a string");
  return value->get<std::string>();
}

const Json* Fields::object(std::string_view name) const {
  const Json* value = find(name);
  if (value != nullptr && !value->is_object()) throw field_error(full_name(name), "must be an object");
  return value;
}

const Json* Fields::array(std::string_view name) const {
  const Json* value = find(name);
  if (value != nullptr && !value->is_array()) throw field_error(full_name(name), "must be a list");
  return value;
}

std::optional<std::uint64_t> Fields::seed(std::string_view name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number_unsigned()) return value->get<std::uint64_t>();
  if (value->is_number_integer()) return static_cast<std::uint64_t>(value->get<std::int64_t>());
  if (value->is_string()) {
    const std::string_view text = trim(value->get_ref<const std::string&>());
    if (is_whole(text)) return whole_modulo_2_64(text);
  }
  const std::optional<double> number = this->number(name);
  if (std::trunc(*number) != *number) throw field_error(full_name(name), "must be an integer");
  return double_modulo_2_64(*number);
}

std::vector<std::string> Fields::stop_strings(std::string_view name) const {
  const Json* value = find(name);
  std::vector<std::string> stops;
  if (value == nullptr) return stops;
  if (value->is_string()) {
    stops.push_back(value->get<std::string>());
  } else if (value->is_array()) {
    for (const Json& item : *value) {
      if (!item.is_string()) throw field_error(full_name(name), "must be a string or a list of strings");
      stops.push_back(item.get<std::string>());
    }
  } else {
    throw field_error(full_name(name), "must be a string or a list of strings");
  }
  if (stops.size() > limits::kStopStringsMax) {
    throw field_error(full_name(name), fmt::format("at most {} stop strings", limits::kStopStringsMax));
  }
  for (const std::string& stop : stops) {
    if (stop.empty()) throw field_error(full_name(name), "a stop string must not be empty");
    if (stop.size() > limits::kStopStringBytesMax) {
      throw field_error(full_name(name),
                        fmt::format("a stop string is longer than {} bytes", limits::kStopStringBytesMax));
    }
  }
  return stops;
}

void refuse_unbuilt_fields(const Json& body) {
  const Fields fields(body);
  refuse_numbers(fields);
  refuse_tools(fields);
  refuse_formats(fields);
}

}  // namespace tensorfold
