// The syntax tree of a template: immutable after parsing and shared by every render. Names are interned to small ids so
// that scopes are short arrays; literals are values already.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/jinja_builtins.h"
#include "text/jinja_operators.h"
#include "text/jinja_value.h"

namespace tensorfold::jinja {

enum class ExpressionKind : std::uint8_t {
  kLiteral,
  kName,
  kList,
  kTuple,
  kDict,  // children: key, value, key, value ...
  kAttribute,
  kItem,
  kSlice,   // children: sequence, start, stop, step; absent ones null
  kCall,    // children: callee, positional arguments
  kFilter,  // children: input (null in a filter block), positional arguments
  kTest,
  kBinary,
  kCompare,  // children: first operand and one per operator
  kConcatenate,
  kNot,
  kAnd,
  kOr,
  kNegate,
  kPlus,
  kConditional,  // children: condition, value, otherwise (null: undefined)
};

struct Expression {
  ExpressionKind kind = ExpressionKind::kLiteral;
  int line = 1;
  int depth = 1;
  int symbol = -1;   // kName
  std::string name;  // kName, kAttribute, kFilter, kTest
  Value literal;
  std::vector<const Expression*> children;
  std::vector<std::pair<std::string, const Expression*>> keywords;
  const Expression* extra_positional = nullptr;  // *expression
  const Expression* extra_keywords = nullptr;    // **expression
  BinaryOperator binary = BinaryOperator::kAdd;
  std::vector<CompareOperator> comparisons;
  Filter filter = nullptr;  // null: unknown, which is an error only when reached
  Test test = nullptr;
};

/// What an assignment writes: a name, an attribute of a namespace, or a tuple of targets.
struct Target {
  int symbol = -1;
  std::string name;
  std::string attribute;  // nonempty: namespace attribute
  std::vector<Target> parts;
  bool is_tuple = false;
};

struct Parameter {
  int symbol = -1;
  std::string name;
  const Expression* fallback = nullptr;
};

struct MacroDefinition {
  std::string name;
  std::vector<Parameter> parameters;
  std::vector<const struct Statement*> body;
  bool uses_caller = false;
  bool uses_varargs = false;
  bool uses_kwargs = false;
};

enum class StatementKind : std::uint8_t {
  kData,
  kPrint,
  kIf,  // branches: conditions (null for else) with bodies
  kFor,
  kSet,
  kSetBlock,
  kMacro,
  kCallBlock,
  kFilterBlock,
  kWith,
  kScope,  // a generation block
  kBreak,
  kContinue,
};

struct Branch {
  const Expression* condition = nullptr;
  std::vector<const Statement*> body;
};

struct Statement {
  StatementKind kind = StatementKind::kData;
  int line = 1;
  int symbol = -1;  // kMacro: the macro's name
  const Text* data = nullptr;
  const Expression* expression = nullptr;        // printed, assigned, iterated, called; the filter of a block
  const Expression* filter_condition = nullptr;  // kFor: if
  Target target;
  std::vector<Branch> branches;  // kIf; otherwise [0] is the body and [1] a loop's else
  std::vector<std::pair<Target, const Expression*>> assignments;  // kWith
  MacroDefinition macro;
};

/// Owns every node, so that deep trees are freed without recursion.
struct Program {
  std::deque<Expression> expressions;
  std::deque<Statement> statements;
  std::deque<Text> texts;
  std::unordered_map<std::string, int> symbols;
  std::vector<const Statement*> body;
  int loop_symbol = 0, caller_symbol = 0, varargs_symbol = 0, kwargs_symbol = 0;

  int symbol(const std::string& name) { return symbols.emplace(name, static_cast<int>(symbols.size())).first->second; }
};

}  // namespace tensorfold::jinja
