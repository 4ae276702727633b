// Speed of the engine without HTTP: prompt tokens per second, decode tokens per second with one and with several
// streams, peak memory, and the fraction of the machine's measured read bandwidth that one-stream decoding reaches.
//
//   engine_speed MODEL [--threads N] [--prompt-tokens 512] [--reply-tokens 128] [--streams 1,8] [--repetitions 3]
//                [--repeat 0] [--temperature 0] [--no-drafts | --compare-drafts] [--json]
//
// Token ids are drawn from a fixed seed; every stream is greedy (or draws with its own fixed seed) and ignores stop
// tokens, so that the work is the same in every run. The tokens of all replies are hashed and printed: equal hashes
// mean equal tokens. --repeat N makes each prompt of a passage of N ids that is said over and over, which a model goes
// on copying. --compare-drafts runs every row without and with drafts, in turns, and fails when the tokens differ.
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "engine/engine.h"
#include "measured_stream.h"
#include "model/load.h"
#include "ops/cpu/cpu_backend.h"

namespace tensorfold {
namespace {

using bench::Clock;
using bench::MeasuredReply;
using bench::MeasuredStream;

struct Options {
  std::string model;
  int threads = 2;
  int prompt_tokens = 512;
  int reply_tokens = 128;
  std::vector<int> streams{1, 8};
  int repetitions = 3;
  int repeat = 0;
  double temperature = 0;
  bool drafts = true;
  bool compare_drafts = false;
  bool json = false;
};

double seconds_since(Clock::time_point start) {
  return bench::seconds_between(start, Clock::now());
}

// Bytes per second of a plain read over 512 MiB on `threads` threads: the limit of one-stream decoding.
double read_bandwidth(int threads) {
  ThreadPool pool(threads);
  const std::size_t count = (512u << 20) / sizeof(std::uint64_t);
  std::vector<std::uint64_t> data(count, 1);
  std::vector<std::uint64_t> sums(64);
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    const auto start = Clock::now();
    pool.parallel_for(64, [&](std::int64_t item, int) {
      const std::size_t part = count / 64, first = static_cast<std::size_t>(item) * part;
      std::uint64_t sums4[4] = {0, 0, 0, 0};
      for (std::size_t i = first; i < first + part; i += 4) {
        for (std::size_t j = 0; j < 4; ++j) sums4[j] += data[i + j];
      }
      sums[static_cast<std::size_t>(item)] = sums4[0] + sums4[1] + sums4[2] + sums4[3];
    });
    best = std::max(best, static_cast<double>(count * sizeof(std::uint64_t)) / seconds_since(start));
  }
  if (std::count(sums.begin(), sums.end(), 0u) == 64) std::abort();
  return best;
}

// Opens `count` streams at once and waits for all. Times count from the first opening, which they all share.
std::vector<MeasuredReply> run_streams(Engine& engine, int count, const Options& options, bool drafts) {
  std::vector<std::unique_ptr<MeasuredStream>> streams;
  for (int stream = 0; stream < count; ++stream) {
    StreamRequest request;
    std::mt19937 random(static_cast<unsigned>(stream) + 1);
    std::vector<std::int32_t>& prompt = request.prompt.tokens;
    prompt = bench::random_tokens(random, options.prompt_tokens, engine.facts().model.vocabulary_size);
    for (std::size_t i = static_cast<std::size_t>(options.repeat); options.repeat > 0 && i < prompt.size(); ++i) {
      prompt[i] = prompt[i - static_cast<std::size_t>(options.repeat)];
    }
    request.reply_tokens_max = options.reply_tokens;
    request.drafts = drafts;
    request.sampling.temperature = options.temperature;
    request.sampling.seed = static_cast<std::uint64_t>(stream);
    request.ignore_stop_tokens = true;
    streams.push_back(std::make_unique<MeasuredStream>(engine, std::move(request)));
  }
  std::vector<MeasuredReply> replies;
  for (const auto& stream : streams) {
    replies.push_back(stream->wait());
    replies.back().opened = replies.front().opened;
  }
  return replies;
}

std::uint64_t token_hash(const std::vector<MeasuredReply>& results) {
  std::uint64_t hash = 1469598103934665603ull;
  for (const auto& result : results) {
    for (const auto token : result.tokens) hash = (hash ^ static_cast<std::uint64_t>(token)) * 1099511628211ull;
  }
  return hash;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto value = [&]() -> std::string {
      if (i + 1 >= argc) fail(ErrorCode::kInvalidArgument, "{} needs a value", argument);
      return argv[++i];
    };
    if (argument == "--threads") {
      options.threads = std::stoi(value());
    } else if (argument == "--prompt-tokens") {
      options.prompt_tokens = std::stoi(value());
    } else if (argument == "--reply-tokens") {
      options.reply_tokens = std::stoi(value());
    } else if (argument == "--repetitions") {
      options.repetitions = std::stoi(value());
    } else if (argument == "--streams") {
      options.streams.clear();
      std::stringstream list(value());
      for (std::string item; std::getline(list, item, ',');) options.streams.push_back(std::stoi(item));
    } else if (argument == "--repeat") {
      options.repeat = std::stoi(value());
    } else if (argument == "--temperature") {
      options.temperature = std::stod(value());
    } else if (argument == "--no-drafts") {
      options.drafts = false;
    } else if (argument == "--compare-drafts") {
      options.compare_drafts = true;
    } else if (argument == "--json") {
      options.json = true;
    } else if (options.model.empty() && argument[0] != '-') {
      options.model = argument;
    } else {
      fail(ErrorCode::kInvalidArgument, "unknown argument {}; see the head of bench/engine_speed.cpp", argument);
    }
  }
  if (options.model.empty()) fail(ErrorCode::kInvalidArgument, "usage: engine_speed MODEL [--threads N] ...");
  return options;
}

