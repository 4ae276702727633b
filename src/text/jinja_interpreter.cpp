// Interpreter: statements and scopes. Expressions are in jinja_evaluate.cpp.
#include "text/jinja_interpreter.h"

#include <algorithm>

#include "text/jinja_depth.h"

namespace tensorfold::jinja {

Value* Scope::find_here(int symbol) {
  for (auto& [name, value] : variables) {
    if (name == symbol) return &value;
  }
  return nullptr;
}

void Scope::set(int symbol, const Value& value) {
  if (Value* found = find_here(symbol)) {
    *found = value;
  } else {
    variables.emplace_back(symbol, value);
  }
}

Interpreter::Interpreter(const Program& program, Runtime& runtime)
    : program_(program), runtime_(runtime), scope_(runtime.make<Scope>(nullptr)), output_(runtime.make_text()) {}

void Interpreter::set_variable(const std::string& name, const Value& value) {
  const auto symbol = program_.symbols.find(name);
  if (symbol != program_.symbols.end()) scope_->set(symbol->second, value);  // others can't be named by the template
}

const Text& Interpreter::run() {
  scope_ = runtime_.make<Scope>(scope_);  // the template's own names don't replace the caller's
  execute(program_.body);
  return *output_;
}

Interpreter::Flow Interpreter::execute(const std::vector<const Statement*>& body) {
  const EvaluationDepth depth(runtime_);
  for (const Statement* statement : body) {
    const Flow flow = execute_statement(*statement);
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

void Interpreter::print(const Text& text) {
  const std::size_t size = output_->size() + text.size();
  runtime_.charge_bytes(size > runtime_.limits().output_bytes ? size : text.size());
  output_->append(text);
}

void Interpreter::print(const Value& value) {
  print(*to_text(runtime_, value));
}

Interpreter::Flow Interpreter::execute_statement(const Statement& statement) {
  runtime_.charge(1);
  runtime_.line = statement.line;
  switch (statement.kind) {
    case StatementKind::kData:
      print(*statement.data);
      return Flow::kNormal;
    case StatementKind::kPrint:
      print(evaluate(statement.expression));
      return Flow::kNormal;
    case StatementKind::kIf:
      return execute_if(statement);
    case StatementKind::kFor:
      return execute_for(statement);
    case StatementKind::kSet:
      assign(statement.target, evaluate(statement.expression));
      return Flow::kNormal;
    case StatementKind::kMacro:
      execute_macro(statement);
      return Flow::kNormal;
    case StatementKind::kCallBlock:
      execute_call_block(statement);
      return Flow::kNormal;
    case StatementKind::kWith:
      return execute_with(statement);
    case StatementKind::kScope:
      return execute_in_scope(statement.branches[0].body);
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
    case StatementKind::kSetBlock:
    case StatementKind::kFilterBlock: {
      Text* text = runtime_.make_text();
      const Flow flow = capture(statement.branches[0].body, *text);
      if (flow != Flow::kNormal) return flow;
      Value value = text_value(text);
      if (statement.expression != nullptr) value = evaluate_filter(*statement.expression, &value);
      if (statement.kind == StatementKind::kSetBlock) {
        assign(statement.target, value);
      } else {
        print(value);
      }
      return Flow::kNormal;
    }
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::execute_if(const Statement& statement) {
  for (const Branch& branch : statement.branches) {
    if (branch.condition == nullptr || is_true(evaluate(branch.condition))) return execute(branch.body);
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::execute_in_scope(const std::vector<const Statement*>& body) {
  Scope* outer = scope_;
  scope_ = runtime_.make<Scope>(outer);
  const Flow flow = execute(body);
  scope_ = outer;
  return flow;
}

Interpreter::Flow Interpreter::capture(const std::vector<const Statement*>& body, Text& output) {
  Text* outside = output_;
  output_ = &output;
  const Flow flow = execute_in_scope(body);
  output_ = outside;
  return flow;
}

std::vector<Value> Interpreter::loop_items(const Statement& statement) {
  std::vector<Value> items = iterate(runtime_, evaluate(statement.expression));
  if (statement.filter_condition == nullptr) return items;
  std::vector<Value> kept;
  Scope* outer = scope_;
  for (const Value& item : items) {
    scope_ = runtime_.make<Scope>(outer);
    assign(statement.target, item);
    if (is_true(evaluate(statement.filter_condition))) kept.push_back(item);
  }
  scope_ = outer;
  return kept;
}

Interpreter::Flow Interpreter::execute_for(const Statement& statement) {
  LoopObject* loop = runtime_.make<LoopObject>();
  loop->items = loop_items(statement);
  if (loop->items.empty()) return execute_in_scope(statement.branches[1].body);
  Value loop_value;
  loop_value.kind = Kind::kLoop;
  loop_value.loop = loop;
  Scope* outer = scope_;
  bool completed = false;  // jinja2 runs `else` unless some iteration reached the end of its body
  for (loop->index = 0; loop->index < loop->items.size(); ++loop->index) {
    runtime_.charge(2);
    scope_ = runtime_.make<Scope>(outer);
    scope_->set(program_.loop_symbol, loop_value);
    assign(statement.target, loop->items[loop->index]);
    const Flow flow = execute(statement.branches[0].body);
    completed |= flow == Flow::kNormal;
    if (flow == Flow::kBreak) break;
  }
  if (loop->index == loop->items.size()) --loop->index;  // as jinja2 leaves it for macros that kept the loop
  scope_ = outer;
  return completed ? Flow::kNormal : execute_in_scope(statement.branches[1].body);
}

void Interpreter::assign(const Target& target, const Value& value) {
  if (target.is_tuple) {
    const std::vector<Value> parts = iterate(runtime_, value);
    if (parts.size() != target.parts.size()) {
      runtime_.error("{} values can't be unpacked into {} names", parts.size(), target.parts.size());
    }
    for (std::size_t i = 0; i < parts.size(); ++i) assign(target.parts[i], parts[i]);
    return;
  }
  if (target.attribute.empty()) return scope_->set(target.symbol, value);
  Expression name;
  name.name = target.name;
  name.symbol = target.symbol;
  const Value object = evaluate_name(name);
  if (object.kind != Kind::kNamespace)
    runtime_.error("'{}' isn't a namespace, so its attributes can't be set", target.name);
  auto& attributes = object.name_space->attributes;
  runtime_.charge(1 + attributes.size() / 8);
  for (auto& [key, attribute] : attributes) {
    if (key == target.attribute) {
      attribute = value;
      return;
    }
  }
  attributes.emplace_back(target.attribute, value);
}

void Interpreter::execute_macro(const Statement& statement) {
  Value value;
  value.kind = Kind::kMacro;
  value.macro = runtime_.make<MacroObject>();
  value.macro->definition = &statement.macro;
  value.macro->scope = scope_;
  scope_->set(statement.symbol, value);
}

void Interpreter::execute_call_block(const Statement& statement) {
  Value caller;
  caller.kind = Kind::kMacro;
  caller.macro = runtime_.make<MacroObject>();
  caller.macro->definition = &statement.macro;
  caller.macro->scope = scope_;
  print(evaluate_call(*statement.expression, &caller));
}

Interpreter::Flow Interpreter::execute_with(const Statement& statement) {
  std::vector<Value> values;
  for (const auto& assignment : statement.assignments) values.push_back(evaluate(assignment.second));
  Scope* outer = scope_;
  scope_ = runtime_.make<Scope>(outer);
  for (std::size_t i = 0; i < values.size(); ++i) assign(statement.assignments[i].first, values[i]);
  const Flow flow = execute(statement.branches[0].body);
  scope_ = outer;
  return flow;
}

Value Interpreter::call_macro(const MacroObject& macro, const CallArguments& arguments) {
  const EvaluationDepth depth(runtime_);
  runtime_.charge(4);
  Scope* outer = scope_;
  Text* outside = output_;
  const int line = runtime_.line;
  scope_ = runtime_.make<Scope>(macro.scope);
  output_ = runtime_.make_text();
  bind_parameters(*macro.definition, arguments);
  execute(macro.definition->body);
  const Value result = text_value(output_);
  scope_ = outer;
  output_ = outside;
  runtime_.line = line;
  return result;
}

void Interpreter::bind_parameters(const MacroDefinition& definition, const CallArguments& arguments) {
  const std::size_t declared = definition.parameters.size();
  std::vector<Value> extra;
  if (arguments.positional.size() > declared) {
    if (!definition.uses_varargs) {
      runtime_.error("the macro '{}' takes {} arguments, not {}", definition.name, declared,
                     arguments.positional.size());
    }
    extra.assign(arguments.positional.begin() + static_cast<std::ptrdiff_t>(declared), arguments.positional.end());
  }
  Value caller = runtime_.undefined("caller");
  bool declares_caller = false;
  std::vector<std::pair<std::string, Value>> keywords = arguments.keywords;
  for (std::size_t i = 0; i < declared; ++i) {
    const Parameter& parameter = definition.parameters[i];
    declares_caller |= parameter.symbol == program_.caller_symbol;
    const auto named = std::find_if(keywords.begin(), keywords.end(),
                                    [&](const auto& keyword) { return keyword.first == parameter.name; });
    Value value;
    if (i < arguments.positional.size()) {
      if (named != keywords.end()) runtime_.error("the macro '{}' got '{}' twice", definition.name, parameter.name);
      value = arguments.positional[i];
    } else if (named != keywords.end()) {
      value = named->second;
      keywords.erase(named);
    } else {
      value = parameter.fallback != nullptr ? evaluate(parameter.fallback) : runtime_.undefined(parameter.name);
    }
    scope_->set(parameter.symbol, value);
  }
  const auto passed =
      std::find_if(keywords.begin(), keywords.end(), [](const auto& keyword) { return keyword.first == "caller"; });
  if (definition.uses_caller && passed != keywords.end()) {
    caller = passed->second;
    keywords.erase(passed);
  }
  if (definition.uses_caller && !declares_caller) scope_->set(program_.caller_symbol, caller);
  if (!definition.uses_kwargs && !keywords.empty()) {
    runtime_.error("the macro '{}' has no argument named '{}'", definition.name, keywords[0].first);
  }
  if (definition.uses_varargs) scope_->set(program_.varargs_symbol, runtime_.list(std::move(extra), Kind::kTuple));
  if (definition.uses_kwargs) {
    Value rest;
    rest.kind = Kind::kDict;
    rest.dict = runtime_.make<DictObject>();
    for (const auto& [name, value] : keywords) rest.dict->set(runtime_, runtime_.text(name, false), value);
    scope_->set(program_.kwargs_symbol, rest);
  }
}

}  // namespace tensorfold::jinja
