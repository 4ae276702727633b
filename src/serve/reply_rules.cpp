// See reply_rules.h.
#include "serve/reply_rules.h"

#include <vector>

#include "serve/api_error.h"
#include "serve/composite_rule.h"
#include "serve/grammar_rule.h"
#include "serve/stop_rule.h"
#include "serve/thought_rule.h"
#include "serve/tool_gate.h"

namespace tensorfold {
namespace {

/// The token with which the model itself would begin this text: a mark has one of its own, where the vocabulary knows
/// it, and its spelling in pieces is another text to the model.
std::optional<std::int32_t> first_token_of(const ServedModel& model, const std::string& text) {
  const std::vector<std::int32_t> tokens =
      model.tokenizer->encode(text, {.add_special_tokens = false, .parse_added_tokens = true});
  return tokens.empty() ? std::nullopt : std::optional<std::int32_t>(tokens.front());
}

/// What a reply must follow: the request's own grammar, or the form of a call that must come.
RequestedGrammar requested_grammar(const ServedModel& model, const GenerationRequest& request) {
  if (request.grammar) return *request.grammar;
  const ToolCallFormat& format = model.prompts->facts().call_format;
  if (format.style == ToolCallFormat::Style::kNone) {
    throw field_error("tool_choice", "this model's chat template has no form for calls, so none can be required");
  }
  return {required_calls_source(format, request.tools, format.several && request.parallel_tool_calls), "tool_choice"};
}

std::unique_ptr<PathRule> make_grammar_rule(const ServedModel& model, const GenerationRequest& request,
                                            const PromptTokens& prompt) {
  const ReasoningFormat format = request.is_chat ? model.reasoning : ReasoningFormat::kNone;
  std::string field = request.grammar ? request.grammar->field : "tool_choice";
  if (format == ReasoningFormat::kHarmony) {
    throw field_error(field, "isn't supported with this model's message channels");
  }
  try {
    const RequestedGrammar requested = requested_grammar(model, request);
    const std::shared_ptr<const CompiledGrammar> grammar = model.structured_output->compile(requested.source);
    auto setting = std::make_shared<GrammarRuleSetting>();
    setting->tokenizer = model.tokenizer;
    setting->marks = &model.structured_output->marks();
    setting->format = format;
    setting->stop_tokens = model.stop_tokens;
    setting->ignore_stop_tokens = request.ignore_eos || model.stop_tokens.empty();
    setting->thinking = format != ReasoningFormat::kNone && prompt.thinking;
    setting->inside_thought = format != ReasoningFormat::kNone && prompt.inside_thought;
    setting->vocabulary_size = model.structured_output->vocabulary_size();
    if (!request.grammar) setting->first_token = first_token_of(model, model.prompts->facts().call_format.lead);
    return std::make_unique<GrammarRule>(std::move(setting), grammar->start());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    throw field_error(field, error.what());
  }
}

/// The text that closes a reasoning block. Under a grammar nothing stands between the mark and the answer.
std::string closing_text(ReasoningFormat format, bool before_grammar) {
  const char* mark = format == ReasoningFormat::kThink ? "</think>" : "<channel|>";
  return fmt::format("\n{}{}", mark, before_grammar ? "" : "\n\n");
}

/// Null when there is no budget, or nothing that it could close.
std::unique_ptr<PathRule> make_thought_rule(const ServedModel& model, const GenerationRequest& request,
                                            const PromptTokens& prompt) {
  const std::int64_t budget =
      request.thinking_budget.value_or(0) > 0 ? *request.thinking_budget : model.thinking_budget;
  const bool can_close = model.reasoning == ReasoningFormat::kThink || model.reasoning == ReasoningFormat::kChannel;
  if (budget <= 0 || !request.is_chat || !prompt.thinking || !can_close) return nullptr;
  const std::string text = closing_text(model.reasoning, request.grammar.has_value());
  auto closing = std::make_shared<const std::vector<std::int32_t>>(
      model.tokenizer->encode(text, {.add_special_tokens = false, .parse_added_tokens = true}));
  return std::make_unique<ThoughtRule>(model.tokenizer, model.reasoning, prompt.inside_thought, std::move(closing),
                                       budget);
}

}  // namespace

std::unique_ptr<PathRule> make_reply_rule(const ServedModel& model, const GenerationRequest& request,
                                          const PromptTokens& prompt) {
  std::vector<std::unique_ptr<PathRule>> rules;
  if (auto thought = make_thought_rule(model, request, prompt)) rules.push_back(std::move(thought));
  if (request.grammar || request.tool_choice == ToolChoice::kRequired)
    rules.push_back(make_grammar_rule(model, request, prompt));
  if (!request.stop.empty()) rules.push_back(std::make_unique<StopRule>(model.tokenizer, request.stop));
  if (rules.empty()) return nullptr;
  if (rules.size() == 1) return std::move(rules.front());
  return std::make_unique<CompositeRule>(std::move(rules));
}

}  // namespace tensorfold
