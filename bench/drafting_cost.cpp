// What drafting costs where it can't help: replies that never repeat themselves, once with drafts and once serially, in
// turn on one engine. The median of the pairs' ratios is the figure; it should stay within 1.02.
//
//   drafting_cost MODEL [--threads N] [--pairs 40] [--reply-tokens 96] [--temperature 1.5] [--json]
//
// Prompts are random ids and replies are drawn hot, so that nothing of them is worth copying. The order changes from
// pair to pair (serial first, drafted first), and both times come from one run: on a shared machine nothing else can be
// compared. Beside the wall clock stands the process's own processor time, which other processes disturb least (with
// one thread; more of them spin while they wait). Tokens of a pair must be equal. A drafter beside the model is loaded
// with it.
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "bench_arguments.h"
#include "checkpoint/checkpoint.h"
#include "measured_stream.h"
#include "model/load.h"
#include "ops/cpu/cpu_backend.h"

namespace tensorfold {
namespace {

using bench::MeasuredReply;
using bench::MeasuredStream;

constexpr int kPromptTokens = 64;
constexpr int kWarmUpPairs = 4;  // until pass costs and chances of drafts are known

struct Options {
  std::string model;
  int threads = 1;
  int pairs = 40;
  int reply_tokens = 96;
  double temperature = 1.5;
  bool json = false;
};

Options parse(int count, char** arguments) {
  Options options;
  const bench::BenchArguments known(
      "drafting_cost MODEL [--threads N] [--pairs N] [--reply-tokens N] [--temperature T] [--json]",
      {{"--threads", &options.threads},
       {"--pairs", &options.pairs},
       {"--reply-tokens", &options.reply_tokens},
       {"--temperature", &options.temperature},
       {"--json", &options.json}});
  options.model = known.parse(count, arguments);
  if (options.pairs < 1 || options.reply_tokens < 2) {
    fail(ErrorCode::kInvalidArgument, "drafting_cost takes at least one pair of two tokens");
  }
  return options;
}

double processor_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Run {
  MeasuredReply reply;
  double wall = 0;       // from the first token to the last
  double processor = 0;  // of the whole request
};

Run run_once(Engine& engine, const Options& options, int number, bool drafts) {
  std::mt19937 random(static_cast<unsigned>(number) + 1);
  StreamRequest request;
  request.id = "bench";
  request.prompt.tokens = bench::random_tokens(random, kPromptTokens, engine.facts().model.vocabulary_size);
  request.reply_tokens_max = options.reply_tokens;
  request.sampling.temperature = options.temperature;
  request.sampling.seed = random();
  request.drafts = drafts;
  request.ignore_stop_tokens = true;
  Run run;
  const double begin = processor_seconds();
  run.reply = MeasuredStream(engine, std::move(request)).wait();
  run.processor = processor_seconds() - begin;
  run.wall = bench::seconds_between(run.reply.times.front(), run.reply.times.back());
  return run;
}

nlohmann::json spread(std::vector<double> ratios) {
  std::sort(ratios.begin(), ratios.end());
  const auto at = [&](double share) {
    return ratios[std::min(ratios.size() - 1, static_cast<std::size_t>(share * static_cast<double>(ratios.size())))];
  };
  return {{"median", at(0.5)}, {"quarter", at(0.25)}, {"three_quarters", at(0.75)}};
}

int run(const Options& options) {
  EngineOptions engine_options;
  engine_options.lanes = 1;
  engine_options.context = kPromptTokens + options.reply_tokens + 16;
  engine_options.prompt_cache_bytes = 0;  // each request reads its prompt
  LoadOptions load;
  load.find_drafter = true;
  const auto engine =
      Engine::start(load_language_model(Checkpoint::open(options.model),
                                        ops::make_cpu_backend({.threads = options.threads, .path = ""}), load),
                    engine_options);
  std::vector<double> wall, processor;
  int rounds = 0, drafted = 0, accepted = 0;
  for (int pair = -kWarmUpPairs; pair < options.pairs; ++pair) {
    const bool drafted_first = pair % 2 != 0;
    Run runs[2];  // serial, drafted
    for (const bool drafts : {drafted_first, !drafted_first})
      runs[drafts ? 1 : 0] = run_once(*engine, options, pair + 1000, drafts);
    if (runs[0].reply.tokens != runs[1].reply.tokens) fail(ErrorCode::kInternal, "drafts changed a token");
    if (pair < 0) continue;
    wall.push_back(runs[1].wall / runs[0].wall);
    processor.push_back(runs[1].processor / runs[0].processor);
    rounds += runs[1].reply.statistics.rounds;
    drafted += runs[1].reply.statistics.drafted;
    accepted += runs[1].reply.statistics.accepted;
  }
  const nlohmann::json report{{"model", options.model},
                              {"path", engine->facts().model.backend_path},
                              {"threads", options.threads},
                              {"pairs", options.pairs},
                              {"reply_tokens", options.reply_tokens},
                              {"temperature", options.temperature},
                              {"rounds", rounds},
                              {"drafted", drafted},
                              {"accepted", accepted},
                              {"wall_ratio", spread(wall)},
                              {"processor_ratio", spread(processor)}};
  if (options.json) {
    std::printf("%s\n", report.dump(2).c_str());
  } else {
    std::printf(
        "%d pairs of %d tokens, %d drafted and %d of them accepted in %d rounds; drafted over serial: wall clock %.3f "
        "(half of the pairs %.3f to %.3f), processor %.3f (%.3f to %.3f)\n",
        options.pairs, options.reply_tokens, drafted, accepted, rounds, report["wall_ratio"]["median"].get<double>(),
        report["wall_ratio"]["quarter"].get<double>(), report["wall_ratio"]["three_quarters"].get<double>(),
        report["processor_ratio"]["median"].get<double>(), report["processor_ratio"]["quarter"].get<double>(),
        report["processor_ratio"]["three_quarters"].get<double>());
  }
  return 0;
}

}  // namespace
}  // namespace tensorfold

int main(int count, char** arguments) {
  try {
    return tensorfold::run(tensorfold::parse(count, arguments));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "drafting_cost: %s\n", error.what());
    return 1;
  }
}
