// Arithmetic, comparison, membership, slices.
#include "text/jinja_operators.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "text/jinja_format.h"
#include "text/jinja_runtime.h"
#include "text/jinja_unicode.h"

namespace tensorfold::jinja {
namespace {

const char* operator_text(BinaryOperator operation) {
  constexpr const char* kTexts[] = {"+", "-", "*", "/", "//", "%", "**"};
  return kTexts[static_cast<int>(operation)];
}

[[noreturn]] void fail_types(Runtime& runtime, BinaryOperator operation, const Value& left, const Value& right) {
  if (left.is_undefined() || right.is_undefined()) {
    const Value& culprit = left.is_undefined() ? left : right;
    runtime.error("'{}' is undefined", culprit.text != nullptr ? culprit.bytes() : "a value");
  }
  runtime.error("'{}' isn't supported between '{}' and '{}'", operator_text(operation), type_name(left),
                type_name(right));
}

/// Results live in [-2^63, 2^64): what JSON numbers can hold.
Value checked_integer(Runtime& runtime, Integer result, bool data) {
  if (result < std::numeric_limits<std::int64_t>::min() || result > std::numeric_limits<std::uint64_t>::max()) {
    runtime.error("an integer overflows 64 bits");
  }
  return integer_value(result, data);
}

Integer integer_power(Runtime& runtime, Integer base, Integer exponent) {
  Integer result = 1;
  for (Integer i = 0; i < exponent && base != 1 && !(base == 0 && i > 0); ++i) {
    if (base == -1) return exponent % 2 == 0 ? 1 : -1;
    result = checked_integer(runtime, result * base, false).integer;
  }
  return result;
}

Value integer_arithmetic(Runtime& runtime, BinaryOperator operation, Integer a, Integer b, bool data) {
  switch (operation) {
    case BinaryOperator::kAdd:
      return checked_integer(runtime, a + b, data);
    case BinaryOperator::kSubtract:
      return checked_integer(runtime, a - b, data);
    case BinaryOperator::kMultiply: {
      const double size = static_cast<double>(a) * static_cast<double>(b);
      if (std::fabs(size) > 1e20) runtime.error("an integer overflows 64 bits");
      return checked_integer(runtime, a * b, data);
    }
    case BinaryOperator::kDivide:
      if (b == 0) runtime.error("division by zero");
      return float_value(static_cast<double>(a) / static_cast<double>(b), data);
    case BinaryOperator::kFloorDivide: {
      if (b == 0) runtime.error("division by zero");
      const Integer quotient = a / b;
      return checked_integer(runtime, quotient - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0), data);
    }
    case BinaryOperator::kModulo: {
      if (b == 0) runtime.error("modulo by zero");
      const Integer rest = a % b;
      return integer_value(rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest, data);
    }
    case BinaryOperator::kPower:
      if (b < 0) {
        if (a == 0) runtime.error("zero can't be raised to a negative power");
        return float_value(std::pow(static_cast<double>(a), static_cast<double>(b)), data);
      }
      return integer_value(integer_power(runtime, a, b), data);
  }
  return {};
}

double float_modulo(double a, double b) {
  double rest = std::fmod(a, b);
  if (rest != 0) return (b < 0) != (rest < 0) ? rest + b : rest;
  return std::copysign(0.0, b);
}

double float_floor_divide(double a, double b) {
  const double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0 && (b < 0) != (rest < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floor = std::floor(quotient);
  return quotient - floor > 0.5 ? floor + 1 : floor;
}

Value float_arithmetic(Runtime& runtime, BinaryOperator operation, double a, double b, bool data) {
  const bool divides = operation == BinaryOperator::kDivide || operation == BinaryOperator::kFloorDivide ||
                       operation == BinaryOperator::kModulo;
  if (divides && b == 0) runtime.error("division by zero");
  switch (operation) {
    case BinaryOperator::kAdd:
      return float_value(a + b, data);
    case BinaryOperator::kSubtract:
      return float_value(a - b, data);
    case BinaryOperator::kMultiply:
      return float_value(a * b, data);
    case BinaryOperator::kDivide:
      return float_value(a / b, data);
    case BinaryOperator::kFloorDivide:
      return float_value(float_floor_divide(a, b), data);
    case BinaryOperator::kModulo:
      return float_value(float_modulo(a, b), data);
    case BinaryOperator::kPower: {
      if (a == 0 && b < 0) runtime.error("zero can't be raised to a negative power");
      const double result = std::pow(a, b);
      if (std::isnan(result) && !std::isnan(a) && !std::isnan(b)) runtime.error("complex numbers aren't supported");
      if (std::isinf(result) && !std::isinf(a) && !std::isinf(b)) runtime.error("a float overflows");
      return float_value(result, data);
    }
  }
  return {};
}

Value repeat(Runtime& runtime, const Value& sequence, Integer count) {
  const std::size_t times = count <= 0 ? 0 : static_cast<std::size_t>(std::min<Integer>(count, Integer{1} << 40));
  if (sequence.is_text()) {
    const std::size_t size = sequence.text->size();
    if (size == 0 || times == 0) return runtime.text("", false);
    if (times > runtime.limits().output_bytes / size) runtime.charge_bytes(runtime.limits().output_bytes + 1);
    runtime.charge_bytes(size * times);
    Text* text = runtime.make_text();
    for (std::size_t i = 0; i < times; ++i) text->append(*sequence.text);
    text->markup = sequence.text->markup;
    return text_value(text);
  }
  std::vector<Value> items;
  const std::vector<Value>& source = sequence.list->items;
  if (!source.empty() && times > 0) {
    if (times > runtime.limits().steps / source.size()) runtime.charge(runtime.limits().steps + 1);
    runtime.charge_items(source.size() * times);
    for (std::size_t i = 0; i < times; ++i) items.insert(items.end(), source.begin(), source.end());
  }
  return runtime.list(std::move(items), sequence.kind);
}

Value add_texts(Runtime& runtime, const Value& left, const Value& right) {
  const bool markup = left.text->markup || right.text->markup;
  const Text* a = markup ? escape_markup(runtime, left) : left.text;
  const Text* b = markup ? escape_markup(runtime, right) : right.text;
  runtime.charge_bytes(a->size() + b->size());
  Text* text = runtime.make_text();
  text->append(*a);
  text->append(*b);
  text->markup = markup;
  return text_value(text);
}

}  // namespace

Value apply_binary(Runtime& runtime, BinaryOperator operation, const Value& left, const Value& right) {
  runtime.charge(1);
  const bool data = left.data || right.data;
  if (left.is_number() && right.is_number()) {
    if (left.is_integral() && right.is_integral()) {
      return integer_arithmetic(runtime, operation, left.as_integer(), right.as_integer(), data);
    }
    return float_arithmetic(runtime, operation, left.as_double(), right.as_double(), data);
  }
  if (operation == BinaryOperator::kAdd) {
    if (left.is_text() && right.is_text()) return add_texts(runtime, left, right);
    if (left.is_list_or_tuple() && left.kind == right.kind) {
      runtime.charge_items(left.list->items.size() + right.list->items.size());
      std::vector<Value> items = left.list->items;
      items.insert(items.end(), right.list->items.begin(), right.list->items.end());
      Value sum = runtime.list(std::move(items), left.kind);
      sum.data = data;
      return sum;
    }
  }
  if (operation == BinaryOperator::kMultiply) {
    if ((left.is_text() || left.is_list_or_tuple()) && right.is_integral()) {
      return repeat(runtime, left, right.as_integer());
    }
    if ((right.is_text() || right.is_list_or_tuple()) && left.is_integral()) {
      return repeat(runtime, right, left.as_integer());
    }
  }
  if (operation == BinaryOperator::kModulo && left.is_text()) return format_percent(runtime, *left.text, right);
  fail_types(runtime, operation, left, right);
}

bool contains(Runtime& runtime, const Value& container, const Value& needle) {
  if (container.is_text()) {
    if (!needle.is_text()) runtime.error("'in <string>' needs a string, not {}", type_name(needle));
    runtime.charge_bytes(container.text->size());
    return container.bytes().find(needle.bytes()) != std::string::npos;
  }
  if (container.is_dict()) return container.dict->find(runtime, needle) != nullptr;
  if (!is_iterable(container)) runtime.error("a value of type '{}' has no members", type_name(container));
  const std::vector<Value> copied = container.kind == Kind::kList || container.kind == Kind::kTuple
                                        ? std::vector<Value>()
                                        : iterate(runtime, container);
  const std::vector<Value>& items =
      container.kind == Kind::kList || container.kind == Kind::kTuple ? container.list->items : copied;
  return std::any_of(items.begin(), items.end(), [&](const Value& item) { return equals(runtime, item, needle); });
}

bool compare(Runtime& runtime, CompareOperator operation, const Value& left, const Value& right) {
  switch (operation) {
    case CompareOperator::kEqual:
      return equals(runtime, left, right);
    case CompareOperator::kNotEqual:
      return !equals(runtime, left, right);
    case CompareOperator::kLess:
      return less_than(runtime, left, right);
    case CompareOperator::kGreater:
      return less_than(runtime, right, left);
    case CompareOperator::kLessEqual:
    case CompareOperator::kGreaterEqual: {
      const bool swap = operation == CompareOperator::kGreaterEqual;
      const Value& a = swap ? right : left;
      const Value& b = swap ? left : right;
      return less_than(runtime, a, b) || equals(runtime, a, b);
    }
    case CompareOperator::kIn:
      return contains(runtime, right, left);
    case CompareOperator::kNotIn:
      return !contains(runtime, right, left);
  }
  return false;
}

Value negate(Runtime& runtime, const Value& operand) {
  if (operand.kind == Kind::kFloat) return float_value(-operand.number, operand.data);
  if (operand.is_integral()) return checked_integer(runtime, -operand.as_integer(), operand.data);
  runtime.error("a value of type '{}' can't be negated", type_name(operand));
}

Value concatenate(Runtime& runtime, const Value* values, std::size_t count) {
  Text* text = runtime.make_text();
  for (std::size_t i = 0; i < count; ++i) {
    const Text* piece = to_text(runtime, values[i]);
    runtime.charge_bytes(text->size() + piece->size() > runtime.limits().output_bytes ? text->size() + piece->size()
                                                                                      : piece->size());
    text->append(*piece);
  }
  return text_value(text);
}

Value join_texts(Runtime& runtime, const Text& separator, const std::vector<Value>& items) {
  Text* text = runtime.make_text();
  for (std::size_t i = 0; i < items.size(); ++i) {
    const Text* piece = to_text(runtime, items[i]);
    const std::size_t added = piece->size() + (i > 0 ? separator.size() : 0);
    runtime.charge_bytes(text->size() + added > runtime.limits().output_bytes ? text->size() + added : added);
    if (i > 0) text->append(separator);
    text->append(*piece);
  }
  return text_value(text);
}

const Text* escape_markup(Runtime& runtime, const Value& value) {
  const Text* text = to_text(runtime, value);
  if (text->markup) return text;
  runtime.charge_bytes(text->size());
  Text* escaped = runtime.make_text();
  for (std::size_t i = 0; i < text->size(); ++i) {
    const char byte = text->bytes()[i];
    const bool data = text->data_at(i);
    switch (byte) {
      case '&':
        escaped->append("&amp;", data);
        break;
      case '<':
        escaped->append("&lt;", data);
        break;
      case '>':
        escaped->append("&gt;", data);
        break;
      case '"':
        escaped->append("&#34;", data);
        break;
      case '\'':
        escaped->append("&#39;", data);
        break;
      default:
        escaped->append(std::string_view(&byte, 1), data);
        break;
    }
  }
  escaped->markup = true;
  return escaped;
}

namespace {

/// Python's rule for one index: negative counts from the end.
bool resolve_index(Integer index, std::size_t size, std::size_t& position) {
  if (index < 0) index += static_cast<Integer>(size);
  if (index < 0 || index >= static_cast<Integer>(size)) return false;
  position = static_cast<std::size_t>(index);
  return true;
}

}  // namespace

bool find_item(Runtime& runtime, const Value& container, const Value& index, Value& item) {
  runtime.charge(1);
  if (container.is_dict()) {
    if (index.kind == Kind::kList || index.is_dict()) return false;
    const Value* found = container.dict->find(runtime, index);
    if (found != nullptr) item = *found;
    return found != nullptr;
  }
  if (!index.is_integral()) return false;
  std::size_t position = 0;
  if (container.is_list_or_tuple()) {
    if (!resolve_index(index.as_integer(), container.list->items.size(), position)) return false;
    item = container.list->items[position];
    return true;
  }
  if (container.kind == Kind::kRange) {
    if (!resolve_index(index.as_integer(), container.range->size(), position)) return false;
    item = integer_value(container.range->start + static_cast<std::int64_t>(position) * container.range->step,
                         container.data);
    return true;
  }
  if (!container.is_text()) return false;
  const Text& text = *container.text;
  runtime.charge_bytes(text.size());
  if (!resolve_index(index.as_integer(), count_code_points(text.bytes()), position)) return false;
  const std::size_t begin = offset_of_code_point(text.bytes(), position);
  item = runtime.part(text, begin, begin + code_point_length(text.bytes(), begin));
  return true;
}

namespace {

std::optional<Integer> slice_bound(Runtime& runtime, const Value& value) {
  if (value.is_none() || (value.is_undefined() && value.text == nullptr)) return std::nullopt;
  if (!value.is_integral()) runtime.error("slice bounds must be integers, not {}", type_name(value));
  return value.as_integer();
}

/// The positions a slice visits, as Python's slice.indices().
std::vector<std::size_t> slice_positions(Runtime& runtime, const SliceBounds& bounds, std::size_t size) {
  const Integer step = slice_bound(runtime, bounds.step).value_or(1);
  if (step == 0) runtime.error("a slice's step can't be zero");
  const Integer length = static_cast<Integer>(size);
  const Integer lowest = step > 0 ? 0 : -1;
  const Integer highest = step > 0 ? length : length - 1;
  const auto clamp = [&](std::optional<Integer> bound, Integer fallback) {
    if (!bound) return fallback;
    return std::clamp(*bound < 0 ? *bound + length : *bound, lowest, highest);
  };
  const Integer start = clamp(slice_bound(runtime, bounds.start), step > 0 ? lowest : highest);
  const Integer stop = clamp(slice_bound(runtime, bounds.stop), step > 0 ? highest : lowest);
  std::vector<std::size_t> positions;
  for (Integer i = start; step > 0 ? i < stop : i > stop; i += step) positions.push_back(static_cast<std::size_t>(i));
  runtime.charge_items(positions.size() / 8);
  return positions;
}

Value slice_text(Runtime& runtime, const Text& text, const SliceBounds& bounds) {
  runtime.charge_bytes(text.size());
  std::vector<std::size_t> offsets;  // of each code point, then the end
  for (std::size_t offset = 0; offset < text.size(); offset += code_point_length(text.bytes(), offset)) {
    offsets.push_back(offset);
  }
  const std::vector<std::size_t> positions = slice_positions(runtime, bounds, offsets.size());
  offsets.push_back(text.size());
  Text* part = runtime.make_text();
  for (std::size_t i = 0; i < positions.size();) {
    std::size_t last = i;  // neighbours go out in one piece
    while (last + 1 < positions.size() && positions[last + 1] == positions[last] + 1) ++last;
    part->append(text, offsets[positions[i]], offsets[positions[last] + 1]);
    i = last + 1;
  }
  part->markup = text.markup;
  return text_value(part);
}

}  // namespace

Value slice(Runtime& runtime, const Value& sequence, const SliceBounds& bounds) {
  if (sequence.is_text()) return slice_text(runtime, *sequence.text, bounds);
  std::vector<Value> source;
  Kind kind = Kind::kList;
  if (sequence.is_list_or_tuple()) {
    source = sequence.list->items;
    kind = sequence.kind;
  } else if (sequence.kind == Kind::kRange) {
    source = iterate(runtime, sequence);
  } else if (sequence.is_undefined()) {
    runtime.error("'{}' is undefined", sequence.text != nullptr ? sequence.bytes() : "a value");
  } else {
    return runtime.undefined("slice");  // as environment.getitem() answers for what has no items
  }
  std::vector<Value> items;
  for (std::size_t position : slice_positions(runtime, bounds, source.size())) items.push_back(source[position]);
  Value part = runtime.list(std::move(items), kind);
  part.data = sequence.data;
  return part;
}

}  // namespace tensorfold::jinja
