// Binding a call's arguments to a builtin's parameters, as Python binds them.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_value.h"

namespace tensorfold::jinja {

class BoundArguments {
 public:
  BoundArguments(Runtime& runtime, std::string_view callee, const CallArguments& arguments,
                 std::initializer_list<std::string_view> names, std::size_t required = 0);

  bool has(std::size_t index) const { return values_[index].has_value(); }
  /// The argument; None counts as absent where Python's default is None.
  const Value* given(std::size_t index) const;
  const Value& value(std::size_t index) const { return *values_[index]; }
  const Text& text(std::size_t index) const;
  Integer integer(std::size_t index, Integer fallback) const;
  bool truth(std::size_t index, bool fallback) const;

 private:
  Runtime& runtime_;
  std::string callee_;
  std::vector<std::string_view> names_;
  std::vector<std::optional<Value>> values_;
};

}  // namespace tensorfold::jinja
