// The expression half of the parser: jinja2's precedence, from conditional expressions down to literals.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_ast.h"
#include "text/jinja_lexer.h"

namespace tensorfold::jinja {

class ExpressionParser {
 public:
  ExpressionParser(std::vector<Token> tokens, Program& program) : program_(program), tokens_(std::move(tokens)) {}

 protected:
  /// Bounds the recursion of a nested construct.
  class Nesting {
   public:
    explicit Nesting(ExpressionParser& parser);
    ~Nesting() { --parser_.depth_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    ExpressionParser& parser_;
  };

  const Token& current() const { return tokens_[position_]; }
  const Token& look_ahead() const { return tokens_[std::min(position_ + 1, tokens_.size() - 1)]; }
  void advance() { position_ += position_ + 1 < tokens_.size() ? 1 : 0; }
  bool at_name(std::string_view name) const { return current().type == TokenType::kName && current().text == name; }
  bool at_operator(std::string_view text) const {
    return current().type == TokenType::kOperator && current().text == text;
  }
  bool skip_name(std::string_view name);
  bool skip_operator(std::string_view text);
  void expect_operator(std::string_view text);
  std::string expect_name();
  [[noreturn]] void fail_here(const std::string& message) const;
  std::string describe_current() const;

  Expression& make(ExpressionKind kind);
  const Expression* finish(Expression& expression) const;
  const Expression* parse_expression(bool with_conditional = true);
  /// One expression, or a tuple without parentheses.
  const Expression* parse_tuple(bool with_conditional = true);
  const Expression* parse_filter_chain(const Expression* input, bool needs_pipe);

  Program& program_;

 private:
  const Expression* parse_or();
  const Expression* parse_and();
  const Expression* parse_not();
  const Expression* parse_compare();
  const Expression* parse_sum();
  const Expression* parse_concatenation();
  const Expression* parse_product();
  const Expression* parse_power();
  const Expression* parse_unary(bool with_filter);
  const Expression* parse_primary();
  const Expression* parse_parenthesized();
  const Expression* parse_list();
  const Expression* parse_dict();
  const Expression* parse_postfix(const Expression* node);
  const Expression* parse_filters_and_tests(const Expression* node);
  const Expression* parse_subscript(const Expression* node);
  const Expression* parse_subscript_item(const Expression* node);
  const Expression* parse_test(const Expression* node);
  const Expression* parse_number();
  void parse_arguments(Expression& call);
  bool compare_operator(CompareOperator& operation);
  bool ends_tuple() const;
  const Expression* binary(BinaryOperator operation, const Expression* left, const Expression* right);

  std::vector<Token> tokens_;
  std::size_t position_ = 0;
  int depth_ = 0;
};

}  // namespace tensorfold::jinja
