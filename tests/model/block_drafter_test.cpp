// Block drafters (DFlash2 beside its target, DFlash by path) against the independent oracle
// (tests/golden/dflash_oracle.py): context features, the block's states, logits of the candidates, pair scores, the
// greedy path. And the batches: lanes together and prompts in slices give the bits of each alone.
#include "model/block_drafter.h"

#include <filesystem>

#include "base/error.h"
#include "base/temporary_folder.h"
#include "head_test_support.h"
#include "model/executor.h"

namespace tensorfold {
namespace {

using test::GoldenCase;
using test::LanedModel;

constexpr std::int32_t kContextRows = 12;
constexpr std::uint32_t kFlags = kRowWantsLogits | kRowIsTapped;

struct DrafterCase {
  std::string name;
  std::filesystem::path folder;
  LoadOptions options;
};

DrafterCase drafter_case(const std::string& name) {
  DrafterCase result;
  result.name = name;
  if (name == "dflash2") {
    result.folder = test::golden_directory("qwen3_5_mtp") / "dflash2";  // found beside the target
  } else {
    result.folder = test::source_folder() / "tests/golden/drafters/qwen3_5_mtp_dflash";
    result.options.drafter_path = result.folder.string();
  }
  return result;
}

GoldenCase target() {
  return test::read_golden_case(test::golden_directory("qwen3_5_mtp"));
}

DflashDrafter& drafter_of(LanedModel& laned) {
  return dynamic_cast<DflashDrafter&>(*laned.model->block_drafter());
}

/// What a drafter did with the golden context, and one block of each length.
struct Trace {
  std::vector<float> context;
  std::map<std::int32_t, std::vector<float>> hidden;
  std::map<std::int32_t, BlockCandidates> candidates;
};

Trace run(LanedModel& laned, const std::vector<std::int32_t>& tokens, std::size_t cut) {
  Trace trace;
  DflashDrafter& drafter = drafter_of(laned);
  const auto hidden_size = laned.model->facts().hidden_size;
  drafter.set_on_context([&](const float* features, std::int64_t rows) {
    trace.context.insert(trace.context.end(), features, features + rows * hidden_size);
  });
  for (std::size_t first = 0; first < kContextRows; first += cut) {
    const auto part = std::span(tokens).subspan(first, std::min(cut, kContextRows - first));
    RoundPlan plan;
    laned.add(plan, 0, part, static_cast<std::int32_t>(first), kFlags);
    ForwardResult result;
    laned.model->forward(plan, result);
    drafter.absorb({laned.absorb_lane(0, 0, static_cast<std::int32_t>(first), part, false)});
  }
  for (const std::int32_t rows : {4, 7}) {
    drafter.set_on_hidden([&](const float* states, std::int64_t count) {
      trace.hidden[rows].assign(states, states + count * hidden_size);
    });
    std::vector<BlockCandidates> result;
    drafter.propose({{tokens[kContextRows], kContextRows, rows, 1, &laned.pages[0]}}, result);
    trace.candidates[rows] = result.at(0);
  }
  drafter.set_on_context({});  // they point into this function
  drafter.set_on_hidden({});
  return trace;
}

class GoldenDrafter : public test::BackendTest<std::string> {};

TEST_P(GoldenDrafter, ReferenceMeetsTheOracle) {
  const auto each = drafter_case(GetParam());
  const auto expected = test::read_golden_case(each.folder).expected;
  LanedModel laned(target(), test::exact_backend(), 1, each.options);
  const auto tokens = target().expected.at("input_ids").as<std::int32_t>();
  const Trace trace = run(laned, tokens, 512);
  const auto meets = [](const std::vector<float>& ours, const std::vector<float>& theirs) {
    EXPECT_LE(test::largest_difference(ours, theirs), 1e-4f * test::largest(theirs));
  };
  meets(trace.context, expected.at("context").as<float>());
  for (const std::int32_t rows : {4, 7}) {
    const std::string suffix = "_" + std::to_string(rows);
    meets(trace.hidden.at(rows), expected.at("hidden" + suffix).as<float>());
    const BlockCandidates& candidates = trace.candidates.at(rows);
    EXPECT_EQ(candidates.depth_count, rows - 1);
    const auto unary = expected.at("unary" + suffix).as<float>();
    EXPECT_EQ(candidates.tokens, expected.at("candidates" + suffix).as<std::int32_t>());
    const auto pairs = expected.at("pairs" + suffix).as<float>();
    const auto choices = expected.at("choices" + suffix).as<std::int32_t>();
    std::int32_t previous = tokens[kContextRows];
    std::vector<float> ours(static_cast<std::size_t>(candidates.candidate_count)), all_pairs;
    for (std::int32_t depth = 0; depth < candidates.depth_count; ++depth) {
      drafter_of(laned).pair_scores(candidates, depth, previous, ours.data());
      all_pairs.insert(all_pairs.end(), ours.begin(), ours.end());
      previous = choices[static_cast<std::size_t>(depth)];
      for (std::int32_t c = 0; c < candidates.candidate_count; ++c) {
        const auto at = static_cast<std::size_t>(depth * candidates.candidate_count + c);
        const auto token = candidates.tokens[at];
        EXPECT_NEAR(candidates.unary[at], unary[static_cast<std::size_t>(depth * 256 + token)],
                    1e-4f * test::largest(unary));
        ours[static_cast<std::size_t>(c)] += candidates.unary[at];
      }
      const auto best = std::max_element(ours.begin(), ours.end()) - ours.begin();
      EXPECT_EQ(candidates.tokens[static_cast<std::size_t>(depth * candidates.candidate_count + best)], previous);
    }
    if (drafter_of(laned).has_selector()) {
      meets(all_pairs, pairs);
    } else {
      EXPECT_EQ(test::largest(all_pairs), 0.0f);
    }
  }
}

TEST_P(GoldenDrafter, StaysInsideTheRoundingBound) {
  const auto each = drafter_case(GetParam());
  const auto expected = test::read_golden_case(each.folder).expected;
  LanedModel laned(target(), test::backend_under_test(), 1, each.options);
  const Trace trace = run(laned, target().expected.at("input_ids").as<std::int32_t>(), 512);
  const auto bounded = [&](const std::vector<float>& ours, const std::string& name, const std::string& bound) {
    EXPECT_LE(test::root_mean_square(ours, expected.at(name).as<float>()),
              1.5 * static_cast<double>(expected.at(bound).as<float>()[0]))
        << name;
  };
  bounded(trace.context, "context", "context_bf16_error");
  for (const std::int32_t rows : {4, 7}) {
    const std::string suffix = "_" + std::to_string(rows);
    bounded(trace.hidden.at(rows), "hidden" + suffix, "hidden_bf16_error" + suffix);
  }
}

struct LaneBlock {
  std::vector<std::int32_t> context;
  std::int32_t pending = 0;
  std::int32_t rows = 0;
};

/// Absorbs every lane's context in passes of up to `cut` rows a lane, then drafts all blocks in one call.
std::vector<BlockCandidates> draft(LanedModel& laned, const std::vector<LaneBlock>& lanes, std::size_t cut) {
  BlockDrafter& drafter = *laned.model->block_drafter();
  for (std::size_t first = 0;; first += cut) {
    RoundPlan plan;
    std::vector<AbsorbLane> absorbs;
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      if (first >= lanes[i].context.size()) continue;
      const auto part = std::span(lanes[i].context).subspan(first, std::min(cut, lanes[i].context.size() - first));
      const auto lane = static_cast<std::int32_t>(i), position = static_cast<std::int32_t>(first);
      absorbs.push_back(laned.absorb_lane(lane, static_cast<std::int32_t>(plan.rows.size()), position, part, false));
      laned.add(plan, lane, part, position, kFlags);
    }
    if (absorbs.empty()) break;
    ForwardResult result;
    laned.model->forward(plan, result);
    drafter.absorb(absorbs);
  }
  std::vector<BlockDrafter::Block> blocks;
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    blocks.push_back({lanes[i].pending, static_cast<std::int32_t>(lanes[i].context.size()), lanes[i].rows,
                      static_cast<std::int32_t>(i) + 1, &laned.pages[i]});
  }
  std::vector<BlockCandidates> result;
  drafter.propose(blocks, result);
  return result;
}

