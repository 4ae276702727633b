// See generation.h.
#include "serve/generation.h"

#include <algorithm>

#include "serve/api_error.h"
#include "serve/chat_prompt.h"
#include "serve/reply_choice.h"
#include "serve/sampling_defaults.h"
#include "serve/seeds.h"

namespace tensorfold {
namespace {

/// A longer prompt can't be served: it is given up on as soon as that is certain, so that it costs the workers little.
std::size_t prompt_tokens_max(const ServedModel& model) {
  return static_cast<std::size_t>(model.engine->facts().context);
}

const char* prompt_field(const GenerationRequest& request) {
  return request.is_chat ? "messages" : "prompt";
}

ApiError context_error(const ServedModel& model, const std::string& field, const std::string& problem) {
  return ApiError(400, "invalid_request_error",
                  fmt::format("This server's maximum context length is {} tokens. {}", model.engine->facts().context,
                              problem))
      .with_param(field)
      .with_code("context_length_exceeded");
}

std::vector<std::int32_t> encode_text(const ServedModel& model, const GenerationRequest& request) {
  try {
    return model.tokenizer->encode(request.prompt_text, {.add_special_tokens = request.add_special_tokens,
                                                         .tokens_max = prompt_tokens_max(model)});
  } catch (const TooManyTokens&) {
    throw;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kResourceExhausted) throw;
    throw field_error("prompt", error.what());  // a retry would meet the same limit
  }
}

PromptTokens encode_prompt(const ServedModel& model, const GenerationRequest& request) {
  if (request.is_chat) return render_chat_prompt(model, request, true, prompt_tokens_max(model));
  PromptTokens prompt;
  if (request.prompt_is_tokens) {
    prompt.tokens = request.prompt_tokens;
  } else {
    prompt.tokens = encode_text(model, request);
    // An empty text still needs a token to start from.
    const std::optional<std::int32_t> first =
        model.tokenizer->bos_token() ? model.tokenizer->bos_token() : model.tokenizer->eos_token();
    if (prompt.tokens.empty() && first) prompt.tokens.push_back(*first);
  }
  if (prompt.tokens.empty()) throw field_error("prompt", "must not be empty");
  return prompt;
}

PromptTokens make_prompt(const ServedModel& model, const GenerationRequest& request) {
  try {
    return encode_prompt(model, request);
  } catch (const TooManyTokens& error) {
    throw context_error(model, prompt_field(request),
                        fmt::format("Your prompt has at least {} tokens, which leaves no room for a reply. Shorten it "
                                    "to at most {} tokens.",
                                    error.tokens_min(), model.engine->facts().context - 1));
  }
}

/// How many tokens the reply may have; refuses what can't fit (api.md 3.3, wire text).
std::int32_t reply_limit(const ServedModel& model, const GenerationRequest& request, std::size_t prompt_tokens) {
  const std::int64_t window = model.engine->facts().context;
  const std::int64_t prompt = static_cast<std::int64_t>(prompt_tokens);
  const std::int64_t room = window - prompt;
  std::string problem;
  std::string field = prompt_field(request);
  const std::int64_t wanted = request.max_tokens.value_or(0);
  if (room < 0 || (room == 0 && wanted != 0) || (room == 0 && !request.max_tokens)) {
    problem =
        fmt::format("Your prompt has {} tokens, which leaves no room for a reply. Shorten it to at most {} tokens.",
                    prompt, window - 1);
  } else if (request.max_tokens && wanted > room) {
    field = request.max_tokens_field;
    problem = fmt::format(
        "Your prompt has {} tokens and the request asks for {} reply tokens. Ask for at most {}, or shorten the "
        "prompt.",
        prompt, wanted, room);
  }
  if (!problem.empty()) throw context_error(model, field, problem);
  return static_cast<std::int32_t>(request.max_tokens ? wanted : std::min(room, model.defaults.max_tokens));
}

class EngineGeneration final : public Generation {
 public:
  /// Opens every choice, or none: what was opened before one was refused is cancelled.
  EngineGeneration(ReplySetting setting, const std::function<void()>& notify) : setting_(std::move(setting)) {
    const SamplingDefaults& defaults = defaults_for(*setting_.model, setting_.request, setting_.prompt.thinking);
    setting_.logit_rule = resolve_logit_rule(defaults, setting_.request);
    SamplingRule sampling = resolve_sampling(defaults, setting_.request);
    const std::uint64_t seed = resolve_seed(defaults, setting_.request, setting_.prompt.tokens);
    for (int index = 0; index < setting_.request.choices; ++index) {
      sampling.seed = choice_seed(seed, index);
      choices_.push_back(std::make_unique<ReplyChoice>(setting_, index, sampling));
      choices_.back()->open(notify);
    }
  }

