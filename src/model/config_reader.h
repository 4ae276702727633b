// Checked access to config.json: every number is of the right type and inside a named range before anything is computed
// from it, and an error names the key, the value and what was expected.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace tensorfold {

class ConfigReader {
 public:
  /// `where` prefixes messages, for example "config.json".
  ConfigReader(const nlohmann::json& object, std::string where);

  bool has(const char* key) const;  // present and not null
  std::int64_t integer(const char* key, std::int64_t low, std::int64_t high) const;
  std::int64_t integer_or(const char* key, std::int64_t fallback, std::int64_t low, std::int64_t high) const;
  double number(const char* key, double low, double high) const;
  double number_or(const char* key, double fallback, double low, double high) const;
  bool boolean_or(const char* key, bool fallback) const;
  std::string text_or(const char* key, const std::string& fallback) const;
  std::vector<std::string> texts(const char* key) const;            // [] when absent
  std::vector<std::int64_t> integers(const char* key) const;        // [] when absent
  std::optional<ConfigReader> object(const char* key) const;
  const nlohmann::json& json() const { return *object_; }
  const std::string& where() const { return where_; }
  /// Refuses a value that this build can't honour: `key` present with anything but null, false or `allowed`.
  void refuse_unless(const char* key, const nlohmann::json& allowed, const char* why) const;

 private:
  const nlohmann::json* find(const char* key) const;
  const nlohmann::json* object_;
  std::string where_;
};

}  // namespace tensorfold