TEST_P(GoldenDrafter, LanesTogetherAndSlicesGiveTheBitsOfEachAlone) {
  const auto each = drafter_case(GetParam());
  const auto tokens = target().expected.at("input_ids").as<std::int32_t>();
  std::vector<LaneBlock> lanes;
  for (const auto& [length, rows] :
       {std::pair<std::size_t, std::int32_t>{150, 16}, {1, 2}, {63, 4}, {64, 7}, {40, 9}}) {
    LaneBlock lane{{}, tokens[length % 7], rows};
    for (std::size_t i = 0; i < length; ++i) lane.context.push_back(tokens[(i * 7 + length) % tokens.size()]);
    lanes.push_back(std::move(lane));
  }
  for (const bool exact : {false, true}) {
    if (test::kTestsCuda && exact) continue;  // the CPU's program has the reference
    const auto backend = [&] { return exact ? test::exact_backend() : test::backend_under_test(); };
    LanedModel together(target(), backend(), static_cast<std::int32_t>(lanes.size()), each.options);
    const auto all = draft(together, lanes, 11);
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      LanedModel alone(target(), backend(), 1, each.options);
      const auto one = draft(alone, {lanes[i]}, 512).at(0);
      EXPECT_EQ(all[i].tokens, one.tokens) << "lane " << i;
      EXPECT_TRUE(test::same_bits(all[i].unary, one.unary)) << "lane " << i;
      EXPECT_TRUE(test::same_bits(all[i].hidden_projection, one.hidden_projection)) << "lane " << i;
    }
  }
}