struct Speed {
  double prompt = 0, decode = 0;  // tokens per second, of the best repetition
  std::uint64_t hash = 0;
  int rounds = 0, drafted = 0, accepted = 0, widest = 0;  // of all streams
};

void measure(Engine& engine, int streams, const Options& options, bool drafts, Speed& speed) {
  const auto results = run_streams(engine, streams, options, drafts);
  double first = 0, last = 0;
  speed.rounds = speed.drafted = speed.accepted = speed.widest = 0;
  for (const auto& result : results) {
    first = std::max(first, result.first_token_seconds());
    last = std::max(last, result.last_token_seconds());
    speed.rounds += result.statistics.rounds;
    speed.drafted += result.statistics.drafted;
    speed.accepted += result.statistics.accepted;
    speed.widest = std::max(speed.widest, result.statistics.rows_max);
  }
  // Decode rate counts the tokens after every stream's first, over the time in which all decode.
  speed.decode = std::max(speed.decode, streams * (options.reply_tokens - 1) / (last - first));
  speed.prompt = std::max(speed.prompt, streams * options.prompt_tokens / first);
  speed.hash = token_hash(results);
}

nlohmann::json measure_row(Engine& engine, int streams, const Options& options) {
  Speed speed, serial;
  for (int repetition = 0; repetition < options.repetitions; ++repetition) {
    if (options.compare_drafts) measure(engine, streams, options, false, serial);
    measure(engine, streams, options, options.drafts, speed);
  }
  nlohmann::json row{{"streams", streams},
                     {"prompt_tokens_per_second", speed.prompt},
                     {"decode_tokens_per_second", speed.decode},
                     {"rounds", speed.rounds},
                     {"drafted", speed.drafted},
                     {"accepted", speed.accepted},
                     {"widest_window", speed.widest},
                     {"token_hash", fmt::format("{:016x}", speed.hash)}};
  if (!options.compare_drafts) return row;
  if (serial.hash != speed.hash)
    fail(ErrorCode::kInternal, "drafted and serial tokens differ with {} streams", streams);
  row["serial_decode_tokens_per_second"] = serial.decode;
  row["drafted_over_serial"] = speed.decode / serial.decode;
  return row;
}

