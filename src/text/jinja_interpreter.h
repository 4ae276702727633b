// Runs a parsed template once: scopes, statements, expressions, macros.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja_ast.h"
#include "text/jinja_runtime.h"

namespace tensorfold::jinja {

/// Variables of one block; lookups go outwards. Macros keep the scope of their definition alive (the heap owns it).
struct Scope final : Object {
  explicit Scope(Scope* outer) : parent(outer) {}
  Scope* parent;
  std::vector<std::pair<int, Value>> variables;

  Value* find_here(int symbol);
  void set(int symbol, const Value& value);
};

struct MacroObject final : Object {
  const MacroDefinition* definition = nullptr;
  Scope* scope = nullptr;
};

class Interpreter {
 public:
  Interpreter(const Program& program, Runtime& runtime);
  /// A variable that the caller passes, before run().
  void set_variable(const std::string& name, const Value& value);
  const Text& run();

 private:
  enum class Flow { kNormal, kBreak, kContinue };

  Flow execute(const std::vector<const Statement*>& body);
  Flow execute_statement(const Statement& statement);
  Flow execute_if(const Statement& statement);
  Flow execute_for(const Statement& statement);
  Flow execute_in_scope(const std::vector<const Statement*>& body);
  /// Runs `body` in an inner scope with its output collected apart.
  Flow capture(const std::vector<const Statement*>& body, Text& output);
  void execute_macro(const Statement& statement);
  void execute_call_block(const Statement& statement);
  Flow execute_with(const Statement& statement);
  std::vector<Value> loop_items(const Statement& statement);
  void print(const Value& value);
  void print(const Text& text);
  void assign(const Target& target, const Value& value);

  Value evaluate(const Expression* expression);
  Value evaluate_name(const Expression& expression);
  Value evaluate_dict(const Expression& expression);
  Value evaluate_slice(const Expression& expression);
  bool evaluate_compare(const Expression& expression);
  Value evaluate_call(const Expression& expression, const Value* caller = nullptr);
  Value evaluate_filter(const Expression& expression, const Value* block_input = nullptr);
  Value evaluate_concatenate(const Expression& expression);
  CallArguments evaluate_arguments(const Expression& expression);
  Value call(const Value& callee, const CallArguments& arguments);
  Value call_macro(const MacroObject& macro, const CallArguments& arguments);
  void bind_parameters(const MacroDefinition& definition, const CallArguments& arguments);

  const Program& program_;
  Runtime& runtime_;
  Scope* scope_;
  Text* output_;
};

}  // namespace tensorfold::jinja
