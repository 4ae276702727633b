// MTP heads of golden checkpoints, in the model's file and beside it, against the independent oracle
// (tests/golden/mtp_oracle.py): every pair of a prompt, and a chain of three levels. And the batches: lanes together
// and prompts in slices give the bits of each alone.
#include <filesystem>
#include <fstream>

#include "base/bf16.h"
#include "base/error.h"
#include "base/temporary_folder.h"
#include "head_test_support.h"
#include "model/draft_output.h"

namespace tensorfold {
namespace {

using test::GoldenCase;
using test::LanedModel;

constexpr std::uint32_t kFlags = kRowWantsLogits | kRowWantsHidden;

std::vector<std::string> cases_with_head() {
  std::vector<std::string> names;
  for (const auto& name : test::golden_case_names()) {
    if (test::read_golden_case(test::golden_directory(name)).expected.contains("mtp_logits")) names.push_back(name);
  }
  return names;
}

/// Logits of every pair and of every level of the chain.
std::vector<float> run(const GoldenCase& golden, std::unique_ptr<ops::Backend> backend) {
  LanedModel laned(golden, std::move(backend), 1);
  const auto tokens = golden.expected.at("input_ids").as<std::int32_t>();
  const auto follow = golden.expected.at("mtp_tokens").as<std::int32_t>();
  const auto chain = golden.expected.at("mtp_chain_tokens").as<std::int32_t>();
  RoundPlan plan;
  laned.add(plan, 0, tokens, 0, kFlags);
  ForwardResult result;
  laned.model->forward(plan, result);
  MtpHead* head = laned.model->mtp_head();
  if (head == nullptr) throw std::runtime_error("no MTP head");
  const auto vocabulary = static_cast<std::size_t>(laned.model->facts().vocabulary_size);
  std::vector<float> logits;
  DraftLogits drafts;
  for (std::int32_t row = 0; row < static_cast<std::int32_t>(tokens.size()); ++row) {  // to see each pair's logits
    const auto lane = laned.absorb_lane(0, row, row, std::span(follow).subspan(static_cast<std::size_t>(row), 1), true);
    head->absorb({lane}, drafts);
    logits.insert(logits.end(), drafts.logits, drafts.logits + vocabulary);
  }
  auto position = static_cast<std::int32_t>(tokens.size());
  for (const std::int32_t token : chain) {
    head->step({{0, token, position++, 1, &laned.pages[0]}}, drafts);
    logits.insert(logits.end(), drafts.logits, drafts.logits + vocabulary);
  }
  return logits;
}

std::vector<float> expected_logits(const GoldenCase& golden) {
  auto logits = golden.expected.at("mtp_logits").as<float>();
  const auto levels = golden.expected.at("mtp_chain_logits").as<float>();
  logits.insert(logits.end(), levels.begin(), levels.end());
  return logits;
}

class GoldenMtp : public test::BackendTest<std::string> {};

TEST_P(GoldenMtp, ReferenceMeetsTheOracle) {
  const auto golden = test::read_golden_case(test::golden_directory(GetParam()));
  const auto expected = expected_logits(golden);
  const auto logits = run(golden, test::exact_backend());
  EXPECT_LE(test::largest_difference(logits, expected), 1e-4f * test::largest(expected));
}

TEST_P(GoldenMtp, StaysInsideTheRoundingBound) {
  const auto golden = test::read_golden_case(test::golden_directory(GetParam()));
  const auto bound = golden.expected.at("mtp_bf16_error").as<float>();
  const auto logits = run(golden, test::backend_under_test());
  EXPECT_LE(test::root_mean_square(logits, expected_logits(golden)), 1.5 * static_cast<double>(bound[1]));
}

struct LaneTokens {
  std::vector<std::int32_t> tokens, follow;
};

/// Feeds each lane its tokens, all lanes in one pass of up to `cut` rows each, absorbs after every pass and chains two
/// levels at the end. Returns [lane][last pair's logits, then each level's].
std::vector<std::vector<float>> run_lanes(LanedModel& laned, const std::vector<LaneTokens>& lanes, std::size_t cut) {
  const auto vocabulary = static_cast<std::size_t>(laned.model->facts().vocabulary_size);
  MtpHead& head = *laned.model->mtp_head();
  std::vector<std::vector<float>> logits(lanes.size());
  std::vector<std::size_t> done(lanes.size(), 0);
  std::vector<std::size_t> ready;  // lanes of the last result, in its order
  const auto take = [&](const DraftLogits& drafts, const std::vector<std::size_t>& of) {
    EXPECT_EQ(drafts.entries.size(), of.size());
    for (std::size_t i = 0; i < of.size(); ++i) {
      logits[of[i]].insert(logits[of[i]].end(), drafts.logits + i * vocabulary, drafts.logits + (i + 1) * vocabulary);
    }
  };
  DraftLogits drafts;
  for (bool more = true; more;) {
    more = false;
    RoundPlan plan;
    std::vector<AbsorbLane> absorbs;
    std::vector<std::size_t> fed;
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      // The last token waits until every lane is at its last, so that all chain together.
      const std::size_t rest = lanes[i].tokens.size() - done[i];
      const std::size_t count = rest > 1 ? std::min(cut, rest - 1) : 0;
      if (count == 0) continue;
      more = true;
      fed.push_back(i);
      const auto first = static_cast<std::int32_t>(plan.rows.size()), position = static_cast<std::int32_t>(done[i]);
      const auto lane = static_cast<std::int32_t>(i);
      laned.add(plan, lane, std::span(lanes[i].tokens).subspan(done[i], count), position, kFlags);
      absorbs.push_back(
          laned.absorb_lane(lane, first, position, std::span(lanes[i].follow).subspan(done[i], count), false));
      done[i] += count;
    }
    if (!more) break;
    ForwardResult result;
    laned.model->forward(plan, result);
    head.absorb(absorbs, drafts);
    EXPECT_TRUE(drafts.entries.empty());
  }
  RoundPlan plan;
  std::vector<AbsorbLane> absorbs;
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    const auto position = static_cast<std::int32_t>(done[i]), lane = static_cast<std::int32_t>(i);
    laned.add(plan, lane, std::span(lanes[i].tokens).subspan(done[i], 1), position, kFlags);
    absorbs.push_back(laned.absorb_lane(lane, lane, position, std::span(lanes[i].follow).subspan(done[i], 1), true));
    ready.push_back(i);
  }
  ForwardResult result;
  laned.model->forward(plan, result);
  head.absorb(absorbs, drafts);
  take(drafts, ready);
  for (std::int32_t level = 1; level <= 2; ++level) {
    std::vector<MtpHead::Step> steps;
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      steps.push_back({static_cast<std::int32_t>(i), 3 + level, static_cast<std::int32_t>(done[i]) + level,
                       static_cast<std::int32_t>(i) + 1, &laned.pages[i]});
    }
    head.step(steps, drafts);
    take(drafts, ready);
  }
  return logits;
}

