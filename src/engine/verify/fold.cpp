// The fold test (see fold.h).
#include "engine/verify/fold.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/draft/copy_source.h"
#include "engine/draft/recall_store.h"
#include "engine/engine.h"
#include "engine/host_sampler.h"
#include "engine/logit_adjust.h"
#include "engine/verify/oracle_source.h"
#include "engine/verify/random_rule.h"
#include "engine/verify/serial_run.h"

namespace tensorfold::fold {
namespace {

/// A row's logits as two independent hashes of their bits: whole rows of a large vocabulary would not fit in memory.
struct RowBits {
  std::uint64_t first = 0, second = 0;
  bool operator==(const RowBits&) const = default;
};

RowBits row_bits(const float* logits, std::int32_t count) {
  RowBits bits{0x243f6a8885a308d3u, 0x13198a2e03707344u};
  for (std::int32_t i = 0; i < count; ++i) {
    const std::uint64_t value = std::bit_cast<std::uint32_t>(logits[i]);
    bits.first = (bits.first ^ value) * 0x9E3779B97F4A7C15u;
    bits.first ^= bits.first >> 29;
    bits.second = std::rotl(bits.second, 23) * 0xD1B54A32D192ED03u + value;
  }
  return bits;
}

struct RecordedRow {
  std::int32_t sequence_index = 0;
  RowBits bits;
};

/// A row that should have been another: kept to count its bits.
struct DifferingRow {
  std::size_t index = 0;
  std::vector<float> logits;
};
constexpr std::size_t kDifferingRowsKept = 4;  // of a stream

/// What a schedule brought of a stream. Filled on the engine thread and read after the stream finished.
struct Outcome {
  std::vector<std::int32_t> reply;
  std::vector<RecordedRow> rows;
  std::vector<DifferingRow> differing;
  std::int32_t events = 0;
  bool is_after_restart = false;  // opened before anything else was on its engine
  FinishReason reason = FinishReason::kError;
  std::string message;
  StreamStatistics statistics;
  std::unique_ptr<StreamHandle>
      handle;  // exists only once open() has returned; with cancel_wanted under the record's mutex
  bool cancel_wanted = false;
};

/// One stream: what is asked, what the plain run says, how the running schedule asks, and what comes of it.
struct Record {
  std::vector<std::int32_t> prompt;
  std::int32_t reply_tokens_max = 0;
  SamplingRule sampling;
  LogitRule logit_rule;
  std::optional<std::uint64_t> rule_seed;

  std::vector<std::int32_t> expected_reply;
  std::vector<RowBits> expected_rows;  // by sequence index
  FinishReason expected_reason = FinishReason::kLength;

  bool drafts = true;
  std::int32_t cancel_after_events = -1;
  bool shows_logits = true;  // else its tokens alone are compared

  Outcome outcome;
  std::mutex mutex;
};

/// Schedules of the same streams, one after another.
class Schedules {
 public:
  Schedules(const MakeModel& make_model, const Options& options, std::int32_t first, Report& report)
      : make_model_(make_model),
        options_(options),
        first_(first),
        number_(first),
        report_(report),
        random_(generator()) {}

  void run(std::int32_t count) {
    model_ = make_model_(first_);
    facts_ = model_->facts();
    context_ = std::min(facts_.context_max, options_.prompt_tokens_max + options_.reply_tokens_max + 1);
    const auto begin = std::chrono::steady_clock::now();
    run_plain();
    report_.plain_run_s += seconds_since(begin);
    for (number_ = first_; number_ < first_ + count; ++number_) {
      if (number_ > first_) begin_another();
      const auto engine_begin = std::chrono::steady_clock::now();
      run_engine();
      report_.engine_s += seconds_since(engine_begin);
      for (std::size_t index = 0; index < records_.size(); ++index) compare(index);
      ++report_.schedules;
      if (options_.progress) options_.progress();
    }
  }

