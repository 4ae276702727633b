// The model's own drafters on golden checkpoints, inside an engine: every reply token and every committed row's logits
// equal those of the serial reference, while drafts of each kind are made and land. At a high temperature the noise,
// which head and target share, decides most draws: so drafts of random weights land too, and the accepted path is long.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "../engine/stream_probe.h"
#include "checkpoint/checkpoint.h"
#include "engine/engine.h"
#include "model/load.h"
#include "support/far_backend.h"
#include "support/model_backend.h"
#include "support/source_folder.h"

namespace tensorfold {
namespace {

namespace fs = std::filesystem;

fs::path models_folder() {
  return test::source_folder() / "tests" / "golden" / "models";
}

/// A checkpoint with a head or a drafter.
struct DraftCase {
  std::string title;
  fs::path model;
  fs::path drafter;  // "": the one beside the checkpoint, where there is one
  bool has_mtp = true;
  // Trained weights answer these at an ordinary temperature. Random ones hardly ever find the target's token among a
  // block's few candidates.
  std::vector<std::vector<std::int32_t>> prompts = {};
  bool is_trained() const { return !prompts.empty(); }
};

void PrintTo(const DraftCase& draft_case, std::ostream* stream) {
  *stream << draft_case.title;
}

bool has_block_drafter(const DraftCase& draft_case) {
  return !draft_case.drafter.empty() || fs::exists(draft_case.model / "dflash2");
}

std::vector<DraftCase> draft_cases() {
  std::vector<DraftCase> cases;
  for (const auto& entry : fs::directory_iterator(models_folder())) {
    const std::string name = entry.path().filename().string();
    const DraftCase found{name, entry.path(), {}, name.find("mtp") != std::string::npos};
    if (found.has_mtp || has_block_drafter(found)) cases.push_back(found);
  }
  const std::string dflash = "qwen3_5_mtp_dflash";
  cases.push_back({dflash, models_folder() / "qwen3_5_mtp", models_folder().parent_path() / "drafters" / dflash});
  std::sort(cases.begin(), cases.end(), [](const DraftCase& a, const DraftCase& b) { return a.title < b.title; });
  return cases;
}

constexpr std::int32_t kPromptTokens = 70;  // into a second page
constexpr std::int32_t kReplyTokens = 40;

StreamRequest request_of(const DraftCase& draft_case, int number, std::int32_t vocabulary_size) {
  std::vector<std::int32_t> prompt;
  for (std::int32_t i = 0; i < kPromptTokens + number; ++i) prompt.push_back((i * 31 + number * 7) % vocabulary_size);
  if (draft_case.is_trained())
    prompt = draft_case.prompts[static_cast<std::size_t>(number) % draft_case.prompts.size()];
  StreamRequest request = testing::request_of(std::move(prompt), kReplyTokens);
  request.sampling.seed = static_cast<std::uint64_t>(number);
  if (number % 4 != 3) request.sampling.temperature = draft_case.is_trained() ? 0.7 : 8.0;  // every fourth greedy
  if (number % 4 == 1) request.sampling.top_k = 30;
  return request;
}

struct Reply {
  std::vector<std::int32_t> tokens;
  std::map<std::int32_t, std::vector<float>> rows;  // by sequence index
  StreamStatistics statistics;
};

/// Runs the requests together; keeps every committed row of every other stream. The others don't ask for their rows, so a
/// backend that draws where the logits lie does so: their tokens are what is compared.
std::vector<Reply> run(const DraftCase& draft_case, Engine& engine, int count) {
  std::vector<Reply> replies(static_cast<std::size_t>(count));
  std::vector<testing::StreamProbe> probes(static_cast<std::size_t>(count));
  std::vector<std::unique_ptr<StreamHandle>> handles;
  for (int i = 0; i < count; ++i) {
    StreamRequest request = request_of(draft_case, i, engine.facts().model.vocabulary_size);
    auto& rows = replies[static_cast<std::size_t>(i)].rows;
    if (i % 2 == 0) {
      request.on_logits = [&rows](std::int32_t index, const float* logits, std::int32_t size) {
        EXPECT_TRUE(rows.emplace(index, std::vector<float>(logits, logits + size)).second) << "row " << index << " twice";
      };
    }
    handles.push_back(engine.open(std::move(request), probes[static_cast<std::size_t>(i)].sink()));
  }
  for (int i = 0; i < count; ++i) {
    const FinishEvent finish = probes[static_cast<std::size_t>(i)].wait();
    EXPECT_EQ(finish.reason, FinishReason::kLength) << finish.message;
    replies[static_cast<std::size_t>(i)].tokens = probes[static_cast<std::size_t>(i)].reply();
    replies[static_cast<std::size_t>(i)].statistics = finish.statistics;
  }
  return replies;
}

std::unique_ptr<Engine> start(const DraftCase& draft_case, std::unique_ptr<ops::Backend> backend, bool drafts,
                              std::uint64_t schedule_seed) {
  LoadOptions load;
  load.drafter_path = draft_case.drafter.string();
  EngineOptions options;
  options.lanes = 3;
  options.context = kPromptTokens + kReplyTokens + 20;
  options.cache_memory_bytes = 256u << 20;
  options.drafts = drafts;
  options.schedule_seed = schedule_seed;
  options.poison_freed = true;
  options.mtp_confidence = 0.0;  // chains as deep as they are asked for
  return Engine::start(load_language_model(Checkpoint::open(draft_case.model), std::move(backend), load), options);
}

using MakeBackend = std::unique_ptr<ops::Backend> (*)();

std::unique_ptr<ops::Backend> backend_under_test() {
  return test::backend_under_test(1);
}

[[maybe_unused]] std::unique_ptr<ops::Backend> reference_backend() {
  return ops::make_reference_backend(ops::Rounding::kBackend, 1);
}

class GoldenDrafts : public test::BackendTest<DraftCase> {
 protected:
  void expect_same_bits(MakeBackend make_backend) {
    constexpr int kStreams = 6;
    const DraftCase& draft_case = GetParam();
    const std::vector<Reply> serial = run(draft_case, *start(draft_case, make_backend(), false, 0), kStreams);
    std::array<DraftTally, kDraftKindCount> tally{};
    for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{3}, std::uint64_t{7}}) {
      const std::vector<Reply> drafted = run(draft_case, *start(draft_case, make_backend(), true, seed), kStreams);
      for (std::size_t i = 0; i < drafted.size(); ++i) {
        EXPECT_EQ(drafted[i].tokens, serial[i].tokens) << "stream " << i << ", schedule " << seed;
        expect_same_rows(drafted[i], serial[i]);
        for (std::size_t kind = 0; kind < tally.size(); ++kind) {
          tally[kind].drafted += drafted[i].statistics.by_source[kind].drafted;
          tally[kind].accepted += drafted[i].statistics.by_source[kind].accepted;
        }
      }
    }
    for (const DraftKind kind : {DraftKind::kMtp, DraftKind::kBlock}) {
      const DraftTally& counts = tally[static_cast<std::size_t>(kind)];
      std::printf("[ report   ] %s: %s drafted %d, accepted %d\n", draft_case.title.c_str(), draft_kind_name(kind),
                  counts.drafted, counts.accepted);
      const bool expected = kind == DraftKind::kMtp ? draft_case.has_mtp : has_block_drafter(draft_case);
      if (!expected) continue;
      EXPECT_GT(counts.drafted, 50);
      EXPECT_GT(counts.accepted, kind == DraftKind::kMtp || draft_case.is_trained() ? 50 : 0);
    }
  }

