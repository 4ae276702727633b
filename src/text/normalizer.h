// Normalizers: what a tokenizer does to text before it looks for pieces. Each step knows whether its text begins and
// ends the whole, so that a text can also be normalized in runs.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "text/unicode.h"

namespace tensorfold {

class NormalizerStep {
 public:
  virtual ~NormalizerStep() = default;
  virtual std::string apply(std::string_view text, bool at_start, bool at_end) const = 0;
};

class Normalizer {
 public:
  bool is_identity() const { return steps_.empty(); }
  std::string normalize(std::string_view text, bool at_start = true, bool at_end = true) const;

  /// From the "normalizer" of tokenizer.json (null changes nothing).
  static Normalizer from_json(const nlohmann::json& description);
  static Normalizer normal_form(unicode::NormalForm form);
  /// SentencePiece's spaces: each becomes U+2581, with one in front when asked.
  static Normalizer escaped_spaces(bool add_space_prefix);

 private:
  std::vector<std::unique_ptr<NormalizerStep>> steps_;
};

}  // namespace tensorfold
