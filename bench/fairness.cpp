// What a long prompt does to those who are being answered: the longest gap between two tokens of any running stream
// while a prompt of 16k tokens is read beside it. It must stay within the bound of a pass plus one usual pass.
//
//   bound   EngineOptions::pass_seconds_max, after which slices of a prompt are sized
//   usual   the median gap of the running streams before the prompt came
//   gap     from one token to the next one of the same stream. Tokens of one pass arrive together and count as one. All
//           gaps count that lie wholly or partly between the prompt's arrival and its first token, so also the one in
//           which it comes and the one in which its last slice is read
//
//   fairness MODEL [--threads N] [--prompt-tokens 16384] [--streams 4] [--no-drafts] [--json]
//
// Token ids are drawn from a fixed seed; the running streams draw theirs at temperature 1, so that they write text that
// doesn't repeat itself. Exits with 1 when a gap is longer.
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

using bench::Clock;
using bench::MeasuredReply;
using bench::MeasuredStream;

constexpr std::size_t kTokensOfStart = 8;  // of each stream, that are not measured
constexpr std::size_t kTokensBefore = 60;  // of each stream, when the prompt comes
constexpr std::size_t kTokensAfter = 20;   // of each stream, more than a pass brings
constexpr int kReplyTokensMax = 12'000;
constexpr double kSameMomentSeconds =
    2e-3;  // tokens of one pass come together, and no pass of a real model is as short

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
  const bench::BenchArguments known("fairness MODEL [--threads N] [--prompt-tokens N] [--streams N] [--no-drafts] [--json]",
                                    {{"--threads", &options.threads},
                                     {"--prompt-tokens", &options.prompt_tokens},
                                     {"--streams", &options.streams},
                                     {"--no-drafts", &options.drafts},
                                     {"--json", &options.json}});
  options.model = known.parse(count, arguments);
  return options;
}

struct Gap {
  Clock::time_point begin, end;
  double seconds() const { return bench::seconds_between(begin, end); }
};

/// Between passes that brought the stream tokens, in order.
std::vector<Gap> gaps_of(const MeasuredReply& reply) {
  std::vector<Gap> gaps;
  for (std::size_t i = 1; i < reply.times.size(); ++i) {
    const Gap gap{reply.times[i - 1], reply.times[i]};
    if (gap.seconds() > kSameMomentSeconds) gaps.push_back(gap);
  }
  return gaps;
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
  // The pass that ends the prompt may hand its tokens to the others first or last: their gap ends only then.
  for (const auto& stream : streams) stream->wait_for_tokens(stream->so_far().tokens.size() + kTokensAfter);
  for (const auto& stream : streams) stream->cancel();

  const Clock::time_point answer = answered.times.front();
  std::vector<double> before, during;
  Gap longest_gap{arrival, arrival};
  for (const auto& stream : streams) {
    const MeasuredReply reply = stream->wait();
    if (reply.times.back() <= answer) {
      fail(ErrorCode::kInternal, "a stream ended before the prompt was read: give a shorter prompt");
    }
    for (const Gap& gap : gaps_of(reply)) {
      if (gap.begin >= reply.times[kTokensOfStart] && gap.end <= arrival) before.push_back(gap.seconds());
      if (gap.end <= arrival || gap.begin >= answer) continue;
      during.push_back(gap.seconds());
      if (gap.seconds() > longest_gap.seconds()) longest_gap = gap;
    }
  }
  if (before.empty() || during.empty()) fail(ErrorCode::kInternal, "no gaps were seen");
  std::sort(before.begin(), before.end());
  std::sort(during.begin(), during.end());
  const double usual = quantile(before, 0.5), longest = longest_gap.seconds();
  const auto above = during.end() - std::upper_bound(during.begin(), during.end(), bound + usual);
  const bool holds = above == 0;
  const nlohmann::json report{{"model", options.model},
                              {"path", engine->facts().model.backend_path},
                              {"threads", options.threads},
                              {"streams", options.streams},
                              {"prompt_tokens", options.prompt_tokens},
                              {"prompt_seconds", answered.first_token_seconds()},
                              {"prompt_slices", answered.statistics.prefill_widths.size()},
                              {"pass_bound_seconds", bound},
                              {"usual_gap_seconds", usual},
                              {"longest_gap_before_seconds", before.back()},
                              {"longest_gap_seconds", longest},
                              {"longest_gap_ends_after_seconds", bench::seconds_between(arrival, longest_gap.end)},
                              {"median_gap_seconds", quantile(during, 0.5)},
                              {"gap_seconds_99th", quantile(during, 0.99)},
                              {"gaps", during.size()},
                              {"gaps_above", above},
                              {"holds", holds}};
  if (options.json) {
    std::printf("%s\n", report.dump(2).c_str());
  } else {
    std::printf(
        "%d streams, %.1f ms between tokens (longest %.1f ms); beside a prompt of %d tokens (%.1f s, %zu slices): "
        "median "
        "%.1f ms, 99 of 100 below %.1f ms, longest of %zu gaps %.1f ms; bound %.0f + %.1f ms %s\n",
        options.streams, 1e3 * usual, 1e3 * before.back(), options.prompt_tokens, answered.first_token_seconds(),
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