std::string notes_on(const nlohmann::json& row) {
  std::string notes;
  if (row.contains("bandwidth_fraction")) {
    notes += fmt::format(" ({:.0f} % of the read bandwidth)", 100 * row["bandwidth_fraction"].get<double>());
  }
  if (row["drafted"].get<int>() > 0) {
    notes += fmt::format(", {} rounds of up to {} rows, {} of {} drafts landed", row["rounds"].get<int>(),
                         row["widest_window"].get<int>(), row["accepted"].get<int>(), row["drafted"].get<int>());
  }
  if (row.contains("drafted_over_serial")) {
    notes += fmt::format(", {:.2f} times the serial {:.1f} tokens/s", row["drafted_over_serial"].get<double>(),
                         row["serial_decode_tokens_per_second"].get<double>());
  }
  return notes;
}

int run(const Options& options) {
  ops::CpuBackendOptions backend_options;
  backend_options.threads = options.threads;
  auto model = load_language_model(Checkpoint::open(options.model), ops::make_cpu_backend(backend_options), {});
  EngineOptions engine_options;
  engine_options.lanes = *std::max_element(options.streams.begin(), options.streams.end());
  engine_options.context = options.prompt_tokens + options.reply_tokens;
  engine_options.drafts = options.drafts;
  auto engine = Engine::start(std::move(model), engine_options);
  const auto& facts = engine->facts();

  nlohmann::json report{{"engine", "tensorfold"},
                        {"model", options.model},
                        {"path", facts.model.backend_path},
                        {"threads", options.threads},
                        {"packed_weight_bytes", facts.model.packed_weight_bytes},
                        {"cache_bytes", facts.cache_bytes}};
  Options warm_up = options;
  warm_up.prompt_tokens = std::min(options.prompt_tokens, 32);
  warm_up.reply_tokens = std::min(options.reply_tokens, 8);
  run_streams(*engine, 1, warm_up, options.drafts);
  for (const int streams : options.streams) report["rows"].push_back(measure_row(*engine, streams, options));
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  report["peak_resident_bytes"] = static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
  const double bandwidth = read_bandwidth(options.threads);  // after the peak was read: it takes memory of its own
  report["read_bandwidth_bytes_per_second"] = bandwidth;
  for (auto& row : report["rows"]) {
    if (row["streams"].get<int>() != 1) continue;
    row["bandwidth_fraction"] = row["decode_tokens_per_second"].get<double>() *
                                static_cast<double>(facts.model.packed_weight_bytes) / bandwidth;
  }
  if (options.json) {
    std::printf("%s\n", report.dump().c_str());
    return 0;
  }
  std::printf("%s: path %s, %d threads, packed weights %.1f MB, read bandwidth %.1f GB/s, peak memory %.1f MB\n",
              options.model.c_str(), facts.model.backend_path.c_str(), options.threads,
              static_cast<double>(facts.model.packed_weight_bytes) / 1e6, bandwidth / 1e9,
              static_cast<double>(usage.ru_maxrss) * 1024 / 1e6);
  for (const auto& row : report["rows"]) {
    std::printf("  %2d stream(s): prompt %8.1f tokens/s, decode %8.1f tokens/s%s, tokens %s\n",
                row["streams"].get<int>(), row["prompt_tokens_per_second"].get<double>(),
                row["decode_tokens_per_second"].get<double>(), notes_on(row).c_str(),
                row["token_hash"].get<std::string>().c_str());
  }
  return 0;
}

}  // namespace
}  // namespace tensorfold

int main(int argc, char** argv) {
  try {
    return tensorfold::run(tensorfold::parse(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "engine_speed: %s\n", error.what());
    return 1;
  }
}
