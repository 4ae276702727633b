// Python's semantics of values: constructors, truth, equality, order, iteration, and the dictionary.
#include "text/jinja_value.h"

#include <cmath>

#include "text/jinja_runtime.h"
#include "text/jinja_unicode.h"

namespace tensorfold::jinja {

Value none_value() {
  Value value;
  value.kind = Kind::kNone;
  return value;
}

Value boolean_value(bool boolean) {
  Value value;
  value.kind = Kind::kBoolean;
  value.boolean = boolean;
  return value;
}

Value integer_value(Integer integer, bool data) {
  Value value;
  value.kind = Kind::kInteger;
  value.integer = integer;
  value.data = data;
  return value;
}

Value float_value(double number, bool data) {
  Value value;
  value.kind = Kind::kFloat;
  value.number = number;
  value.data = data;
  return value;
}

Value text_value(const Text* text) {
  Value value;
  value.kind = Kind::kText;
  value.text = text;
  return value;
}

Value Runtime::list(std::vector<Value> items, Kind kind) {
  charge_items(items.size());
  ListObject* object = make<ListObject>();
  object->items = std::move(items);
  Value value;
  value.kind = kind;
  value.list = object;
  return value;
}

Value Runtime::undefined(std::string_view name) {
  Value value;
  value.text = make<Text>(name, false);
  return value;
}

Value Runtime::part(const Text& text, std::size_t begin, std::size_t end) {
  charge_bytes(end - begin);
  Text* part = make_text();
  part->append(text, begin, end);
  part->markup = text.markup;
  return text_value(part);
}

void Runtime::raise(const std::string& message) const {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("chat template, line {}: {}", line, message));
}

void Runtime::check_depth(int depth) const {
  if (depth > limits::kTemplateDepthMax) {
    fail(ErrorCode::kResourceExhausted, "chat template, line {}: a value is nested more than {} levels deep", line,
         limits::kTemplateDepthMax);
  }
}

void Runtime::fail_steps() const {
  fail(
      ErrorCode::kResourceExhausted,
      "the conversation is too long for the chat template: rendering it takes more than {} steps (line {}); send fewer "
      "messages",
      limits_.steps, line);
}

void Runtime::fail_size() const {
  fail(ErrorCode::kResourceExhausted,
       "the conversation is too long for the chat template: a text grows beyond {} bytes (line {}); send less",
       limits_.output_bytes, line);
}

std::string_view type_name(const Value& value) {
  switch (value.kind) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "None";
    case Kind::kBoolean:
      return "bool";
    case Kind::kInteger:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kText:
      return "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kView:
      return value.list->view_name;
    case Kind::kGenerator:
      return "generator";
    case Kind::kRange:
      return "range";
    case Kind::kNamespace:
      return "namespace";
    case Kind::kLoop:
      return "loop";
    case Kind::kFunction:
      return "function";
    case Kind::kMacro:
      return "macro";
    case Kind::kMethod:
      return "method";
    case Kind::kCycler:
      return "cycler";
    case Kind::kJoiner:
      return "joiner";
  }
  return "?";
}

std::size_t RangeObject::size() const {
  if (step > 0) return start >= stop ? 0 : static_cast<std::size_t>((stop - start - 1) / step + 1);
  return start <= stop ? 0 : static_cast<std::size_t>((start - stop - 1) / -step + 1);
}

bool is_true(const Value& value) {
  switch (value.kind) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBoolean:
      return value.boolean;
    case Kind::kInteger:
      return value.integer != 0;
    case Kind::kFloat:
      return value.number != 0;
    case Kind::kText:
      return value.text->size() != 0;
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView:
      return !value.list->items.empty();
    case Kind::kDict:
      return !value.dict->entries().empty();
    case Kind::kRange:
      return value.range->size() != 0;
    default:
      return true;
  }
}

namespace {

bool sequences_equal(Runtime& runtime, const Value& left, const Value& right, int depth) {
  const std::vector<Value>& a = left.list->items;
  const std::vector<Value>& b = right.list->items;
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!equals(runtime, a[i], b[i], depth + 1)) return false;
  }
  return true;
}

bool dicts_equal(Runtime& runtime, const Value& left, const Value& right, int depth) {
  if (left.dict->entries().size() != right.dict->entries().size()) return false;
  for (const DictObject::Entry& entry : left.dict->entries()) {
    const Value* other = right.dict->find(runtime, entry.first);
    if (other == nullptr || !equals(runtime, entry.second, *other, depth + 1)) return false;
  }
  return true;
}

bool numbers_equal(const Value& left, const Value& right) {
  if (left.kind != Kind::kFloat && right.kind != Kind::kFloat) return left.as_integer() == right.as_integer();
  return left.as_double() == right.as_double();
}

}  // namespace

bool equals(Runtime& runtime, const Value& left, const Value& right, int depth) {
  runtime.charge(1);
  runtime.check_depth(depth);
  if (left.is_number() && right.is_number()) return numbers_equal(left, right);
  if (left.kind != right.kind) return false;
  switch (left.kind) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kText:
      if (left.text->size() != right.text->size()) return false;
      runtime.charge_bytes(left.text->size());
      return left.bytes() == right.bytes();
    case Kind::kList:
    case Kind::kTuple:
      return left.list == right.list || sequences_equal(runtime, left, right, depth);
    case Kind::kDict:
      return left.dict == right.dict || dicts_equal(runtime, left, right, depth);
    case Kind::kRange:
      return left.range->size() == right.range->size() &&
             (left.range->size() == 0 || (left.range->start == right.range->start &&
                                          (left.range->size() == 1 || left.range->step == right.range->step)));
    case Kind::kFunction:
      return left.bytes() == right.bytes();
    case Kind::kMethod:
      return left.method->name == right.method->name &&
             equals(runtime, left.method->receiver, right.method->receiver, depth + 1);
    default:
      return left.list == right.list;  // one object is itself only
  }
}

