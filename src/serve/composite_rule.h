// Several rules on one path as one: what each allows is intersected, and the strictest verdict counts. The first that
// forces tokens decides them.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "engine/path_rule.h"

namespace tensorfold {

class CompositeRule final : public PathRule {
 public:
  explicit CompositeRule(std::vector<std::unique_ptr<PathRule>> rules) : rules_(std::move(rules)) {}

  std::unique_ptr<PathRule> clone() const override {
    std::vector<std::unique_ptr<PathRule>> copies;
    copies.reserve(rules_.size());
    for (const std::unique_ptr<PathRule>& rule : rules_) copies.push_back(rule->clone());
    return std::make_unique<CompositeRule>(std::move(copies));
  }

  Verdict advance(std::int32_t token) override {
    Verdict strictest = Verdict::kContinue;
    for (const std::unique_ptr<PathRule>& rule : rules_) strictest = std::max(strictest, rule->advance(token));
    return strictest;
  }

  bool mask(std::vector<std::uint32_t>& allowed_bits) override {
    bool masked = false;
    std::vector<std::uint32_t> own;
    for (const std::unique_ptr<PathRule>& rule : rules_) {
      own.assign(allowed_bits.size(), 0);
      if (!rule->mask(own)) continue;
      if (!masked) {
        allowed_bits = own;
      } else {
        // Ids past the shorter of two masks are allowed by none.
        allowed_bits.resize(std::min(allowed_bits.size(), own.size()));
        for (std::size_t i = 0; i < allowed_bits.size(); ++i) allowed_bits[i] &= own[i];
      }
      masked = true;
    }
    return masked;
  }

  std::vector<std::int32_t> forced_tokens() override {
    for (const std::unique_ptr<PathRule>& rule : rules_) {
      std::vector<std::int32_t> forced = rule->forced_tokens();
      if (!forced.empty()) return forced;
    }
    return {};
  }

 private:
  std::vector<std::unique_ptr<PathRule>> rules_;
};

}  // namespace tensorfold
