// The statement half of the parser, and the check that every filter and test named outside of a condition exists.
#include "text/jinja_parser.h"

#include <algorithm>

#include "base/error.h"
#include "base/limits.h"
#include "text/jinja_expression_parser.h"

namespace tensorfold::jinja {
namespace {

using Body = std::vector<const Statement*>;

class Parser : public ExpressionParser {
 public:
  Parser(std::vector<Token> tokens, Program& program) : ExpressionParser(std::move(tokens), program) {}

  void run() {
    program_.loop_symbol = program_.symbol("loop");
    program_.caller_symbol = program_.symbol("caller");
    program_.varargs_symbol = program_.symbol("varargs");
    program_.kwargs_symbol = program_.symbol("kwargs");
    program_.body = parse_body({});
    if (current().type != TokenType::kEnd) fail_here("unexpected " + describe_current());
  }

 private:
  using Names = std::initializer_list<std::string_view>;

  Statement& make_statement(StatementKind kind) {
    Statement& statement = program_.statements.emplace_back();
    statement.kind = kind;
    statement.line = current().line;
    return statement;
  }

  /// Statements up to a tag of `ends`; stops at that tag's name. No ends: up to the template's end.
  Body parse_body(Names ends) {
    const Nesting nesting(*this);
    Body body;
    while (true) {
      switch (current().type) {
        case TokenType::kEnd:
          if (ends.size() > 0) fail_here(fmt::format("the template ends where '{}' is expected", *ends.begin()));
          return body;
        case TokenType::kData: {
          Statement& data = make_statement(StatementKind::kData);
          data.data = &program_.texts.emplace_back(current().text, false);
          body.push_back(&data);
          advance();
          break;
        }
        case TokenType::kVariableBegin: {
          Statement& print = make_statement(StatementKind::kPrint);
          advance();
          print.expression = parse_tuple();
          if (current().type != TokenType::kVariableEnd) fail_here("expected '}}', found " + describe_current());
          advance();
          body.push_back(&print);
          break;
        }
        default:
          advance();  // the block's begin
          if (current().type != TokenType::kName) fail_here("expected a tag name, found " + describe_current());
          if (std::find(ends.begin(), ends.end(), current().text) != ends.end()) return body;
          body.push_back(parse_statement());
          expect_block_end();
          break;
      }
    }
  }

  void expect_block_end() {
    if (current().type != TokenType::kBlockEnd) fail_here("expected '%}', found " + describe_current());
    advance();
  }

  /// A body whose opening tag ends here and which one closing tag ends.
  Body parse_block(std::string_view end) {
    expect_block_end();
    Body body = parse_body({end});
    advance();
    return body;
  }

  const Statement* parse_statement() {
    const std::string tag = current().text;
    if (tag == "if") return parse_if();
    if (tag == "for") return parse_for();
    if (tag == "set") return parse_set();
    if (tag == "macro") return parse_macro();
    if (tag == "call") return parse_call();
    if (tag == "filter") return parse_filter_block();
    if (tag == "with") return parse_with();
    if (tag == "generation") return parse_generation();
    if (tag == "break" || tag == "continue") return parse_jump();
    if (tag == "print") return parse_print();
    for (const char* known : {"include", "import", "from", "extends", "block", "autoescape", "trans", "do", "debug"}) {
      if (tag == known) fail_here(fmt::format("the tag '{}' isn't supported in chat templates", tag));
    }
    fail_here(fmt::format("unknown tag '{}'", tag));
  }

  const Statement* parse_if() {
    Statement& statement = make_statement(StatementKind::kIf);
    std::string tag = "if";
    while (tag != "endif") {
      advance();
      Branch branch;
      if (tag != "else") branch.condition = parse_tuple(false);
      expect_block_end();
      branch.body = tag == "else" ? parse_body({"endif"}) : parse_body({"elif", "else", "endif"});
      statement.branches.push_back(std::move(branch));
      tag = current().text;
    }
    advance();
    return &statement;
  }

