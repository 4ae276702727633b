#include "model/config_reader.h"

#include <cmath>

#include "base/error.h"

namespace tensorfold {

ConfigReader::ConfigReader(const nlohmann::json& object, std::string where)
    : object_(&object), where_(std::move(where)) {
  if (!object.is_object()) fail(ErrorCode::kInvalidCheckpoint, "{} is not a JSON object", where_);
}

const nlohmann::json* ConfigReader::find(const char* key) const {
  const auto found = object_->find(key);
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

bool ConfigReader::has(const char* key) const { return find(key) != nullptr; }

std::int64_t ConfigReader::integer(const char* key, std::int64_t low, std::int64_t high) const {
  const auto* value = find(key);
  if (!value) fail(ErrorCode::kInvalidCheckpoint, "{} has no \"{}\"", where_, key);
  const bool in_range =
      value->is_number_unsigned() ? value->get<std::uint64_t>() <= static_cast<std::uint64_t>(INT64_MAX) : true;
  if (!value->is_number_integer() || !in_range || value->get<std::int64_t>() < low ||
      value->get<std::int64_t>() > high) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: \"{}\" must be an integer from {} to {}, is {}", where_, key, low, high,
         value->dump().substr(0, 80));
  }
  return value->get<std::int64_t>();
}

std::int64_t ConfigReader::integer_or(const char* key, std::int64_t fallback, std::int64_t low,
                                      std::int64_t high) const {
  return has(key) ? integer(key, low, high) : fallback;
}

double ConfigReader::number(const char* key, double low, double high) const {
  const auto* value = find(key);
  if (!value) fail(ErrorCode::kInvalidCheckpoint, "{} has no \"{}\"", where_, key);
  if (!value->is_number() || !(value->get<double>() >= low) || !(value->get<double>() <= high)) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: \"{}\" must be a number from {} to {}, is {}", where_, key, low, high,
         value->dump().substr(0, 80));
  }
  return value->get<double>();
}

double ConfigReader::number_or(const char* key, double fallback, double low, double high) const {
  return has(key) ? number(key, low, high) : fallback;
}

bool ConfigReader::boolean_or(const char* key, bool fallback) const {
  const auto* value = find(key);
  if (!value) return fallback;
  if (!value->is_boolean()) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: \"{}\" must be true or false, is {}", where_, key,
         value->dump().substr(0, 80));
  }
  return value->get<bool>();
}

std::string ConfigReader::text_or(const char* key, const std::string& fallback) const {
  const auto* value = find(key);
  if (!value) return fallback;
  if (!value->is_string()) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: \"{}\" must be a string, is {}", where_, key, value->dump().substr(0, 80));
  }
  return value->get<std::string>();
}

std::vector<std::string> ConfigReader::texts(const char* key) const {
  const auto* value = find(key);
  std::vector<std::string> result;
  if (!value) return result;
  bool good = value->is_array();
  if (good) {
    for (const auto& item : *value) good = good && item.is_string();
  }
  if (!good) fail(ErrorCode::kInvalidCheckpoint, "{}: \"{}\" must be a list of strings", where_, key);
  for (const auto& item : *value) result.push_back(item.get<std::string>());
  return result;
}

std::vector<std::int64_t> ConfigReader::integers(const char* key) const {
  const auto* value = find(key);
  std::vector<std::int64_t> result;
  if (!value) return result;
  bool good = value->is_array();
  if (good) {
    for (const auto& item : *value) good = good && item.is_number_integer();
  }
  if (!good) fail(ErrorCode::kInvalidCheckpoint, "{}: \"{}\" must be a list of integers", where_, key);
  for (const auto& item : *value) result.push_back(item.get<std::int64_t>());
  return result;
}

std::optional<ConfigReader> ConfigReader::object(const char* key) const {
  const auto* value = find(key);
  if (!value) return std::nullopt;
  return ConfigReader(*value, where_ + ": \"" + key + "\"");
}

void ConfigReader::refuse_unless(const char* key, const nlohmann::json& allowed, const char* why) const {
  const auto* value = find(key);
  if (!value || *value == allowed || (value->is_boolean() && !value->get<bool>())) return;
  fail(ErrorCode::kUnsupported, "{}: \"{}\" is {}: {}", where_, key, value->dump().substr(0, 80), why);
}

}  // namespace tensorfold
