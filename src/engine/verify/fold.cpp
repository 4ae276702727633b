// The fold test (see fold.h).
#include "engine/verify/fold.h"

#include <algorithm>
#include <bit>
#include <condition_variable>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/host_sampler.h"
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

/// One stream of a schedule: what was asked and what came. Filled on the engine thread, read after it finished.
struct Record {
  std::vector<std::int32_t> prompt;
  std::int32_t reply_tokens_max = 0;
  SamplingRule sampling;
  std::int32_t cancel_after_events = -1;
  std::vector<std::int32_t> reply;
  std::vector<RecordedRow> rows;
  std::int32_t events = 0;
  std::int32_t cached = 0;    // rows that came from a kept prefix
  bool is_first_wave = true;  // of its engine
  FinishReason reason = FinishReason::kError;
  std::string message;

  std::mutex mutex;  // guards the handle: it exists only once open() has returned
  std::unique_ptr<StreamHandle> handle;
  bool cancel_wanted = false;
};

class Schedule {
 public:
  Schedule(const MakeModel& make_model, const Options& options, std::int32_t number, Report& report)
      : make_model_(make_model), options_(options), number_(number), report_(report) {
    std::seed_seq seeds{static_cast<std::uint32_t>(options.seed), static_cast<std::uint32_t>(options.seed >> 32),
                        static_cast<std::uint32_t>(number)};
    random_.seed(seeds);
  }

  void run() {
    run_engine();
    compare();
    ++report_.schedules;
  }

 private:
  std::int32_t draw(std::int32_t low, std::int32_t high) {
    return low + static_cast<std::int32_t>(random_() % static_cast<std::uint64_t>(high - low + 1));
  }

  void run_engine();
  std::vector<std::int32_t> earlier_tokens();
  void draw_streams(const EngineFacts& facts);
  void open(Engine& engine, Record& record);
  void compare();
  void compare_stream(SerialRun& serial, HostSampler& sampler, std::size_t index);
  template <typename... Args>
  void failure(std::size_t stream, fmt::format_string<Args...> format, Args&&... args);

  const MakeModel& make_model_;
  const Options& options_;
  std::int32_t number_;
  Report& report_;
  std::mt19937_64 random_;
  EngineOptions engine_options_;
  std::vector<std::unique_ptr<Record>> records_;
  std::mutex mutex_;
  std::condition_variable finished_;
  std::size_t finished_count_ = 0;
};

template <typename... Args>
void Schedule::failure(std::size_t stream, fmt::format_string<Args...> format, Args&&... args) {
  if (report_.failures++ > 0) return;
  report_.first_failure = fmt::format("seed {}, schedule {}, stream {}: {}", options_.seed, number_, stream,
                                      fmt::format(format, std::forward<Args>(args)...));
}

void Schedule::draw_streams(const EngineFacts& facts) {
  const std::int32_t count = draw(1, options_.streams_max);
  std::vector<std::int32_t> shared;  // some prompts begin alike
  for (std::int32_t i = 0; i < options_.prompt_tokens_max; ++i) {
    shared.push_back(draw(0, facts.model.vocabulary_size - 1));
  }
  for (std::int32_t i = 0; i < count; ++i) {
    auto record = std::make_unique<Record>();
    const std::int32_t length = std::min(draw(1, draw(0, 2) == 0 ? 4 : options_.prompt_tokens_max), facts.context - 1);
    const std::int32_t alike = draw(0, 1) == 0 ? 0 : draw(0, length);
    record->prompt.assign(shared.begin(), shared.begin() + alike);
    if (!records_.empty() && options_.waves > 1 && draw(0, 3) > 0) record->prompt = earlier_tokens();
    if (static_cast<std::int32_t>(record->prompt.size()) > length)
      record->prompt.resize(static_cast<std::size_t>(length));
    while (static_cast<std::int32_t>(record->prompt.size()) < length) {
      record->prompt.push_back(draw(0, facts.model.vocabulary_size - 1));
    }
    record->reply_tokens_max = std::min(draw(0, options_.reply_tokens_max), facts.context - length);
    record->sampling.temperature = draw(0, 2) == 0 ? 0.0 : 0.5 + 0.1 * draw(0, 10);
    record->sampling.top_k = draw(0, 1) == 0 ? 0 : draw(1, 40);
    record->sampling.top_p = draw(0, 1) == 0 ? 1.0 : 0.05 * draw(1, 19);
    record->sampling.min_p = draw(0, 3) == 0 ? 0.05 : 0.0;
    record->sampling.seed = random_();
    if (draw(0, 999) < static_cast<std::int32_t>(options_.cancelled_share * 1000)) {
      record->cancel_after_events = draw(0, options_.reply_tokens_max);
    }
    records_.push_back(std::move(record));
  }
}