  const Statement* parse_for() {
    Statement& statement = make_statement(StatementKind::kFor);
    advance();
    statement.target = parse_target(false);
    if (names_loop(statement.target)) fail_here("a loop can't assign to 'loop'");
    if (!skip_name("in")) fail_here("expected 'in', found " + describe_current());
    statement.expression = parse_tuple(false);
    if (skip_name("if")) statement.filter_condition = parse_expression();
    if (at_name("recursive")) fail_here("recursive loops aren't supported");
    expect_block_end();
    ++loop_depth_;
    statement.branches.resize(2);
    statement.branches[0].body = parse_body({"endfor", "else"});
    --loop_depth_;
    if (skip_name("else")) {
      expect_block_end();
      statement.branches[1].body = parse_body({"endfor"});
    }
    advance();
    return &statement;
  }

  bool names_loop(const Target& target) const {
    return (!target.is_tuple && target.symbol == program_.loop_symbol) ||
           std::any_of(target.parts.begin(), target.parts.end(), [&](const Target& part) { return names_loop(part); });
  }

  Target parse_one_target(bool allow_attribute) {
    if (at_operator("(")) {
      const Nesting nesting(*this);
      advance();
      Target inner = parse_target(allow_attribute);
      expect_operator(")");
      return inner;
    }
    Target target;
    target.name = expect_name();
    for (const char* literal : {"true", "false", "none", "True", "False", "None"}) {
      if (target.name == literal) fail_here(fmt::format("can't assign to '{}'", literal));
    }
    target.symbol = program_.symbol(target.name);
    if (allow_attribute && skip_operator(".")) target.attribute = expect_name();
    return target;
  }

  Target parse_target(bool allow_attribute) {
    Target first = parse_one_target(allow_attribute);
    if (!at_operator(",")) return first;
    Target tuple;
    tuple.is_tuple = true;
    tuple.parts.push_back(std::move(first));
    while (skip_operator(",")) {
      if (current().type != TokenType::kName && !at_operator("(")) break;
      if (at_name("in")) break;
      tuple.parts.push_back(parse_one_target(allow_attribute));
    }
    return tuple;
  }

  const Statement* parse_set() {
    Statement& statement = make_statement(StatementKind::kSet);
    advance();
    statement.target = parse_target(true);
    if (skip_operator("=")) {
      statement.expression = parse_tuple();
      return &statement;
    }
    statement.kind = StatementKind::kSetBlock;
    statement.expression = parse_filter_chain(nullptr, true);
    statement.branches.resize(1);
    statement.branches[0].body = parse_block("endset");
    return &statement;
  }

  void parse_parameters(MacroDefinition& macro) {
    expect_operator("(");
    while (!at_operator(")")) {
      if (!macro.parameters.empty()) expect_operator(",");
      Parameter parameter;
      parameter.name = expect_name();
      parameter.symbol = program_.symbol(parameter.name);
      if (skip_operator("=")) {
        parameter.fallback = parse_expression();
      } else if (!macro.parameters.empty() && macro.parameters.back().fallback != nullptr) {
        fail_here("a parameter without a default follows one with a default");
      }
      macro.parameters.push_back(std::move(parameter));
    }
    advance();
  }

  void parse_macro_body(MacroDefinition& macro, std::string_view end) {
    const int loops_outside = std::exchange(loop_depth_, 0);
    const std::size_t first_expression = program_.expressions.size();
    macro.body = parse_block(end);
    for (std::size_t i = first_expression; i < program_.expressions.size(); ++i) {
      const Expression& expression = program_.expressions[i];
      if (expression.kind != ExpressionKind::kName) continue;
      macro.uses_caller |= expression.symbol == program_.caller_symbol;
      macro.uses_varargs |= expression.symbol == program_.varargs_symbol;
      macro.uses_kwargs |= expression.symbol == program_.kwargs_symbol;
    }
    loop_depth_ = loops_outside;
  }

  const Statement* parse_macro() {
    Statement& statement = make_statement(StatementKind::kMacro);
    advance();
    statement.macro.name = expect_name();
    statement.symbol = program_.symbol(statement.macro.name);
    parse_parameters(statement.macro);
    parse_macro_body(statement.macro, "endmacro");
    return &statement;
  }

