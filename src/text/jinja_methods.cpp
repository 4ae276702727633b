// Attribute and item access, and the methods of lists, dictionaries, loops and cyclers.
#include "text/jinja_methods.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "text/jinja_arguments.h"
#include "text/jinja_operators.h"
#include "text/jinja_runtime.h"

namespace tensorfold::jinja {
namespace {

using Names = std::initializer_list<std::string_view>;

bool is_one_of(const std::string& name, Names names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool has_method(const Value& object, const std::string& name) {
  switch (object.kind) {
    case Kind::kText:
      return find_text_method(name) != nullptr;
    case Kind::kDict:
      return is_one_of(name, {"items", "keys", "values", "get", "pop", "update", "setdefault", "copy", "clear"});
    case Kind::kList:
      return is_one_of(name,
                       {"append", "extend", "insert", "pop", "remove", "reverse", "index", "count", "copy", "clear"});
    case Kind::kTuple:
      return is_one_of(name, {"index", "count"});
    case Kind::kLoop:
      return is_one_of(name, {"cycle", "changed"});
    case Kind::kCycler:
      return is_one_of(name, {"next", "reset"});
    default:
      return false;
  }
}

Value bind_method(Runtime& runtime, const Value& object, const std::string& name) {
  runtime.charge(2);
  Value value;
  value.kind = Kind::kMethod;
  value.method = runtime.make<MethodObject>();
  value.method->receiver = object;
  value.method->name = name;
  return value;
}

bool find_loop_attribute(const LoopObject& loop, const std::string& name, Value& value) {
  const Integer index = static_cast<Integer>(loop.index);
  const Integer length = static_cast<Integer>(loop.items.size());
  if (name == "index") {
    value = integer_value(index + 1);
  } else if (name == "index0") {
    value = integer_value(index);
  } else if (name == "revindex") {
    value = integer_value(length - index);
  } else if (name == "revindex0") {
    value = integer_value(length - index - 1);
  } else if (name == "first") {
    value = boolean_value(index == 0);
  } else if (name == "last") {
    value = boolean_value(index + 1 == length);
  } else if (name == "length") {
    value = integer_value(length);
  } else if (name == "depth") {
    value = integer_value(loop.depth);
  } else if (name == "depth0") {
    value = integer_value(loop.depth - 1);
  } else if (name == "previtem" && index > 0) {
    value = loop.items[loop.index - 1];
  } else if (name == "nextitem" && index + 1 < length) {
    value = loop.items[loop.index + 1];
  } else {
    return false;
  }
  return true;
}

bool find_attribute(Runtime& runtime, const Value& object, const std::string& name, Value& value) {
  if (has_method(object, name)) {
    value = bind_method(runtime, object, name);
    return true;
  }
  switch (object.kind) {
    case Kind::kLoop:
      return find_loop_attribute(*object.loop, name, value);
    case Kind::kNamespace:
      for (const auto& [key, attribute] : object.name_space->attributes) {
        if (key == name) {
          value = attribute;
          return true;
        }
      }
      return false;
    case Kind::kTuple:
      if (!object.list->is_group || (name != "grouper" && name != "list")) return false;
      value = object.list->items[name == "list" ? 1 : 0];
      return true;
    case Kind::kCycler:
      if (name != "current" || object.cycler->items.empty()) return false;
      value = object.cycler->items[object.cycler->position];
      return true;
    default:
      return false;
  }
}

[[noreturn]] void fail_undefined(Runtime& runtime, const Value& object, const std::string& wanted) {
  runtime.error("'{}' is undefined, so it has no '{}'", object.text != nullptr ? object.bytes() : "a value", wanted);
}

Value view(Runtime& runtime, const DictObject& dict, const std::string& name, bool data) {
  std::vector<Value> items;
  runtime.charge_items(dict.entries().size());
  for (const DictObject::Entry& entry : dict.entries()) {
    if (name == "items") {
      Value pair = runtime.list({entry.first, entry.second}, Kind::kTuple);
      pair.data = data;
      items.push_back(pair);
    } else {
      items.push_back(name == "keys" ? entry.first : entry.second);
    }
  }
  Value value = runtime.list(std::move(items), Kind::kView);
  value.list->view_name = name == "items" ? "dict_items" : name == "keys" ? "dict_keys" : "dict_values";
  value.data = data;
  return value;
}

void update_dict(Runtime& runtime, DictObject& dict, const CallArguments& arguments) {
  if (arguments.positional.size() > 1) runtime.error("update() takes at most 1 argument");
  for (const Value& source : arguments.positional) {
    if (source.is_dict()) {
      const std::vector<DictObject::Entry> entries = source.dict->entries();
      for (const DictObject::Entry& entry : entries) dict.set(runtime, entry.first, entry.second);
      continue;
    }
    for (const Value& pair : iterate(runtime, source)) {
      const std::vector<Value> parts = iterate(runtime, pair);
      if (parts.size() != 2) runtime.error("update() needs pairs");
      dict.set(runtime, parts[0], parts[1]);
    }
  }
  for (const auto& [name, value] : arguments.keywords) dict.set(runtime, runtime.text(name, false), value);
}

Value call_dict_method(Runtime& runtime, const Value& object, const std::string& name, const CallArguments& arguments) {
  DictObject& dict = *object.dict;
  if (name == "get" || name == "setdefault") {
    const BoundArguments bound(runtime, name, arguments, {"key", "default"}, 1);
    const Value* found = dict.find(runtime, bound.value(0));
    if (found != nullptr) return *found;
    const Value fallback = bound.has(1) ? bound.value(1) : none_value();
    if (name == "setdefault") dict.set(runtime, bound.value(0), fallback);
    return fallback;
  }
  if (name == "pop") {
    const BoundArguments bound(runtime, name, arguments, {"key", "default"}, 1);
    const Value* found = dict.find(runtime, bound.value(0));
    if (found == nullptr && !bound.has(1)) runtime.error("pop(): the key isn't there");
    const Value value = found != nullptr ? *found : bound.value(1);
    dict.erase(runtime, bound.value(0));
    return value;
  }
  if (name == "update") {
    update_dict(runtime, dict, arguments);
    return none_value();
  }
  const BoundArguments none(runtime, name, arguments, {});
  if (name == "clear") {
    dict.entries().clear();
    return none_value();
  }
  if (name != "copy") return view(runtime, dict, name, object.data);
  Value copy = object;
  runtime.charge_items(dict.entries().size());
  copy.dict = runtime.make<DictObject>(dict);
  return copy;
}

std::size_t find_in_list(Runtime& runtime, const std::vector<Value>& items, const Value& wanted, const char* callee) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (equals(runtime, items[i], wanted)) return i;
  }
  runtime.error("{}: the value isn't in the list", callee);
}

Value pop_item(Runtime& runtime, std::vector<Value>& items, const CallArguments& arguments) {
  const BoundArguments bound(runtime, "pop()", arguments, {"index"});
  Integer index = bound.integer(0, -1);
  if (index < 0) index += static_cast<Integer>(items.size());
  if (index < 0 || index >= static_cast<Integer>(items.size())) runtime.error("pop(): the index is out of range");
  const Value value = items[static_cast<std::size_t>(index)];
  runtime.charge(1 + items.size() / 8);
  items.erase(items.begin() + static_cast<std::ptrdiff_t>(index));
  return value;
}

Value call_list_method(Runtime& runtime, const Value& object, const std::string& name, const CallArguments& arguments) {
  std::vector<Value>& items = object.list->items;
  runtime.charge_items(1);
  if (name == "pop") return pop_item(runtime, items, arguments);
  if (name == "insert") {
    const BoundArguments bound(runtime, name, arguments, {"index", "object"}, 2);
    const Integer size = static_cast<Integer>(items.size());
    Integer index = bound.integer(0, 0);
    index = std::clamp<Integer>(index < 0 ? index + size : index, 0, size);
    runtime.charge(1 + items.size() / 8);
    items.insert(items.begin() + static_cast<std::ptrdiff_t>(index), bound.value(1));
    return none_value();
  }
  if (is_one_of(name, {"reverse", "copy", "clear"})) {
    const BoundArguments none(runtime, name, arguments, {});
    runtime.charge_items(items.size());
    if (name == "copy") return runtime.list(items);
    if (name == "clear") items.clear();
    std::reverse(items.begin(), items.end());
    return none_value();
  }
  const BoundArguments bound(runtime, name, arguments, {"value"}, 1);
  if (name == "append") {
    items.push_back(bound.value(0));
  } else if (name == "extend") {
    const std::vector<Value> added = iterate(runtime, bound.value(0));
    items.insert(items.end(), added.begin(), added.end());
  } else if (name == "remove") {
    items.erase(items.begin() + static_cast<std::ptrdiff_t>(find_in_list(runtime, items, bound.value(0), "remove()")));
  } else if (name == "index") {
    return integer_value(static_cast<Integer>(find_in_list(runtime, items, bound.value(0), "index()")));
  } else {
    return integer_value(std::count_if(items.begin(), items.end(),
                                       [&](const Value& item) { return equals(runtime, item, bound.value(0)); }));
  }
  return none_value();
}

Value call_loop_method(Runtime& runtime, LoopObject& loop, const std::string& name, const CallArguments& arguments) {
  if (!arguments.keywords.empty()) runtime.error("loop.{}() takes no named arguments", name);
  if (name == "cycle") {
    if (arguments.positional.empty()) runtime.error("loop.cycle() needs values");
    return arguments.positional[loop.index % arguments.positional.size()];
  }
  bool same = loop.changed_values && loop.changed_values->size() == arguments.positional.size();
  for (std::size_t i = 0; same && i < arguments.positional.size(); ++i) {
    same = equals(runtime, arguments.positional[i], (*loop.changed_values)[i]);
  }
  if (!same) loop.changed_values = arguments.positional;
  return boolean_value(!same);
}

Value call_cycler_method(Runtime& runtime, CyclerObject& cycler, const std::string& name,
                         const CallArguments& arguments) {
  const BoundArguments none(runtime, name, arguments, {});
  if (name == "reset") {
    cycler.position = 0;
    return none_value();
  }
  const Value value = cycler.items[cycler.position];
  cycler.position = (cycler.position + 1) % cycler.items.size();
  return value;
}

}  // namespace

