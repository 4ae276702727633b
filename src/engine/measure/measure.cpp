// See measure.h.
#include "engine/measure/measure.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "base/error.h"
#include "base/thread_pool.h"
#include "engine/borrowed_model.h"
#include "engine/engine.h"
#include "engine/measure/pass_series.h"

namespace tensorfold::measure {
namespace {

constexpr std::int32_t kLeadInTokens = 4;     // of each stream, before anything is timed
constexpr double kGatherPassSeconds = 60.0;   // no bound on a pass while many prompts are brought in
constexpr std::int32_t kWindowPassesMax = 60;
constexpr double kWindowSeconds = 0.5;        // worth spending on one width

std::unique_ptr<Engine> start_engine(const Model& model, std::int32_t lanes, std::int32_t context, bool drafts,
                                     double pass_seconds_max) {
  EngineOptions options;
  options.lanes = lanes;
  options.context = context;
  options.drafts = drafts;
  if (pass_seconds_max > 0.0) options.pass_seconds_max = pass_seconds_max;
  return Engine::start(std::make_unique<BorrowedModel>(model), options);
}

/// Tokens that the first stream has had when the last one begins: one for each pass that reads prompts.
std::int32_t head_start(const ModelFacts& facts, const DecodeOptions& options) {
  if (options.streams == 1) return 0;
  const std::int64_t prompts = static_cast<std::int64_t>(options.streams) * options.context;
  const std::int64_t rows = std::max(1, facts.pass_rows_max - options.streams);
  return static_cast<std::int32_t>((prompts + rows - 1) / rows) + 2 * options.streams;
}

/// Rates of the time in which all streams decode, cut into `repeats` parts of as many tokens.
Samples decode_rates(const std::vector<StreamRun>& runs, std::int32_t repeats, std::int32_t reply_tokens) {
  double all_lead = 0.0;
  for (const StreamRun& run : runs) all_lead = std::max(all_lead, run.seconds.at(kLeadInTokens - 1));
  std::vector<double> times;
  for (const StreamRun& run : runs) {
    std::copy_if(run.seconds.begin(), run.seconds.end(), std::back_inserter(times),
                 [&](double seconds) { return seconds > all_lead; });
  }
  std::sort(times.begin(), times.end());
  Samples samples;
  double begin = all_lead;
  const auto part = static_cast<std::size_t>(reply_tokens) * runs.size();
  for (std::int32_t repeat = 1; repeat <= repeats; ++repeat) {
    const std::size_t last = part * static_cast<std::size_t>(repeat);
    if (last > times.size()) break;
    samples.add(static_cast<double>(part) / (times[last - 1] - begin));
    begin = times[last - 1];
  }
  return samples;
}

/// How many of the first `count` streams give other tokens alone than they gave together.
std::int32_t count_differing(Engine& engine, StreamSettings settings, const std::vector<StreamRun>& together,
                             std::int32_t count, const Progress& progress) {
  std::int32_t differing = 0;
  for (std::int32_t stream = 0; stream < count; ++stream) {
    if (progress) progress(fmt::format("stream {} of {} alone", stream + 1, count));
    const std::vector<std::int32_t>& tokens = together[static_cast<std::size_t>(stream)].tokens;
    settings.reply_tokens_max = static_cast<std::int32_t>(tokens.size());
    const std::vector<StreamRun> alone = run_streams(engine, {stream}, settings);
    if (alone[0].tokens != tokens) ++differing;
  }
  return differing;
}

}  // namespace

DecodeResult measure_decode(const Model& model, const DecodeOptions& options, const Progress& progress) {
  TF_ASSERT(options.streams >= 1 && options.repeats >= 1 && options.reply_tokens >= 1);
  const std::int32_t timed = options.repeats * options.reply_tokens;
  StreamSettings settings;
  settings.prompt_tokens = options.context;
  settings.repeated_tokens = options.repeated_tokens;
  settings.temperature = options.temperature;
  settings.drafts = options.drafts;
  settings.seed = options.seed;
  settings.reply_tokens_max = head_start(model->facts(), options) + 2 * kLeadInTokens + timed;
  const auto engine = start_engine(model, options.streams, options.context + settings.reply_tokens_max, options.drafts,
                                   options.streams > 1 ? kGatherPassSeconds : 0.0);
  std::vector<std::int32_t> indices(static_cast<std::size_t>(options.streams));
  std::iota(indices.begin(), indices.end(), 0);
  if (progress) progress(fmt::format("{} stream{}", options.streams, options.streams == 1 ? "" : "s together"));
  const std::vector<StreamRun> runs = run_streams(*engine, indices, settings, timed, kLeadInTokens);
  DecodeResult result;
  result.tokens_per_second = decode_rates(runs, options.repeats, options.reply_tokens);
  result.hashed_tokens = timed;
  result.token_hash = token_hash(runs, static_cast<std::size_t>(timed));
  for (const StreamRun& run : runs) {
    result.first_token_seconds = std::max(result.first_token_seconds, run.seconds.front());
    result.rounds += run.statistics.rounds;
    result.drafted += run.statistics.drafted;
    result.accepted += run.statistics.accepted;
    result.rows_max = std::max(result.rows_max, run.statistics.rows_max);
  }
  result.compared_streams = std::min(options.compared_streams, options.streams);
  result.differing_streams = count_differing(*engine, settings, runs, result.compared_streams, progress);
  return result;
}

PrefillResult measure_prefill(const Model& model, std::int32_t prompt_tokens, std::int32_t repeats,
                              std::uint64_t seed) {
  StreamSettings settings;
  settings.prompt_tokens = prompt_tokens;
  settings.reply_tokens_max = 1;
  settings.seed = seed;
  const auto engine = start_engine(model, 1, prompt_tokens + 1, false, 0.0);
  StreamSettings warm_up = settings;  // until the engine knows what passes cost
  warm_up.prompt_tokens = std::min(prompt_tokens, 2 * engine->facts().model.pass_rows_max);
  run_streams(*engine, {-1}, warm_up);
  PrefillResult result;
  std::vector<StreamRun> runs;
  for (std::int32_t repeat = 0; repeat < repeats; ++repeat) {
    runs.push_back(run_streams(*engine, {repeat}, settings).front());
    result.tokens_per_second.add(static_cast<double>(prompt_tokens) / runs.back().seconds.front());
    result.slices = static_cast<std::int32_t>(runs.back().statistics.prefill_widths.size());
  }
  result.token_hash = token_hash(runs, 1);
  return result;
}

std::vector<WindowResult> measure_windows(LanguageModel& model, const std::vector<std::int32_t>& rows,
                                          std::int32_t context, std::int32_t accepted, std::int32_t repeats) {
  std::vector<WindowResult> results;
  for (const std::int32_t width : rows) {
    PassShape shape;
    shape.rows = width;
    shape.context = context;
    shape.accepted = accepted;
    constexpr std::int32_t kWarmPasses = 3;
    PassSeries passes(model, shape, std::max(repeats, kWindowPassesMax) + kWarmPasses);
    for (std::int32_t pass = 0; pass < kWarmPasses; ++pass) passes.run();
    results.push_back({width, passes.run_for(repeats, kWindowSeconds)});
  }
  return results;
}

double read_bandwidth(int threads) {
  constexpr std::int64_t kParts = 64;
  ThreadPool pool(threads);
  const std::size_t count = (512u << 20) / sizeof(std::uint64_t), part = count / kParts;
  const std::vector<std::uint64_t> data(count, 1);
  std::vector<std::uint64_t> sums(kParts);
  Samples samples;
  for (int round = 0; round < 5; ++round) {
    const auto start = std::chrono::steady_clock::now();
    pool.parallel_for(kParts, [&](std::int64_t item, int) {
      const std::size_t first = static_cast<std::size_t>(item) * part;
      std::uint64_t lanes[4] = {0, 0, 0, 0};
      for (std::size_t i = first; i < first + part; i += 4) {
        for (std::size_t lane = 0; lane < 4; ++lane) lanes[lane] += data[i + lane];
      }
      sums[static_cast<std::size_t>(item)] = lanes[0] + lanes[1] + lanes[2] + lanes[3];
    });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    samples.add(static_cast<double>(count * sizeof(std::uint64_t)) / seconds);
  }
  TF_ASSERT(std::accumulate(sums.begin(), sums.end(), std::uint64_t{0}) == count);  // or the reads may be left out
  return *std::max_element(samples.values().begin(), samples.values().end());
}

}  // namespace tensorfold::measure