TEST_P(GoldenMtp, LanesTogetherAndSlicesGiveTheBitsOfEachAlone) {
  const auto golden = test::read_golden_case(test::golden_directory(GetParam()));
  const auto tokens = golden.expected.at("input_ids").as<std::int32_t>();
  const auto follow = golden.expected.at("mtp_tokens").as<std::int32_t>();
  std::vector<LaneTokens> lanes;
  for (const auto& [first, count] : {std::pair<std::ptrdiff_t, std::ptrdiff_t>{0, 40}, {3, 21}, {10, 1}, {5, 30}}) {
    lanes.push_back({{tokens.begin() + first, tokens.begin() + first + count},
                     {follow.begin() + first, follow.begin() + first + count}});
  }
  for (const bool exact : {false, true}) {
    if (test::kTestsCuda && exact) continue;  // the CPU's program has the reference
    const auto backend = [&] { return exact ? test::exact_backend() : test::backend_under_test(); };
    LanedModel together(golden, backend(), 4);
    const auto all = run_lanes(together, lanes, 7);
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      LanedModel alone(golden, backend(), 1);
      const auto one = run_lanes(alone, {lanes[i]}, 512);
      EXPECT_TRUE(test::same_bits(all[i], one[0])) << "lane " << i << (exact ? " on the reference" : "");
    }
  }
}

