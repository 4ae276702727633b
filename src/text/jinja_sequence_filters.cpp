// Filters on sequences and dictionaries: selection, order, grouping, folding.
#include <algorithm>
#include <unordered_map>

#include "text/jinja_arguments.h"
#include "text/jinja_builtins.h"
#include "text/jinja_depth.h"
#include "text/jinja_methods.h"
#include "text/jinja_operators.h"
#include "text/jinja_runtime.h"
#include "text/jinja_unicode.h"

namespace tensorfold::jinja {
namespace {

/// "a.b.0": how jinja2's attribute arguments name a path.
std::vector<Value> attribute_path(Runtime& runtime, const Value& attribute) {
  if (attribute.is_none()) return {};
  if (!attribute.is_text()) return {attribute};
  std::vector<Value> parts;
  const std::string& path = attribute.bytes();
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    const bool digits = !part.empty() && part.size() < 10 &&
                        std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    parts.push_back(digits ? integer_value(std::stol(part)) : runtime.text(part, false));
    begin = end + 1;
  }
  return parts;
}

Value follow(Runtime& runtime, Value value, const std::vector<Value>& path, const Value* fallback = nullptr) {
  for (const Value& part : path) {
    value = get_item(runtime, value, part);
    if (fallback != nullptr && value.is_undefined()) value = *fallback;
  }
  return value;
}

Value ignore_case(Runtime& runtime, const Value& value) {
  return value.is_text() ? lower_text(runtime, *value.text) : value;
}

Value make_list(Runtime& runtime, std::vector<Value> items, const Value& source, Kind kind = Kind::kList) {
  Value list = runtime.list(std::move(items), kind);
  list.data = source.data;
  return list;
}

Value join(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const BoundArguments bound(runtime, "join", arguments, {"d", "attribute"});
  std::vector<Value> items = iterate(runtime, input);
  if (bound.given(1) != nullptr) {
    const std::vector<Value> path = attribute_path(runtime, bound.value(1));
    for (Value& item : items) item = follow(runtime, item, path);
  }
  return join_texts(runtime, bound.has(0) ? *to_text(runtime, bound.value(0)) : Text(), items);
}

CallArguments without_first(const CallArguments& arguments, std::size_t count) {
  CallArguments rest;
  rest.positional.assign(arguments.positional.begin() + static_cast<std::ptrdiff_t>(count), arguments.positional.end());
  rest.keywords = arguments.keywords;
  return rest;
}

std::vector<Value> map_attribute(Runtime& runtime, std::vector<Value> items, const CallArguments& arguments) {
  const BoundArguments bound(runtime, "map", {{}, arguments.keywords}, {"attribute", "default"}, 1);
  const std::vector<Value> path = attribute_path(runtime, bound.value(0));
  for (Value& item : items) item = follow(runtime, item, path, bound.given(1));
  return items;
}

Value map(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const EvaluationDepth depth(runtime);  // map may name map
  if (!is_true(input)) return make_list(runtime, {}, input, Kind::kGenerator);
  std::vector<Value> items = iterate(runtime, input);
  if (arguments.positional.empty()) {
    return make_list(runtime, map_attribute(runtime, std::move(items), arguments), input, Kind::kGenerator);
  }
  const Value& name = arguments.positional[0];
  const Filter filter = name.is_text() ? find_filter(name.bytes()) : nullptr;
  if (filter == nullptr) runtime.error("map: no filter has this name");
  const CallArguments rest = without_first(arguments, 1);
  for (Value& item : items) {
    runtime.charge(1);
    item = filter(runtime, item, rest);
  }
  return make_list(runtime, std::move(items), input, Kind::kGenerator);
}

template <bool keep, bool by_attribute>
Value select(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  if (!is_true(input)) return make_list(runtime, {}, input, Kind::kGenerator);
  std::size_t used = 0;
  std::vector<Value> path;
  if (by_attribute) {
    if (arguments.positional.empty()) runtime.error("selectattr and rejectattr need the attribute's name");
    path = attribute_path(runtime, arguments.positional[used++]);
  }
  Test test = nullptr;
  if (arguments.positional.size() > used) {
    const Value& name = arguments.positional[used++];
    test = name.is_text() ? find_test(name.bytes()) : nullptr;
    if (test == nullptr) runtime.error("select: no test has this name");
  }
  const CallArguments rest = without_first(arguments, used);
  std::vector<Value> kept;
  for (const Value& item : iterate(runtime, input)) {
    runtime.charge(1);
    const Value subject = follow(runtime, item, path);
    if ((test != nullptr ? test(runtime, subject, rest) : is_true(subject)) == keep) kept.push_back(item);
  }
  return make_list(runtime, std::move(kept), input, Kind::kGenerator);
}

struct Keyed {
  std::vector<Value> keys;
  Value item;
};

bool keyed_less(Runtime& runtime, const Keyed& a, const Keyed& b) {
  for (std::size_t i = 0; i < a.keys.size(); ++i) {
    if (equals(runtime, a.keys[i], b.keys[i])) continue;
    return less_than(runtime, a.keys[i], b.keys[i]);
  }
  return false;
}

std::vector<Value> sort_keyed(Runtime& runtime, std::vector<Keyed> keyed, bool reverse) {
  std::stable_sort(keyed.begin(), keyed.end(), [&](const Keyed& a, const Keyed& b) {
    return reverse ? keyed_less(runtime, b, a) : keyed_less(runtime, a, b);
  });
  std::vector<Value> items;
  for (const Keyed& entry : keyed) items.push_back(entry.item);
  return items;
}

Value sort(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const BoundArguments bound(runtime, "sort", arguments, {"reverse", "case_sensitive", "attribute"});
  const bool exact = bound.truth(1, false);
  std::vector<std::vector<Value>> paths;
  if (bound.given(2) != nullptr && bound.value(2).is_text()) {
    const std::string& names = bound.value(2).bytes();
    for (std::size_t begin = 0; begin <= names.size();) {
      const std::size_t end = std::min(names.find(',', begin), names.size());
      paths.push_back(attribute_path(runtime, runtime.text(names.substr(begin, end - begin), false)));
      begin = end + 1;
    }
  } else {
    paths.push_back(bound.given(2) != nullptr ? std::vector<Value>{bound.value(2)} : std::vector<Value>());
  }
  std::vector<Keyed> keyed;
  for (const Value& item : iterate(runtime, input)) {
    Keyed entry{{}, item};
    for (const std::vector<Value>& path : paths) {
      const Value key = follow(runtime, item, path);
      entry.keys.push_back(exact ? key : ignore_case(runtime, key));
    }
    keyed.push_back(std::move(entry));
  }
  return make_list(runtime, sort_keyed(runtime, std::move(keyed), bound.truth(0, false)), input);
}

Value dictsort(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const BoundArguments bound(runtime, "dictsort", arguments, {"case_sensitive", "by", "reverse"});
  if (!input.is_dict()) runtime.error("dictsort needs a dictionary, not {}", type_name(input));
  const std::string by = bound.has(1) ? bound.text(1).bytes() : "key";
  if (by != "key" && by != "value") runtime.error("dictsort sorts by \"key\" or \"value\"");
  std::vector<Keyed> keyed;
  for (const DictObject::Entry& entry : input.dict->entries()) {
    const Value& key = by == "key" ? entry.first : entry.second;
    keyed.push_back({{bound.truth(0, false) ? key : ignore_case(runtime, key)},
                     make_list(runtime, {entry.first, entry.second}, input, Kind::kTuple)});
  }
  return make_list(runtime, sort_keyed(runtime, std::move(keyed), bound.truth(2, false)), input);
}

Value items(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const BoundArguments none(runtime, "items", arguments, {});
  std::vector<Value> pairs;
  if (!input.is_undefined()) {
    if (!input.is_dict()) runtime.error("items needs a dictionary, not {}", type_name(input));
    for (const DictObject::Entry& entry : input.dict->entries()) {
      pairs.push_back(make_list(runtime, {entry.first, entry.second}, input, Kind::kTuple));
    }
  }
  return make_list(runtime, std::move(pairs), input, Kind::kGenerator);
}

Value list(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const BoundArguments none(runtime, "list", arguments, {});
  return make_list(runtime, iterate(runtime, input), input);
}

Value first(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const BoundArguments none(runtime, "first", arguments, {});
  const std::vector<Value> all = iterate(runtime, input);
  return all.empty() ? runtime.undefined("the first item of an empty sequence") : all.front();
}

void need_reversible(Runtime& runtime, const Value& input) {
  if (input.kind == Kind::kGenerator) runtime.error("a generator can't be reversed");
}

Value last(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const BoundArguments none(runtime, "last", arguments, {});
  need_reversible(runtime, input);
  if (input.is_undefined()) runtime.error("'{}' is undefined", input.text != nullptr ? input.bytes() : "a value");
  const std::vector<Value> all = iterate(runtime, input);
  return all.empty() ? runtime.undefined("the last item of an empty sequence") : all.back();
}

Value reverse(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const BoundArguments none(runtime, "reverse", arguments, {});
  std::vector<Value> all = iterate(runtime, input);
  std::reverse(all.begin(), all.end());
  if (input.is_text()) return join_texts(runtime, Text(), all);
  return make_list(runtime, std::move(all), input, Kind::kGenerator);
}

Value unique(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const BoundArguments bound(runtime, "unique", arguments, {"case_sensitive", "attribute"});
  const std::vector<Value> path =
      bound.given(1) != nullptr ? attribute_path(runtime, bound.value(1)) : std::vector<Value>();
  DictObject seen;
  std::vector<Value> kept;
  for (const Value& item : iterate(runtime, input)) {
    Value key = follow(runtime, item, path);
    if (!bound.truth(0, false)) key = ignore_case(runtime, key);
    if (seen.find(runtime, key) != nullptr) continue;
    seen.set(runtime, key, none_value());
    kept.push_back(item);
  }
  return make_list(runtime, std::move(kept), input, Kind::kGenerator);
}

Value sum(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const BoundArguments bound(runtime, "sum", arguments, {"attribute", "start"});
  const std::vector<Value> path =
      bound.given(0) != nullptr ? attribute_path(runtime, bound.value(0)) : std::vector<Value>();
  Value total = bound.has(1) ? bound.value(1) : integer_value(0);
  if (total.is_text()) runtime.error("sum can't add strings");
  for (const Value& item : iterate(runtime, input)) {
    total = apply_binary(runtime, BinaryOperator::kAdd, total, follow(runtime, item, path));
  }
  return total;
}

template <bool largest>
Value extreme(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const BoundArguments bound(runtime, largest ? "max" : "min", arguments, {"case_sensitive", "attribute"});
  const std::vector<Value> path =
      bound.given(1) != nullptr ? attribute_path(runtime, bound.value(1)) : std::vector<Value>();
  const std::vector<Value> all = iterate(runtime, input);
  if (all.empty()) return runtime.undefined("the extreme of an empty sequence");
  const auto key_of = [&](const Value& item) {
    const Value key = follow(runtime, item, path);
    return bound.truth(0, false) ? key : ignore_case(runtime, key);
  };
  Value best = all[0];
  Value best_key = key_of(best);
  for (std::size_t i = 1; i < all.size(); ++i) {
    const Value key = key_of(all[i]);
    if (largest ? less_than(runtime, best_key, key) : less_than(runtime, key, best_key)) {
      best = all[i];
      best_key = key;
    }
  }
  return best;
}

Value groupby(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const BoundArguments bound(runtime, "groupby", arguments, {"attribute", "default", "case_sensitive"}, 1);
  const std::vector<Value> path = attribute_path(runtime, bound.value(0));
  const bool exact = bound.truth(2, false);
  std::vector<Keyed> keyed;
  for (const Value& item : iterate(runtime, input)) {
    const Value key = follow(runtime, item, path, bound.given(1));
    keyed.push_back({{exact ? key : ignore_case(runtime, key), key}, item});
  }
  std::stable_sort(keyed.begin(), keyed.end(),
                   [&](const Keyed& a, const Keyed& b) { return less_than(runtime, a.keys[0], b.keys[0]); });
  std::vector<Value> groups;
  for (std::size_t begin = 0; begin < keyed.size();) {
    std::size_t end = begin;
    std::vector<Value> members;
    while (end < keyed.size() && equals(runtime, keyed[end].keys[0], keyed[begin].keys[0])) {
      members.push_back(keyed[end++].item);
    }
    Value group =
        make_list(runtime, {keyed[begin].keys[1], make_list(runtime, std::move(members), input)}, input, Kind::kTuple);
    group.list->is_group = true;
    groups.push_back(group);
    begin = end;
  }
  return make_list(runtime, std::move(groups), input);
}

Value batch(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const BoundArguments bound(runtime, "batch", arguments, {"linecount", "fill_with"}, 1);
  const Integer size = bound.integer(0, 1);
  const std::vector<Value> all = iterate(runtime, input);
  std::vector<Value> batches;
  std::vector<Value> current;
  for (const Value& item : all) {
    if (static_cast<Integer>(current.size()) == size) {
      batches.push_back(make_list(runtime, std::move(current), input));
      current.clear();
    }
    current.push_back(item);
  }
  if (!current.empty()) {
    const Value* fill = bound.given(1);
    const Integer missing = fill != nullptr ? std::max<Integer>(size - static_cast<Integer>(current.size()), 0) : 0;
    runtime.charge_items(static_cast<std::size_t>(std::min<Integer>(missing, Integer{1} << 40)));
    for (Integer i = 0; i < missing; ++i) current.push_back(*fill);
    batches.push_back(make_list(runtime, std::move(current), input));
  }
  return make_list(runtime, std::move(batches), input, Kind::kGenerator);
}

Value slice_columns(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const BoundArguments bound(runtime, "slice", arguments, {"slices", "fill_with"}, 1);
  const Integer count = bound.integer(0, 1);
  if (count <= 0 || count > 1'000'000) runtime.error("slice needs a number of columns between 1 and a million");
  runtime.charge_items(static_cast<std::size_t>(count));
  const std::vector<Value> all = iterate(runtime, input);
  const std::size_t columns = static_cast<std::size_t>(count);
  const std::size_t each = all.size() / columns;
  const std::size_t with_extra = all.size() % columns;
  std::vector<Value> slices;
  std::size_t offset = 0;
  for (std::size_t i = 0; i < columns; ++i) {
    const std::size_t size = each + (i < with_extra ? 1 : 0);
    std::vector<Value> part(all.begin() + static_cast<std::ptrdiff_t>(offset),
                            all.begin() + static_cast<std::ptrdiff_t>(offset + size));
    offset += size;
    if (bound.given(1) != nullptr && i >= with_extra) part.push_back(bound.value(1));
    slices.push_back(make_list(runtime, std::move(part), input));
  }
  return make_list(runtime, std::move(slices), input, Kind::kGenerator);
}

}  // namespace

Filter find_sequence_filter(const std::string& name) {
  static const std::unordered_map<std::string, Filter> kFilters = {
      {"join", join},
      {"map", map},
      {"select", select<true, false>},
      {"reject", select<false, false>},
      {"selectattr", select<true, true>},
      {"rejectattr", select<false, true>},
      {"sort", sort},
      {"dictsort", dictsort},
      {"items", items},
      {"list", list},
      {"first", first},
      {"last", last},
      {"reverse", reverse},
      {"unique", unique},
      {"sum", sum},
      {"min", extreme<false>},
      {"max", extreme<true>},
      {"groupby", groupby},
      {"batch", batch},
      {"slice", slice_columns},
  };
  const auto found = kFilters.find(name);
  return found == kFilters.end() ? nullptr : found->second;
}

}  // namespace tensorfold::jinja
