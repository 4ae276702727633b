// See reply_choice.h.
#include "serve/reply_choice.h"

#include <fmt/format.h>

#include "base/error.h"
#include "serve/api_keys.h"
#include "serve/reply_rules.h"

namespace tensorfold {
namespace {

constexpr std::size_t kTokenShaDigits = 12;
constexpr std::size_t kCallIdDigits = 24;

std::string token_sha(const std::vector<std::int32_t>& tokens) {
  return sha256_hex(fmt::format("{}", fmt::join(tokens, ",")), kTokenShaDigits);
}

}  // namespace

ReplyChoice::ReplyChoice(const ReplySetting& setting, int index, const SamplingRule& sampling)
    : setting_(setting),
      index_(index),
      sampling_(sampling),
      text_(setting.model->tokenizer, setting.request.stop,
            setting.request.is_chat ? setting.model->reasoning : ReasoningFormat::kNone,
            setting.prompt.inside_thought) {
  if (setting.tools != nullptr) text_.read_calls(setting.tools, !setting.request.parallel_tool_calls);
}

ReplyChoice::~ReplyChoice() {
  if (events_ != nullptr) events_->close();
  if (handle_ != nullptr && !finished_) handle_->cancel();
}

void ReplyChoice::open(std::function<void()> notify) {
  const GenerationRequest& request = setting_.request;
  StreamRequest stream;
  stream.id = index_ == 0 ? request.id : fmt::format("{}#{}", request.id, index_);
  stream.prompt.owner = request.owner;
  stream.prompt.tokens = setting_.prompt.tokens;
  stream.marks = setting_.prompt.marks;
  stream.reply_tokens_max = setting_.reply_tokens_max;
  stream.sampling = sampling_;
  stream.logit_rule = setting_.logit_rule;
  stream.stop_tokens = setting_.model->stop_tokens;
  stream.ignore_stop_tokens = request.ignore_eos;
  stream.rule = make_reply_rule(*setting_.model, request, setting_.prompt);
  stream.drafts = request.drafts;
  stream.background = request.background;
  stream.logprobs_top = request.logprobs_top;
  stream.score_prompt = request.echo && request.logprobs_top >= 0;
  events_ = std::make_shared<StreamEvents>(std::move(notify));
  handle_ = setting_.model->engine->open(std::move(stream),
                                         [events = events_](StreamEvent&& event) { events->push(std::move(event)); });
}

void ReplyChoice::cancel() {
  if (!finished_) handle_->cancel();
}

bool ReplyChoice::poll(ReplyPiece& piece) {
  if (finished_) return false;
  piece.choice = index_;
  events_->take(batch_);
  for (StreamEvent& event : batch_) {
    std::visit([this, &piece](auto& concrete) { handle(concrete, piece); }, event);
    // Reasoning precedes content inside a piece; it never follows it, as a block opens only once.
  }
  if (!setting_.request.stream) {
    result_.records.insert(result_.records.end(), piece.records.begin(), piece.records.end());
  }
  return !piece.reasoning.empty() || !piece.content.empty() || !piece.calls.empty() || !piece.records.empty() ||
         piece.ends_choice;
}

void ReplyChoice::add(ReplyTextPiece text, ReplyPiece& piece) {
  piece.reasoning += text.reasoning;
  piece.content += text.content;
  result_.reasoning += text.reasoning;
  result_.content += text.content + text.withheld;
  for (ToolCallPiece& call : text.calls) {
    const std::string id = call.name.empty() ? "" : "call_" + random_hex(kCallIdDigits);
    piece.calls.push_back({call.call, id, std::move(call.name), std::move(call.arguments)});
  }
  if (setting_.request.logprobs_top < 0) return;
  for (const TokenFate fate : text.fates) {
    TF_ASSERT(!undecided_.empty());
    if (fate == TokenFate::kShown) piece.records.push_back(std::move(undecided_.front()));
    undecided_.pop_front();
  }
}

void ReplyChoice::handle(TokenEvent& event, ReplyPiece& piece) {
  if (!started_) {
    started_ = true;
    result_.time_to_first_token_seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - setting_.request.received).count();
  }
  result_.tokens.push_back(event.token);
  if (setting_.request.logprobs_top >= 0) undecided_.push_back({event.chosen, true, std::move(event.top)});
  if (event.is_stop_token && !setting_.request.ignore_eos) {
    text_.pass_over();
  } else {
    add(text_.push(event.token), piece);
  }
  count_reasoning();
}

void ReplyChoice::count_reasoning() {
  if (!setting_.prompt.thinking || reasoning_counted_) return;
  if (text_.inside_reasoning()) {
    was_inside_ = true;
  } else if (was_inside_) {
    reasoning_counted_ = true;
    result_.reasoning_tokens = static_cast<std::int32_t>(result_.tokens.size());
  }
}

void ReplyChoice::handle(FinishEvent& event, ReplyPiece& piece) {
  started_ = true;
  finished_ = true;
  piece.ends_choice = true;
  add(text_.finish(event.reason == FinishReason::kStopToken), piece);
  for (const ToolCall& call : text_.calls()) {
    result_.calls.push_back({"call_" + random_hex(kCallIdDigits), call.name, call.arguments});
  }
  result_.reason = event.reason;
  result_.message = std::move(event.message);
  result_.statistics = std::move(event.statistics);
  result_.stop_sequence = text_.stop_sequence();
  result_.token_sha = token_sha(result_.tokens);
  if (was_inside_ && !reasoning_counted_) {
    result_.reasoning_tokens = static_cast<std::int32_t>(result_.tokens.size());
  }
}

}  // namespace tensorfold
