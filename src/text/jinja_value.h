// Values of the template language, with Python's semantics: equality, order, truth, str() and repr(). A value is a
// small copyable handle; strings and containers live in the render's heap.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja_text.h"

namespace tensorfold::jinja {

class Runtime;
struct ListObject;
class DictObject;
struct RangeObject;
struct NamespaceObject;
struct LoopObject;
struct MacroObject;
struct MethodObject;
struct CyclerObject;
struct JoinerObject;

enum class Kind : std::uint8_t {
  kUndefined,
  kNone,
  kBoolean,
  kInteger,
  kFloat,
  kText,
  kList,
  kTuple,
  kDict,
  kView,       // dict.items(), keys(), values(): sized and iterable, without indexes
  kGenerator,  // what map, select ... return: iterable once
  kRange,
  kNamespace,
  kLoop,
  kFunction,  // a global
  kMacro,
  kMethod,  // a method bound to its receiver
  kCycler,
  kJoiner,
};

/// Wide enough for JSON's unsigned 64-bit numbers; arithmetic stays within 64 bits and says so when it can't.
__extension__ typedef __int128 Integer;

struct Value {
  Kind kind = Kind::kUndefined;
  bool data = false;  // came from the caller; for strings the runs say more
  union {
    const Text* text = nullptr;  // kText; kUndefined: the missing name, or null; kFunction: the global's name
    bool boolean;
    Integer integer;
    double number;
    ListObject* list;  // kList, kTuple, kView, kGenerator
    DictObject* dict;
    RangeObject* range;
    NamespaceObject* name_space;
    LoopObject* loop;
    MacroObject* macro;
    MethodObject* method;
    CyclerObject* cycler;
    JoinerObject* joiner;
  };

  bool is_undefined() const { return kind == Kind::kUndefined; }
  bool is_none() const { return kind == Kind::kNone; }
  bool is_text() const { return kind == Kind::kText; }
  bool is_dict() const { return kind == Kind::kDict; }
  bool is_list_or_tuple() const { return kind == Kind::kList || kind == Kind::kTuple; }
  /// Python's int includes bool.
  bool is_integral() const { return kind == Kind::kInteger || kind == Kind::kBoolean; }
  bool is_number() const { return is_integral() || kind == Kind::kFloat; }
  Integer as_integer() const { return kind == Kind::kBoolean ? Integer{boolean} : integer; }
  double as_double() const { return kind == Kind::kFloat ? number : static_cast<double>(as_integer()); }
  const std::string& bytes() const { return text->bytes(); }
};

Value none_value();
Value boolean_value(bool boolean);
Value integer_value(Integer integer, bool data = false);
Value float_value(double number, bool data = false);
Value text_value(const Text* text);

struct ListObject final : Object {
  std::vector<Value> items;
  const char* view_name = nullptr;  // kView: "dict_items" ...
  bool exhausted = false;           // kGenerator
  bool is_group = false;            // groupby's pairs, which have `grouper` and `list`
};

class DictObject final : public Object {
 public:
  using Entry = std::pair<Value, Value>;
  std::vector<Entry>& entries() { return entries_; }
  const std::vector<Entry>& entries() const { return entries_; }
  Value* find(Runtime& runtime, const Value& key);
  Value* find(Runtime& runtime, std::string_view key);
  void set(Runtime& runtime, const Value& key, const Value& value);
  bool erase(Runtime& runtime, const Value& key);

 private:
  std::size_t find_entry(Runtime& runtime, const Value& key);
  std::vector<Entry> entries_;
};

struct RangeObject final : Object {
  std::int64_t start = 0, stop = 0, step = 1;
  std::size_t size() const;
};

/// namespace(): attributes that inner scopes may assign.
struct NamespaceObject final : Object {
  std::vector<std::pair<std::string, Value>> attributes;
};

struct LoopObject final : Object {
  std::vector<Value> items;
  std::size_t index = 0;
  int depth = 1;
  std::optional<std::vector<Value>> changed_values;
};

struct MethodObject final : Object {
  Value receiver;
  std::string name;
};

struct CyclerObject final : Object {
  std::vector<Value> items;
  std::size_t position = 0;
};

struct JoinerObject final : Object {
  Value separator;
  bool used = false;
};

struct CallArguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keywords;
};

/// "str", "list", "dict object" ...: for messages.
std::string_view type_name(const Value& value);
bool is_true(const Value& value);
bool equals(Runtime& runtime, const Value& left, const Value& right, int depth = 0);
/// Python's <; fails for types without an order.
bool less_than(Runtime& runtime, const Value& left, const Value& right, int depth = 0);
/// The items a for loop visits; fails for what can't be iterated. A generator is used up.
std::vector<Value> iterate(Runtime& runtime, const Value& value);
bool is_iterable(const Value& value);
/// len(), or nothing for types without one.
std::optional<std::size_t> length_of(Runtime& runtime, const Value& value);
/// str(value).
const Text* to_text(Runtime& runtime, const Value& value);
/// repr(value), appended.
void append_repr(Runtime& runtime, Text& out, const Value& value, int depth = 0);
std::string integer_text(Integer integer);
/// float.__repr__.
std::string float_text(double number);

}  // namespace tensorfold::jinja
