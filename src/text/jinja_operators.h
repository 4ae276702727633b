// The language's operators on values, with Python's rules for types.
#pragma once

#include "text/jinja_value.h"

namespace tensorfold::jinja {

enum class BinaryOperator : std::uint8_t { kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo, kPower };
enum class CompareOperator : std::uint8_t {
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn
};

Value apply_binary(Runtime& runtime, BinaryOperator operation, const Value& left, const Value& right);
bool compare(Runtime& runtime, CompareOperator operation, const Value& left, const Value& right);
/// `needle in container`.
bool contains(Runtime& runtime, const Value& container, const Value& needle);
Value negate(Runtime& runtime, const Value& operand);
Value concatenate(Runtime& runtime, const Value* values, std::size_t count);
/// container[index] without the attribute fallback; nothing when there is no such item.
bool find_item(Runtime& runtime, const Value& container, const Value& index, Value& item);
struct SliceBounds {
  Value start, stop, step;  // undefined or None: left out
};
Value slice(Runtime& runtime, const Value& sequence, const SliceBounds& bounds);
Value join_texts(Runtime& runtime, const Text& separator, const std::vector<Value>& items);
/// markupsafe.escape.
const Text* escape_markup(Runtime& runtime, const Value& value);

}  // namespace tensorfold::jinja
