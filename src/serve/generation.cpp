// See generation.h.
#include "serve/generation.h"

#include <algorithm>
#include <limits>

#include "serve/api_error.h"
#include "serve/api_keys.h"
#include "serve/chat_prompt.h"
#include "serve/reply_rules.h"
#include "serve/reply_text.h"
#include "serve/stream_events.h"

namespace tensorfold {
namespace {

constexpr std::size_t kTokenShaDigits = 12;

std::string token_sha(const std::vector<std::int32_t>& tokens) {
  return sha256_hex(fmt::format("{}", fmt::join(tokens, ",")), kTokenShaDigits);
}

std::vector<std::int32_t> encode_text(const Tokenizer& tokenizer, const std::string& text, bool add_special_tokens) {
  try {
    return tokenizer.encode(text, {.add_special_tokens = add_special_tokens});
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kResourceExhausted) throw;
    throw field_error("prompt", error.what());  // a retry would meet the same limit
  }
}

PromptTokens make_prompt(const ServedModel& model, const GenerationRequest& request) {
  if (request.is_chat) return render_chat_prompt(model, request);
  PromptTokens prompt;
  if (request.prompt_is_tokens) {
    prompt.tokens = request.prompt_tokens;
  } else {
    prompt.tokens = encode_text(*model.tokenizer, request.prompt_text, request.add_special_tokens);
    // An empty text still needs a token to start from.
    const std::optional<std::int32_t> first =
        model.tokenizer->bos_token() ? model.tokenizer->bos_token() : model.tokenizer->eos_token();
    if (prompt.tokens.empty() && first) prompt.tokens.push_back(*first);
  }
  if (prompt.tokens.empty()) throw field_error("prompt", "must not be empty");
  return prompt;
}

SamplingRule resolve_sampling(const SamplingDefaults& defaults, const GenerationRequest& request) {
  SamplingRule rule;
  rule.temperature = request.temperature.value_or(defaults.temperature);
  rule.top_p = request.top_p.value_or(defaults.top_p);
  rule.min_p = request.min_p.value_or(defaults.min_p);
  const std::int64_t top_k = request.top_k.value_or(defaults.top_k);
  rule.top_k = static_cast<std::int32_t>(std::clamp<std::int64_t>(top_k, 0, std::numeric_limits<std::int32_t>::max()));
  rule.seed = request.seed ? *request.seed : defaults.seed ? *defaults.seed : random_u64();
  return rule;
}

/// How many tokens the reply may have; refuses what can't fit (api.md 3.3, wire text).
std::int32_t reply_limit(const ServedModel& model, const GenerationRequest& request, std::size_t prompt_tokens) {
  const std::int64_t window = model.engine->facts().context;
  const std::int64_t prompt = static_cast<std::int64_t>(prompt_tokens);
  const std::int64_t room = window - prompt;
  std::string problem;
  const std::int64_t wanted = request.max_tokens.value_or(0);
  if (room < 0 || (room == 0 && wanted != 0) || (room == 0 && !request.max_tokens)) {
    problem =
        fmt::format("Your prompt has {} tokens, which leaves no room for a reply. Shorten it to at most {} tokens.",
                    prompt, window - 1);
  } else if (request.max_tokens && wanted > room) {
    problem = fmt::format(
        "Your prompt has {} tokens and the request asks for {} reply tokens. Ask for at most {}, or shorten the "
        "prompt.",
        prompt, wanted, room);
  }
  if (!problem.empty()) {
    throw ApiError(400, "invalid_request_error",
                   fmt::format("This server's maximum context length is {} tokens. {}", window, problem))
        .with_param(request.is_chat ? "messages" : "prompt")
        .with_code("context_length_exceeded");
  }
  return static_cast<std::int32_t>(request.max_tokens ? wanted : std::min(room, model.defaults.max_tokens));
}

class EngineGeneration final : public Generation {
 public:
  EngineGeneration(std::shared_ptr<const ServedModel> model, GenerationRequest request, PromptTokens prompt)
      : model_(std::move(model)),
        request_(std::move(request)),
        prompt_(std::move(prompt)),
        sampling_(resolve_sampling(model_->defaults, request_)),
        text_(model_->tokenizer, request_.stop, request_.is_chat ? model_->reasoning : ReasoningFormat::kNone,
              prompt_.inside_thought) {}
  ~EngineGeneration() override {
    if (events_) events_->close();
  }

  void start(std::function<void()> notify);
  void poll(std::vector<ReplyPiece>& pieces) override;
  bool started() const override { return started_; }
  bool finished() const override { return finished_; }
  bool overflowed() const override { return events_->overflowed(); }
  void cancel() override { handle_->cancel(); }

  const GenerationRequest& request() const override { return request_; }
  const ServedModel& model() const override { return *model_; }
  const GenerationResult& result() const override { return result_; }
  const std::vector<std::int32_t>& prompt_tokens() const override { return prompt_.tokens; }
  const SamplingRule& sampling() const override { return sampling_; }
  bool thinking() const override { return prompt_.thinking; }
  const std::optional<std::string>& effort() const override { return prompt_.effort; }
  PromptProgressEvent prompt_progress() const override { return progress_; }

