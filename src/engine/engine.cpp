// The engine's public face (engine.h): checks a request on the caller's thread and hands it to the engine thread.
#include "engine/engine.h"

#include <algorithm>
#include <cmath>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/limits.h"
#include "base/log.h"
#include "engine/cache/disk_store.h"
#include "engine/capacity.h"
#include "engine/draft/source_list.h"
#include "engine/engine_loop.h"
#include "engine/mailbox.h"

namespace tensorfold {
namespace {

constexpr std::int32_t kLogprobsTopMax = 20;

class Handle : public StreamHandle {
 public:
  Handle(std::shared_ptr<Stream> stream, std::shared_ptr<Mailbox> mailbox)
      : stream_(std::move(stream)), mailbox_(std::move(mailbox)) {}

  void cancel() override {
    stream_->request_cancel();
    mailbox_->ring();
  }

 private:
  std::shared_ptr<Stream> stream_;
  std::shared_ptr<Mailbox> mailbox_;
};

void check_context(const StreamRequest& request, const EngineFacts& facts, bool context_was_reduced) {
  const std::int64_t prompt = static_cast<std::int64_t>(request.prompt.tokens.size());
  const std::int64_t reply = request.reply_tokens_max, context = facts.context;
  if (prompt + reply <= context) return;
  const std::string reduced =
      context_was_reduced
          ? fmt::format(" (The model supports {}; the window was reduced to fit this machine's memory.)",
                        facts.model.context_max)
          : "";
  if (prompt >= context) {
    fail(
        ErrorCode::kInvalidArgument,
        "This server's maximum context length is {} tokens. The prompt has {} tokens and leaves no room for a reply; a "
        "prompt of up to {} tokens would fit.{}",
        context, prompt, context - 1, reduced);
  }
  fail(
      ErrorCode::kInvalidArgument,
      "This server's maximum context length is {} tokens. The prompt has {} tokens and {} reply tokens were requested; "
      "up to {} reply tokens would fit.{}",
      context, prompt, reply, context - prompt, reduced);
}

void check_marks(const StreamRequest& request) {
  const std::vector<PromptMark>& marks = request.marks;
  if (marks.size() > limits::kPromptMarksMax) {
    fail(ErrorCode::kInvalidArgument, "At most {} prompt marks can be given, not {}.", limits::kPromptMarksMax,
         marks.size());
  }
  std::int32_t before = 0;
  for (const PromptMark& mark : marks) {
    if (mark.position <= before || mark.position > static_cast<std::int32_t>(request.prompt.tokens.size())) {
      fail(ErrorCode::kInvalidArgument, "Prompt mark {} isn't behind the one before it and inside the prompt.",
           mark.position);
    }
    before = mark.position;
  }
}

void check_sampling(const SamplingRule& rule) {
  if (!std::isfinite(rule.temperature)) fail(ErrorCode::kInvalidArgument, "temperature must be a finite number.");
  if (!std::isfinite(rule.top_p)) fail(ErrorCode::kInvalidArgument, "top_p must be a finite number.");
  if (!(rule.min_p >= 0.0 && rule.min_p <= 1.0)) {
    fail(ErrorCode::kInvalidArgument, "min_p must be between 0 and 1.");
  }
}

void check_logit_rule(const LogitRule& rule, std::int32_t vocabulary_size) {
  if (!std::isfinite(rule.repetition_penalty) || rule.repetition_penalty <= 0.0) {
    fail(ErrorCode::kInvalidArgument, "repetition_penalty must be above 0.");
  }
  if (!std::isfinite(rule.frequency_penalty) || !std::isfinite(rule.presence_penalty)) {
    fail(ErrorCode::kInvalidArgument, "Penalties must be finite numbers.");
  }
  if (rule.bias.size() > limits::kLogitBiasTokensMax) {
    fail(ErrorCode::kInvalidArgument, "logit_bias names {} tokens; {} are possible.", rule.bias.size(),
         limits::kLogitBiasTokensMax);
  }
  std::int32_t last = -1;
  for (const TokenBias& bias : rule.bias) {
    if (bias.token <= last || bias.token >= vocabulary_size || !std::isfinite(bias.bias)) {
      fail(ErrorCode::kInvalidArgument,
           "logit_bias must have finite values for ascending ids from 0 to {}, and has {} for id {}.",
           vocabulary_size - 1, bias.bias, bias.token);
    }
    last = bias.token;
  }
}

void check_request(const StreamRequest& request, const EngineFacts& facts, bool context_was_reduced) {
  if (request.prompt.tokens.empty()) {
    fail(ErrorCode::kInvalidArgument, "The prompt is empty; give at least one token.");
  }
  if (request.reply_tokens_max < 0) {
    fail(ErrorCode::kInvalidArgument, "The number of reply tokens must be 0 or more, not {}.",
         request.reply_tokens_max);
  }
  check_context(request, facts, context_was_reduced);
  for (std::size_t i = 0; i < request.prompt.tokens.size(); ++i) {
    const std::int32_t token = request.prompt.tokens[i];
    if (token < 0 || token >= facts.model.vocabulary_size) {
      fail(ErrorCode::kInvalidArgument, "Prompt token {} is id {}; this model's ids are 0 to {}.", i, token,
           facts.model.vocabulary_size - 1);
    }
  }
  if (!request.prompt.media.empty()) fail(ErrorCode::kUnsupported, "This model reads text only.");
  check_marks(request);
  if (request.logprobs_top < -1 || request.logprobs_top > kLogprobsTopMax) {
    fail(ErrorCode::kInvalidArgument, "At most {} alternatives per token can be reported, not {}.", kLogprobsTopMax,
         request.logprobs_top);
  }
  check_sampling(request.sampling);
  check_logit_rule(request.logit_rule, facts.model.vocabulary_size);
}

/// What a kept state depends on beside its tokens: the checkpoint, who computes and how, and how the caches are laid
/// out.
std::string identity_of(const ModelFacts& facts) {
  std::string identity = fmt::format("{} {} {} arithmetic {} page {}", facts.checkpoint_id, facts.family, facts.backend,
                                     facts.arithmetic_version, limits::kKvPageTokens);
  // Every x86-64 path of the CPU backend has the same bits; others don't promise it.
  const bool is_x86 = facts.backend == "cpu" && facts.backend_path != "neon";
  if (!is_x86) identity += " " + facts.backend_path;
  for (const CacheGroup& group : facts.groups) {
    identity += fmt::format(" [{} {} {} {} {}{}]", static_cast<int>(group.kind), group.layer_count, group.window,
                            group.page_bytes, group.slot_bytes, group.draft ? " draft" : "");
  }
  return identity;
}

class RunningEngine : public Engine {
 public:
  RunningEngine(std::unique_ptr<LanguageModel> model, const EngineOptions& options)
      : model_(std::move(model)), mailbox_(std::make_shared<Mailbox>()) {
    model_->warm_up(options.pass_rows_max > 0 ? options.pass_rows_max : model_->facts().pass_rows_max);
    const Capacity capacity = plan_capacity(model_->facts(), options, model_->memory_available());
    model_->allocate_caches(capacity.page_counts, capacity.slot_count, capacity.window_rows);
    model_->reserve_passes(capacity.pass_rows, capacity.lanes,
                           capacity.lanes + scored_rows_max(model_->facts(), capacity.pass_rows));
    facts_.model = model_->facts();
    facts_.lanes = capacity.lanes;
    facts_.context = capacity.context;
    facts_.cache_bytes = capacity.cache_bytes;
    facts_.prefix_bytes = capacity.prefix_budget.bytes;
    context_was_reduced_ = capacity.context_was_reduced;
    identity_ = identity_of(facts_.model);
    std::vector<std::shared_ptr<DraftSource>> sources = make_draft_sources(*model_, options);
    for (const auto& source : sources) facts_.draft_kinds.emplace_back(draft_kind_name(source->facts().kind));
    loop_ = std::make_unique<EngineLoop>(*model_, *mailbox_, capacity, options, std::move(sources),
                                         open_store(options, capacity), identity_);
    thread_ = std::thread([this] { loop_->run(); });
    spdlog::debug("engine: {} lanes of {} tokens, {} cache bytes", facts_.lanes, facts_.context, facts_.cache_bytes);
  }

