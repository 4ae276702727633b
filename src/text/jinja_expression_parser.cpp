// ExpressionParser.
#include "text/jinja_expression_parser.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "base/error.h"
#include "base/limits.h"

namespace tensorfold::jinja {

ExpressionParser::Nesting::Nesting(ExpressionParser& parser) : parser_(parser) {
  if (++parser_.depth_ > limits::kTemplateDepthMax) {
    --parser_.depth_;
    parser_.fail_here(fmt::format("nested more than {} levels deep", limits::kTemplateDepthMax));
  }
}

void ExpressionParser::fail_here(const std::string& message) const {
  fail(ErrorCode::kInvalidCheckpoint, "chat template, line {}: {}", current().line, message);
}

std::string ExpressionParser::describe_current() const {
  switch (current().type) {
    case TokenType::kEnd:
      return "the end of the template";
    case TokenType::kVariableEnd:
      return "'}}'";
    case TokenType::kBlockEnd:
      return "'%}'";
    case TokenType::kString:
      return "a string";
    default:
      return fmt::format("'{}'", current().text);
  }
}

bool ExpressionParser::skip_name(std::string_view name) {
  if (!at_name(name)) return false;
  advance();
  return true;
}

bool ExpressionParser::skip_operator(std::string_view text) {
  if (!at_operator(text)) return false;
  advance();
  return true;
}

void ExpressionParser::expect_operator(std::string_view text) {
  if (!skip_operator(text)) fail_here(fmt::format("expected '{}', found {}", text, describe_current()));
}

std::string ExpressionParser::expect_name() {
  if (current().type != TokenType::kName) fail_here("expected a name, found " + describe_current());
  std::string name = current().text;
  advance();
  return name;
}

Expression& ExpressionParser::make(ExpressionKind kind) {
  Expression& expression = program_.expressions.emplace_back();
  expression.kind = kind;
  expression.line = current().line;
  return expression;
}

/// Long chains of operators are deep without any recursion in the parser, so depth is measured on the tree.
const Expression* ExpressionParser::finish(Expression& expression) const {
  int deepest = 0;
  const auto include = [&](const Expression* child) {
    if (child != nullptr) deepest = std::max(deepest, child->depth);
  };
  for (const Expression* child : expression.children) include(child);
  for (const auto& keyword : expression.keywords) include(keyword.second);
  include(expression.extra_positional);
  include(expression.extra_keywords);
  expression.depth = deepest + 1;
  if (expression.depth > limits::kTemplateExpressionDepthMax) {
    fail_here(fmt::format("an expression is more than {} levels deep", limits::kTemplateExpressionDepthMax));
  }
  return &expression;
}

const Expression* ExpressionParser::parse_expression(bool with_conditional) {
  const Nesting nesting(*this);
  if (!with_conditional) return parse_or();
  const Expression* value = parse_or();
  while (skip_name("if")) {
    Expression& conditional = make(ExpressionKind::kConditional);
    const Expression* condition = parse_or();
    const Expression* otherwise = skip_name("else") ? parse_expression() : nullptr;
    conditional.children = {condition, value, otherwise};
    value = finish(conditional);
  }
  return value;
}

bool ExpressionParser::ends_tuple() const {
  return current().type == TokenType::kVariableEnd || current().type == TokenType::kBlockEnd || at_operator(")") ||
         at_name("recursive");
}

const Expression* ExpressionParser::parse_tuple(bool with_conditional) {
  if (ends_tuple()) fail_here("expected an expression, found " + describe_current());
  const Expression* first = parse_expression(with_conditional);
  if (!at_operator(",")) return first;
  Expression& tuple = make(ExpressionKind::kTuple);
  tuple.children.push_back(first);
  while (skip_operator(",")) {
    if (ends_tuple()) break;
    tuple.children.push_back(parse_expression(with_conditional));
  }
  return finish(tuple);
}

const Expression* ExpressionParser::parse_or() {
  const Expression* left = parse_and();
  while (skip_name("or")) {
    Expression& node = make(ExpressionKind::kOr);
    node.children = {left, parse_and()};
    left = finish(node);
  }
  return left;
}

const Expression* ExpressionParser::parse_and() {
  const Expression* left = parse_not();
  while (skip_name("and")) {
    Expression& node = make(ExpressionKind::kAnd);
    node.children = {left, parse_not()};
    left = finish(node);
  }
  return left;
}

const Expression* ExpressionParser::parse_not() {
  if (!at_name("not")) return parse_compare();
  const Nesting nesting(*this);
  Expression& node = make(ExpressionKind::kNot);
  advance();
  node.children = {parse_not()};
  return finish(node);
}

bool ExpressionParser::compare_operator(CompareOperator& operation) {
  struct Spelling {
    const char* text;
    CompareOperator operation;
  };
  constexpr Spelling kSpellings[] = {
      {"==", CompareOperator::kEqual},     {"!=", CompareOperator::kNotEqual}, {"<", CompareOperator::kLess},
      {"<=", CompareOperator::kLessEqual}, {">", CompareOperator::kGreater},   {">=", CompareOperator::kGreaterEqual},
  };
  for (const Spelling& spelling : kSpellings) {
    if (!skip_operator(spelling.text)) continue;
    operation = spelling.operation;
    return true;
  }
  if (skip_name("in")) {
    operation = CompareOperator::kIn;
    return true;
  }
  if (at_name("not") && look_ahead().type == TokenType::kName && look_ahead().text == "in") {
    advance();
    advance();
    operation = CompareOperator::kNotIn;
    return true;
  }
  return false;
}

const Expression* ExpressionParser::parse_compare() {
  const Expression* first = parse_sum();
  CompareOperator operation = CompareOperator::kEqual;
  if (!compare_operator(operation)) return first;
  Expression& node = make(ExpressionKind::kCompare);
  node.children.push_back(first);
  do {
    node.comparisons.push_back(operation);
    node.children.push_back(parse_sum());
  } while (compare_operator(operation));
  return finish(node);
}

const Expression* ExpressionParser::binary(BinaryOperator operation, const Expression* left, const Expression* right) {
  Expression& node = make(ExpressionKind::kBinary);
  node.binary = operation;
  node.children = {left, right};
  return finish(node);
}

const Expression* ExpressionParser::parse_sum() {
  const Expression* left = parse_concatenation();
  while (at_operator("+") || at_operator("-")) {
    const BinaryOperator operation = at_operator("+") ? BinaryOperator::kAdd : BinaryOperator::kSubtract;
    advance();
    left = binary(operation, left, parse_concatenation());
  }
  return left;
}

const Expression* ExpressionParser::parse_concatenation() {
  const Expression* first = parse_product();
  if (!at_operator("~")) return first;
  Expression& node = make(ExpressionKind::kConcatenate);
  node.children.push_back(first);
  while (skip_operator("~")) node.children.push_back(parse_product());
  return finish(node);
}

const Expression* ExpressionParser::parse_product() {
  const Expression* left = parse_power();
  while (true) {
    BinaryOperator operation = BinaryOperator::kMultiply;
    if (at_operator("/")) {
      operation = BinaryOperator::kDivide;
    } else if (at_operator("//")) {
      operation = BinaryOperator::kFloorDivide;
    } else if (at_operator("%")) {
      operation = BinaryOperator::kModulo;
    } else if (!at_operator("*")) {
      return left;
    }
    advance();
    left = binary(operation, left, parse_power());
  }
}

const Expression* ExpressionParser::parse_power() {
  const Expression* left = parse_unary(true);
  while (skip_operator("**")) left = binary(BinaryOperator::kPower, left, parse_unary(true));
  return left;
}

const Expression* ExpressionParser::parse_unary(bool with_filter) {
  const Nesting nesting(*this);
  const Expression* node = nullptr;
  if (at_operator("-") || at_operator("+")) {
    Expression& sign = make(at_operator("-") ? ExpressionKind::kNegate : ExpressionKind::kPlus);
    advance();
    sign.children = {parse_unary(false)};
    node = finish(sign);
  } else {
    node = parse_primary();
  }
  node = parse_postfix(node);
  return with_filter ? parse_filters_and_tests(node) : node;
}

const Expression* ExpressionParser::parse_primary() {
  const Token& token = current();
  switch (token.type) {
    case TokenType::kName: {
      const std::string& name = token.text;
      const bool is_true_name = name == "true" || name == "True";
      const bool is_false_name = name == "false" || name == "False";
      const bool is_none_name = name == "none" || name == "None";
      const bool is_literal = is_true_name || is_false_name || is_none_name;
      Expression& node = make(is_literal ? ExpressionKind::kLiteral : ExpressionKind::kName);
      if (is_literal) {
        node.literal = is_none_name ? none_value() : boolean_value(is_true_name);
      } else {
        node.name = name;
        node.symbol = program_.symbol(name);
      }
      advance();
      return finish(node);
    }
    case TokenType::kString: {
      Expression& node = make(ExpressionKind::kLiteral);
      Text& text = program_.texts.emplace_back();
      for (; current().type == TokenType::kString; advance()) text.append(current().text, false);
      node.literal = text_value(&text);
      return finish(node);
    }
    case TokenType::kInteger:
    case TokenType::kFloat:
      return parse_number();
    default:
      break;
  }
  if (at_operator("(")) return parse_parenthesized();
  if (at_operator("[")) return parse_list();
  if (at_operator("{")) return parse_dict();
  fail_here("expected an expression, found " + describe_current());
}

const Expression* ExpressionParser::parse_number() {
  Expression& node = make(ExpressionKind::kLiteral);
  const std::string& text = current().text;
  if (current().type == TokenType::kFloat) {
    node.literal = float_value(std::strtod(text.c_str(), nullptr));
  } else {
    const char mark = text.size() > 1 ? static_cast<char>(text[1] | 0x20) : '\0';
    const int base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
    std::uint64_t number = 0;
    const auto result = std::from_chars(text.data() + (base == 10 ? 0 : 2), text.data() + text.size(), number, base);
    if (result.ec != std::errc()) fail_here("an integer overflows 64 bits");
    node.literal = integer_value(number);
  }
  advance();
  return finish(node);
}

const Expression* ExpressionParser::parse_parenthesized() {
  advance();
  if (at_operator(")")) {
    Expression& empty = make(ExpressionKind::kTuple);
    advance();
    return finish(empty);
  }
  const Expression* node = parse_tuple();
  expect_operator(")");
  return node;
}

const Expression* ExpressionParser::parse_list() {
  Expression& list = make(ExpressionKind::kList);
  advance();
  while (!at_operator("]")) {
    if (!list.children.empty()) {
      expect_operator(",");
      if (at_operator("]")) break;
    }
    list.children.push_back(parse_expression());
  }
  advance();
  return finish(list);
}

const Expression* ExpressionParser::parse_dict() {
  Expression& dict = make(ExpressionKind::kDict);
  advance();
  while (!at_operator("}")) {
    if (!dict.children.empty()) {
      expect_operator(",");
      if (at_operator("}")) break;
    }
    dict.children.push_back(parse_expression());
    expect_operator(":");
    dict.children.push_back(parse_expression());
  }
  advance();
  return finish(dict);
}

const Expression* ExpressionParser::parse_postfix(const Expression* node) {
  while (true) {
    if (at_operator(".") || at_operator("[")) {
      node = parse_subscript(node);
    } else if (at_operator("(")) {
      Expression& call = make(ExpressionKind::kCall);
      call.children.push_back(node);
      parse_arguments(call);
      node = finish(call);
    } else {
      return node;
    }
  }
}

const Expression* ExpressionParser::parse_filters_and_tests(const Expression* node) {
  while (true) {
    if (at_operator("|")) {
      node = parse_filter_chain(node, true);
    } else if (at_name("is")) {
      node = parse_test(node);
    } else if (at_operator("(")) {
      Expression& call = make(ExpressionKind::kCall);
      call.children.push_back(node);
      parse_arguments(call);
      node = finish(call);
    } else {
      return node;
    }
  }
}

const Expression* ExpressionParser::parse_subscript(const Expression* node) {
  if (skip_operator(".")) {
    if (current().type == TokenType::kName) {
      Expression& attribute = make(ExpressionKind::kAttribute);
      attribute.children = {node};
      attribute.name = current().text;
      advance();
      return finish(attribute);
    }
    if (current().type != TokenType::kInteger) fail_here("expected a name or a number, found " + describe_current());
    Expression& item = make(ExpressionKind::kItem);
    item.children = {node, parse_number()};
    return finish(item);
  }
  advance();
  const Expression* item = parse_subscript_item(node);
  if (at_operator(",")) fail_here("a subscript of several parts isn't supported");
  expect_operator("]");
  return item;
}

const Expression* ExpressionParser::parse_subscript_item(const Expression* node) {
  const auto bound = [&]() -> const Expression* {
    return at_operator(":") || at_operator("]") || at_operator(",") ? nullptr : parse_expression();
  };
  const Expression* start = nullptr;
  if (!at_operator(":")) {
    start = parse_expression();
    if (!at_operator(":")) {
      Expression& item = make(ExpressionKind::kItem);
      item.children = {node, start};
      return finish(item);
    }
  }
  Expression& slice = make(ExpressionKind::kSlice);
  expect_operator(":");
  const Expression* stop = bound();
  const Expression* step = skip_operator(":") ? bound() : nullptr;
  slice.children = {node, start, stop, step};
  return finish(slice);
}

void ExpressionParser::parse_arguments(Expression& call) {
  const Nesting nesting(*this);
  expect_operator("(");
  bool first = true;
  while (!at_operator(")")) {
    if (!first) {
      expect_operator(",");
      if (at_operator(")")) break;
    }
    first = false;
    const bool named =
        current().type == TokenType::kName && look_ahead().type == TokenType::kOperator && look_ahead().text == "=";
    if (call.extra_keywords != nullptr) fail_here("an argument follows a '**' argument");
    if (skip_operator("*")) {
      if (call.extra_positional != nullptr) fail_here("a call has two '*' arguments");
      call.extra_positional = parse_expression();
    } else if (skip_operator("**")) {
      call.extra_keywords = parse_expression();
    } else if (named) {
      const std::string name = expect_name();
      advance();
      call.keywords.emplace_back(name, parse_expression());
    } else {
      if (call.extra_positional != nullptr || !call.keywords.empty()) {
        fail_here("a positional argument follows a named one");
      }
      call.children.push_back(parse_expression());
    }
  }
  advance();
}

const Expression* ExpressionParser::parse_filter_chain(const Expression* input, bool needs_pipe) {
  while (at_operator("|") || !needs_pipe) {
    if (needs_pipe) advance();
    needs_pipe = true;
    Expression& node = make(ExpressionKind::kFilter);
    node.name = expect_name();
    while (skip_operator(".")) node.name += "." + expect_name();
    node.filter = find_filter(node.name);
    node.children.push_back(input);
    if (at_operator("(")) parse_arguments(node);
    input = finish(node);
  }
  return input;
}

const Expression* ExpressionParser::parse_test(const Expression* node) {
  advance();
  const bool negated = skip_name("not");
  Expression& test = make(ExpressionKind::kTest);
  test.name = expect_name();
  while (skip_operator(".")) test.name += "." + expect_name();
  test.test = find_test(test.name);
  test.children.push_back(node);
  const TokenType type = current().type;
  const bool takes_operand = type == TokenType::kName || type == TokenType::kString || type == TokenType::kInteger ||
                             type == TokenType::kFloat || at_operator("[") || at_operator("{");
  if (at_operator("(")) {
    parse_arguments(test);
  } else if (takes_operand && !at_name("else") && !at_name("or") && !at_name("and")) {
    if (at_name("is")) fail_here("tests can't be chained with 'is'");
    test.children.push_back(parse_postfix(parse_primary()));
  }
  const Expression* result = finish(test);
  if (!negated) return result;
  Expression& negation = make(ExpressionKind::kNot);
  negation.children = {result};
  return finish(negation);
}

}  // namespace tensorfold::jinja