  static void expect_same_rows(const Reply& drafted, const Reply& serial) {
    ASSERT_EQ(drafted.rows.size(), serial.rows.size());
    for (const auto& [index, logits] : serial.rows) {
      const auto found = drafted.rows.find(index);
      ASSERT_NE(found, drafted.rows.end()) << index;
      ASSERT_EQ(found->second.size(), logits.size());
      ASSERT_EQ(std::memcmp(found->second.data(), logits.data(), logits.size() * sizeof(float)), 0) << "row " << index;
    }
  }
};

TEST_P(GoldenDrafts, BackendUnderTest) {
  expect_same_bits(backend_under_test);
}

#if !defined(TENSORFOLD_TEST_CUDA)  // the CPU's program has the reference
TEST_P(GoldenDrafts, ReferenceBackend) {
  expect_same_bits(reference_backend);
}

TEST_P(GoldenDrafts, MemoryThatIsNotTheHosts) {
  expect_same_bits([]() -> std::unique_ptr<ops::Backend> { return std::make_unique<test::FarBackend>(backend_under_test()); });
}
#endif

/// The demo model, whose drafters were trained.
class TrainedDrafts : public GoldenDrafts {};

TEST_P(TrainedDrafts, BackendUnderTest) {
  expect_same_bits(backend_under_test);
}

// "Write a Python function that adds two numbers.", "Tell me about the sea.", "Give me JSON with name and age of a
// person.", as chats.
const std::vector<std::vector<std::int32_t>> kDemoPrompts = {
    {8177, 317, 198, 634, 256, 1098, 517, 346, 1641, 471, 1127, 13, 8178, 198, 8177, 329, 198, 8179, 499, 8180, 499},
    {8177, 317, 198, 1303, 476, 441, 276, 1959, 13, 8178, 198, 8177, 329, 198, 8179, 499, 8180, 499},
    {8177, 317, 198,  797, 476,  607, 356, 971,  305, 1713, 300, 256,
     861,  13,  8178, 198, 8177, 329, 198, 8179, 499, 8180, 499}};

INSTANTIATE_TEST_SUITE_P(Models, TrainedDrafts,
                         ::testing::Values(DraftCase{
                             "demo", test::source_folder() / "models" / "demo", {}, true, kDemoPrompts}),
                         [](const auto& info) { return info.param.title; });

INSTANTIATE_TEST_SUITE_P(Families, GoldenDrafts, ::testing::ValuesIn(draft_cases()),
                         [](const auto& info) { return info.param.title; });

}  // namespace
}  // namespace tensorfold
