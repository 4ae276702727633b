// Once an engine has started, streams of every kind take no more of a memory that isn't the host's: buffers of the model, its drafters and
// caches are all there (tests/model/cuda/memory_test.cpp looks at the GPU's own account).
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "engine/borrowed_model.h"
#include "engine/engine.h"
#include "engine/mixed_streams.h"
#include "engine/stream_probe.h"
#include "model/load.h"
#include "support/far_backend.h"
#include "support/model_backend.h"
#include "support/source_folder.h"

namespace tensorfold {
namespace {

#if !defined(TENSORFOLD_TEST_CUDA)

class ServingMemory : public ::testing::TestWithParam<std::string> {};

std::shared_ptr<LanguageModel> load(const std::string& name, std::unique_ptr<ops::Backend> backend) {
  LoadOptions options;
  options.find_drafter = true;
  const auto path = test::source_folder() / (name == "demo" ? "models" : "tests/golden/models") / name;
  return load_language_model(Checkpoint::open(path), std::move(backend), options);
}

TEST_P(ServingMemory, IsTakenAtStart) {
  auto backend = std::make_unique<test::FarBackend>(test::backend_under_test(2));
  const auto allocations = backend->allocations();
  const auto model = load(GetParam(), std::move(backend));
  EXPECT_TRUE(GetParam() != "demo" || model->block_drafter() != nullptr);
  EngineOptions options;
  options.lanes = 6;
  options.prompt_cache_bytes = 64 << 20;
  const auto engine = Engine::start(std::make_unique<BorrowedModel>(model), options);
  const int before = *allocations;
  testing::serve_mixed_streams(*engine);
  EXPECT_EQ(*allocations, before);
}

TEST_P(ServingMemory, IsEnoughForNoMoreThanThat) {
  // Few lanes, short contexts, no kept prefixes, passes of any size, one engine after the other: the widest pass has just these pages.
  const auto model = load(GetParam(), std::make_unique<test::FarBackend>(test::backend_under_test(2)));
  for (const auto& [lanes, context, pass_rows] : {std::array{3, 130, 0}, {1, 65, 0}, {1, 64, 1}, {4, 100, 7}, {16, 33, 5}, {5, 129, 300}, {1, 1, 2048}}) {
    EngineOptions options;
    options.lanes = lanes;
    options.context = context;
    options.pass_rows_max = pass_rows;
    const auto engine = Engine::start(std::make_unique<BorrowedModel>(model), options);
    if (context < 20) continue;
    testing::StreamProbe probe;
    const auto handle = engine->open(testing::request_of(testing::counting_prompt(context - 9), 9), probe.sink());
    EXPECT_NE(probe.wait().reason, FinishReason::kError);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ServingMemory,
                         ::testing::Values("llama", "gemma3", "qwen2", "qwen3_moe", "qwen3_5_mtp", "qwen3_5_moe_mtp", "demo"),
                         [](const auto& info) { return info.param; });

#endif

}  // namespace
}  // namespace tensorfold
