// A path rule scripted by the tokens it has seen, for tests: a verdict by path, tokens forced from a place on, a mask.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "engine/path_rule.h"

namespace tensorfold::testing {

class ScriptedRule : public PathRule {
 public:
  using Script = std::function<Verdict(const std::vector<std::int32_t>& path)>;
  /// `forced` are the reply's tokens from index `forced_from` on.
  ScriptedRule(Script script, std::vector<std::int32_t> forced, std::vector<std::int32_t> allowed,
               std::size_t forced_from = 0)
      : script_(std::move(script)),
        forced_(std::move(forced)),
        allowed_(std::move(allowed)),
        forced_from_(forced_from) {}
  std::unique_ptr<PathRule> clone() const override { return std::make_unique<ScriptedRule>(*this); }
  Verdict advance(std::int32_t token) override {
    path_.push_back(token);
    return script_(path_);
  }
  bool mask(std::vector<std::uint32_t>& bits) override {
    if (allowed_.empty()) return false;
    for (const std::int32_t id : allowed_) bits[static_cast<std::size_t>(id / 32)] |= 1u << (id % 32);
    return true;
  }
  std::vector<std::int32_t> forced_tokens() override {
    if (path_.size() < forced_from_ || path_.size() >= forced_from_ + forced_.size()) return {};
    return {forced_.begin() + static_cast<std::ptrdiff_t>(path_.size() - forced_from_), forced_.end()};
  }

 private:
  Script script_;
  std::vector<std::int32_t> forced_, allowed_, path_;
  std::size_t forced_from_;
};

}  // namespace tensorfold::testing
