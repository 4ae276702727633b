// A reply in the making: renders and tokenizes a neutral request and runs its choices (n streams that share a prompt).
// It is the seam between the engine's ids and every wire format; the terminal chat uses it too. No sockets and no JSON
// output here. One choice, from its stream's tokens to text, is reply_choice.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "serve/generation_request.h"
#include "serve/served_model.h"
#include "text/tool_offer.h"

namespace tensorfold {

/// A token with its probability, for logprobs.
struct TokenRecord {
  TokenLogprob chosen;
  bool has_logprob = true;  // false: the first prompt token
  std::vector<TokenLogprob> top;
};

/// More of a call. The first piece of one has its name and its id.
struct CallDelta {
  std::size_t index = 0;
  std::string id;
  std::string name;
  std::string arguments;
};

struct ReplyCall {
  std::string id;
  std::string name;
  std::string arguments;  // JSON text of an object
};

/// What is new of one choice. Reasoning comes before content, content before calls.
struct ReplyPiece {
  int choice = 0;
  std::string reasoning;
  std::string content;
  std::vector<CallDelta> calls;
  std::vector<TokenRecord> records;  // with logprobs: the tokens whose text has been shown with this piece
  bool ends_choice = false;
  bool ends_reply = false;  // the last choice has ended with it
};

struct GenerationResult {
  FinishReason reason = FinishReason::kLength;
  std::string message;  // kError
  std::string reasoning;
  std::string content;
  std::vector<ReplyCall> calls;
  std::optional<std::string> stop_sequence;
  std::int32_t reasoning_tokens = 0;
  std::vector<std::int32_t> tokens;         // all counted ids
  std::vector<TokenRecord> records;         // of whole replies: tokens whose text is in `content`, and the end token
  std::vector<TokenRecord> prompt_records;  // with echo and logprobs
  StreamStatistics statistics;
  std::optional<double> time_to_first_token_seconds;  // from receipt
  std::string token_sha;                              // first 12 hex digits
};

class Generation {
 public:
  /// Blocking work (template, tokenizer): call on a worker. Throws ApiError, and Error from the engine. `notify` runs
  /// on any thread when there is something to poll; it must only post.
  static std::unique_ptr<Generation> open(std::shared_ptr<const ServedModel> model, GenerationRequest request,
                                          std::function<void()> notify);
  virtual ~Generation() = default;

  /// Handles what has arrived and appends what is new, in the order of choices.
  virtual void poll(std::vector<ReplyPiece>& pieces) = 0;
  virtual bool started() const = 0;   // a token, or the end, has arrived
  virtual bool finished() const = 0;  // the engine's own end of every choice has arrived
  virtual bool overflowed() const = 0;
  virtual void cancel() = 0;
  /// What went wrong with the first choice that failed or was cancelled; the others are cancelled with it.
  virtual const std::optional<std::string>& failure() const = 0;

  virtual const GenerationRequest& request() const = 0;
  virtual const ServedModel& model() const = 0;
  virtual int choice_count() const = 0;
  virtual const GenerationResult& result(int choice = 0) const = 0;
  virtual const SamplingRule& sampling(int choice = 0) const = 0;
  virtual const std::vector<std::int32_t>& prompt_tokens() const = 0;
  virtual bool thinking() const = 0;
  virtual const std::optional<std::string>& effort() const = 0;  // coerced; none = the template's own
  virtual PromptProgressEvent prompt_progress() const = 0;
};

}  // namespace tensorfold
