// JSON in both directions: the caller's variables become values marked as data, and tojson writes values as Python's
// json.dumps does (the options that transformers gives its filter).
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "text/jinja_value.h"

namespace tensorfold::jinja {

struct JsonOptions {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  // one level's text; with it every item starts a line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};

Value from_json(Runtime& runtime, const nlohmann::ordered_json& json, bool data, int depth = 0);
Value to_json(Runtime& runtime, const Value& value, const JsonOptions& options);

}  // namespace tensorfold::jinja