 private:
  void handle(PromptProgressEvent& event, ReplyPiece&) { progress_ = event; }
  void handle(PromptScoreEvent& event, ReplyPiece&) {
    result_.prompt_records.push_back({event.chosen, event.index > 0, std::move(event.top)});
  }
  void handle(TokenEvent& event, ReplyPiece& piece);
  void handle(FinishEvent& event, ReplyPiece& piece);
  void count_reasoning();
  static void add(ReplyPieces more, ReplyPiece& piece) {
    piece.reasoning += more.reasoning;
    piece.content += more.content;
  }

  std::shared_ptr<const ServedModel> model_;
  GenerationRequest request_;
  PromptTokens prompt_;
  SamplingRule sampling_;
  ReplyText text_;
  std::shared_ptr<StreamEvents> events_;
  std::unique_ptr<StreamHandle> handle_;
  std::vector<StreamEvent> batch_;
  GenerationResult result_;
  PromptProgressEvent progress_;
  bool started_ = false;
  bool finished_ = false;
  bool was_inside_ = false;
  bool reasoning_counted_ = false;
};

void EngineGeneration::start(std::function<void()> notify) {
  StreamRequest stream;
  stream.id = request_.id;
  stream.prompt.owner = request_.owner;
  stream.prompt.tokens = prompt_.tokens;
  stream.marks = prompt_.marks;
  stream.reply_tokens_max = reply_limit(*model_, request_, prompt_.tokens.size());
  stream.sampling = sampling_;
  stream.stop_tokens = model_->stop_tokens;
  stream.ignore_stop_tokens = request_.ignore_eos;
  stream.rule = make_reply_rule(*model_, request_, prompt_);
  stream.drafts = request_.drafts;
  stream.background = request_.background;
  stream.logprobs_top = request_.logprobs_top;
  stream.score_prompt = request_.echo && request_.logprobs_top >= 0;
  events_ = std::make_shared<StreamEvents>(std::move(notify));
  handle_ = model_->engine->open(std::move(stream),
                                 [events = events_](StreamEvent&& event) { events->push(std::move(event)); });
}

void EngineGeneration::poll(std::vector<ReplyPiece>& pieces) {
  events_->take(batch_);
  ReplyPiece piece;
  for (StreamEvent& event : batch_) {
    std::visit([this, &piece](auto& concrete) { handle(concrete, piece); }, event);
    // Reasoning precedes content inside a piece; it never follows it, as a block opens only once.
  }
  if (!piece.reasoning.empty() || !piece.content.empty()) {
    result_.reasoning += piece.reasoning;
    result_.content += piece.content;
    pieces.push_back(std::move(piece));
  }
}

void EngineGeneration::handle(TokenEvent& event, ReplyPiece& piece) {
  if (!started_) {
    started_ = true;
    result_.time_to_first_token_seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - request_.received).count();
  }
  result_.tokens.push_back(event.token);
  if (request_.logprobs_top >= 0) result_.records.push_back({event.chosen, true, std::move(event.top)});
  if (!event.is_stop_token || request_.ignore_eos) add(text_.push(event.token), piece);
  count_reasoning();
}

void EngineGeneration::count_reasoning() {
  if (!prompt_.thinking || reasoning_counted_) return;
  if (text_.inside_reasoning()) {
    was_inside_ = true;
  } else if (was_inside_) {
    reasoning_counted_ = true;
    result_.reasoning_tokens = static_cast<std::int32_t>(result_.tokens.size());
    result_.records.clear();  // log-probabilities start after the close marker
  }
}

void EngineGeneration::handle(FinishEvent& event, ReplyPiece& piece) {
  started_ = true;
  finished_ = true;
  add(text_.finish(), piece);
  result_.reason = event.reason;
  result_.message = std::move(event.message);
  result_.statistics = event.statistics;
  result_.stop_sequence = text_.stop_sequence();
  result_.token_sha = token_sha(result_.tokens);
  if (was_inside_ && !reasoning_counted_) {
    result_.reasoning_tokens = static_cast<std::int32_t>(result_.tokens.size());
    result_.records.clear();
  }
}

}  // namespace

std::unique_ptr<Generation> Generation::open(std::shared_ptr<const ServedModel> model, GenerationRequest request,
                                             std::function<void()> notify) {
  PromptTokens prompt = make_prompt(*model, request);
  auto generation = std::make_unique<EngineGeneration>(std::move(model), std::move(request), std::move(prompt));
  generation->start(std::move(notify));
  return generation;
}

const std::string& ServedModel::echoed_name(const std::string& requested) const {
  const auto found = std::find(names.begin(), names.end(), requested);
  return found == names.end() ? names.front() : *found;
}

}  // namespace tensorfold
