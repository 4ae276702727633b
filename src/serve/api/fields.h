// Readers for request fields, shared by every wire format, so that one rule holds everywhere (api.md 3.4): numbers may
// be numeric strings, integers may be integral floats, booleans and non-finite values are refused for numbers, null is
// absent, and every refusal names the field.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/sampling_rule.h"

namespace tensorfold {

class Fields {
 public:
  /// `prefix` is put before field names in errors ("stream_options.").
  explicit Fields(const nlohmann::ordered_json& object, std::string prefix = "")
      : object_(object), prefix_(std::move(prefix)) {}

  /// The value, or null when absent or JSON null.
  const nlohmann::ordered_json* find(std::string_view name) const;
  std::optional<double> number(std::string_view name) const;
  std::optional<double> number(std::string_view name, double minimum, double maximum) const;
  std::optional<std::int64_t> integer(std::string_view name) const;  // saturates beyond 64 bits
  std::optional<bool> boolean(std::string_view name) const;
  std::optional<std::string> string(std::string_view name) const;
  const nlohmann::ordered_json* object(std::string_view name) const;
  const nlohmann::ordered_json* array(std::string_view name) const;
  /// An integer of any size, modulo 2^64; negatives as two's complement.
  std::optional<std::uint64_t> seed(std::string_view name) const;
  /// {"id": bias}, ascending by id: ids of the vocabulary, biases from -100 to 100.
  std::vector<TokenBias> token_biases(std::string_view name, std::int32_t vocabulary_size) const;
  /// A nonempty string or a list of nonempty strings.
  std::vector<std::string> stop_strings(std::string_view name) const;

  std::string full_name(std::string_view name) const { return prefix_ + std::string(name); }

 private:
  const nlohmann::ordered_json& object_;
  std::string prefix_;
};

/// Fields of api.md that this build doesn't serve yet: a value that asks for something is a 400 that names the field, a
/// value that asks for nothing (false, 0, an empty list, "text") passes.
void refuse_unbuilt_fields(const nlohmann::ordered_json& body);

}  // namespace tensorfold