TEST_P(GoldenMtp, CommittedRowsDontChange) {
  const auto golden = test::read_golden_case(test::golden_directory(GetParam()));
  const auto tokens = golden.expected.at("input_ids").as<std::int32_t>();
  LoadOptions headless;
  headless.mtp = false;
  LanedModel with(golden, test::backend_under_test(), 1), without(golden, test::backend_under_test(), 1, headless);
  EXPECT_EQ(without.model->mtp_head(), nullptr);
  EXPECT_EQ(without.model->facts().groups.size() + 1, with.model->facts().groups.size());
  EXPECT_TRUE(with.model->facts().groups.back().draft);
  std::vector<std::vector<float>> logits;
  for (LanedModel* laned : {&with, &without}) {
    RoundPlan plan;
    laned->add(plan, 0, tokens, 0, laned == &with ? kFlags | kRowReturnsHidden : std::uint32_t{kRowWantsLogits});
    ForwardResult result;
    laned->model->forward(plan, result);
    EXPECT_EQ(result.hidden != nullptr, laned == &with);
    logits.emplace_back(result.logits, result.logits + tokens.size() * 256);
  }
  EXPECT_TRUE(test::same_bits(logits[0], logits[1]));
}

/// Keys of the pairs before the wanted one are written by the same pass, here some of them into an earlier page than its own:
/// they must be there when it looks.
TEST_P(GoldenMtp, TheLastOfSeveralPairsIsThatPairAlone) {
  constexpr std::int32_t kTokens = 71;
  const auto golden = test::read_golden_case(test::golden_directory(GetParam()));
  const auto input = golden.expected.at("input_ids").as<std::int32_t>();
  std::vector<std::int32_t> tokens;
  for (std::size_t i = 0; i < kTokens; ++i) tokens.push_back(input[i * 5 % input.size()]);
  // Each from pages that nothing was written to yet; more than once, as a race is lost now and then only.
  const auto last_logits = [&](std::int32_t together) {
    LanedModel laned(golden, test::backend_under_test(), 1);
    RoundPlan plan;
    laned.add(plan, 0, tokens, 0, kFlags);
    ForwardResult result;
    laned.model->forward(plan, result);
    const std::int32_t first = kTokens - together;
    const std::span all(tokens);
    DraftLogits drafts;
    laned.model->mtp_head()->absorb({laned.absorb_lane(0, 0, 0, all.first(static_cast<std::size_t>(first)), false)}, drafts);
    laned.model->mtp_head()->absorb({laned.absorb_lane(0, first, first, all.subspan(static_cast<std::size_t>(first)), true)}, drafts);
    return std::vector<float>(drafts.logits, drafts.logits + laned.model->facts().vocabulary_size);
  };
  const auto alone = last_logits(1);
  for (const std::int32_t together : {2, 11, 12, 40, 64, 11, 12}) {
    EXPECT_TRUE(test::same_bits(last_logits(together), alone)) << together << " pairs";
  }
}