/// A beginning of what an earlier stream read and wrote: all of it, its prompt, or cut anywhere.
std::vector<std::int32_t> Schedule::earlier_tokens() {
  const Record& record = *records_[static_cast<std::size_t>(draw(0, static_cast<std::int32_t>(records_.size()) - 1))];
  std::vector<std::int32_t> tokens = record.prompt;
  tokens.insert(tokens.end(), record.reply.begin(), record.reply.end());
  const std::int32_t how = draw(0, 3);
  if (how == 0) tokens.resize(record.prompt.size());
  if (how == 1) tokens.resize(static_cast<std::size_t>(draw(1, static_cast<std::int32_t>(tokens.size()))));
  return tokens;
}

void Schedule::open(Engine& engine, Record& record) {
  StreamRequest request;
  request.id = fmt::format("fold-{}", number_);
  request.prompt.tokens = record.prompt;
  request.reply_tokens_max = record.reply_tokens_max;
  request.sampling = record.sampling;
  request.background = draw(0, 4) == 0;
  const std::int32_t prompt_length = static_cast<std::int32_t>(record.prompt.size());
  if (draw(0, 1) == 0 && prompt_length > 2) {
    request.marks.push_back({draw(1, prompt_length - 1), PromptMarkKind::kSystemEnd});
  }
  request.on_logits = [&record](std::int32_t sequence_index, const float* logits, std::int32_t count) {
    record.rows.push_back({sequence_index, row_bits(logits, count)});
  };
  auto sink = [this, &record](StreamEvent&& event) {
    if (const auto* token = std::get_if<TokenEvent>(&event)) record.reply.push_back(token->token);
    if (const auto* finish = std::get_if<FinishEvent>(&event)) {
      record.reason = finish->reason;
      record.message = finish->message;
      record.cached = finish->statistics.cached_tokens;
      const std::lock_guard lock(mutex_);
      ++finished_count_;
      finished_.notify_all();
      return;
    }
    if (record.events++ != record.cancel_after_events) return;
    const std::lock_guard lock(record.mutex);
    record.cancel_wanted = true;
    if (record.handle) record.handle->cancel();
  };
  auto handle = engine.open(std::move(request), std::move(sink));
  const std::lock_guard lock(record.mutex);
  record.handle = std::move(handle);
  if (record.cancel_wanted) record.handle->cancel();
}

void Schedule::run_engine() {
  EngineOptions& options = engine_options_;
  options.lanes = draw(1, options_.lanes_max);
  options.poison_freed = options_.poison_freed;
  options.schedule_seed = draw(0, 4) == 0 ? 0 : random_() | 1u;  // now and then the scheduler that serves
  std::unique_ptr<LanguageModel> model = make_model_(number_);
  options.context = std::min(model->facts().context_max, options_.prompt_tokens_max + options_.reply_tokens_max + 1);
  options.cache_memory_bytes = 1ull << 34;  // the promise is for all lanes at once; a schedule is smaller than this
  options.pass_rows_max = draw(0, 1) == 0 ? 0 : draw(1, model->facts().pass_rows_max);
  if (options_.prompt_cache_bytes_max > 0) {
    options.prompt_cache_bytes =
        static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(options_.prompt_cache_bytes_max));
    options.prompt_cache_over_cap = true;
  }
  if (!options_.learn_folder.empty()) {
    options.learn.folder = options_.learn_folder;
    options.learn.conversations = true;
    options.learn.free_bytes_min = 0;
    options.learn.tokens_min = 1;
  }
  std::unique_ptr<Engine> engine = Engine::start(std::move(model), options);
  bool is_first_wave = true;
  for (std::int32_t wave = 0; wave < options_.waves; ++wave, is_first_wave = false) {
    if (wave > 0 && !options_.learn_folder.empty() && draw(0, 1) == 0) {
      engine.reset();
      engine = Engine::start(make_model_(number_), options);
      is_first_wave = true;
      ++report_.restarts;
    }
    const std::size_t first = records_.size();
    draw_streams(engine->facts());
    for (std::size_t i = first; i < records_.size(); ++i) {
      records_[i]->is_first_wave = is_first_wave && wave > 0;
      open(*engine, *records_[i]);
    }
    std::unique_lock lock(mutex_);
    finished_.wait(lock, [this] { return finished_count_ == records_.size(); });
  }
}

