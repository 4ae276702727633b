// What a long prompt does to those who are being answered: the longest gap between two tokens of a running stream while
// a prompt of 16k tokens is read beside it. It must stay within the bound of a pass plus one usual pass (a gap as it
// was before the prompt came).
//
//   fairness MODEL [--threads N] [--prompt-tokens 16384] [--streams 4] [--no-drafts] [--json]
//
// Token ids are drawn from a fixed seed; the running streams draw theirs at temperature 1, so that they write text that
// doesn't repeat itself. Exits with 1 when a gap is longer.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "checkpoint/checkpoint.h"
#include "measured_stream.h"
#include "model/load.h"
#include "ops/cpu/cpu_backend.h"

namespace tensorfold {
namespace {

using bench::Clock;
using bench::MeasuredReply;
using bench::MeasuredStream;

constexpr int kTokensBefore = 60;   // of each stream, before the prompt comes
constexpr int kReplyTokensMax = 12'000;
constexpr double kSameMomentSeconds = 50e-6;  // tokens of one pass come together

struct Options {
  std::string model;
  int threads = 2;
  int prompt_tokens = 16'384;
  int streams = 4;
  bool drafts = true;
  bool json = false;
};

Options parse(int count, char** arguments) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string argument = arguments[i];
    const auto value = [&]() -> std::string {
      if (i + 1 >= count) fail(ErrorCode::kInvalidArgument, "{} needs a value", argument);
      return arguments[++i];
    };
    if (argument == "--threads") {
      options.threads = std::stoi(value());
    } else if (argument == "--prompt-tokens") {
      options.prompt_tokens = std::stoi(value());
    } else if (argument == "--streams") {
      options.streams = std::stoi(value());
    } else if (argument == "--no-drafts") {
      options.drafts = false;
    } else if (argument == "--json") {
      options.json = true;
    } else if (options.model.empty() && argument[0] != '-') {
      options.model = argument;
    } else {
      fail(ErrorCode::kInvalidArgument, "unknown argument {}; see the head of bench/fairness.cpp", argument);
    }
  }
  if (options.model.empty()) fail(ErrorCode::kInvalidArgument, "usage: fairness MODEL [--threads N] ...");
  return options;
}

/// Gaps between passes that brought the stream tokens, as far as they end inside (from, to].
void add_gaps(const MeasuredReply& reply, Clock::time_point from, Clock::time_point to, std::vector<double>& gaps) {
  for (std::size_t i = 1; i < reply.times.size(); ++i) {
    const double gap = bench::seconds_between(reply.times[i - 1], reply.times[i]);
    if (reply.times[i] > from && reply.times[i] <= to && gap > kSameMomentSeconds) gaps.push_back(gap);
  }
  std::sort(gaps.begin(), gaps.end());
}

double quantile(const std::vector<double>& sorted, double share) {
  if (sorted.empty()) return 0.0;
  return sorted[std::min(sorted.size() - 1, static_cast<std::size_t>(share * static_cast<double>(sorted.size())))];
}

StreamRequest request_of(const Options& options, std::mt19937& random, int prompt_tokens, int reply_tokens,
                         std::int32_t vocabulary_size) {
  StreamRequest request;
  request.id = "bench";
  request.prompt.tokens = bench::random_tokens(random, prompt_tokens, vocabulary_size);
  request.reply_tokens_max = reply_tokens;
  request.sampling.temperature = 1.0;
  request.sampling.seed = random();
  request.drafts = options.drafts;
  request.ignore_stop_tokens = true;
  return request;
}

int run(const Options& options) {
  EngineOptions engine_options;
  engine_options.lanes = options.streams + 1;
  engine_options.context = std::max(options.prompt_tokens, kReplyTokensMax) + 512;
  const double bound = engine_options.pass_seconds_max;
  auto engine = Engine::start(load_language_model(Checkpoint::open(options.model),
                                                  ops::make_cpu_backend({.threads = options.threads, .path = ""}), {}),
                              engine_options);
  const std::int32_t vocabulary_size = engine->facts().model.vocabulary_size;
  std::mt19937 random(11);
  MeasuredStream(*engine, request_of(options, random, 256, 32, vocabulary_size)).wait();  // warm-up

  std::vector<std::unique_ptr<MeasuredStream>> streams;
  for (int i = 0; i < options.streams; ++i) {
    streams.push_back(std::make_unique<MeasuredStream>(
        *engine, request_of(options, random, 64 + i, kReplyTokensMax, vocabulary_size)));
  }
  for (const auto& stream : streams) stream->wait_for_tokens(kTokensBefore);
  const Clock::time_point arrival = Clock::now();
  MeasuredStream prompt(*engine, request_of(options, random, options.prompt_tokens, 1, vocabulary_size));
  const MeasuredReply answered = prompt.wait();
  for (const auto& stream : streams) stream->cancel();

  std::vector<double> before, during;
  for (const auto& stream : streams) {
    const MeasuredReply reply = stream->wait();
    if (reply.times.back() < answered.times.front()) {
      fail(ErrorCode::kInternal, "a stream ended before the prompt was read: give a shorter prompt");
    }
    const Clock::time_point begun = reply.times[std::min<std::size_t>(8, reply.times.size() - 1)];
    add_gaps(reply, begun, arrival, before);
    add_gaps(reply, arrival, answered.times.front(), during);
  }
  const double usual = quantile(before, 0.5), longest = during.back();
  const bool holds = longest <= bound + usual;
  const nlohmann::json report{{"model", options.model},
                              {"path", engine->facts().model.backend_path},
                              {"threads", options.threads},
                              {"streams", options.streams},
                              {"prompt_tokens", options.prompt_tokens},
                              {"prompt_seconds", answered.first_token_seconds()},
                              {"prompt_slices", answered.statistics.prefill_widths.size()},
                              {"pass_bound_seconds", bound},
                              {"usual_gap_seconds", usual},
                              {"longest_gap_seconds", longest},
                              {"median_gap_seconds", quantile(during, 0.5)},
                              {"gap_seconds_99th", quantile(during, 0.99)},
                              {"gaps", during.size()},
                              {"holds", holds}};
  if (options.json) {
    std::printf("%s\n", report.dump(2).c_str());
  } else {
    std::printf(
        "%d streams, %.1f ms between tokens; beside a prompt of %d tokens (%.1f s, %zu slices): median %.1f ms, 99 of "
        "100 below %.1f ms, longest of %zu gaps %.1f ms; bound %.0f + %.1f ms %s\n",
        options.streams, 1e3 * usual, options.prompt_tokens, answered.first_token_seconds(),
        answered.statistics.prefill_widths.size(), 1e3 * quantile(during, 0.5), 1e3 * quantile(during, 0.99),
        during.size(), 1e3 * longest, 1e3 * bound, 1e3 * usual, holds ? "holds" : "DOES NOT HOLD");
  }
  return holds ? 0 : 1;
}

}  // namespace
}  // namespace tensorfold

int main(int count, char** arguments) {
  try {
    return tensorfold::run(tensorfold::parse(count, arguments));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fairness: %s\n", error.what());
    return 1;
  }
}