Value get_attribute(Runtime& runtime, const Value& object, const std::string& name) {
  runtime.charge(1);
  if (object.is_undefined()) fail_undefined(runtime, object, name);
  Value value;
  if (find_attribute(runtime, object, name, value)) return value;
  if (object.is_dict()) {
    const Value* found = object.dict->find(runtime, name);
    if (found != nullptr) return *found;
  }
  return runtime.undefined(name);
}

Value get_item(Runtime& runtime, const Value& object, const Value& index) {
  if (object.is_undefined()) fail_undefined(runtime, object, std::string(index.is_text() ? index.bytes() : "item"));
  Value value;
  if (find_item(runtime, object, index, value)) return value;
  if (index.is_text() && find_attribute(runtime, object, index.bytes(), value)) return value;
  return runtime.undefined(index.is_text() ? index.bytes() : "item");
}

Value call_method(Runtime& runtime, const MethodObject& method, const CallArguments& arguments) {
  const Value& receiver = method.receiver;
  runtime.charge(1);
  switch (receiver.kind) {
    case Kind::kText:
      return find_text_method(method.name)(runtime, *receiver.text, arguments);
    case Kind::kDict:
      return call_dict_method(runtime, receiver, method.name, arguments);
    case Kind::kList:
    case Kind::kTuple:
      return call_list_method(runtime, receiver, method.name, arguments);
    case Kind::kLoop:
      return call_loop_method(runtime, *receiver.loop, method.name, arguments);
    default:
      return call_cycler_method(runtime, *receiver.cycler, method.name, arguments);
  }
}

}  // namespace tensorfold::jinja