TEST_P(GoldenMtp, ADraftVocabularyLeavesTheRestOut) {
  const auto golden = test::read_golden_case(test::golden_directory(GetParam()));
  const auto tokens = golden.expected.at("input_ids").as<std::int32_t>();
  LoadOptions some;
  some.draft_vocabulary = {{3, 100}, {250, 256}};
  std::vector<std::vector<float>> logits;
  for (const LoadOptions& options : {LoadOptions{}, some}) {
    LanedModel laned(golden, test::backend_under_test(), 1, options);
    RoundPlan plan;
    laned.add(plan, 0, tokens, 0, kFlags);
    ForwardResult result;
    laned.model->forward(plan, result);
    DraftLogits drafts;
    laned.model->mtp_head()->absorb({laned.absorb_lane(0, 0, 0, tokens, true)}, drafts);
    logits.emplace_back(drafts.logits, drafts.logits + 256);
  }
  for (std::size_t id = 0; id < 256; ++id) {
    const bool drafted = (id >= 3 && id < 100) || id >= 250;
    EXPECT_EQ(logits[1][id], drafted ? logits[0][id] : kNeverDrafted) << id;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenMtp, testing::ValuesIn(cases_with_head()),
                         [](const auto& info) { return info.param; });

/// A copy of a golden checkpoint that a test may damage.
class CopiedCheckpoint {
 public:
  explicit CopiedCheckpoint(const std::string& name) {
    std::filesystem::copy(test::golden_directory(name), path_);
  }

  const std::filesystem::path& path() const { return path_; }
  void replace(const std::string& file, const std::string& from, const std::string& to) const {
    std::ifstream in(path_ / file, std::ios::binary);
    std::string text((std::istreambuf_iterator<char>(in)), {});
    const auto at = text.find(from);
    ASSERT_NE(at, std::string::npos);
    ASSERT_EQ(text.find(from, at + 1), std::string::npos);
    std::ofstream(path_ / file, std::ios::binary) << text.replace(at, from.size(), to);
  }
  std::string load_error() const {
    try {
      load_language_model(Checkpoint::open(path_), test::backend_under_test(), {});
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

 private:
  const TemporaryFolder folder_;
  const std::filesystem::path path_ = folder_.path() / "checkpoint";
};

TEST(Mtp, APartialHeadIsRefusedByName) {
  TF_SKIP_WITHOUT_BACKEND();
  const CopiedCheckpoint inside("qwen3_5_mtp");
  inside.replace("model.safetensors", "mtp.pre_fc_norm_hidden.weight", "mtp.pre_fc_norm_hiddem.weight");
  EXPECT_NE(inside.load_error().find("mtp.pre_fc_norm_hidden.weight"), std::string::npos) << inside.load_error();
  const CopiedCheckpoint beside("mlx_qwen3_5_mtp_4bit");
  beside.replace("mtp-4bit.safetensors", "mtp.norm.weight", "mtp.morn.weight");
  EXPECT_NE(beside.load_error().find("mtp.norm.weight"), std::string::npos) << beside.load_error();
}

TEST(Mtp, ZeroLayersInTheConfigurationSwitchItOff) {
  TF_SKIP_WITHOUT_BACKEND();
  for (const char* name : {"qwen3_5_mtp", "mlx_qwen3_5_mtp_4bit"}) {
    const CopiedCheckpoint copy(name);
    copy.replace("config.json", "\"mtp_num_hidden_layers\": 1", "\"mtp_num_hidden_layers\": 0");
    const auto model = load_language_model(Checkpoint::open(copy.path()), test::backend_under_test(), {});
    EXPECT_EQ(model->mtp_head(), nullptr);
  }
}

// A converter that folds by the ends of names misses "pre_fc_norm_*": the values less one are what it would have left.
TEST(Mtp, NormsOfTwoConventionsAreToldApart) {
  TF_SKIP_WITHOUT_BACKEND();
  const CopiedCheckpoint copy("mlx_qwen3_5_mtp_4bit");
  const auto path = copy.path() / "mtp-4bit.safetensors";
  auto golden = test::read_golden_case(test::golden_directory("mlx_qwen3_5_mtp_4bit"));
  golden.model = copy.path();
  const auto logits_less = [&](float offset) {
    auto tensors = test::read_safetensors_plainly(path);
    for (const char* name : {"mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight"}) {
      std::string& bytes = tensors.at(name).bytes;
      for (std::size_t i = 0; i < bytes.size(); i += sizeof(Bf16)) {
        Bf16 value;
        std::memcpy(&value, bytes.data() + i, sizeof(value));
        value = to_bf16(std::max(to_float(value), 0.5f) - offset);  // exact for values from 0.5 to 2
        std::memcpy(bytes.data() + i, &value, sizeof(value));
      }
    }
    test::write_safetensors_plainly(path, tensors);
    return run(golden, test::backend_under_test());
  };
  const auto folded = logits_less(0.0f);
  EXPECT_TRUE(test::same_bits(logits_less(1.0f), folded));
}

TEST(Mtp, MoreThanOneLayerIsRefused) {
  TF_SKIP_WITHOUT_BACKEND();
  const CopiedCheckpoint copy("qwen3_5_mtp");
  copy.replace("config.json", "\"mtp_num_hidden_layers\": 1", "\"mtp_num_hidden_layers\": 2");
  EXPECT_NE(copy.load_error().find("MTP head of 2 layers"), std::string::npos) << copy.load_error();
}

TEST(Mtp, WithoutTheFileTheModelLoadsWithoutAHead) {
  TF_SKIP_WITHOUT_BACKEND();
  const CopiedCheckpoint copy("mlx_qwen3_5_mtp_4bit");
  std::filesystem::remove(copy.path() / "mtp-4bit.safetensors");
  const auto model = load_language_model(Checkpoint::open(copy.path()), test::backend_under_test(), {});
  EXPECT_EQ(model->mtp_head(), nullptr);
}

}  // namespace
}  // namespace tensorfold
