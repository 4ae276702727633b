// The engine's public face: two nouns. An Engine is a loaded model on a backend, immutable once it serves; a Stream is
// one mutable timeline of tokens with its sampling rule. One engine thread owns lanes, caches and the model; callers
// talk to it through bounded queues and never block it. The engine knows token ids, never text or HTTP.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "engine/draft/draft_source.h"
#include "engine/path_rule.h"
#include "engine/sampling_rule.h"
#include "model/language_model.h"

namespace tensorfold {

class FileLayer;
class RecallStore;

/// A media unit in a prompt: an image or audio piece is one unit that is never cut. (Used by vision; empty for text.)
struct MediaUnit {
  std::int32_t first_index = 0;  // sequence index of its first row
  std::int32_t row_count = 0;
  std::vector<std::uint8_t> content_hash;
};

/// What identifies a reusable prefix: the tokens and media under an identity and an owner.
struct PrefixKey {
  std::string identity;  // checkpoint, format, backend, arithmetic version, adapter, weights epoch
  std::string owner;     // scope of the API key
  std::vector<std::int32_t> tokens;
  std::vector<MediaUnit> media;
};

/// Places in a prompt at which other requests are likely to leave it. Hints: they steer what is kept, never a token.
enum class PromptMarkKind : std::uint8_t { kSystemEnd, kMessageEnd };
struct PromptMark {
  std::int32_t position = 0;  // tokens before it
  PromptMarkKind kind = PromptMarkKind::kMessageEnd;
};

struct StreamRequest {
  std::string id;                     // for logs
  PrefixKey prompt;                   // tokens: at least one; identity is filled in by the engine
  std::vector<PromptMark> marks;      // ascending positions inside the prompt; may be empty
  std::int32_t reply_tokens_max = 0;  // >= 0; 0 only scores the prompt
  SamplingRule sampling;
  LogitRule logit_rule;
  std::vector<std::int32_t> stop_tokens;  // ids that end the reply (they are counted and delivered, marked)
  bool ignore_stop_tokens = false;
  std::unique_ptr<PathRule> rule;  // may be null
  bool drafts = true;              // false: the serial reference
  bool background = false;
  // Scoring: the logprob of each drawn token and its alternatives (raw distribution at temperature 1, before filters);
  // for the prompt, of each prompt token given those before it.
  std::int32_t logprobs_top = -1;  // -1: none; 0..20 alternatives
  bool score_prompt = false;
  /// Hands every committed row's logits (plan order) to the callback: tests and `verify`. Engine thread.
  std::function<void(std::int32_t sequence_index, const float* logits, std::int32_t count)> on_logits;
};

struct TokenLogprob {
  std::int32_t token = 0;
  float logprob = 0.0f;
};

enum class FinishReason { kStopToken, kStopRule, kLength, kCancelled, kError };

struct PromptProgressEvent {
  std::int32_t tokens_done = 0;
  std::int32_t tokens_total = 0;
  std::int32_t tokens_cached = 0;
};
struct PromptScoreEvent {  // with score_prompt: one per prompt token, in order; the first has no logprob
  std::int32_t index = 0;
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;
};
struct TokenEvent {
  std::int32_t token = 0;
  std::int32_t index = 0;  // in the reply, from 0
  bool is_stop_token = false;
  TokenLogprob chosen;  // with logprobs_top >= 0
  std::vector<TokenLogprob> top;
};
struct DraftTally {
  std::int32_t drafted = 0;   // draft rows fed
  std::int32_t accepted = 0;  // of them on the accepted path
};
struct StreamStatistics {
  std::int32_t prompt_tokens = 0;
  std::int32_t cached_tokens = 0;
  std::int32_t reply_tokens = 0;
  std::int32_t drawn_by_backend = 0;  // of its tokens, those drawn where the logits lie
  std::int32_t rounds = 0;
  std::int32_t drafted = 0;
  std::int32_t accepted = 0;
  std::array<DraftTally, kDraftKindCount> by_source{};  // by DraftKind; sums are `drafted` and `accepted`
  std::int32_t rows_min = 0;                            // narrowest window; 0: none yet
  std::int32_t rows_max = 0;                            // widest window
  std::int32_t preemptions = 0;                         // times its lane was given to a foreground stream
  std::vector<std::int32_t> prefill_widths;             // rows of each prompt slice, the first kPrefillWidthsMax
  std::uint64_t seed = 0;
  double queue_seconds = 0;
  double prefill_seconds = 0;
  double time_to_first_token_seconds = 0;
  double decode_seconds = 0;
};
struct FinishEvent {
  FinishReason reason = FinishReason::kLength;
  std::string message;  // kError: what to tell the client
  StreamStatistics statistics;
};
using StreamEvent = std::variant<PromptProgressEvent, PromptScoreEvent, TokenEvent, FinishEvent>;

/// Called on the engine thread for each event, in order, FinishEvent last and exactly once. Must not block and must not
/// call back into the engine; `serve` posts to its own executor.
using StreamSink = std::function<void(StreamEvent&&)>;

/// Handle of an open stream. Dropping it does not cancel.
class StreamHandle {
 public:
  virtual ~StreamHandle() = default;
  /// Any thread, any moment; takes effect within one round and yields FinishEvent(kCancelled) unless already finished.
  virtual void cancel() = 0;
};

/// Keeping states on disk (`--learn`).
struct LearnOptions {
  std::string folder;          // "": off
  bool conversations = false;  // every prompt and reply, not only system prompts
  std::uint64_t bytes_max = 32ull << 30;
  std::uint64_t free_bytes_min = 4ull << 30;  // pauses while the disk has less left
  std::uint64_t daily_bytes_max = 32ull << 30;
  std::int32_t tokens_min = 256;     // a shorter prefix isn't worth a file
  std::shared_ptr<FileLayer> files;  // null: the system's (tests make disks fail)
};

struct EngineOptions {
  std::int32_t lanes = 0;                // --parallel; 0 = auto (up to 8, fewer if memory says so)
  std::int32_t context = 0;              // --context; 0 = what model and memory allow
  std::uint64_t cache_memory_bytes = 0;  // for KV pages and state slots; 0 = from the machine's free memory
  std::int64_t prompt_cache_bytes = 0;   // for kept prefixes, beside cache_memory_bytes; 0 = none, -1 = from what is left
  bool prompt_cache_over_cap = false;    // take prompt_cache_bytes however much of the free memory it is
  bool prompt_cache_shared = false;      // prefixes serve every owner, not only the one that computed them
  LearnOptions learn;
  double pass_seconds_max = 0.25;        // bound of one pass; prompt slices are sized from measured cost
  bool drafts = true;                    // false: every stream is the serial reference
  std::shared_ptr<RecallStore> recall;   // what earlier requests wrote, to draft from; may be null
  std::int32_t mtp_drafts = -1;          // levels of the MTP head; -1: as many as it is good for, 0: none
  double mtp_confidence = -1.0;          // where its chains end (MtpOptions); below 0: the default
  std::vector<std::shared_ptr<DraftSource>> draft_sources;  // tests: instead of the engine's own
  std::int32_t pass_rows_max = 0;                           // test hook: cap on rows in one pass (0 = the model's)
  std::uint64_t schedule_seed = 0;  // test hook: != 0 cuts prompts and mixes lanes at random (fold test)
  bool poison_freed = false;        // test hook: freed pages and slots are filled with NaN
};

struct EngineFacts {
  ModelFacts model;
  std::int32_t lanes = 0;
  std::int32_t context = 0;  // prompt + reply tokens of one stream; promised for every lane at once
  std::uint64_t cache_bytes = 0;
  std::uint64_t prefix_bytes = 0;  // for kept prefixes; 0: none are kept
  std::string learn_folder;        // where states are kept on disk; "": nowhere
  bool scores_prompt = true;
  std::vector<std::string> draft_kinds;  // empty in the first form
};

struct DraftCounts {
  std::uint64_t windows = 0;   // that a source filled
  std::uint64_t drafted = 0;   // draft rows fed
  std::uint64_t accepted = 0;  // of them on the accepted path
};
using DraftCountsBySource = std::array<DraftCounts, kDraftKindCount>;  // by DraftKind

struct EngineLoad {  // a snapshot for health and metrics
  std::int32_t running = 0;
  std::int32_t waiting = 0;
  double decode_tokens_per_second = 0;
  double prefill_tokens_per_second = 0;
  std::uint64_t prompt_tokens_total = 0;
  std::uint64_t reply_tokens_total = 0;
  std::uint64_t rounds_total = 0;
  std::uint64_t cached_tokens_total = 0;  // of prompts, resumed instead of computed
  std::uint64_t prefix_queries_total = 0, prefix_hits_total = 0;
  std::uint64_t prefix_waits_total = 0;  // streams that waited for a prefix another one was computing
  std::uint64_t prefix_bytes = 0;        // held by kept prefixes now
  DraftCountsBySource drafts_total{};
  std::uint64_t preemptions_total = 0;
};

class Engine {
 public:
  /// Sizes and allocates caches, starts the engine thread. Throws Error when the options can't be honoured, with
  /// advice.
  static std::unique_ptr<Engine> start(std::unique_ptr<LanguageModel> model, const EngineOptions& options);
  virtual ~Engine() = default;  // cancels what runs and joins the thread

  virtual const EngineFacts& facts() const = 0;
  virtual EngineLoad load() const = 0;

  /// Checks the request (ids inside the vocabulary, prompt + reply within the context, rule sane) and queues it. Throws
  /// Error(kInvalidArgument) for a bad request, Error(kResourceExhausted) when the queue is full.
  virtual std::unique_ptr<StreamHandle> open(StreamRequest request, StreamSink sink) = 0;
};

}  // namespace tensorfold