bool less_than(Runtime& runtime, const Value& left, const Value& right, int depth) {
  runtime.charge(1);
  runtime.check_depth(depth);
  if (left.is_number() && right.is_number()) {
    if (left.kind != Kind::kFloat && right.kind != Kind::kFloat) return left.as_integer() < right.as_integer();
    return left.as_double() < right.as_double();
  }
  if (left.is_text() && right.is_text()) {
    runtime.charge_bytes(std::min(left.text->size(), right.text->size()));
    return left.bytes() < right.bytes();  // UTF-8 sorts as its code points
  }
  if (left.is_list_or_tuple() && left.kind == right.kind) {
    const std::vector<Value>& a = left.list->items;
    const std::vector<Value>& b = right.list->items;
    for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
      if (!equals(runtime, a[i], b[i], depth + 1)) return less_than(runtime, a[i], b[i], depth + 1);
    }
    return a.size() < b.size();
  }
  runtime.error("'<' isn't supported between '{}' and '{}'", type_name(left), type_name(right));
}

bool is_iterable(const Value& value) {
  switch (value.kind) {
    case Kind::kUndefined:
    case Kind::kText:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kView:
    case Kind::kGenerator:
    case Kind::kRange:
      return true;
    default:
      return false;
  }
}

std::vector<Value> iterate(Runtime& runtime, const Value& value) {
  std::vector<Value> items;
  switch (value.kind) {
    case Kind::kUndefined:
      return items;
    case Kind::kText: {
      const Text& text = *value.text;
      runtime.charge_items(text.size());
      for (std::size_t offset = 0; offset < text.size();) {
        const std::size_t length = code_point_length(text.bytes(), offset);
        items.push_back(runtime.part(text, offset, offset + length));
        offset += length;
      }
      return items;
    }
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView:
      runtime.charge_items(value.list->items.size());
      return value.list->items;
    case Kind::kGenerator:
      if (value.list->exhausted) return items;
      value.list->exhausted = true;
      return value.list->items;
    case Kind::kDict:
      runtime.charge_items(value.dict->entries().size());
      for (const DictObject::Entry& entry : value.dict->entries()) items.push_back(entry.first);
      return items;
    case Kind::kRange: {
      const std::size_t count = value.range->size();
      runtime.charge_items(count);
      for (std::size_t i = 0; i < count; ++i) {
        items.push_back(
            integer_value(value.range->start + static_cast<std::int64_t>(i) * value.range->step, value.data));
      }
      return items;
    }
    default:
      runtime.error("'{}' can't be iterated", type_name(value));
  }
}

std::optional<std::size_t> length_of(Runtime& runtime, const Value& value) {
  switch (value.kind) {
    case Kind::kUndefined:
      return 0;
    case Kind::kText:
      runtime.charge_bytes(value.text->size());
      return count_code_points(value.bytes());
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView:
      return value.list->items.size();
    case Kind::kDict:
      return value.dict->entries().size();
    case Kind::kRange:
      return value.range->size();
    case Kind::kLoop:
      return value.loop->items.size();
    default:
      return std::nullopt;
  }
}

namespace {

void check_hashable(Runtime& runtime, const Value& key, int depth = 0) {
  runtime.check_depth(depth);
  if (key.kind == Kind::kList || key.is_dict()) runtime.error("a {} can't be a dictionary key", type_name(key));
  if (key.kind == Kind::kTuple) {
    for (const Value& item : key.list->items) check_hashable(runtime, item, depth + 1);
  }
}

}  // namespace

std::size_t DictObject::find_entry(Runtime& runtime, const Value& key) {
  check_hashable(runtime, key);
  std::size_t index = 0;
  for (; index < entries_.size(); ++index) {
    const Value& candidate = entries_[index].first;
    if (key.is_text()) {  // the common case, without a step for every key that differs in length
      if (candidate.is_text() && candidate.bytes() == key.bytes()) break;
    } else if (equals(runtime, candidate, key)) {
      break;
    }
  }
  runtime.charge(1 + index / 8);
  return index;
}

Value* DictObject::find(Runtime& runtime, const Value& key) {
  const std::size_t index = find_entry(runtime, key);
  return index < entries_.size() ? &entries_[index].second : nullptr;
}

Value* DictObject::find(Runtime& runtime, std::string_view key) {
  runtime.charge(1 + entries_.size() / 8);
  for (Entry& entry : entries_) {
    if (entry.first.is_text() && entry.first.bytes() == key) return &entry.second;
  }
  return nullptr;
}

void DictObject::set(Runtime& runtime, const Value& key, const Value& value) {
  const std::size_t index = find_entry(runtime, key);
  if (index < entries_.size()) {
    entries_[index].second = value;
    return;
  }
  runtime.charge_items(1);
  entries_.emplace_back(key, value);
}

bool DictObject::erase(Runtime& runtime, const Value& key) {
  const std::size_t index = find_entry(runtime, key);
  if (index >= entries_.size()) return false;
  entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(index));
  return true;
}

}  // namespace tensorfold::jinja
