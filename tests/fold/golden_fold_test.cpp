// The fold test on every golden checkpoint (tests/golden/models/*): each family, each weight format, on the backends
// this machine has. The engine's model runs on two threads, the plain run's on one, so thread counts are compared too.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/temporary_folder.h"
#include "checkpoint/checkpoint.h"
#include "engine/verify/fold.h"
#include "model/load.h"
#include "support/far_backend.h"
#include "support/golden_case.h"
#include "support/model_backend.h"
#include "support/source_folder.h"

namespace tensorfold {
namespace {

std::vector<std::string> golden_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(test::source_folder() / "tests/golden/models")) {
    const std::string name = entry.path().filename().string();
    if (entry.is_directory() && !test::backend_refuses(name)) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::filesystem::path golden_path(const std::string& name) {
  const std::filesystem::path directory = test::source_folder() / "tests/golden/models" / name;
  return std::filesystem::exists(directory / "model.gguf") ? directory / "model.gguf" : directory;
}

using MakeBackend = std::function<std::unique_ptr<ops::Backend>(std::int32_t schedule, int threads)>;

/// `draws`: the backend draws tokens itself where nobody asks for the logits.
void expect_folds(const std::string& name, bool draws, const MakeBackend& make_backend) {
  const auto checkpoint = Checkpoint::open(golden_path(name));
  const auto make = [&](std::int32_t schedule, int threads) {
    return load_language_model(checkpoint, make_backend(schedule, threads), {});
  };
  fold::Options options;
  options.schedules = draws ? 4 : 3;
  options.hidden_streams = draws ? 0.6 : 0.0;
  options.seed = std::hash<std::string>{}(name)&0xffffu;
  options.streams_max = 4;
  options.waves = 2;
  options.prompt_cache_bytes_max = 64 << 20;
  const TemporaryFolder learned;
  options.learn_folder = learned.path().string();
  options.prompt_tokens_max = 80;
  options.reply_tokens_max = 28;
  options.make_reference = [&](std::int32_t schedule) { return make(schedule, 1); };
  const fold::Report report = fold::run([&](std::int32_t schedule) { return make(schedule, 2); }, options);
  EXPECT_TRUE(report.passed()) << report.first_failure;
  EXPECT_EQ(report.drawn_by_backend > 0, draws);
  std::printf("[ report   ] %s: %d streams, %llu rows, %llu of %llu drafts landed, %llu tokens drawn by the backend\n",
              name.c_str(), report.streams, static_cast<unsigned long long>(report.rows_compared),
              static_cast<unsigned long long>(report.accepted), static_cast<unsigned long long>(report.drafted),
              static_cast<unsigned long long>(report.drawn_by_backend));
}

class GoldenFold : public test::BackendTest<std::string> {};

#if !defined(TENSORFOLD_TEST_CUDA)  // the CPU's program has the reference
TEST_P(GoldenFold, ReferenceBackend) {
  expect_folds(GetParam(), false, [](std::int32_t schedule, int threads) {
    const auto rounding = schedule % 2 == 0 ? ops::Rounding::kBackend : ops::Rounding::kNone;
    return ops::make_reference_backend(rounding, threads);
  });
}

TEST_P(GoldenFold, MemoryThatIsNotTheHosts) {
  expect_folds(GetParam(), false, [](std::int32_t, int threads) -> std::unique_ptr<ops::Backend> {
    auto backend = test::backend_under_test(threads, threads == 1);
    if (threads == 1) return backend;
    return std::make_unique<test::FarBackend>(std::move(backend));
  });
}
#endif

TEST_P(GoldenFold, BackendUnderTest) {
  // The engine's model on the fastest path this machine has; the plain run's on AVX2 where there is one, on a GPU without
  // graphs and by the kernels for every GPU.
  constexpr bool kDraws =
#if defined(TENSORFOLD_TEST_CUDA)
      true;
#else
      false;
#endif
  expect_folds(GetParam(), kDraws, [](std::int32_t, int threads) { return test::backend_under_test(threads, threads == 1); });
}

INSTANTIATE_TEST_SUITE_P(Families, GoldenFold, ::testing::ValuesIn(golden_names()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tensorfold
