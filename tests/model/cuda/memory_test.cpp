// The GPU's memory as a plan: what start-up promises is admitted, what can't be held is refused by name, and running out in
// the middle of a pass costs that pass and nothing else. A small cap stands in for a small card.
#include <gtest/gtest.h>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "engine/borrowed_model.h"
#include "engine/engine.h"
#include "engine/mixed_streams.h"
#include "engine/stream_probe.h"
#include "model/load.h"
#include "support/golden_case.h"
#include "support/model_backend.h"
#include "support/plan.h"

namespace tensorfold {
namespace {

constexpr std::uint64_t kMib = 1u << 20;

std::unique_ptr<ops::Backend> backend_of(std::uint64_t memory_bytes_max) {
  ops::CudaBackendOptions options;
  options.memory_bytes_max = memory_bytes_max;
  return ops::make_cuda_backend(options);
}

std::unique_ptr<LanguageModel> load(const std::string& name, std::uint64_t memory_bytes_max) {
  const auto golden = test::read_golden_case(test::golden_directory(name));
  return load_language_model(Checkpoint::open(golden.model), backend_of(memory_bytes_max), {});
}

/// Memory that a model takes once it is warm.
std::uint64_t warm_bytes(const std::string& name) {
  constexpr std::uint64_t kPlenty = 1024 * kMib;  // little: what attention's partial results take is a share of it
  const auto before = backend_of(kPlenty)->memory_available().bytes;
  const auto model = load(name, kPlenty);
  model->warm_up(model->facts().pass_rows_max);
  return before - model->memory_available().bytes;
}

TEST(CudaMemory, ACapIsKeptAndNamed) {
  TF_SKIP_WITHOUT_GPU();
  const auto backend = backend_of(64 * kMib);
  EXPECT_FALSE(backend->memory_available().is_shared);
  EXPECT_LE(backend->memory_available().bytes, 64 * kMib);
  auto half = backend->allocate(32 * kMib, "one half");
  try {
    backend->allocate(33 * kMib, "the other half");
    ADD_FAILURE() << "the cap was exceeded";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
    EXPECT_NE(std::string(error.what()).find("the other half needs 33 MiB, and 32 MiB are free"), std::string::npos)
        << error.what();
  }
  half.reset();
  EXPECT_NO_THROW(backend->allocate(33 * kMib, "the other half"));
}

TEST(CudaMemory, AModelThatDoesNotFitIsRefused) {
  TF_SKIP_WITHOUT_GPU();
  try {
    load("qwen3_5", 1 * kMib);
    ADD_FAILURE() << "it was loaded";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
  }
}

TEST(CudaMemory, HeadsWithoutAKernelAreRefusedByName) {
  TF_SKIP_WITHOUT_GPU();
  try {
    load("llama_biases", 0);
    ADD_FAILURE() << "it was loaded";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("head_dim of 12"), std::string::npos) << error.what();
  }
}

TEST(CudaMemory, WhatStartUpPromisesIsAdmitted) {
  TF_SKIP_WITHOUT_GPU();
  for (const char* name : {"llama", "qwen3_5"}) {
    const std::uint64_t cap = warm_bytes(name) + 96 * kMib;
    EngineOptions options;
    auto engine = Engine::start(load(name, cap), options);
    const EngineFacts& facts = engine->facts();
    ASSERT_GE(facts.lanes, 1);
    ASSERT_LT(facts.cache_bytes + facts.prefix_bytes, 96 * kMib);
    std::vector<testing::StreamProbe> probes(static_cast<std::size_t>(facts.lanes));
    std::vector<std::unique_ptr<StreamHandle>> handles;
    for (std::size_t i = 0; i < probes.size(); ++i) {
      const std::int32_t reply = 5, prompt = facts.context - reply;
      handles.push_back(engine->open(
          testing::request_of(testing::counting_prompt(prompt, static_cast<std::int32_t>(i)), reply), probes[i].sink()));
    }
    for (auto& probe : probes) {
      const FinishEvent finish = probe.wait();
      EXPECT_EQ(finish.reason, FinishReason::kLength) << name << ": " << finish.message;
    }
  }
}

TEST(CudaMemory, ServingTakesNone) {
  TF_SKIP_WITHOUT_GPU();
  for (const char* name : {"llama", "gemma3", "qwen3_moe", "qwen3_5_mtp"}) {
    const std::shared_ptr<LanguageModel> model = load(name, 4096 * kMib);
    EngineOptions options;
    options.lanes = 6;
    options.prompt_cache_bytes = 64 * kMib;
    auto engine = Engine::start(std::make_unique<BorrowedModel>(model), options);
    const std::uint64_t before = model->memory_available().bytes;
    testing::serve_mixed_streams(*engine);
    EXPECT_EQ(model->memory_available().bytes, before) << name;
  }
}

TEST(CudaMemory, OptionsThatDoNotFitAreRefusedWithWhatWould) {
  TF_SKIP_WITHOUT_GPU();
  EngineOptions options;
  options.lanes = 256;
  auto model = load("llama", warm_bytes("llama") + 48 * kMib);
  options.context = model->facts().context_max;
  try {
    Engine::start(std::move(model), options);
    ADD_FAILURE() << "this model's whole context fits 256 times";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
    EXPECT_NE(std::string(error.what()).find("the GPU leaves it"), std::string::npos) << error.what();
  }
}

TEST(CudaMemory, RunningOutInAPassCostsThatPassAlone) {
  TF_SKIP_WITHOUT_GPU();
  const auto golden = test::read_golden_case(test::golden_directory("llama"));
  const auto tokens = golden.expected.at("input_ids").as<std::int32_t>();
  const auto few = std::span(tokens).first(3);
  const auto logits_of = [&](LanguageModel& model, std::span<const std::int32_t> rows) {
    ForwardResult result;
    model.forward(test::one_lane_plan(model, rows, 0), result);
    return std::vector<float>(result.logits,
                              result.logits + rows.size() * static_cast<std::size_t>(model.facts().vocabulary_size));
  };
  const auto roomy = load("llama", 0);
  test::allocate_for_one_lane(*roomy, static_cast<std::int32_t>(tokens.size()));
  const auto expected = logits_of(*roomy, few), expected_all = logits_of(*roomy, tokens);

  // Caps from hardly enough to load upwards: wherever memory ends, nothing is left half done.
  int refused = 0, passed = 0;
  for (std::uint64_t cap = 8 * kMib; cap < 512 * kMib && passed < 2; cap += 4 * kMib) {
    std::unique_ptr<LanguageModel> model;
    try {
      model = load("llama", cap);
      test::allocate_for_one_lane(*model, static_cast<std::int32_t>(tokens.size()));
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kResourceExhausted) << error.what();
      continue;
    }
    for (int round = 0; round < 4; ++round) {
      try {
        const auto logits = logits_of(*model, round % 2 == 0 ? few : std::span<const std::int32_t>(tokens));
        EXPECT_EQ(logits, round % 2 == 0 ? expected : expected_all) << cap / kMib << " MiB, round " << round;
        passed += round == 3 ? 1 : 0;
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), ErrorCode::kResourceExhausted) << error.what();
        ++refused;
      }
    }
  }
  EXPECT_GE(passed, 1);
  std::printf("[ report   ] %d passes were refused\n", refused);
}

}  // namespace
}  // namespace tensorfold