  const Statement* parse_call() {
    Statement& statement = make_statement(StatementKind::kCallBlock);
    advance();
    statement.macro.name = "caller";
    if (at_operator("(")) parse_parameters(statement.macro);
    statement.expression = parse_expression();
    if (statement.expression->kind != ExpressionKind::kCall) fail_here("a call block needs a call");
    parse_macro_body(statement.macro, "endcall");
    return &statement;
  }

  const Statement* parse_filter_block() {
    Statement& statement = make_statement(StatementKind::kFilterBlock);
    advance();
    statement.expression = parse_filter_chain(nullptr, false);
    statement.branches.resize(1);
    statement.branches[0].body = parse_block("endfilter");
    return &statement;
  }

  const Statement* parse_with() {
    Statement& statement = make_statement(StatementKind::kWith);
    advance();
    while (current().type != TokenType::kBlockEnd) {
      if (!statement.assignments.empty()) expect_operator(",");
      Target target = parse_target(false);
      expect_operator("=");
      statement.assignments.emplace_back(std::move(target), parse_expression());
    }
    statement.branches.resize(1);
    statement.branches[0].body = parse_block("endwith");
    return &statement;
  }

  const Statement* parse_generation() {
    Statement& statement = make_statement(StatementKind::kScope);
    advance();
    const int loops_outside = std::exchange(loop_depth_, 0);
    statement.branches.resize(1);
    statement.branches[0].body = parse_block("endgeneration");
    loop_depth_ = loops_outside;
    return &statement;
  }

  const Statement* parse_jump() {
    Statement& statement = make_statement(at_name("break") ? StatementKind::kBreak : StatementKind::kContinue);
    if (loop_depth_ == 0) fail_here(fmt::format("'{}' outside of a loop", current().text));
    advance();
    return &statement;
  }

  const Statement* parse_print() {
    Statement& statement = make_statement(StatementKind::kPrint);
    Expression& parts = make(ExpressionKind::kConcatenate);
    advance();
    do {
      parts.children.push_back(parse_expression());
    } while (skip_operator(","));
    statement.expression = finish(parts);
    return &statement;
  }

  int loop_depth_ = 0;
};

/// Unknown filters and tests stop the load, except inside conditions, where jinja2 too fails only when they are
/// reached.
class NameCheck {
 public:
  void check(const Body& body, bool conditional) {
    for (const Statement* statement : body) check(*statement, conditional);
  }

 private:
  void check(const Statement& statement, bool conditional) {
    const bool inside = conditional || statement.kind == StatementKind::kIf;
    check(statement.expression, inside);
    check(statement.filter_condition, inside);
    for (const Branch& branch : statement.branches) {
      check(branch.condition, inside);
      check(branch.body, inside);
    }
    for (const auto& assignment : statement.assignments) check(assignment.second, inside);
    for (const Parameter& parameter : statement.macro.parameters) check(parameter.fallback, inside);
    check(statement.macro.body, inside);
  }

  void check(const Expression* expression, bool conditional) {
    if (expression == nullptr) return;
    const bool unknown = (expression->kind == ExpressionKind::kFilter && expression->filter == nullptr) ||
                         (expression->kind == ExpressionKind::kTest && expression->test == nullptr);
    if (unknown && !conditional) {
      fail(ErrorCode::kInvalidCheckpoint, "chat template, line {}: no {} named '{}'", expression->line,
           expression->kind == ExpressionKind::kFilter ? "filter" : "test", expression->name);
    }
    const bool inside = conditional || expression->kind == ExpressionKind::kConditional;
    for (const Expression* child : expression->children) check(child, inside);
    for (const auto& keyword : expression->keywords) check(keyword.second, inside);
    check(expression->extra_positional, inside);
    check(expression->extra_keywords, inside);
  }
};

}  // namespace

std::unique_ptr<Program> parse_template(std::string_view source) {
  auto program = std::make_unique<Program>();
  Parser(tokenize_template(source), *program).run();
  NameCheck().check(program->body, false);
  return program;
}

}  // namespace tensorfold::jinja
