// The `is` tests.
#include <unordered_map>

#include "text/jinja_arguments.h"
#include "text/jinja_builtins.h"
#include "text/jinja_methods.h"
#include "text/jinja_operators.h"
#include "text/jinja_runtime.h"

namespace tensorfold::jinja {
namespace {

void need_no_arguments(Runtime& runtime, const CallArguments& arguments) {
  const BoundArguments none(runtime, "the test", arguments, {});
}

const Value& need_one(Runtime& runtime, const CallArguments& arguments) {
  if (arguments.positional.size() != 1 || !arguments.keywords.empty()) runtime.error("the test needs one argument");
  return arguments.positional[0];
}

template <typename Predicate>
bool plain(Runtime& runtime, const Value& value, const CallArguments& arguments, Predicate predicate) {
  need_no_arguments(runtime, arguments);
  return predicate(value);
}

template <CompareOperator operation>
bool compares(Runtime& runtime, const Value& value, const CallArguments& arguments) {
  return compare(runtime, operation, value, need_one(runtime, arguments));
}

template <bool upper>
bool has_case(Runtime& runtime, const Value& value, const CallArguments& arguments) {
  need_no_arguments(runtime, arguments);
  return find_text_method(upper ? "isupper" : "islower")(runtime, *to_text(runtime, value), arguments).boolean;
}

Integer remainder(Runtime& runtime, const Value& value, const Value& divisor) {
  const Value rest = apply_binary(runtime, BinaryOperator::kModulo, value, divisor);
  if (rest.kind == Kind::kFloat) return rest.number == 0 ? 0 : rest.number == 1 ? 1 : 2;
  if (!rest.is_integral()) runtime.error("the test needs a number");
  return rest.integer;
}

bool same_object(const Value& left, const Value& right) {
  if (left.kind != right.kind) return false;
  switch (left.kind) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kBoolean:
      return left.boolean == right.boolean;
    case Kind::kInteger:
      return left.integer == right.integer && left.integer >= -5 && left.integer <= 256;
    case Kind::kFloat:
      return false;
    case Kind::kText:
      return left.text == right.text || left.bytes() == right.bytes();
    default:
      return left.list == right.list;
  }
}

bool is_callable(const Value& value) {
  switch (value.kind) {
    case Kind::kUndefined:  // jinja2's Undefined has a __call__
    case Kind::kFunction:
    case Kind::kMacro:
    case Kind::kMethod:
    case Kind::kJoiner:
    case Kind::kLoop:
      return true;
    default:
      return false;
  }
}

bool is_sequence(const Value& value) {
  switch (value.kind) {
    case Kind::kUndefined:
    case Kind::kText:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kRange:
      return true;
    default:
      return false;
  }
}

}  // namespace

Test find_test(const std::string& name) {
  using Arguments = const CallArguments&;
  static const std::unordered_map<std::string, Test> kTests = {
      {"defined", [](Runtime& r, const Value& v,
                     Arguments a) { return plain(r, v, a, [](const Value& x) { return !x.is_undefined(); }); }},
      {"undefined", [](Runtime& r, const Value& v,
                       Arguments a) { return plain(r, v, a, [](const Value& x) { return x.is_undefined(); }); }},
      {"none", [](Runtime& r, const Value& v,
                  Arguments a) { return plain(r, v, a, [](const Value& x) { return x.is_none(); }); }},
      {"string", [](Runtime& r, const Value& v,
                    Arguments a) { return plain(r, v, a, [](const Value& x) { return x.is_text(); }); }},
      {"mapping", [](Runtime& r, const Value& v,
                     Arguments a) { return plain(r, v, a, [](const Value& x) { return x.is_dict(); }); }},
      {"number", [](Runtime& r, const Value& v,
                    Arguments a) { return plain(r, v, a, [](const Value& x) { return x.is_number(); }); }},
      {"integer", [](Runtime& r, const Value& v,
                     Arguments a) { return plain(r, v, a, [](const Value& x) { return x.kind == Kind::kInteger; }); }},
      {"float", [](Runtime& r, const Value& v,
                   Arguments a) { return plain(r, v, a, [](const Value& x) { return x.kind == Kind::kFloat; }); }},
      {"boolean", [](Runtime& r, const Value& v,
                     Arguments a) { return plain(r, v, a, [](const Value& x) { return x.kind == Kind::kBoolean; }); }},
      {"true",
       [](Runtime& r, const Value& v, Arguments a) {
         return plain(r, v, a, [](const Value& x) { return x.kind == Kind::kBoolean && x.boolean; });
       }},
      {"false",
       [](Runtime& r, const Value& v, Arguments a) {
         return plain(r, v, a, [](const Value& x) { return x.kind == Kind::kBoolean && !x.boolean; });
       }},
      {"iterable", [](Runtime& r, const Value& v, Arguments a) { return plain(r, v, a, is_iterable); }},
      {"sequence", [](Runtime& r, const Value& v, Arguments a) { return plain(r, v, a, is_sequence); }},
      {"callable", [](Runtime& r, const Value& v, Arguments a) { return plain(r, v, a, is_callable); }},
      {"escaped",
       [](Runtime& r, const Value& v, Arguments a) {
         return plain(r, v, a, [](const Value& x) { return x.is_text() && x.text->markup; });
       }},
      {"odd",
       [](Runtime& r, const Value& v, Arguments a) {
         need_no_arguments(r, a);
         return remainder(r, v, integer_value(2)) == 1;
       }},
      {"even",
       [](Runtime& r, const Value& v, Arguments a) {
         need_no_arguments(r, a);
         return remainder(r, v, integer_value(2)) == 0;
       }},
      {"divisibleby", [](Runtime& r, const Value& v, Arguments a) { return remainder(r, v, need_one(r, a)) == 0; }},
      {"lower", has_case<false>},
      {"upper", has_case<true>},
      {"sameas", [](Runtime& r, const Value& v, Arguments a) { return same_object(v, need_one(r, a)); }},
      {"filter",
       [](Runtime& r, const Value& v, Arguments a) {
         need_no_arguments(r, a);
         return v.is_text() && find_filter(v.bytes()) != nullptr;
       }},
      {"test",
       [](Runtime& r, const Value& v, Arguments a) {
         need_no_arguments(r, a);
         return v.is_text() && find_test(v.bytes()) != nullptr;
       }},
      {"in", compares<CompareOperator::kIn>},
      {"eq", compares<CompareOperator::kEqual>},
      {"==", compares<CompareOperator::kEqual>},
      {"equalto", compares<CompareOperator::kEqual>},
      {"ne", compares<CompareOperator::kNotEqual>},
      {"!=", compares<CompareOperator::kNotEqual>},
      {"lt", compares<CompareOperator::kLess>},
      {"<", compares<CompareOperator::kLess>},
      {"lessthan", compares<CompareOperator::kLess>},
      {"le", compares<CompareOperator::kLessEqual>},
      {"<=", compares<CompareOperator::kLessEqual>},
      {"gt", compares<CompareOperator::kGreater>},
      {">", compares<CompareOperator::kGreater>},
      {"greaterthan", compares<CompareOperator::kGreater>},
      {"ge", compares<CompareOperator::kGreaterEqual>},
      {">=", compares<CompareOperator::kGreaterEqual>},
  };
  const auto found = kTests.find(name);
  return found == kTests.end() ? nullptr : found->second;
}

}  // namespace tensorfold::jinja