  ~RunningEngine() override {
    mailbox_->stop();
    thread_.join();
  }

  const EngineFacts& facts() const override { return facts_; }
  EngineLoad load() const override { return loop_->load(); }

  std::unique_ptr<StreamHandle> open(StreamRequest request, StreamSink sink) override {
    TF_ASSERT(sink != nullptr);
    check_request(request, facts_, context_was_reduced_);
    request.prompt.identity = identity_;
    auto stream = std::make_shared<Stream>(std::move(request), std::move(sink));
    auto handle = std::make_unique<Handle>(stream, mailbox_);  // first: a stream without one could not be cancelled
    mailbox_->post(std::move(stream));
    return handle;
  }

 private:
  std::unique_ptr<DiskStore> open_store(const EngineOptions& options, const Capacity& capacity) {
    const LearnOptions& learn = options.learn;
    if (learn.folder.empty()) return nullptr;
    if (capacity.prefix_budget.is_empty() || facts_.model.checkpoint_id.empty()) {
      spdlog::warn("learning is off: {}", capacity.prefix_budget.is_empty()
                                              ? "there is no memory for kept prefixes (--prompt-cache-gib)"
                                              : "the checkpoint has no identity");
      return nullptr;
    }
    DiskStoreOptions store;
    store.folder = learn.folder;
    store.bytes_max = learn.bytes_max;
    store.free_bytes_min = learn.free_bytes_min;
    store.daily_bytes_max = learn.daily_bytes_max;
    store.files = learn.files;
    const std::vector<CacheGroup>& groups = facts_.model.groups;
    const bool resumes_anywhere = std::all_of(groups.begin(), groups.end(), [](const CacheGroup& group) {
      return group.kind != CacheKind::kRecurrent && !(group.kind == CacheKind::kSliding && group.window > 0);
    });
    auto opened = DiskStore::open(store, resumes_anywhere, [mailbox = mailbox_] { mailbox->ring(); });
    if (opened != nullptr) facts_.learn_folder = learn.folder;
    return opened;
  }

  std::unique_ptr<LanguageModel> model_;
  std::shared_ptr<Mailbox> mailbox_;
  EngineFacts facts_;
  std::string identity_;
  bool context_was_reduced_ = false;
  std::unique_ptr<EngineLoop> loop_;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Engine> Engine::start(std::unique_ptr<LanguageModel> model, const EngineOptions& options) {
  TF_ASSERT(model != nullptr);
  return std::make_unique<RunningEngine>(std::move(model), options);
}

}  // namespace tensorfold
