// Interpreter: expressions and calls.
#include "text/jinja_depth.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_methods.h"

namespace tensorfold::jinja {

Value Interpreter::evaluate_name(const Expression& expression) {
  std::size_t looked_at = 0;
  for (Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    if (const Value* found = scope->find_here(expression.symbol)) return *found;
    looked_at += scope->variables.size();
  }
  runtime_.charge(1 + looked_at / 8);
  if (find_function(expression.name) != nullptr) {
    Value value;
    value.kind = Kind::kFunction;
    value.text = runtime_.make<Text>(expression.name, false);
    return value;
  }
  return runtime_.undefined(expression.name);
}

Value Interpreter::evaluate(const Expression* expression) {
  const EvaluationDepth depth(runtime_);
  runtime_.charge(1);
  const auto child = [&](std::size_t index) { return evaluate(expression->children[index]); };
  switch (expression->kind) {
    case ExpressionKind::kLiteral:
      return expression->literal;
    case ExpressionKind::kName:
      return evaluate_name(*expression);
    case ExpressionKind::kList:
    case ExpressionKind::kTuple: {
      std::vector<Value> items;
      for (const Expression* item : expression->children) items.push_back(evaluate(item));
      return runtime_.list(std::move(items), expression->kind == ExpressionKind::kList ? Kind::kList : Kind::kTuple);
    }
    case ExpressionKind::kDict:
      return evaluate_dict(*expression);
    case ExpressionKind::kAttribute: {
      const Value object = child(0);
      if (object.kind == Kind::kMacro && expression->name == "name") {
        return runtime_.text(object.macro->definition->name, false);
      }
      return get_attribute(runtime_, object, expression->name);
    }
    case ExpressionKind::kItem: {
      const Value object = child(0);
      return get_item(runtime_, object, child(1));
    }
    case ExpressionKind::kSlice:
      return evaluate_slice(*expression);
    case ExpressionKind::kCall:
      return evaluate_call(*expression);
    case ExpressionKind::kFilter:
      return evaluate_filter(*expression);
    case ExpressionKind::kTest: {
      if (expression->test == nullptr) runtime_.error("no test named '{}'", expression->name);
      const Value subject = child(0);
      return boolean_value(expression->test(runtime_, subject, evaluate_arguments(*expression)));
    }
    case ExpressionKind::kBinary: {
      const Value left = child(0);
      return apply_binary(runtime_, expression->binary, left, child(1));
    }
    case ExpressionKind::kCompare:
      return boolean_value(evaluate_compare(*expression));
    case ExpressionKind::kConcatenate:
      return evaluate_concatenate(*expression);
    case ExpressionKind::kNot:
      return boolean_value(!is_true(child(0)));
    case ExpressionKind::kAnd: {
      const Value left = child(0);
      return is_true(left) ? child(1) : left;
    }
    case ExpressionKind::kOr: {
      const Value left = child(0);
      return is_true(left) ? left : child(1);
    }
    case ExpressionKind::kNegate:
      return negate(runtime_, child(0));
    case ExpressionKind::kPlus: {
      const Value operand = child(0);
      if (!operand.is_number()) runtime_.error("unary '+' needs a number, not {}", type_name(operand));
      return operand.kind == Kind::kBoolean ? integer_value(operand.as_integer(), operand.data) : operand;
    }
    case ExpressionKind::kConditional:
      if (is_true(child(0))) return child(1);
      return expression->children[2] != nullptr ? child(2) : runtime_.undefined("the value of an if without else");
  }
  return {};
}

Value Interpreter::evaluate_dict(const Expression& expression) {
  Value value;
  value.kind = Kind::kDict;
  value.dict = runtime_.make<DictObject>();
  for (std::size_t i = 0; i < expression.children.size(); i += 2) {
    const Value key = evaluate(expression.children[i]);
    value.dict->set(runtime_, key, evaluate(expression.children[i + 1]));
  }
  return value;
}

Value Interpreter::evaluate_slice(const Expression& expression) {
  const Value sequence = evaluate(expression.children[0]);
  SliceBounds bounds;
  Value* parts[] = {&bounds.start, &bounds.stop, &bounds.step};
  for (std::size_t i = 0; i < 3; ++i) {
    if (expression.children[i + 1] != nullptr) *parts[i] = evaluate(expression.children[i + 1]);
  }
  return slice(runtime_, sequence, bounds);
}

bool Interpreter::evaluate_compare(const Expression& expression) {
  Value left = evaluate(expression.children[0]);
  for (std::size_t i = 0; i < expression.comparisons.size(); ++i) {
    const Value right = evaluate(expression.children[i + 1]);
    if (!compare(runtime_, expression.comparisons[i], left, right)) return false;
    left = right;
  }
  return true;
}

Value Interpreter::evaluate_concatenate(const Expression& expression) {
  std::vector<Value> parts;
  for (const Expression* child : expression.children) parts.push_back(evaluate(child));
  return concatenate(runtime_, parts.data(), parts.size());
}

CallArguments Interpreter::evaluate_arguments(const Expression& expression) {
  CallArguments arguments;
  for (std::size_t i = 1; i < expression.children.size(); ++i) {
    arguments.positional.push_back(evaluate(expression.children[i]));
  }
  for (const auto& [name, value] : expression.keywords) arguments.keywords.emplace_back(name, evaluate(value));
  if (expression.extra_positional != nullptr) {
    const std::vector<Value> extra = iterate(runtime_, evaluate(expression.extra_positional));
    arguments.positional.insert(arguments.positional.end(), extra.begin(), extra.end());
  }
  if (expression.extra_keywords != nullptr) {
    const Value extra = evaluate(expression.extra_keywords);
    if (!extra.is_dict()) runtime_.error("a '**' argument must be a dictionary, not {}", type_name(extra));
    for (const DictObject::Entry& entry : extra.dict->entries()) {
      if (!entry.first.is_text()) runtime_.error("argument names must be strings");
      arguments.keywords.emplace_back(entry.first.bytes(), entry.second);
    }
  }
  return arguments;
}

Value Interpreter::evaluate_filter(const Expression& expression, const Value* block_input) {
  const EvaluationDepth depth(runtime_);
  if (expression.filter == nullptr) runtime_.error("no filter named '{}'", expression.name);
  Value input;
  const Expression* source = expression.children[0];
  if (source == nullptr) {
    TF_ASSERT(block_input != nullptr);
    input = *block_input;
  } else if (block_input != nullptr) {
    input = evaluate_filter(*source, block_input);  // a block's chain of filters
  } else {
    input = evaluate(source);
  }
  return expression.filter(runtime_, input, evaluate_arguments(expression));
}

Value Interpreter::evaluate_call(const Expression& expression, const Value* caller) {
  const Value callee = evaluate(expression.children[0]);
  CallArguments arguments = evaluate_arguments(expression);
  if (caller != nullptr) arguments.keywords.emplace_back("caller", *caller);
  runtime_.line = expression.line;
  return call(callee, arguments);
}

Value Interpreter::call(const Value& callee, const CallArguments& arguments) {
  runtime_.charge(1 + arguments.positional.size() + arguments.keywords.size());
  switch (callee.kind) {
    case Kind::kFunction:
      return find_function(callee.bytes())(runtime_, arguments);
    case Kind::kMacro:
      return call_macro(*callee.macro, arguments);
    case Kind::kMethod:
      return call_method(runtime_, *callee.method, arguments);
    case Kind::kJoiner: {
      if (!arguments.positional.empty() || !arguments.keywords.empty()) runtime_.error("a joiner takes no arguments");
      const Value separator = callee.joiner->used ? callee.joiner->separator : runtime_.text("", false);
      callee.joiner->used = true;
      return separator;
    }
    case Kind::kUndefined:
      runtime_.error("'{}' is undefined, so it can't be called", callee.text != nullptr ? callee.bytes() : "a value");
    default:
      runtime_.error("a value of type '{}' can't be called", type_name(callee));
  }
}

}  // namespace tensorfold::jinja
