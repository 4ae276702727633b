// Time to the first token of a conversation's next turn, relative to that of the whole prompt computed afresh: from
// memory, and from disk after a restart of the engine.
//
//   prefix_reuse MODEL [--backend auto|cpu|cuda] [--threads N] [--context-tokens 2048] [--new-tokens 32] [--folder DIR] [--json]
//
// MODEL may be `synthetic:PRESET`: random weights of a real model's shapes (tensorfold bench --synthetic).
// Token ids are drawn from a fixed seed and replies are greedy. Each figure is one request on an engine that has just
// run a warm-up; replies of the three are compared, and the program fails when they differ.
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "bench_arguments.h"
#include "base/error.h"
#include "base/temporary_folder.h"
#include "checkpoint/checkpoint.h"
#include "convert/synthetic/synthetic_checkpoint.h"
#include "engine/borrowed_model.h"
#include "engine/engine.h"
#include "measured_stream.h"
#include "model/load.h"
#include "serve/backend_choice.h"

namespace tensorfold {
namespace {

using bench::Clock;
using bench::MeasuredReply;
using bench::MeasuredStream;

struct Options {
  std::string model;
  std::string backend = "cpu";
  int threads = 2;
  int context_tokens = 2048;
  int new_tokens = 32;
  std::string folder;  // "": a temporary one
  bool json = false;
};

MeasuredReply run(Engine& engine, const std::vector<std::int32_t>& prompt, int reply_tokens) {
  StreamRequest request;
  request.id = "bench";
  request.prompt.tokens = prompt;
  request.reply_tokens_max = reply_tokens;
  request.ignore_stop_tokens = true;
  return MeasuredStream(engine, std::move(request)).wait();
}

std::shared_ptr<LanguageModel> load(const Options& options) {
  constexpr std::string_view kSynthetic = "synthetic:";
  std::shared_ptr<const Checkpoint> checkpoint;
  if (options.model.starts_with(kSynthetic)) {
    SyntheticOptions synthetic;
    synthetic.preset = options.model.substr(kSynthetic.size());
    checkpoint = make_synthetic_model(synthetic).checkpoint;
  } else {
    checkpoint = Checkpoint::open(options.model);
  }
  BackendChoice choice;
  choice.backend = options.backend;
  choice.threads = options.threads;
  return load_language_model(std::move(checkpoint), make_backend(choice), {});
}

std::unique_ptr<Engine> start(const Options& options, const std::shared_ptr<LanguageModel>& model, std::int64_t cache_bytes) {
  EngineOptions engine;
  engine.lanes = 1;
  engine.context = options.context_tokens + 512;
  engine.prompt_cache_bytes = cache_bytes;
  if (cache_bytes != 0) engine.learn.folder = options.folder;
  engine.learn.conversations = true;
  engine.learn.free_bytes_min = 0;
  auto started = Engine::start(std::make_unique<BorrowedModel>(model), engine);
  std::mt19937 random(7);
  run(*started, bench::random_tokens(random, 96, started->facts().model.vocabulary_size), 8);  // warm-up
  return started;
}

Options parse(int count, char** arguments) {
  Options options;
  const bench::BenchArguments known(
      "prefix_reuse MODEL [--backend NAME] [--threads N] [--context-tokens N] [--new-tokens N] [--folder DIR] [--json]",
      {{"--backend", &options.backend},
       {"--threads", &options.threads},
       {"--context-tokens", &options.context_tokens},
       {"--new-tokens", &options.new_tokens},
       {"--folder", &options.folder},
       {"--json", &options.json}});
  options.model = known.parse(count, arguments);
  return options;
}

int run(Options options) {
  const TemporaryFolder temporary;
  if (options.folder.empty()) options.folder = temporary.path().string();
  const std::shared_ptr<LanguageModel> model = load(options);
  constexpr int kReplyTokens = 16;
  std::mt19937 random(1);
  std::vector<std::int32_t> conversation, turn;
  double stop_seconds = 0;
  {
    auto engine = start(options, model, -1);
    const std::int32_t vocabulary = engine->facts().model.vocabulary_size;
    conversation = bench::random_tokens(random, options.context_tokens - kReplyTokens - options.new_tokens, vocabulary);
    const MeasuredReply first = run(*engine, conversation, kReplyTokens);
    conversation.insert(conversation.end(), first.tokens.begin(), first.tokens.end());
    const auto stop = Clock::now();
    engine.reset();
    stop_seconds = bench::seconds_between(stop, Clock::now());
  }
  const auto next_turn = [&](std::int32_t vocabulary) {
    std::vector<std::int32_t> prompt = conversation;
    const std::vector<std::int32_t> more = bench::random_tokens(random, options.new_tokens, vocabulary);
    prompt.insert(prompt.end(), more.begin(), more.end());
    return prompt;
  };
  MeasuredReply memory, disk, fresh;
  {
    const auto engine = start(options, model, -1);
    const std::int32_t vocabulary = engine->facts().model.vocabulary_size;
    turn = next_turn(vocabulary);
    disk = run(*engine, turn, kReplyTokens);
    memory = run(*engine, next_turn(vocabulary), kReplyTokens);  // another one, which leaves the first where it began
  }
  fresh = run(*start(options, model, 0), turn, kReplyTokens);
  std::uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(options.folder)) {
    if (entry.is_regular_file()) bytes += entry.file_size();
  }
  const bool equal = disk.tokens == fresh.tokens;
  const nlohmann::json report{{"model", options.model},
                              {"backend", model->facts().backend},
                              {"prompt_tokens", turn.size()},
                              {"fresh_seconds", fresh.first_token_seconds()},
                              {"memory_seconds", memory.first_token_seconds()},
                              {"memory_cached_tokens", memory.statistics.cached_tokens},
                              {"memory_share", memory.first_token_seconds() / fresh.first_token_seconds()},
                              {"disk_seconds", disk.first_token_seconds()},
                              {"disk_cached_tokens", disk.statistics.cached_tokens},
                              {"disk_share", disk.first_token_seconds() / fresh.first_token_seconds()},
                              {"disk_bytes", bytes},
                              {"stop_seconds", stop_seconds},
                              {"replies_equal", equal}};
  if (options.json) {
    std::printf("%s\n", report.dump(2).c_str());
  } else {
    std::printf(
        "%zu prompt tokens, fresh %.3f s; next turn from memory %.3f s (%.2f %%, %d cached), from disk %.3f s "
        "(%.2f %%, %d cached, %.1f MiB); replies %s\n",
        turn.size(), fresh.first_token_seconds(), memory.first_token_seconds(),
        100 * memory.first_token_seconds() / fresh.first_token_seconds(), memory.statistics.cached_tokens,
        disk.first_token_seconds(), 100 * disk.first_token_seconds() / fresh.first_token_seconds(),
        disk.statistics.cached_tokens, static_cast<double>(bytes) / (1 << 20), equal ? "equal" : "DIFFER");
  }
  return equal ? 0 : 1;
}

}  // namespace
}  // namespace tensorfold

int main(int count, char** arguments) {
  try {
    return tensorfold::run(tensorfold::parse(count, arguments));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "prefix_reuse: %s\n", error.what());
    return 1;
  }
}