TEST_P(GoldenDrafter, ABlockLeavesNoTrace) {
  const auto each = drafter_case(GetParam());
  const auto tokens = target().expected.at("input_ids").as<std::int32_t>();
  LanedModel laned(target(), test::backend_under_test(), 1, each.options);
  const Trace first = run(laned, tokens, 5);  // leaves a block's keys behind the context
  BlockDrafter& drafter = *laned.model->block_drafter();
  std::vector<BlockCandidates> again;
  drafter.propose({{tokens[kContextRows], kContextRows, 4, 1, &laned.pages[0]}}, again);
  EXPECT_TRUE(test::same_bits(again.at(0).unary, first.candidates.at(4).unary));
}

TEST_P(GoldenDrafter, ADraftVocabularyLeavesTheRestOut) {
  const auto each = drafter_case(GetParam());
  const auto tokens = target().expected.at("input_ids").as<std::int32_t>();
  auto options = each.options;
  options.draft_vocabulary = {{10, 90}, {200, 256}};
  LanedModel all(target(), test::backend_under_test(), 1, each.options), some(target(), test::backend_under_test(), 1, options);
  const auto whole = test::read_golden_case(each.folder).expected.at("unary_4").as<float>();
  const auto ours = run(some, tokens, 512).candidates.at(4), theirs = run(all, tokens, 512).candidates.at(4);
  for (std::size_t i = 0; i < ours.tokens.size(); ++i) {
    const auto id = ours.tokens[i];
    EXPECT_TRUE((id >= 10 && id < 90) || id >= 200) << id;
    const auto depth = i / static_cast<std::size_t>(ours.candidate_count);
    EXPECT_NEAR(ours.unary[i], whole[depth * 256 + static_cast<std::size_t>(id)], 0.5f);
    const auto begin = theirs.tokens.begin() + static_cast<std::ptrdiff_t>(depth) * theirs.candidate_count;
    const auto found = std::find(begin, begin + theirs.candidate_count, id);
    if (found != begin + theirs.candidate_count) {
      EXPECT_EQ(ours.unary[i], theirs.unary[static_cast<std::size_t>(found - theirs.tokens.begin())]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Drafters, GoldenDrafter, testing::Values("dflash2", "dflash"),
                         [](const auto& info) { return info.param; });

TEST(Drafter, GroupsAndFacts) {
  TF_SKIP_WITHOUT_BACKEND();
  LanedModel with(target(), test::backend_under_test(), 1);
  LoadOptions none;
  none.find_drafter = false;
  LanedModel without(target(), test::backend_under_test(), 1, none);
  EXPECT_EQ(without.model->block_drafter(), nullptr);
  const auto& groups = with.model->facts().groups;
  ASSERT_EQ(groups.size(), without.model->facts().groups.size() + 1);
  EXPECT_TRUE(groups.back().draft);
  EXPECT_EQ(groups.back().kind, CacheKind::kSliding);
  EXPECT_EQ(groups.back().window, 8);
  EXPECT_EQ(groups.back().layer_count, 2);
  const auto* drafter = with.model->block_drafter();
  EXPECT_EQ(drafter->block_rows(), 4);
  EXPECT_EQ(drafter->block_rows_max(), 16);
  LanedModel full(target(), test::backend_under_test(), 1, drafter_case("dflash").options);
  EXPECT_EQ(full.model->facts().groups.size(), groups.size() + 1);  // a sliding and a full group
  EXPECT_FALSE(full.model->block_drafter()->has_selector());
}

TEST(Drafter, CommittedRowsDontChange) {
  TF_SKIP_WITHOUT_BACKEND();
  const auto tokens = target().expected.at("input_ids").as<std::int32_t>();
  LoadOptions none;
  none.find_drafter = none.mtp = false;
  LanedModel with(target(), test::backend_under_test(), 1), without(target(), test::backend_under_test(), 1, none);
  std::vector<std::vector<float>> logits;
  for (LanedModel* laned : {&with, &without}) {
    RoundPlan plan;
    laned->add(plan, 0, tokens, 0, kRowWantsLogits | kRowIsTapped | kRowWantsHidden);
    ForwardResult result;
    laned->model->forward(plan, result);
    logits.emplace_back(result.logits, result.logits + tokens.size() * 256);
  }
  EXPECT_TRUE(test::same_bits(logits[0], logits[1]));
}

/// A drafter folder with one change in its config.json, loaded for the golden target.
std::string error_with(const std::string& from, const std::string& to, std::int32_t bits = 4) {
  const TemporaryFolder temporary;
  const std::filesystem::path folder = temporary.path() / "drafter";
  std::filesystem::copy(test::golden_directory("qwen3_5_mtp") / "dflash2", folder);
  std::ifstream in(folder / "config.json");
  std::string text((std::istreambuf_iterator<char>(in)), {});
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  if (at != std::string::npos) text.replace(at, from.size(), to);
  std::ofstream(folder / "config.json") << text;
  LoadOptions options;
  options.drafter_path = folder.string();
  options.drafter_bits = bits;
  std::string message;
  try {
    load_language_model(Checkpoint::open(test::golden_directory("qwen3_5_mtp")), test::backend_under_test(), options);
  } catch (const Error& error) {
    message = error.what();
  }
  return message;
}

TEST(Drafter, WhatDoesntFitIsRefusedByName) {
  TF_SKIP_WITHOUT_BACKEND();
  const std::vector<std::array<std::string, 3>> changes = {
      {"\"hidden_size\": 64", "\"hidden_size\": 128", "hidden_size"},
      {"\"vocab_size\": 256", "\"vocab_size\": 300", "vocab_size"},
      {"\"num_target_layers\": 4", "\"num_target_layers\": 8", "num_target_layers"},
      {"\"mask_token_id\": 250", "\"mask_token_id\": 256", "mask_token_id"},
      {"\"block_size\": 4", "\"block_size\": 17", "block_size"},
      {"\"conv_kernel_size\": 2", "\"conv_kernel_size\": 3", "conv_kernel_size"},
      {"\"conv_group_size\": 4", "\"conv_group_size\": 5", "conv_group_size"},
      {"\"sliding_window\": 8", "\"sliding_window\": 3", "sliding_window"},
      {"\"selector_rank\": 8", "\"selector_rank\": 16", "candidate_selector"},
      {"\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1", "layer_types"},
      {"\"dflash_config\"", "\"other_config\"", "target_layer_ids"},
  };
  for (const auto& [from, to, named] : changes) {
    const std::string message = error_with(from, to);
    EXPECT_NE(message.find(named), std::string::npos) << to << ": " << message;
  }
  EXPECT_NE(error_with("\"block_size\": 4", "\"block_size\": 4", 8).find("4 bits"), std::string::npos);
  EXPECT_EQ(error_with("\"block_size\": 4", "\"block_size\": 4", 0), "");
}

}  // namespace
}  // namespace tensorfold
