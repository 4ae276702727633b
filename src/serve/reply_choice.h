// One choice of a reply: opens its stream and turns the stream's tokens into text (stop strings, reasoning and content
// apart, unfinished characters held back), log-probabilities and a result. A choice knows nothing of its siblings.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "serve/chat_prompt.h"
#include "serve/generation.h"
#include "serve/reply_text.h"
#include "serve/stream_events.h"

namespace tensorfold {

/// What the choices of a reply share. Outlives them.
struct ReplySetting {
  std::shared_ptr<const ServedModel> model;
  GenerationRequest request;
  PromptTokens prompt;
  LogitRule logit_rule;
  std::int32_t reply_tokens_max = 0;
  std::shared_ptr<const ToolOffer> tools;  // null: calls aren't looked for
};

class ReplyChoice {
 public:
  ReplyChoice(const ReplySetting& setting, int index, const SamplingRule& sampling);
  /// Cancels a stream that hasn't ended; its events go nowhere.
  ~ReplyChoice();
  ReplyChoice(const ReplyChoice&) = delete;
  ReplyChoice& operator=(const ReplyChoice&) = delete;

  /// Opens the stream. `notify` runs on the engine thread; it must only post.
  void open(std::function<void()> notify);
  /// Handles what has arrived; true when the piece holds something new.
  bool poll(ReplyPiece& piece);
  void cancel();

  bool started() const { return started_; }
  bool finished() const { return finished_; }
  bool overflowed() const { return events_->overflowed(); }
  const GenerationResult& result() const { return result_; }
  const SamplingRule& sampling() const { return sampling_; }
  const PromptProgressEvent& prompt_progress() const { return progress_; }

 private:
  void handle(PromptProgressEvent& event, ReplyPiece&) { progress_ = event; }
  void handle(PromptScoreEvent& event, ReplyPiece&) {
    result_.prompt_records.push_back({event.chosen, event.index > 0, std::move(event.top)});
  }
  void handle(TokenEvent& event, ReplyPiece& piece);
  void handle(FinishEvent& event, ReplyPiece& piece);
  void add(ReplyTextPiece text, ReplyPiece& piece);
  void count_reasoning();

  const ReplySetting& setting_;
  const int index_;
  const SamplingRule sampling_;
  ReplyText text_;
  std::shared_ptr<StreamEvents> events_;
  std::unique_ptr<StreamHandle> handle_;
  std::vector<StreamEvent> batch_;
  std::deque<TokenRecord> undecided_;  // records of tokens whose text may yet be held back or cut
  GenerationResult result_;
  PromptProgressEvent progress_;
  bool started_ = false;
  bool finished_ = false;
  bool was_inside_ = false;
  bool reasoning_counted_ = false;
};

}  // namespace tensorfold
