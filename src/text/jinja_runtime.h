// What one render carries around: the heap of its objects, the step and size budgets, and the line for messages. Every
// operation that allocates or loops charges here first, so that a hostile template or message can't run or grow for
// long.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/limits.h"
#include "text/jinja_value.h"

namespace tensorfold::jinja {

struct RenderLimits {
  std::uint64_t steps = limits::kTemplateStepsMax;
  std::size_t output_bytes = limits::kTemplateOutputBytesMax;
};

class Runtime {
 public:
  Runtime(RenderLimits limits, std::int64_t now_unix_seconds)
      : limits_(limits), steps_left_(limits.steps), now_unix_seconds_(now_unix_seconds) {}

  std::int64_t now_unix_seconds() const { return now_unix_seconds_; }
  const RenderLimits& limits() const { return limits_; }

  void charge(std::uint64_t steps) {
    if (steps > steps_left_) fail_steps();
    steps_left_ -= steps;
  }
  /// Work over, or allocation of, so many bytes.
  void charge_bytes(std::size_t bytes) {
    if (bytes > limits_.output_bytes) fail_size();
    charge(bytes / kBytesPerStep + 1);
  }
  void charge_items(std::size_t items) { charge(2 * static_cast<std::uint64_t>(items) + 1); }

  template <typename T, typename... Args>
  T* make(Args&&... args) {
    auto object = std::make_unique<T>(std::forward<Args>(args)...);
    T* pointer = object.get();
    objects_.push_back(std::move(object));
    return pointer;
  }
  Text* make_text() { return make<Text>(); }
  Value text(std::string_view bytes, bool data) {
    charge_bytes(bytes.size());
    return text_value(make<Text>(bytes, data));
  }
  Value list(std::vector<Value> items, Kind kind = Kind::kList);
  Value undefined(std::string_view name);
  Value part(const Text& text, std::size_t begin, std::size_t end);

  template <typename... Args>
  [[noreturn]] void error(fmt::format_string<Args...> format, Args&&... args) const {
    raise(fmt::format(format, std::forward<Args>(args)...));
  }
  [[noreturn]] void raise(const std::string& message) const;
  void check_depth(int depth) const;

  int line = 1;
  int depth = 0;  // see jinja_depth.h

 private:
  static constexpr std::size_t kBytesPerStep = 32;
  [[noreturn]] void fail_steps() const;
  [[noreturn]] void fail_size() const;

  RenderLimits limits_;
  std::uint64_t steps_left_;
  std::int64_t now_unix_seconds_;
  std::vector<std::unique_ptr<Object>> objects_;
};

}  // namespace tensorfold::jinja
