// The globals of a chat template: range, namespace, dict, cycler, joiner, raise_exception, strftime_now.
#include <algorithm>
#include <ctime>
#include <unordered_map>

#include "text/jinja_arguments.h"
#include "text/jinja_builtins.h"
#include "text/jinja_runtime.h"

namespace tensorfold::jinja {
namespace {

constexpr Integer kRangeItemsMax = 100'000;  // jinja2's sandbox has the same bound

Value range(Runtime& runtime, const CallArguments& arguments) {
  const BoundArguments bound(runtime, "range()", arguments, {"start", "stop", "step"}, 1);
  const bool one = !bound.has(1);
  const Integer start = one ? 0 : bound.integer(0, 0);
  const Integer stop = one ? bound.integer(0, 0) : bound.integer(1, 0);
  const Integer step = bound.integer(2, 1);
  if (step == 0) runtime.error("range(): the step can't be zero");
  const auto fits = [](Integer number) { return number > -(Integer{1} << 62) && number < (Integer{1} << 62); };
  const Integer distance = step > 0 ? stop - start : start - stop;
  const Integer size = step > 0 ? step : -step;
  if (!fits(start) || !fits(stop) || !fits(step) || distance > kRangeItemsMax * size) {
    runtime.error("range() is limited to {} items", static_cast<int>(kRangeItemsMax));
  }
  Value value;
  value.kind = Kind::kRange;
  value.range = runtime.make<RangeObject>();
  value.range->start = static_cast<std::int64_t>(start);
  value.range->stop = static_cast<std::int64_t>(stop);
  value.range->step = static_cast<std::int64_t>(step);
  value.data =
      std::any_of(arguments.positional.begin(), arguments.positional.end(), [](const Value& v) { return v.data; });
  return value;
}

std::vector<DictObject::Entry> pairs_of(Runtime& runtime, const CallArguments& arguments) {
  std::vector<DictObject::Entry> entries;
  if (arguments.positional.size() > 1) runtime.error("dict() and namespace() take one positional argument at most");
  for (const Value& source : arguments.positional) {
    if (source.is_dict()) {
      entries = source.dict->entries();
      continue;
    }
    for (const Value& pair : iterate(runtime, source)) {
      const std::vector<Value> parts = iterate(runtime, pair);
      if (parts.size() != 2) runtime.error("dict() needs pairs");
      entries.emplace_back(parts[0], parts[1]);
    }
  }
  for (const auto& [name, value] : arguments.keywords) entries.emplace_back(runtime.text(name, false), value);
  runtime.charge_items(entries.size());
  return entries;
}

Value dict(Runtime& runtime, const CallArguments& arguments) {
  Value value;
  value.kind = Kind::kDict;
  value.dict = runtime.make<DictObject>();
  for (const DictObject::Entry& entry : pairs_of(runtime, arguments))
    value.dict->set(runtime, entry.first, entry.second);
  return value;
}

Value name_space(Runtime& runtime, const CallArguments& arguments) {
  Value value;
  value.kind = Kind::kNamespace;
  value.name_space = runtime.make<NamespaceObject>();
  auto& attributes = value.name_space->attributes;
  for (const DictObject::Entry& entry : pairs_of(runtime, arguments)) {
    if (!entry.first.is_text()) continue;  // an attribute that no template could name
    const auto found = std::find_if(attributes.begin(), attributes.end(),
                                    [&](const auto& attribute) { return attribute.first == entry.first.bytes(); });
    runtime.charge(1 + attributes.size() / 4);
    if (found != attributes.end()) {
      found->second = entry.second;
    } else {
      attributes.emplace_back(entry.first.bytes(), entry.second);
    }
  }
  return value;
}

Value cycler(Runtime& runtime, const CallArguments& arguments) {
  if (arguments.positional.empty() || !arguments.keywords.empty()) runtime.error("cycler() needs values");
  Value value;
  value.kind = Kind::kCycler;
  value.cycler = runtime.make<CyclerObject>();
  value.cycler->items = arguments.positional;
  return value;
}

Value joiner(Runtime& runtime, const CallArguments& arguments) {
  const BoundArguments bound(runtime, "joiner()", arguments, {"sep"});
  Value value;
  value.kind = Kind::kJoiner;
  value.joiner = runtime.make<JoinerObject>();
  value.joiner->separator = bound.has(0) ? bound.value(0) : runtime.text(", ", false);
  return value;
}

Value raise_exception(Runtime& runtime, const CallArguments& arguments) {
  const BoundArguments bound(runtime, "raise_exception()", arguments, {"message"}, 1);
  throw Error(ErrorCode::kInvalidArgument, to_text(runtime, bound.value(0))->bytes());
}

Value strftime_now(Runtime& runtime, const CallArguments& arguments) {
  const BoundArguments bound(runtime, "strftime_now()", arguments, {"format"}, 1);
  const Text& format = bound.text(0);
  if (format.size() > 256) runtime.error("strftime_now(): the format is longer than 256 bytes");
  if (format.size() == 0) return runtime.text("", false);
  const std::time_t now = static_cast<std::time_t>(runtime.now_unix_seconds());
  std::tm parts{};
  localtime_r(&now, &parts);
  // A directive that Python doesn't have could print nothing, so a byte in front tells it from a full buffer.
  char buffer[8192];
  const std::string marked = "x" + format.bytes();
  const std::size_t size = std::strftime(buffer, sizeof(buffer), marked.c_str(), &parts);
  if (size == 0) runtime.error("strftime_now(): the text is too long");
  return runtime.text(std::string_view(buffer, size).substr(1), format.any_data());
}

}  // namespace

Function find_function(const std::string& name) {
  static const std::unordered_map<std::string, Function> kFunctions = {
      {"range", range},
      {"dict", dict},
      {"namespace", name_space},
      {"cycler", cycler},
      {"joiner", joiner},
      {"raise_exception", raise_exception},
      {"strftime_now", strftime_now},
  };
  const auto found = kFunctions.find(name);
  return found == kFunctions.end() ? nullptr : found->second;
}

}  // namespace tensorfold::jinja
