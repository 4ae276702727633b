// The engine with its stores while memory and disk fail at random: it never crashes or hangs, every request ends, what
// was said is what an undisturbed engine says, and afterwards everything works, what is on disk included. Each round is
// a process of its own. TENSORFOLD_LONG=1 runs many more.
#include <execinfo.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <thread>

#include "base/limits.h"
#include "base/temporary_folder.h"
#include "engine/draft/recall_store.h"
#include "engine/engine.h"
#include "engine/fake_model.h"
#include "engine/state_check.h"
#include "engine/stream_probe.h"
#include "faults/faults.h"
#include "model/load.h"
#include "ops/cpu/cpu_backend.h"

namespace tensorfold {
namespace {

using testing::FaultExemption;
using testing::FaultExposure;
using testing::FaultRates;
using Tokens = std::vector<std::int32_t>;

constexpr int kPrompts = 6;
constexpr int kClients = 3;
constexpr int kRequestsOfAClient = 8;
constexpr unsigned kRoundSecondsMax = 240;
constexpr std::int32_t kReplyTokens = 20;

bool is_long() {
  return std::getenv("TENSORFOLD_LONG") != nullptr;
}

/// Makes models of one kind; on the test's thread.
using MakeModel = std::function<std::unique_ptr<LanguageModel>()>;

Tokens prompt_of(int number, std::int32_t vocabulary_size) {
  Tokens prompt;
  for (std::int32_t i = 0; i < 130 + 40 * number; ++i) {
    prompt.push_back((i < 90 ? i * 7 + number / 2 : i * 11 + number) % vocabulary_size);
  }
  return prompt;
}

std::unique_ptr<Engine> start(const MakeModel& make_model, const std::string& folder,
                              std::shared_ptr<RecallStore> recall) {
  EngineOptions options;
  options.lanes = 3;
  options.context = 500;
  options.cache_memory_bytes = 256u << 20;
  options.prompt_cache_bytes = 4 << 20;
  options.poison_freed = true;
  options.recall = std::move(recall);
  options.learn.folder = folder;
  options.learn.conversations = true;
  options.learn.free_bytes_min = 0;
  options.learn.tokens_min = 64;
  return Engine::start(make_model(), options);
}

std::shared_ptr<RecallStore> open_recall(const std::string& folder, std::int32_t vocabulary_size) {
  RecallOptions options;
  options.folder = folder;
  options.bytes_max = limits::kRecallBytesMin;
  options.identity = {1, 2, 3};
  options.vocabulary_size = vocabulary_size;
  return std::make_shared<RecallStore>(options);
}

StreamRequest request_of(int number, std::int32_t vocabulary_size) {
  StreamRequest request = testing::request_of(prompt_of(number, vocabulary_size), kReplyTokens);
  request.sampling = {0.9, 20, 0.95, 0.0, static_cast<std::uint64_t>(number)};
  request.background = number % 4 == 3;
  request.marks = {{90, PromptMarkKind::kSystemEnd}};
  return request;
}

struct Outcome {
  Tokens reply;
  FinishEvent finish;
};

/// Runs a request; its own events are received without faults, its opening isn't.
Outcome run(Engine& engine, int number, bool cancel) {
  testing::StreamProbe probe;
  StreamRequest request = request_of(number, engine.facts().model.vocabulary_size);
  const StreamSink inner = probe.sink();
  const StreamSink sink = [inner](StreamEvent&& event) {
    const FaultExemption exemption;
    inner(std::move(event));
  };
  try {
    std::unique_ptr<StreamHandle> handle;
    {
      const FaultExposure exposure;
      handle = engine.open(std::move(request), sink);
    }
    if (cancel) {
      probe.wait_for_tokens(3);
      handle->cancel();
    }
  } catch (const std::exception& error) {
    return {{}, {FinishReason::kError, error.what(), {}}};
  }
  const FinishEvent finish = probe.wait();
  return {probe.reply(), finish};
}

std::vector<Tokens> expected_replies(const MakeModel& make_model) {
  const auto engine = start(make_model, "", nullptr);
  std::vector<Tokens> replies;
  for (int number = 0; number < kPrompts; ++number) replies.push_back(run(*engine, number, false).reply);
  return replies;
}

[[noreturn]] void give_up(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::_Exit(1);
}

void expect_beginning(const Outcome& outcome, const Tokens& expected, int number) {
  const bool begins = outcome.reply.size() <= expected.size() &&
                      std::equal(outcome.reply.begin(), outcome.reply.end(), expected.begin());
  if (!begins) give_up(fmt::format("request {} was told other tokens after {}", number, outcome.reply.size()));
  if (outcome.finish.reason == FinishReason::kLength && outcome.reply.size() != expected.size()) {
    give_up(fmt::format("request {} ended early as if it were whole", number));
  }
}

void expect_all_right(Engine& engine, const std::vector<Tokens>& expected, const char* when) {
  for (int number = 0; number < kPrompts; ++number) {
    const Outcome outcome = run(engine, number, false);
    if (outcome.finish.reason != FinishReason::kLength || outcome.reply != expected[static_cast<std::size_t>(number)]) {
      give_up(fmt::format("{}: request {} gave {} tokens and ended with '{}'", when, number, outcome.reply.size(),
                          outcome.finish.message));
    }
  }
}

struct Round {
  const MakeModel& make_model;
  const std::vector<Tokens>& expected;
  std::string folder;
  std::int32_t vocabulary_size = 0;
  std::uint32_t seed = 0;
  FaultRates rates;
};

/// What the child does.
void run_round(const Round& round) {
  const FaultExemption exemption;
  {
    std::shared_ptr<RecallStore> recall = open_recall(round.folder + "/recall", round.vocabulary_size);
    auto engine = start(round.make_model, round.folder + "/learn", recall);
    testing::arm_faults(round.rates, round.seed);
    std::vector<std::thread> clients;
    std::atomic<int> whole{0};
    for (int client = 0; client < kClients; ++client) {
      clients.emplace_back([&, client] {
        const FaultExemption of_client;
        for (int i = 0; i < kRequestsOfAClient; ++i) {
          const int number = (client * 5 + i * 3 + static_cast<int>(round.seed)) % kPrompts;
          const Outcome outcome = run(*engine, number, i % 5 == 4);
          expect_beginning(outcome, round.expected[static_cast<std::size_t>(number)], number);
          whole += outcome.finish.reason == FinishReason::kLength ? 1 : 0;
        }
      });
    }
    for (std::thread& client : clients) client.join();
    const testing::FaultCounts counts = testing::fault_counts();
    std::fprintf(stderr, "  seed %u: %llu allocations and %llu file operations failed, %d replies whole\n", round.seed,
                 static_cast<unsigned long long>(counts.allocations), static_cast<unsigned long long>(counts.files),
                 whole.load());
    if (round.seed % 2 == 0) {  // every second engine also ends in trouble
      engine.reset();
      recall.reset();
      testing::disarm_faults();
    } else {
      testing::disarm_faults();
      expect_all_right(*engine, round.expected, "after the faults");
    }
  }
  const auto engine =
      start(round.make_model, round.folder + "/learn", open_recall(round.folder + "/recall", round.vocabulary_size));
  std::size_t states = 0;
  const std::string damaged = testing::first_damaged_state(round.folder + "/learn", states);
  if (!damaged.empty()) give_up(damaged);
  expect_all_right(*engine, round.expected, "after the restart");
}

/// Where a child died: addresses for addr2line.
void print_stack(int) {
  const FaultExemption exemption;
  void* frames[48];
  ::backtrace_symbols_fd(frames, ::backtrace(frames, 48), STDERR_FILENO);
  std::signal(SIGABRT, SIG_DFL);
  std::abort();
}

/// Runs a round in a child; "" when it went well.
std::string in_child(const Round& round) {
  std::fflush(stdout);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(kRoundSecondsMax);  // a hang ends in SIGALRM
    std::signal(SIGABRT, print_stack);
    run_round(round);
    std::_Exit(0);
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) return "no child";
  if (WIFSIGNALED(status)) return fmt::format("it died of signal {}", WTERMSIG(status));
  return WEXITSTATUS(status) == 0 ? "" : "see above";
}

struct Kind {
  const char* name;
  bool recurrent, sliding;
};

void expect_rounds(const MakeModel& make_model, int rounds, const std::vector<FaultRates>& rates) {
  const std::int32_t vocabulary_size = make_model()->facts().vocabulary_size;
  const std::vector<Tokens> expected = expected_replies(make_model);
  const TemporaryFolder folder;
  for (int i = 0; i < rounds; ++i) {
    // Folders of earlier rounds go on: a store is opened on what trouble left.
    const Round round{make_model,
                      expected,
                      folder.path().string(),
                      vocabulary_size,
                      static_cast<std::uint32_t>(i + 1),
                      rates[static_cast<std::size_t>(i) % rates.size()]};
    const std::string trouble = in_child(round);
    ASSERT_EQ(trouble, "") << "seed " << round.seed << ", allocations 1 in " << round.rates.allocations
                           << ", file operations 1 in " << round.rates.files;
  }
}

class EngineFaults : public ::testing::TestWithParam<Kind> {
 protected:
  MakeModel make_model() const {
    return [kind = GetParam()] {
      testing::FakeModelOptions options;
      options.has_recurrent = kind.recurrent;
      options.has_sliding = kind.sliding;
      return std::make_unique<testing::FakeModel>(options);
    };
  }
};

TEST_P(EngineFaults, AllocationsFail) {
  expect_rounds(make_model(), is_long() ? 300 : 6,
                {{50'000, 0, 0}, {5'000, 0, 0}, {800, 0, 0}, {150, 0, 0}, {30, 4096, 0}});
}

TEST_P(EngineFaults, FilesFail) {
  expect_rounds(make_model(), is_long() ? 300 : 6, {{0, 0, 40}, {0, 0, 8}, {0, 0, 3}});
}

TEST_P(EngineFaults, BothFail) {
  expect_rounds(make_model(), is_long() ? 300 : 4, {{3'000, 0, 30}, {20'000, 0, 6}, {500, 0, 10}});
}

INSTANTIATE_TEST_SUITE_P(Kinds, EngineFaults,
                         ::testing::Values(Kind{"Full", false, false}, Kind{"Recurrent", true, false},
                                           Kind{"Sliding", false, true}, Kind{"All", true, true}),
                         [](const auto& info) { return info.param.name; });

// An MTP head, recurrent and full layers, two compute threads.
TEST(ModelFaults, AllocationsFailInARealModel) {
  const MakeModel make_model = [] {
    const auto path = std::filesystem::path(TENSORFOLD_SOURCE_DIR) / "tests/golden/models/mlx_qwen3_5_mtp_4bit";
    return load_language_model(Checkpoint::open(path), ops::make_cpu_backend({.threads = 2, .path = ""}), {});
  };
  expect_rounds(make_model, is_long() ? 200 : 4, {{100'000, 0, 0}, {10'000, 0, 0}, {1'500, 0, 50}, {40, 4096, 0}});
}

}  // namespace
}  // namespace tensorfold