void Schedule::compare() {
  SerialRun serial(options_.make_reference ? options_.make_reference(number_) : make_model_(number_),
                   options_.prompt_tokens_max + options_.reply_tokens_max + 1);
  HostSampler sampler(serial.facts().vocabulary_size);
  for (std::size_t index = 0; index < records_.size(); ++index) compare_stream(serial, sampler, index);
}

void Schedule::compare_stream(SerialRun& serial, HostSampler& sampler, std::size_t index) {
  const Record& record = *records_[index];
  ++report_.streams;
  const bool cancelled = record.reason == FinishReason::kCancelled;
  report_.streams_cancelled += cancelled ? 1 : 0;
  if (record.reason != FinishReason::kLength && !(cancelled && record.cancel_after_events >= 0)) {
    return failure(index, "ended with reason {} ({})", static_cast<int>(record.reason), record.message);
  }
  const std::size_t prompt = record.prompt.size();
  std::vector<std::int32_t> tokens = record.prompt;
  tokens.insert(tokens.end(), record.reply.begin(), record.reply.end());
  if (!cancelled && record.reply.size() != static_cast<std::size_t>(record.reply_tokens_max)) {
    return failure(index, "gave {} of {} reply tokens", record.reply.size(), record.reply_tokens_max);
  }
  // Every token but the last was fed; each fed row was reported once, in order.
  // Those of a kept prefix were computed by an earlier stream.
  const std::size_t cached = static_cast<std::size_t>(record.cached);
  const std::size_t expected_rows = (record.reply.empty() ? prompt : tokens.size() - 1) - cached;
  if (!cancelled && record.rows.size() != expected_rows) {
    return failure(index, "reported {} rows, expected {}", record.rows.size(), expected_rows);
  }
  if (cached > 0) {
    ++report_.streams_resumed;
    report_.rows_resumed += cached;
    report_.streams_resumed_after_restart += record.is_first_wave ? 1 : 0;
  }
  serial.begin();
  for (std::size_t i = 0; i < cached; ++i) serial.feed(tokens[i]);
  for (std::size_t i = cached; i < cached + record.rows.size(); ++i) {
    const RecordedRow& row = record.rows[i - cached];
    if (row.sequence_index != static_cast<std::int32_t>(i) || i >= tokens.size()) {
      return failure(index, "row {} was reported as index {}", i, row.sequence_index);
    }
    const float* logits = serial.feed(tokens[i]);
    ++report_.rows_compared;
    if (row_bits(logits, serial.facts().vocabulary_size) != row.bits) {
      return failure(index, "logits of row {} differ from the one-row-at-a-time run's ({} prompt tokens)", i, prompt);
    }
    if (i + 1 < prompt || i + 1 >= tokens.size()) continue;
    const Draw drawn = sampler.draw(logits, nullptr, record.sampling, static_cast<std::int64_t>(i) + 1);
    ++report_.tokens_compared;
    if (drawn.token != tokens[i + 1]) {
      return failure(index, "token {} is {}, the serial draw is {}", i + 1, tokens[i + 1], drawn.token);
    }
  }
}

}  // namespace

Report run(const MakeModel& make_model, const Options& options) {
  Report report;
  for (std::int32_t number = 0; number < options.schedules; ++number) {
    Schedule(make_model, options, number, report).run();
  }
  return report;
}

}  // namespace tensorfold::fold
