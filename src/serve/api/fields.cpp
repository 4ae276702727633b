// Field readers; see fields.h.
#include "serve/api/fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/limits.h"
#include "serve/api_error.h"

namespace tensorfold {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kLogitBiasMax = 100.0;
constexpr std::size_t kShownKeyBytes = 40;

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

void refuse_formats(const Fields& fields) {
  const Json* suffix = fields.find("suffix");
  if (suffix != nullptr && !asks_for_nothing(*suffix)) refuse_unbuilt("suffix");
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

std::optional<double> Fields::number(std::string_view name, double minimum, double maximum) const {
  const std::optional<double> value = number(name);
  if (value && (*value < minimum || *value > maximum)) {
    throw field_error(full_name(name), fmt::format("must be between {} and {}", minimum, maximum));
  }
  return value;
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

std::vector<TokenBias> Fields::token_biases(std::string_view name, std::int32_t vocabulary_size) const {
  const Json* value = object(name);
  std::vector<TokenBias> biases;
  if (value == nullptr) return biases;
  if (value->size() > limits::kLogitBiasTokensMax) {
    throw field_error(full_name(name), fmt::format("at most {} tokens", limits::kLogitBiasTokensMax));
  }
  for (const auto& [key, item] : value->items()) {
    std::int32_t token = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token);
    if (error != std::errc() || end != key.data() + key.size() || token < 0 || token >= vocabulary_size) {
      throw field_error(full_name(name), fmt::format("'{}' is not a token id: ids are 0 to {}",
                                                     key.substr(0, kShownKeyBytes), vocabulary_size - 1));
    }
    std::optional<double> bias;
    if (item.is_number()) bias = item.get<double>();
    if (item.is_string()) bias = parse_number(item.get_ref<const std::string&>());
    if (!bias || !(std::fabs(*bias) <= kLogitBiasMax)) {
      throw field_error(full_name(name), fmt::format("the bias of token {} must be a number from -100 to 100", token));
    }
    biases.push_back({token, *bias});
  }
  std::sort(biases.begin(), biases.end(), [](const TokenBias& a, const TokenBias& b) { return a.token < b.token; });
  for (std::size_t i = 1; i < biases.size(); ++i) {
    if (biases[i].token != biases[i - 1].token) continue;
    throw field_error(full_name(name), fmt::format("names token {} twice", biases[i].token));
  }
  return biases;
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
  const Json* functions = fields.array("functions");
  if (functions != nullptr && !functions->empty()) {
    throw field_error("functions", "was replaced by \"tools\", which this server takes");
  }
  refuse_formats(fields);
}

}  // namespace tensorfold
