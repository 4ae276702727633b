// Quantising a drafter's large projections at load: a copy of the golden DFlash drafter whose feed-forward is widened
// until its matrices count as large, with 4 bits and as stored.
#include <filesystem>
#include <random>

#include "base/bf16.h"
#include "base/temporary_folder.h"
#include "head_test_support.h"

namespace tensorfold {
namespace {

using test::LanedModel;
using test::StoredTensor;
namespace fs = std::filesystem;

constexpr std::int64_t kWidth = 16'384, kHidden = 64;  // 2^20 elements a projection

StoredTensor random_matrix(std::int64_t rows, std::int64_t columns, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 1.0f / std::sqrt(static_cast<float>(columns)));
  StoredTensor result{"BF16", {rows, columns}, std::string(static_cast<std::size_t>(rows * columns) * 2, '\0')};
  for (std::size_t i = 0; i < result.bytes.size(); i += 2) {
    const Bf16 value = to_bf16(normal(random));
    std::memcpy(result.bytes.data() + i, &value, sizeof(value));
  }
  return result;
}

class DrafterBits : public testing::Test {
 protected:
  void SetUp() override {
    TF_SKIP_WITHOUT_BACKEND();
    const auto golden = test::source_folder() / "tests/golden/drafters/qwen3_5_mtp_dflash";
    auto tensors = test::read_safetensors_plainly(golden / "model.safetensors");
    for (const char* layer : {"layers.0.", "layers.1."}) {
      const std::string name = std::string(layer) + "mlp.";
      tensors[name + "gate_proj.weight"] = random_matrix(kWidth, kHidden, 1);
      tensors[name + "up_proj.weight"] = random_matrix(kWidth, kHidden, 2);
      tensors[name + "down_proj.weight"] = random_matrix(kHidden, kWidth, 3);
    }
    test::write_safetensors_plainly(folder_ / "model.safetensors", tensors);
    std::ifstream in(golden / "config.json");
    auto config = nlohmann::json::parse(in);
    config["intermediate_size"] = kWidth;
    std::ofstream(folder_ / "config.json") << config.dump();
  }

  struct Result {
    std::uint64_t packed_bytes = 0;
    BlockCandidates candidates;
  };
  Result run(std::int32_t bits) const {
    LoadOptions options;
    options.drafter_path = folder_.string();
    options.drafter_bits = bits;
    const auto target = test::read_golden_case(test::golden_directory("qwen3_5_mtp"));
    LanedModel laned(target, test::backend_under_test(), 1, options);
    const auto tokens = target.expected.at("input_ids").as<std::int32_t>();
    RoundPlan plan;
    laned.add(plan, 0, tokens, 0, kRowIsTapped);
    ForwardResult result;
    laned.model->forward(plan, result);
    BlockDrafter& drafter = *laned.model->block_drafter();
    drafter.absorb({laned.absorb_lane(0, 0, 0, tokens, false)});
    std::vector<BlockCandidates> proposed;
    drafter.propose({{5, static_cast<std::int32_t>(tokens.size()), 4, 1, &laned.pages[0]}}, proposed);
    return {laned.model->facts().packed_weight_bytes, proposed.at(0)};
  }

  const TemporaryFolder temporary_;
  const fs::path folder_ = temporary_.path();
};

TEST_F(DrafterBits, LargeProjectionsShrinkAndDraftAlike) {
  const Result four = run(4), stored = run(0);
  const std::uint64_t elements = 6ull * kWidth * kHidden;
  const std::uint64_t saved = stored.packed_bytes - four.packed_bytes;
  EXPECT_GT(saved, elements * 13 / 10);  // 16 bits -> 4.5 bits: 1.44 bytes an element, less the packing's own
  // The GPU's layout pads rows of so few weights, those of 16 bits to twice their size.
  EXPECT_LT(saved, elements * (test::kTestsCuda ? 26 : 15) / 10);
  EXPECT_FALSE(test::same_bits(four.candidates.unary, stored.candidates.unary));
  std::size_t alike = 0;
  for (std::size_t i = 0; i < four.candidates.tokens.size(); ++i) {
    const auto depth = i / static_cast<std::size_t>(stored.candidates.candidate_count);
    const auto begin =
        stored.candidates.tokens.begin() + static_cast<std::ptrdiff_t>(depth) * stored.candidates.candidate_count;
    alike += std::find(begin, begin + stored.candidates.candidate_count, four.candidates.tokens[i]) !=
                     begin + stored.candidates.candidate_count
                 ? 1
                 : 0;
  }
  EXPECT_GE(alike, four.candidates.tokens.size() * 6 / 10);
}

}  // namespace
}  // namespace tensorfold
