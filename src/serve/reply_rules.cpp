// See reply_rules.h.
#include "serve/reply_rules.h"

#include <vector>

#include "serve/api_error.h"
#include "serve/composite_rule.h"
#include "serve/grammar_rule.h"
#include "serve/stop_rule.h"

namespace tensorfold {
namespace {

std::unique_ptr<PathRule> make_grammar_rule(const ServedModel& model, const GenerationRequest& request,
                                            const PromptTokens& prompt) {
  const RequestedGrammar& requested = *request.grammar;
  const ReasoningFormat format = request.is_chat ? model.reasoning : ReasoningFormat::kNone;
  if (format == ReasoningFormat::kHarmony) {
    throw field_error(requested.field, "isn't supported with this model's message channels");
  }
  try {
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
    return std::make_unique<GrammarRule>(std::move(setting), grammar->start());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    throw field_error(requested.field, error.what());
  }
}

}  // namespace

std::unique_ptr<PathRule> make_reply_rule(const ServedModel& model, const GenerationRequest& request,
                                          const PromptTokens& prompt) {
  std::vector<std::unique_ptr<PathRule>> rules;
  if (request.grammar) rules.push_back(make_grammar_rule(model, request, prompt));
  if (!request.stop.empty()) rules.push_back(std::make_unique<StopRule>(model.tokenizer, request.stop));
  if (rules.empty()) return nullptr;
  if (rules.size() == 1) return std::move(rules.front());
  return std::make_unique<CompositeRule>(std::move(rules));
}

}  // namespace tensorfold