  void poll(std::vector<ReplyPiece>& pieces) override;
  bool started() const override {
    return std::any_of(choices_.begin(), choices_.end(), [](const auto& choice) { return choice->started(); });
  }
  bool finished() const override {
    return std::all_of(choices_.begin(), choices_.end(), [](const auto& choice) { return choice->finished(); });
  }
  bool overflowed() const override {
    return std::any_of(choices_.begin(), choices_.end(), [](const auto& choice) { return choice->overflowed(); });
  }
  void cancel() override {
    for (const auto& choice : choices_) choice->cancel();
  }
  const std::optional<std::string>& failure() const override { return failure_; }

  const GenerationRequest& request() const override { return setting_.request; }
  const ServedModel& model() const override { return *setting_.model; }
  int choice_count() const override { return static_cast<int>(choices_.size()); }
  const GenerationResult& result(int choice) const override { return at(choice).result(); }
  const SamplingRule& sampling(int choice) const override { return at(choice).sampling(); }
  const std::vector<std::int32_t>& prompt_tokens() const override { return setting_.prompt.tokens; }
  bool thinking() const override { return setting_.prompt.thinking; }
  const std::optional<std::string>& effort() const override { return setting_.prompt.effort; }
  PromptProgressEvent prompt_progress() const override { return choices_.front()->prompt_progress(); }

 private:
  const ReplyChoice& at(int choice) const { return *choices_.at(static_cast<std::size_t>(choice)); }
  void note_failure(const ReplyPiece& piece);

  ReplySetting setting_;  // before choices_, which refer to it
  std::vector<std::unique_ptr<ReplyChoice>> choices_;
  std::optional<std::string> failure_;
};

void EngineGeneration::poll(std::vector<ReplyPiece>& pieces) {
  const std::size_t first_new = pieces.size();
  const bool was_finished = finished();
  for (const auto& choice : choices_) {
    ReplyPiece piece;
    if (!choice->poll(piece)) continue;
    if (piece.ends_choice) note_failure(piece);
    pieces.push_back(std::move(piece));
  }
  if (was_finished || !finished()) return;
  const auto last = std::find_if(pieces.rbegin(), pieces.rend() - static_cast<std::ptrdiff_t>(first_new),
                                 [](const ReplyPiece& piece) { return piece.ends_choice; });
  last->ends_reply = true;
}

void EngineGeneration::note_failure(const ReplyPiece& piece) {
  const GenerationResult& result = at(piece.choice).result();
  const bool failed = result.reason == FinishReason::kError || result.reason == FinishReason::kCancelled;
  if (!failed || failure_) return;
  failure_ = result.message.empty() ? "the reply was cancelled" : result.message;
  if (choices_.size() > 1) failure_ = fmt::format("choice {}: {}", piece.choice, *failure_);
  cancel();
}

}  // namespace

std::unique_ptr<Generation> Generation::open(std::shared_ptr<const ServedModel> model, GenerationRequest request,
                                             std::function<void()> notify) {
  ReplySetting setting;
  setting.prompt = make_prompt(*model, request);
  setting.reply_tokens_max = reply_limit(*model, request, setting.prompt.tokens.size());
  setting.model = std::move(model);
  setting.request = std::move(request);
  // Under a grammar of the request's own the reply is what that says: nothing in it is a call.
  if (!setting.request.tools.is_null() && !setting.request.grammar) {
    setting.tools = std::make_shared<const ToolOffer>(setting.request.tools);
  }
  return std::make_unique<EngineGeneration>(std::move(setting), notify);
}

const std::string& ServedModel::echoed_name(const std::string& requested) const {
  const auto found = std::find(names.begin(), names.end(), requested);
  return found == names.end() ? names.front() : *found;
}

}  // namespace tensorfold