 private:
  static double seconds_since(std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  /// Random numbers of the running schedule; `use` tells apart what shall not depend on one another.
  std::mt19937_64 generator(std::initializer_list<std::uint32_t> use = {}) const {
    std::vector<std::uint32_t> seeds = {static_cast<std::uint32_t>(options_.seed),
                                        static_cast<std::uint32_t>(options_.seed >> 32),
                                        static_cast<std::uint32_t>(number_)};
    seeds.insert(seeds.end(), use);
    std::seed_seq sequence(seeds.begin(), seeds.end());
    return std::mt19937_64(sequence);
  }
  std::int32_t draw(std::int32_t low, std::int32_t high) {
    return low + static_cast<std::int32_t>(random_() % static_cast<std::uint64_t>(high - low + 1));
  }

  void run_plain();
  void begin_another();
  void draw_streams();
  void draw_stream(Record& record, const std::vector<std::int32_t>& shared);
  void draw_cancel(Record& record);
  void run_serially(SerialRun& serial, HostSampler& sampler, Record& record);
  std::unique_ptr<PathRule> make_rule(const Record& record) const;
  std::int32_t draw_serially(HostSampler& sampler, const Record& record, const float* logits, std::size_t position,
                             const LogitAdjust& adjust, PathRule* rule);
  std::vector<std::int32_t> earlier_tokens();
  void hide_logits();
  static decltype(StreamRequest::on_logits) recorder(Record& record);
  void run_engine();
  void use_own_sources(EngineOptions& options);
  void run_wave(Engine& engine, std::size_t first, std::size_t end);
  void open(Engine& engine, Record& record, double background_share);
  void compare(std::size_t index);
  void compare_rows(std::size_t index);
  void count_mechanisms(const Record& record);
  std::uint64_t differing_bits(const Record& record);
  template <typename... Args>
  void failure(std::size_t stream, fmt::format_string<Args...> format, Args&&... args);

  const MakeModel& make_model_;
  const Options& options_;
  std::int32_t first_, number_;  // the schedules' first, the running one
  Report& report_;
  std::mt19937_64 random_;
  std::unique_ptr<LanguageModel> model_;  // until the engine takes it
  ModelFacts facts_;
  std::int32_t context_ = 0;
  std::vector<std::unique_ptr<Record>> records_;
  std::vector<std::size_t> wave_begins_;
  std::shared_ptr<KnownReplies> known_ = std::make_shared<KnownReplies>();
  std::mutex mutex_;
  std::condition_variable finished_;
  std::size_t finished_count_ = 0;
  int event_count_ = 0, events_before_rest_ = 0;
  bool rest_is_open_ = false;
  bool has_own_sources_ = false;
  std::shared_ptr<RecallStore> recall_;
};

template <typename... Args>
void Schedules::failure(std::size_t stream, fmt::format_string<Args...> format, Args&&... args) {
  if (report_.failures++ > 0) return;
  report_.first_failure = fmt::format("seed {}, schedule {}, stream {}: {}", options_.seed, number_, stream,
                                      fmt::format(format, std::forward<Args>(args)...));
}

void Schedules::draw_streams() {
  const std::int32_t count = draw(0, 5) == 0 ? 1 : draw(1, options_.streams_max);  // a lone stream's windows are wide
  std::vector<std::int32_t> shared;                                                // some prompts begin alike
  for (std::int32_t i = 0; i < options_.prompt_tokens_max; ++i) shared.push_back(draw(0, facts_.vocabulary_size - 1));
  for (std::int32_t i = 0; i < count; ++i) {
    records_.push_back(std::make_unique<Record>());
    draw_stream(*records_.back(), shared);
  }
}

void Schedules::draw_stream(Record& record, const std::vector<std::int32_t>& shared) {
  std::int32_t length = std::min(draw(1, draw(0, 2) == 0 ? 4 : options_.prompt_tokens_max), context_ - 1);
  const std::int32_t alike = draw(0, 1) == 0 ? 0 : draw(0, length);
  record.prompt.assign(shared.begin(), shared.begin() + alike);
  if (wave_begins_.back() > 0 && draw(0, 3) > 0) {
    record.prompt = earlier_tokens();
    length = std::min(static_cast<std::int32_t>(record.prompt.size()) + draw(0, 12),
                      std::min(options_.prompt_tokens_max, context_ - 1));
    if (static_cast<std::int32_t>(record.prompt.size()) > length)
      record.prompt.resize(static_cast<std::size_t>(length));
  }
  const std::int32_t period = draw(0, 3) == 0 ? draw(1, 12) : length;  // some repeat themselves: there is what to copy
  while (static_cast<std::int32_t>(record.prompt.size()) < length) {
    const auto size = static_cast<std::int32_t>(record.prompt.size());
    record.prompt.push_back(size - period >= alike ? record.prompt[static_cast<std::size_t>(size - period)]
                                                   : draw(0, facts_.vocabulary_size - 1));
  }
  record.reply_tokens_max = std::min(draw(0, options_.reply_tokens_max), context_ - length);
  record.sampling.temperature = draw(0, 2) == 0 ? 0.0 : 0.5 + 0.1 * draw(0, 10);
  record.sampling.top_k = draw(0, 1) == 0 ? 0 : draw(1, 40);
  record.sampling.top_p = draw(0, 1) == 0 ? 1.0 : 0.05 * draw(1, 19);
  record.sampling.min_p = draw(0, 3) == 0 ? 0.05 : 0.0;
  record.sampling.seed = random_();
  if (draw(0, 2) == 0) {
    record.logit_rule.repetition_penalty = 0.8 + 0.1 * draw(0, 5);
    record.logit_rule.frequency_penalty = 0.1 * draw(-3, 3);
    record.logit_rule.presence_penalty = 0.1 * draw(-3, 3);
    // A strong bias makes a reply that repeats one token, so that copies land.
    record.logit_rule.bias.push_back({draw(0, facts_.vocabulary_size - 1), draw(0, 2) == 0 ? 50.0 : 0.5 * draw(-4, 4)});
  }
  record.drafts = draw(0, 4) != 0;
  if (options_.rules && draw(0, 2) == 0) record.rule_seed = random_();
  draw_cancel(record);
}

void Schedules::draw_cancel(Record& record) {
  const bool cancels = draw(0, 999) < static_cast<std::int32_t>(options_.cancelled_share * 1000);
  record.cancel_after_events = cancels ? draw(0, options_.reply_tokens_max) : -1;
}

/// A beginning of what a stream of an earlier wave reads and writes: all of it, its prompt, or cut anywhere.
std::vector<std::int32_t> Schedules::earlier_tokens() {
  const Record& record =
      *records_[static_cast<std::size_t>(draw(0, static_cast<std::int32_t>(wave_begins_.back()) - 1))];
  std::vector<std::int32_t> tokens = record.prompt;
  tokens.insert(tokens.end(), record.expected_reply.begin(), record.expected_reply.end());
  const std::int32_t how = draw(0, 3);
  if (how == 0) tokens.resize(record.prompt.size());
  if (how == 1) tokens.resize(static_cast<std::size_t>(draw(1, static_cast<std::int32_t>(tokens.size()))));
  return tokens;
}

/// Draws the streams of all waves and what they must give. Wave by wave: later ones go on from replies of earlier ones.
void Schedules::run_plain() {
  SerialRun serial(options_.make_reference ? options_.make_reference(first_) : make_model_(first_), context_);
  HostSampler sampler(facts_.vocabulary_size);
  for (std::int32_t wave = 0; wave < options_.waves; ++wave) {
    wave_begins_.push_back(records_.size());
    draw_streams();
    for (std::size_t i = wave_begins_.back(); i < records_.size(); ++i) run_serially(serial, sampler, *records_[i]);
  }
}

/// The same streams once more: what came of them is forgotten, and what isn't theirs is drawn anew.
void Schedules::begin_another() {
  random_ = generator();
  model_ = make_model_(first_);
  finished_count_ = 0;
  event_count_ = 0;
  recall_.reset();
  for (const auto& record : records_) {
    record->outcome = {};
    record->drafts = draw(0, 4) != 0;
    draw_cancel(*record);
  }
}

std::unique_ptr<PathRule> Schedules::make_rule(const Record& record) const {
  if (!record.rule_seed) return nullptr;
  return std::make_unique<RandomRule>(*record.rule_seed, facts_.vocabulary_size);
}

std::int32_t Schedules::draw_serially(HostSampler& sampler, const Record& record, const float* logits,
                                      std::size_t position, const LogitAdjust& adjust, PathRule* rule) {
  std::vector<std::uint32_t> allowed((static_cast<std::size_t>(facts_.vocabulary_size) + 31) / 32, 0);
  bool masked = false;
  if (rule != nullptr) {
    const std::vector<std::int32_t> forced = rule->forced_tokens();
    if (!forced.empty()) return forced.front();
    masked = rule->mask(allowed);
  }
  std::vector<AdjustedLogit> adjusted;
  adjust.collect(logits, {}, adjusted);
  const Draw drawn = sampler.draw(logits, masked ? allowed.data() : nullptr, record.sampling,
                                  static_cast<std::int64_t>(position), adjusted);
  if (drawn.status != DrawStatus::kDrawn) fail(ErrorCode::kInternal, "the plain run drew no token {}", position);
  return drawn.token;
}

// Every token but the last is fed.
void Schedules::run_serially(SerialRun& serial, HostSampler& sampler, Record& record) {
  std::vector<std::int32_t> tokens = record.prompt;
  LogitAdjust adjust(record.logit_rule, record.prompt);
  const std::unique_ptr<PathRule> rule = make_rule(record);
  const std::size_t end = record.prompt.size() + static_cast<std::size_t>(record.reply_tokens_max);
  serial.begin();
  for (std::size_t i = 0; i < std::max(record.prompt.size(), end - 1); ++i) {
    const float* logits = serial.feed(tokens[i]);
    record.expected_rows.push_back(row_bits(logits, facts_.vocabulary_size));
    if (i + 1 < record.prompt.size() || i + 1 >= end) continue;
    const std::int32_t token = draw_serially(sampler, record, logits, i + 1, adjust, rule.get());
    const PathRule::Verdict verdict = rule ? rule->advance(token) : PathRule::Verdict::kContinue;
    if (verdict != PathRule::Verdict::kContinue) record.expected_reason = FinishReason::kStopRule;
    if (verdict == PathRule::Verdict::kCut) break;
    tokens.push_back(token);
    adjust.commit(token);
    if (verdict == PathRule::Verdict::kStop) break;
  }
  record.expected_reply.assign(tokens.begin() + static_cast<std::ptrdiff_t>(record.prompt.size()), tokens.end());
  known_->add(std::move(tokens));
}

decltype(StreamRequest::on_logits) Schedules::recorder(Record& record) {
  return [&record](std::int32_t sequence_index, const float* logits, std::int32_t count) {
    record.outcome.rows.push_back({sequence_index, row_bits(logits, count)});
    const auto at = static_cast<std::size_t>(sequence_index);
    const bool differs =
        at < record.expected_rows.size() && record.outcome.rows.back().bits != record.expected_rows[at];
    if (differs && record.outcome.differing.size() < kDifferingRowsKept) {
      record.outcome.differing.push_back({at, std::vector<float>(logits, logits + count)});
    }
  };
}

void Schedules::open(Engine& engine, Record& record, double background_share) {
  StreamRequest request;
  request.id = fmt::format("fold-{}", number_);
  request.prompt.tokens = record.prompt;
  request.reply_tokens_max = record.reply_tokens_max;
  request.sampling = record.sampling;
  request.logit_rule = record.logit_rule;
  request.drafts = record.drafts;
  request.rule = make_rule(record);
  const auto prompt_length = static_cast<std::int32_t>(record.prompt.size());
  if (options_.waves > 1 && prompt_length > 2 && draw(0, 1) == 0) {
    request.marks.push_back({draw(1, prompt_length - 1), PromptMarkKind::kSystemEnd});
  }
  request.background = draw(0, 999) < static_cast<std::int32_t>(background_share * 1000);
  if (record.shows_logits) request.on_logits = recorder(record);
  auto sink = [this, &record](StreamEvent&& event) {
    if (const auto* token = std::get_if<TokenEvent>(&event)) record.outcome.reply.push_back(token->token);
    if (const auto* finish = std::get_if<FinishEvent>(&event)) {
      record.outcome.reason = finish->reason;
      record.outcome.message = finish->message;
      record.outcome.statistics = finish->statistics;
      const std::lock_guard lock(mutex_);
      ++finished_count_;
      finished_.notify_all();
      return;
    }
    {
      // The engine stands still until the late streams are there, however fast the model is.
      std::unique_lock lock(mutex_);
      const bool is_time = ++event_count_ == events_before_rest_;
      finished_.notify_all();
      if (is_time) finished_.wait(lock, [this] { return rest_is_open_; });
    }
    if (record.outcome.events++ != record.cancel_after_events) return;
    const std::lock_guard lock(record.mutex);
    record.outcome.cancel_wanted = true;
    if (record.outcome.handle) record.outcome.handle->cancel();
  };
  auto handle = engine.open(std::move(request), std::move(sink));
  const std::lock_guard lock(record.mutex);
  record.outcome.handle = std::move(handle);
  if (record.outcome.cancel_wanted) record.outcome.handle->cancel();
}

/// By draws of its own, so that what else is drawn doesn't depend on it.
void Schedules::hide_logits() {
  std::mt19937_64 random = generator({1});
  const auto happens = [&random](double share) { return static_cast<double>(random() % 1000) < share * 1000; };
  const bool all = happens(options_.hidden_schedules);
  for (const auto& record : records_) record->shows_logits = !happens(options_.hidden_streams) && !all;
}

void Schedules::run_engine() {
  hide_logits();
  EngineOptions options;
  options.lanes = draw(1, draw(0, 2) == 0 ? std::min(options_.lanes_max, 3) : options_.lanes_max);
  options.poison_freed = options_.poison_freed;
  options.schedule_seed = draw(0, 4) == 0 ? 0 : random_() | 1u;  // now and then the scheduler that serves
  options.context = context_;
  options.cache_memory_bytes = 1ull << 34;  // the promise is for all lanes at once; a schedule is smaller than this
  options.pass_rows_max = draw(0, 1) == 0 ? 0 : draw(1, facts_.pass_rows_max);
  OracleOptions oracle_options;
  oracle_options.vocabulary_size = facts_.vocabulary_size;
  oracle_options.wrong_share = 0.1 * draw(0, 4);
  oracle_options.tree_share = options_.trees ? 0.25 * draw(0, 4) : 0.0;
  oracle_options.seed = random_();
  oracle_options.known = known_;
  if (draw(0, 2) == 0) oracle_options.facts.depth_max = limits::kWideWindowRowsMax - 1;
  const auto oracle = std::make_shared<OracleSource>(oracle_options);
  options.drafts = options_.drafts && draw(0, 5) != 0;
  // Without the oracle a stream's own text is all there is to draft from: windows get as wide as copies go.
  const bool knows = draw(0, 3) != 0;
  if (knows) options.draft_sources.push_back(oracle);
  if (!knows || draw(0, 1) == 0) options.draft_sources.push_back(std::make_shared<CopySource>());
  has_own_sources_ = options_.own_sources && options_.drafts && number_ % 3 == 2;
  if (has_own_sources_) use_own_sources(options);
  if (options_.prompt_cache_bytes_max > 0) {
    options.prompt_cache_bytes =
        draw(0, static_cast<std::int32_t>(
                    std::min<std::int64_t>(options_.prompt_cache_bytes_max, std::numeric_limits<std::int32_t>::max())));
    options.prompt_cache_over_cap = true;
  }
  if (!options_.learn_folder.empty()) {
    // What the schedule before kept of the same streams would leave nothing to compute.
    options.learn.folder = options_.learn_folder;
    if (number_ > first_) options.learn.folder += fmt::format("-{}", number_ - first_);
    options.learn.conversations = true;
    options.learn.free_bytes_min = 0;
    options.learn.tokens_min = 1;
  }
  std::unique_ptr<Engine> engine = Engine::start(std::move(model_), options);
  for (std::size_t wave = 0; wave < wave_begins_.size(); ++wave) {
    const std::size_t first = wave_begins_[wave];
    const std::size_t end = wave + 1 < wave_begins_.size() ? wave_begins_[wave + 1] : records_.size();
    if (wave > 0 && !options_.learn_folder.empty() && draw(0, 1) == 0) {
      engine.reset();
      engine = Engine::start(make_model_(first_), options);
      ++report_.restarts;
      for (std::size_t i = first; i < end; ++i) records_[i]->outcome.is_after_restart = true;
    }
    run_wave(*engine, first, end);
    if (recall_ != nullptr) recall_->flush();  // what this wave wrote drafts for the next
  }
  engine.reset();  // its thread is done with the oracle
  report_.chains += static_cast<std::uint64_t>(oracle->chains);
  report_.trees += static_cast<std::uint64_t>(oracle->trees);
  for (std::size_t i = 0; i < report_.windows_by_landed.size(); ++i) {
    report_.windows_by_landed[i] += static_cast<std::uint64_t>(oracle->landed_windows[i]);
  }
  if (oracle->contract_breaches > 0) failure(0, "the engine broke its contract with draft sources");
  if (oracle->opened != oracle->closed)
    failure(0, "{} drafters opened, {} closed", oracle->opened.load(), oracle->closed.load());
}

void Schedules::use_own_sources(EngineOptions& options) {
  ++report_.schedules_with_own_sources;
  options.drafts = true;
  options.draft_sources.clear();
  options.mtp_confidence = 0.0;  // chains as deep as they are asked for: deep ones are mostly wrong
  if (options_.recall_folder.empty()) return;
  RecallOptions recall;
  recall.folder = options_.recall_folder;
  recall.bytes_max = limits::kRecallBytesMin;
  recall.vocabulary_size = facts_.vocabulary_size;
  recall_ = options.recall = std::make_shared<RecallStore>(recall);
}

/// Some come while others run, and take the lanes of those in the background.
void Schedules::run_wave(Engine& engine, std::size_t first, std::size_t end) {
  const std::size_t early = draw(0, 1) == 0 ? end : first + (end - first) / 2;
  {
    const std::lock_guard lock(mutex_);
    events_before_rest_ = event_count_ + draw(1, 60);
    rest_is_open_ = early == end;
  }
  for (std::size_t i = first; i < end; ++i) {
    if (i == early) {
      std::unique_lock lock(mutex_);
      finished_.wait(lock, [&] { return event_count_ >= events_before_rest_ || finished_count_ == early; });
    }
    open(engine, *records_[i], i < early ? 0.5 : 0.1);
  }
  std::unique_lock lock(mutex_);
  rest_is_open_ = true;
  finished_.notify_all();
  finished_.wait(lock, [&] { return finished_count_ == end; });
}

void Schedules::count_mechanisms(const Record& record) {
  ++report_.streams;
  const StreamStatistics& statistics = record.outcome.statistics;
  report_.streams_cancelled += record.outcome.reason == FinishReason::kCancelled ? 1 : 0;
  report_.streams_with_penalties += record.logit_rule.bias.empty() ? 0 : 1;
  report_.streams_with_rules += record.rule_seed ? 1 : 0;
  report_.streams_ended_by_rules += record.outcome.reason == FinishReason::kStopRule ? 1 : 0;
  report_.streams_without_logits += record.shows_logits ? 0 : 1;
  report_.drawn_by_backend += static_cast<std::uint64_t>(statistics.drawn_by_backend);
  report_.preemptions += static_cast<std::uint64_t>(statistics.preemptions);
  report_.drafted += static_cast<std::uint64_t>(statistics.drafted);
  report_.accepted += static_cast<std::uint64_t>(statistics.accepted);
  for (std::size_t kind = 0; kind < kDraftKindCount; ++kind) {
    // The oracle passes for an MTP head.
    const bool of_oracle = !has_own_sources_ && static_cast<DraftKind>(kind) == DraftKind::kMtp;
    std::uint64_t& drafted = of_oracle ? report_.drafted_by_oracle : report_.drafted_by_source[kind];
    std::uint64_t& accepted = of_oracle ? report_.accepted_by_oracle : report_.accepted_by_source[kind];
    drafted += static_cast<std::uint64_t>(statistics.by_source[kind].drafted);
    accepted += static_cast<std::uint64_t>(statistics.by_source[kind].accepted);
  }
  report_.copies += statistics.by_source[static_cast<std::size_t>(DraftKind::kCopy)].drafted > 0 ? 1 : 0;
  report_.wide_windows += statistics.rows_max > limits::kWindowRowsMax ? 1 : 0;
  if (statistics.cached_tokens == 0) return;
  ++report_.streams_resumed;
  report_.rows_resumed += static_cast<std::uint64_t>(statistics.cached_tokens);
  report_.streams_resumed_after_restart += record.outcome.is_after_restart ? 1 : 0;
}

/// Runs the stream's tokens once more, one row a pass, to see how far the kept rows are off.
std::uint64_t Schedules::differing_bits(const Record& record) {
  std::uint64_t bits = 0, rows = 0;
  for (const RecordedRow& row : record.outcome.rows) {
    const auto at = static_cast<std::size_t>(row.sequence_index);
    rows += at < record.expected_rows.size() && row.bits != record.expected_rows[at] ? 1 : 0;
  }
  if (rows == 0) return 0;
  std::vector<std::int32_t> tokens = record.prompt;
  tokens.insert(tokens.end(), record.expected_reply.begin(), record.expected_reply.end());
  SerialRun serial(options_.make_reference ? options_.make_reference(first_) : make_model_(first_), context_);
  serial.begin();
  for (std::size_t i = 0; i < record.expected_rows.size(); ++i) {
    const float* logits = serial.feed(tokens[i]);
    for (const DifferingRow& row : record.outcome.differing) {
      if (row.index != i) continue;
      for (std::size_t id = 0; id < row.logits.size(); ++id) {
        bits += static_cast<std::uint64_t>(
            std::popcount(std::bit_cast<std::uint32_t>(row.logits[id]) ^ std::bit_cast<std::uint32_t>(logits[id])));
      }
    }
  }
  return bits + rows - std::min<std::uint64_t>(rows, record.outcome.differing.size());
}

void Schedules::compare(std::size_t index) {
  const Record& record = *records_[index];
  count_mechanisms(record);
  report_.differing_bits += differing_bits(record);
  const bool cancelled = record.outcome.reason == FinishReason::kCancelled;
  if (record.outcome.reason != record.expected_reason && !(cancelled && record.cancel_after_events >= 0)) {
    return failure(index, "ended with reason {} instead of {} ({})", static_cast<int>(record.outcome.reason),
                   static_cast<int>(record.expected_reason), record.outcome.message);
  }
  if (!record.drafts && record.outcome.statistics.drafted > 0) return failure(index, "drafted although it must not");
  if (!cancelled && record.outcome.reply.size() != record.expected_reply.size()) {
    return failure(index, "gave {} of {} reply tokens", record.outcome.reply.size(), record.expected_reply.size());
  }
  if (record.shows_logits) compare_rows(index);
  for (std::size_t i = 0; i < record.outcome.reply.size(); ++i) {
    ++report_.tokens_compared;
    if (i >= record.expected_reply.size() || record.outcome.reply[i] != record.expected_reply[i]) {
      return failure(index, "reply token {} is {}, not the plain run's", i, record.outcome.reply[i]);
    }
  }
}

/// Each fed row was reported once, in order. Those of a kept prefix weren't fed; a preempted stream may find more of
/// its prompt kept when it comes again.
void Schedules::compare_rows(std::size_t index) {
  const Record& record = *records_[index];
  const bool cancelled = record.outcome.reason == FinishReason::kCancelled;
  const std::size_t prompt = record.prompt.size();
  const auto cached = static_cast<std::size_t>(record.outcome.statistics.cached_tokens);
  const bool may_skip = options_.prompt_cache_bytes_max > 0 && record.outcome.statistics.preemptions > 0;
  if (!cancelled && !may_skip && record.outcome.rows.size() + cached != record.expected_rows.size()) {
    return failure(index, "reported {} rows after {}, expected {} in all", record.outcome.rows.size(), cached,
                   record.expected_rows.size());
  }
  std::size_t next = cached;
  for (const RecordedRow& row : record.outcome.rows) {
    const auto at = static_cast<std::size_t>(row.sequence_index);
    const bool skips = may_skip && at > next && at < prompt;
    if ((at != next && !skips) || at >= record.expected_rows.size()) {
      return failure(index, "row {} was reported as index {}", next, row.sequence_index);
    }
    next = at + 1;
    ++report_.rows_compared;
    if (row.bits != record.expected_rows[at]) {
      return failure(index, "logits of row {} differ from the one-row-at-a-time run's ({} prompt tokens)", at, prompt);
    }
  }
  if (!cancelled && next != record.expected_rows.size()) {
    return failure(index, "the last row reported is {}, not {}", next, record.expected_rows.size());
  }
}

}  // namespace

Report run(const MakeModel& make_model, const Options& options) {
  Report report;
  const std::int32_t together = options.schedules_per_plain_run;
  TF_ASSERT(together >= 1);
  for (std::int32_t part = options.first; part * together < options.schedules; part += options.step) {
    const std::int32_t first = part * together;
    Schedules(make_model, options, first, report).run(std::min(together, options.schedules - first));
  }
  return report;
}

}  // namespace tensorfold::fold
