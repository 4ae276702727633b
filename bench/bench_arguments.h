// Arguments of the bench programs that measure a model: MODEL and named values, read into the variables that hold their
// defaults. Apart from the programs because they all read them alike; `tensorfold` has richer flags of its own.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"

namespace tensorfold::bench {

class BenchArguments {
 public:
  /// A bool is a switch: the flag turns what it holds.
  using Target = std::variant<int*, double*, std::string*, bool*>;
  using Flags = std::vector<std::pair<std::string, Target>>;

  /// `usage` is shown for --help and with every error. The targets must outlive parse().
  BenchArguments(std::string usage, Flags flags) : usage_(std::move(usage)), flags_(std::move(flags)) {}

  /// The model. Throws Error(kInvalidArgument).
  std::string parse(int count, char** arguments) const {
    std::string model;
    for (int i = 1; i < count; ++i) {
      const std::string argument = arguments[i];
      const Target* target = find(argument);
      if (target == nullptr) {
        if (argument.starts_with("-") || !model.empty()) refuse(fmt::format("unknown argument {}", argument));
        model = argument;
      } else if (const auto* on = std::get_if<bool*>(target)) {
        **on = !**on;
      } else {
        if (i + 1 >= count) refuse(fmt::format("{} needs a value", argument));
        assign(*target, argument, arguments[++i]);
      }
    }
    if (model.empty()) refuse("no model");
    return model;
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    fail(ErrorCode::kInvalidArgument, "{}; usage: {}", why, usage_);
  }
  const Target* find(const std::string& name) const {
    for (const auto& [flag, target] : flags_) {
      if (flag == name) return &target;
    }
    return nullptr;
  }
  void assign(const Target& target, const std::string& name, const std::string& value) const {
    try {
      std::size_t used = value.size();
      if (auto* const* whole = std::get_if<int*>(&target)) **whole = std::stoi(value, &used);
      if (auto* const* real = std::get_if<double*>(&target)) **real = std::stod(value, &used);
      if (auto* const* text = std::get_if<std::string*>(&target)) **text = value;
      if (used == value.size()) return;
    } catch (const std::logic_error&) {  // what std::stoi and std::stod throw
    }
    refuse(fmt::format("{}: '{}' is no number", name, value));
  }

  const std::string usage_;
  const Flags flags_;
};

}  // namespace tensorfold::bench
