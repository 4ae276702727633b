// The model-backed draft sources against scripted heads: which rows, positions, tokens and page tables reach a head, in
// which order and batched how; that drafts are drawn as the target draws; and the search over a block's candidates.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>

#include "base/error.h"
#include "base/limits.h"
#include "engine/draft/block_source.h"
#include "engine/draft/draft_tree.h"
#include "engine/draft/mtp_source.h"
#include "engine/host_sampler.h"

namespace tensorfold {
namespace {

constexpr std::int32_t kVocabulary = 300;

std::vector<float> hashed_logits(std::uint64_t seed, float spread = 1.0f) {
  std::mt19937_64 random(seed);
  std::vector<float> logits(kVocabulary);
  for (float& logit : logits) logit = spread * (static_cast<float>(random() % 100'000) / 10'000.0f - 5.0f);
  return logits;
}

/// The logits of a text: a hash of it, as if a model had read it.
std::vector<float> logits_after(const std::vector<std::int32_t>& text, float spread = 1.0f) {
  std::uint64_t hash = 77;
  for (const std::int32_t token : text) hash = sampling::mix(hash ^ static_cast<std::uint64_t>(token + 1));
  return hashed_logits(hash, spread);
}

/// A head that knows each lane's text and predicts exactly what the target will: every draft must land. It keeps what
/// it was called with.
class TextHead : public MtpHead {
 public:
  std::int32_t depth_max() const override { return 5; }

  void absorb(const std::vector<AbsorbLane>& lanes, DraftLogits& result) override {
    absorbs.push_back(lanes);
    begin(result);
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      std::vector<std::int32_t>& text = texts[lanes[i].slot];
      for (const AbsorbRow& row : lanes[i].rows) {
        EXPECT_EQ(static_cast<std::int32_t>(text.size()), row.position + 1) << "every row, once";
        text.push_back(row.next_token);
      }
      if (lanes[i].wants_result) add(text, static_cast<std::int32_t>(i), result);
    }
    end(result);
  }

  void step(const std::vector<Step>& steps, DraftLogits& result) override {
    step_calls.push_back(steps);
    const std::vector<std::vector<std::int32_t>> before = entry_texts_;
    begin(result);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      std::vector<std::int32_t> text = before.at(static_cast<std::size_t>(steps[i].source));
      text.push_back(steps[i].token);
      // Pair p joins row p with token p + 1, which is the text's last.
      EXPECT_EQ(steps[i].position, static_cast<std::int32_t>(text.size()) - 2);
      add(text, static_cast<std::int32_t>(i), result);
    }
    end(result);
  }

  std::map<std::int32_t, std::vector<std::int32_t>> texts;  // by slot; the first token is the test's to set
  std::vector<std::vector<AbsorbLane>> absorbs;
  std::vector<std::vector<Step>> step_calls;
  float spread = 1.0f;
  std::set<std::int32_t> broken_slots;

 private:
  void begin(DraftLogits& result) {
    result = {};
    logits_.clear();
    entry_texts_.clear();
  }
  void add(const std::vector<std::int32_t>& text, std::int32_t entry, DraftLogits& result) {
    std::vector<float> logits = logits_after(text, spread);
    for (const std::int32_t slot : broken_slots) {
      if (texts[slot] == text) logits[3] = NAN;
    }
    logits_.insert(logits_.end(), logits.begin(), logits.end());
    entry_texts_.push_back(text);
    result.entries.push_back(entry);
  }
  void end(DraftLogits& result) { result.logits = logits_.data(); }

  std::vector<float> logits_;
  std::vector<std::vector<std::int32_t>> entry_texts_;
};

/// A stream as a source sees it.
struct Lane {
  std::unique_ptr<DraftState> state;
  std::vector<std::int32_t> context;
  SamplingRule sampling;
  std::string owner = "-";
  std::vector<PageTable> pages = {{}, {5}};  // a page of 64 positions
  std::int32_t slot = 1;

  Lane(std::vector<std::int32_t> tokens, std::int32_t lane_slot) : context(std::move(tokens)), slot(lane_slot) {}
  DraftStream view() const {
    DraftStream stream;
    stream.state = state.get();
    stream.context = &context;
    stream.prompt_length = static_cast<std::int32_t>(context.size()) - 1;
    stream.sampling = &sampling;
    stream.owner = &owner;
    stream.slot = slot;
    stream.pages = &pages;
    return stream;
  }
  /// All rows but the pending token's.
  DraftAbsorb absorb_all(bool wants_proposal) const {
    DraftAbsorb absorb;
    absorb.stream = view();
    for (std::size_t i = 0; i + 1 < context.size(); ++i) {
      const auto index = static_cast<std::int32_t>(i);
      absorb.rows.push_back({index + 100 * slot, index, context[i + 1]});
    }
    absorb.wants_proposal = wants_proposal;
    return absorb;
  }
  DraftRequest request(std::int32_t depth_max, bool trees = false, std::int32_t nodes_max = 15) const {
    DraftRequest request;
    request.stream = view();
    request.depth_max = depth_max;
    request.nodes_max = nodes_max;
    request.trees = trees;
    return request;
  }
};

SamplingRule sampled_rule(std::uint64_t seed) {
  SamplingRule rule;
  rule.temperature = 0.9;
  rule.top_k = 20;
  rule.top_p = 0.95;
  rule.seed = seed;
  return rule;
}

/// What the target draws after `text`, token by token.
std::vector<std::int32_t> target_reply(std::vector<std::int32_t> text, const SamplingRule& rule, std::size_t count,
                                       float spread) {
  HostSampler sampler(kVocabulary);
  std::vector<std::int32_t> reply;
  for (std::size_t i = 0; i < count; ++i) {
    const std::vector<float> logits = logits_after(text, spread);
    const Draw draw = sampler.draw(logits.data(), nullptr, rule, static_cast<std::int64_t>(text.size()));
    reply.push_back(draw.token);
    text.push_back(draw.token);
  }
  return reply;
}

TEST(MtpSourceTest, DraftsOfManyLanesAreWhatTheTargetWillDraw) {
  TextHead head;
  MtpOptions options;
  options.confidence_min = 0.0;
  MtpSource source(head, kVocabulary, options);
  std::vector<Lane> lanes;
  for (std::int32_t i = 0; i < 6; ++i) {
    lanes.emplace_back(std::vector<std::int32_t>{i, 5, 9 + i, 2, 3}, i + 1);
    lanes.back().sampling = i % 2 == 0 ? SamplingRule{} : sampled_rule(static_cast<std::uint64_t>(i));
    if (i == 3) lanes.back().sampling.top_k = 0;
    lanes.back().state = source.open(lanes.back().view());
  }
  std::vector<DraftAbsorb> absorbs;
  std::vector<DraftRequest> requests;
  for (const Lane& lane : lanes) head.texts[lane.slot] = {lane.context[0]};
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    const bool drafts = i != 4;  // one sits out
    absorbs.push_back(lanes[i].absorb_all(drafts));
    if (drafts) requests.push_back(lanes[i].request(static_cast<std::int32_t>(i) + 1));
  }
  source.absorb(absorbs);
  source.propose(requests);
  for (const DraftRequest& request : requests) {
    const std::vector<std::int32_t> expected =
        target_reply(*request.stream.context, *request.stream.sampling,
                     static_cast<std::size_t>(std::min(request.depth_max, head.depth_max())), head.spread);
    std::vector<std::int32_t> drafted;
    for (std::size_t i = 0; i < request.proposal.nodes.size(); ++i) {
      drafted.push_back(request.proposal.nodes[i].token);
      EXPECT_EQ(request.proposal.nodes[i].parent, static_cast<std::int32_t>(i) - 1);
      EXPECT_GT(request.proposal.nodes[i].chance, 0.0);
      EXPECT_LE(request.proposal.nodes[i].chance, 1.0);
    }
    EXPECT_EQ(drafted, expected) << "slot " << request.stream.slot;
    EXPECT_TRUE(request.failure.empty());
  }
  // All lanes in one call, then one call a level.
  ASSERT_EQ(head.absorbs.size(), 1u);
  ASSERT_EQ(head.absorbs[0].size(), 6u);
  EXPECT_FALSE(head.absorbs[0][4].wants_result);
  EXPECT_TRUE(head.absorbs[0][5].wants_result);
  EXPECT_EQ(head.absorbs[0][2].rows[1].pass_row, 301);
  ASSERT_EQ(head.step_calls.size(), 4u);
  EXPECT_EQ(head.step_calls[0].size(), 4u);  // lanes that asked for two levels or more
  EXPECT_EQ(head.step_calls[3].size(), 1u);
  EXPECT_EQ(head.step_calls[3][0].slot, 6);
  EXPECT_EQ(head.step_calls[3][0].pages, &lanes[5].pages);
}

TEST(MtpSourceTest, AChainEndsWhereItsConfidenceIsLow) {
  TextHead head;
  head.spread = 0.001f;  // all tokens about as likely: shares near 1/28
  MtpSource source(head, kVocabulary);
  Lane lane({1, 2, 3}, 1);
  head.texts = {{1, {1}}};
  lane.state = source.open(lane.view());
  std::vector<DraftAbsorb> absorbs = {lane.absorb_all(true)};
  std::vector<DraftRequest> requests = {lane.request(5)};
  source.absorb(absorbs);
  source.propose(requests);
  EXPECT_EQ(requests[0].proposal.nodes.size(), 1u) << "the first draft costs nothing more";
  EXPECT_LT(requests[0].proposal.nodes[0].chance, 0.1);
  EXPECT_TRUE(head.step_calls.empty());

  head.spread = 1000.0f;  // one token stands out
  head.texts = {{1, {1}}};
  requests = {lane.request(5)};
  absorbs = {lane.absorb_all(true)};
  source.absorb(absorbs);
  source.propose(requests);
  EXPECT_EQ(requests[0].proposal.nodes.size(), 5u);
  EXPECT_GT(requests[0].proposal.nodes[0].chance, 0.5);
}

TEST(MtpSourceTest, KeepsToTheDepthThatWasSetAndFollowsPenalties) {
  TextHead head;
  MtpOptions options;
  options.depth_max = 2;
  options.confidence_min = 0.0;
  MtpSource source(head, kVocabulary, options);
  EXPECT_EQ(source.facts().depth_max, 2);
  Lane lane({4, 8, 15}, 1);
  head.texts = {{1, {4}}};
  lane.state = source.open(lane.view());
  LogitRule rule;
  const std::int32_t favourite = target_reply(lane.context, lane.sampling, 1, 1.0f)[0];
  rule.bias = {{favourite, -100.0}};
  const LogitAdjust adjust(rule, lane.context);
  std::vector<DraftAbsorb> absorbs = {lane.absorb_all(true)};
  std::vector<DraftRequest> requests = {lane.request(5)};
  requests[0].stream.logit_adjust = &adjust;
  source.absorb(absorbs);
  source.propose(requests);
  ASSERT_EQ(requests[0].proposal.nodes.size(), 2u);
  EXPECT_NE(requests[0].proposal.nodes[0].token, favourite);
}

TEST(MtpSourceTest, OneBrokenLaneFailsAlone) {
  TextHead head;
  head.broken_slots = {2};
  MtpSource source(head, kVocabulary);
  Lane first({1, 2, 3}, 1), second({4, 5, 6}, 2);
  first.state = source.open(first.view());
  second.state = source.open(second.view());
  head.texts = {{1, {1}}, {2, {4}}};
  std::vector<DraftAbsorb> absorbs = {first.absorb_all(true), second.absorb_all(true)};
  std::vector<DraftRequest> requests = {first.request(1), second.request(1)};
  source.absorb(absorbs);
  source.propose(requests);
  EXPECT_TRUE(requests[0].failure.empty());
  EXPECT_EQ(requests[0].proposal.nodes.size(), 1u);
  EXPECT_FALSE(requests[1].failure.empty());
  EXPECT_TRUE(requests[1].proposal.nodes.empty());
}

TEST(MtpSourceTest, NothingAbsorbedNothingDrafted) {
  TextHead head;
  MtpSource source(head, kVocabulary);
  Lane lane({1, 2, 3}, 1);
  lane.state = source.open(lane.view());
  std::vector<DraftRequest> requests = {lane.request(3)};
  source.propose(requests);
  EXPECT_TRUE(requests[0].proposal.nodes.empty());
  head.texts = {{1, {1}}};
  std::vector<DraftAbsorb> absorbs = {lane.absorb_all(false)};
  source.absorb(absorbs);
  source.propose(requests);
  EXPECT_TRUE(requests[0].proposal.nodes.empty());
}

// --- the search over a block ---------------------------------------------------------------------------------------

BlockCandidates random_block(std::int32_t depths, std::int32_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  BlockCandidates block;
  block.depth_count = depths;
  block.candidate_count = count;
  for (std::int32_t depth = 0; depth < depths; ++depth) {
    std::set<std::int32_t> ids;
    while (static_cast<std::int32_t>(ids.size()) < count) ids.insert(static_cast<std::int32_t>(random() % kVocabulary));
    std::vector<float> values;
    for (std::int32_t c = 0; c < count; ++c) values.push_back(static_cast<float>(random() % 1000) / 200.0f);
    std::sort(values.rbegin(), values.rend());
    block.tokens.insert(block.tokens.end(), ids.begin(), ids.end());
    block.unary.insert(block.unary.end(), values.begin(), values.end());
  }
  return block;
}

float pair_score(std::int32_t depth, std::int32_t predecessor, std::int32_t token) {
  return static_cast<float>(sampling::mix(static_cast<std::uint64_t>(depth * 1'000'000 + predecessor * 1000 + token)) %
                            1000) /
         300.0f;
}

BlockSearch search_of(const BlockCandidates& block) {
  BlockSearch search;
  search.candidates = &block;
  search.pair_scores = [&block](std::int32_t depth, std::int32_t predecessor, float* scores) {
    for (std::int32_t c = 0; c < block.candidate_count; ++c) {
      scores[c] =
          pair_score(depth, predecessor, block.tokens[static_cast<std::size_t>(depth * block.candidate_count + c)]);
    }
  };
  search.pending_token = 5;
  search.first_position = 40;
  search.depth_max = block.depth_count;
  search.nodes_max = 15;
  return search;
}

/// The conditional chance of every candidate, from the formula (engine.md 4.2).
std::vector<double> reference_chances(const BlockSearch& search, std::int32_t depth, std::int32_t predecessor) {
  const BlockCandidates& block = *search.candidates;
  const bool samples = search.sampling.temperature > 0.0;
  std::vector<double> weights;
  double sum = 0.0;
  for (std::int32_t c = 0; c < block.candidate_count; ++c) {
    const auto at = static_cast<std::size_t>(depth * block.candidate_count + c);
    double value = block.unary[at] + 0.6 * pair_score(depth, predecessor, block.tokens[at]);
    if (samples) {
      value /= search.sampling.temperature;
      const std::uint64_t row = sampling::row_key(sampling::request_key(search.sampling.seed),
                                                  static_cast<std::uint64_t>(search.first_position + depth));
      value += 0.7 * sampling::gumbel(sampling::noise_bits(row, block.tokens[at]));
    }
    weights.push_back(std::exp(value / 1.5));
    sum += weights.back();
  }
  for (double& weight : weights) weight /= sum;
  return weights;
}

struct Path {
  double chance = 1.0;
  std::vector<std::int32_t> tokens;
};

/// Every path of the lattice whose steps are among the four best children.
void all_paths(const BlockSearch& search, const Path& path, std::vector<Path>& paths) {
  const auto depth = static_cast<std::int32_t>(path.tokens.size());
  if (depth == search.depth_max) return;
  const std::int32_t predecessor = path.tokens.empty() ? search.pending_token : path.tokens.back();
  const std::vector<double> chances = reference_chances(search, depth, predecessor);
  std::vector<std::size_t> order(chances.size());
  for (std::size_t c = 0; c < order.size(); ++c) order[c] = c;
  std::sort(order.begin(), order.end(), [&chances](std::size_t a, std::size_t b) { return chances[a] > chances[b]; });
  order.resize(std::min<std::size_t>(order.size(), 4));
  for (const std::size_t c : order) {
    Path next = path;
    next.chance *= chances[c];
    next.tokens.push_back(search.candidates->tokens[static_cast<std::size_t>(depth) * chances.size() + c]);
    paths.push_back(next);
    all_paths(search, next, paths);
  }
}

TEST(DraftTreeTest, IsTheBestTreeOfEverySize) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const BlockCandidates block = random_block(4, 6, seed);
    BlockSearch search = search_of(block);
    if (seed % 2 == 1) search.sampling = sampled_rule(seed);
    std::vector<Path> paths;
    all_paths(search, {}, paths);
    std::sort(paths.begin(), paths.end(), [](const Path& a, const Path& b) { return a.chance > b.chance; });
    for (const std::int32_t size : {1, 2, 5, 15}) {
      search.nodes_max = size;
      const std::vector<DraftNode> nodes = best_tree(search);
      ASSERT_EQ(static_cast<std::int32_t>(nodes.size()), size);
      std::vector<Path> found;
      for (std::size_t i = 0; i < nodes.size(); ++i) {
        ASSERT_LT(nodes[i].parent, static_cast<std::int32_t>(i)) << "parents first";
        Path path = nodes[i].parent < 0 ? Path{} : found[static_cast<std::size_t>(nodes[i].parent)];
        path.chance *= nodes[i].chance;
        path.tokens.push_back(nodes[i].token);
        found.push_back(path);
        EXPECT_EQ(path.tokens, paths[i].tokens) << "seed " << seed << ", node " << i;
        EXPECT_NEAR(path.chance, paths[i].chance, 1e-9);
      }
    }
  }
}

TEST(DraftTreeTest, KeepsToItsDepthAndItsCandidates) {
  const BlockCandidates block = random_block(3, 2, 1);
  BlockSearch search = search_of(block);
  EXPECT_EQ(best_tree(search).size(), 2u + 4u + 8u) << "the whole lattice";
  search.depth_max = 1;
  EXPECT_EQ(best_tree(search).size(), 2u);
  search.depth_max = 9;
  EXPECT_EQ(best_tree(search).size(), 14u) << "no deeper than the block";
  EXPECT_EQ(best_chain(search).size(), 3u);
  search.nodes_max = 2;
  EXPECT_EQ(best_chain(search).size(), 2u);
}

TEST(DraftTreeTest, LeavesOutScoresThatAreNotFinite) {
  BlockCandidates block = random_block(2, 3, 1);
  block.unary[0] = NAN;
  block.unary[1] = INFINITY;
  BlockSearch search = search_of(block);
  for (const DraftNode& node : best_tree(search)) {
    EXPECT_TRUE(std::isfinite(node.chance));
    if (node.parent < 0) {
      EXPECT_EQ(node.token, block.tokens[2]);
    }
  }
  block.unary[2] = -INFINITY;
  EXPECT_TRUE(best_tree(search).empty());
  EXPECT_TRUE(best_chain(search).empty());
}

TEST(DraftTreeTest, AChainIsDrawnAsTheTargetDraws) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const BlockCandidates block = random_block(5, 16, seed);
    BlockSearch search = search_of(block);
    if (seed % 3 != 0) search.sampling = sampled_rule(seed);
    if (seed % 3 == 2) search.sampling.top_k = 0;
    if (seed % 3 == 2) search.sampling.top_p = 1.0;
    HostSampler sampler(kVocabulary);
    std::int32_t predecessor = search.pending_token;
    const std::vector<DraftNode> nodes = best_chain(search);
    ASSERT_EQ(nodes.size(), 5u);
    for (std::int32_t depth = 0; depth < 5; ++depth) {
      std::vector<float> logits(kVocabulary, -INFINITY);
      for (std::int32_t c = 0; c < 16; ++c) {
        const auto at = static_cast<std::size_t>(depth * 16 + c);
        logits[static_cast<std::size_t>(block.tokens[at])] =
            block.unary[at] + pair_score(depth, predecessor, block.tokens[at]);
      }
      const Draw draw = sampler.draw(logits.data(), nullptr, search.sampling, search.first_position + depth);
      EXPECT_EQ(nodes[static_cast<std::size_t>(depth)].token, draw.token) << "seed " << seed << " depth " << depth;
      predecessor = draw.token;
    }
  }
}

TEST(DraftTreeTest, TheKnownNoiseMovesATreeToWhatTheTargetWillDraw) {
  // Candidates all alike: without the noise the tree could only guess.
  BlockCandidates block = random_block(1, 16, 3);
  std::fill(block.unary.begin(), block.unary.end(), 1.0f);
  int first_is_right = 0, among_four = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    BlockSearch search = search_of(block);
    search.pair_scores = nullptr;
    search.sampling.temperature = 1.0;
    search.sampling.seed = seed;
    search.nodes_max = 4;
    std::vector<float> logits(kVocabulary, -INFINITY);
    for (const std::int32_t token : block.tokens) logits[static_cast<std::size_t>(token)] = 1.0f;
    HostSampler sampler(kVocabulary);
    const std::int32_t target = sampler.draw(logits.data(), nullptr, search.sampling, search.first_position).token;
    const std::vector<DraftNode> nodes = best_tree(search);
    first_is_right += nodes[0].token == target ? 1 : 0;
    for (const DraftNode& node : nodes) among_four += node.token == target ? 1 : 0;
  }
  EXPECT_EQ(first_is_right, 200);
  EXPECT_EQ(among_four, 200);
}

// --- the block source ----------------------------------------------------------------------------------------------

class ScriptedDrafter : public BlockDrafter {
 public:
  explicit ScriptedDrafter(bool selector) : selector_(selector) {}
  std::int32_t block_rows() const override { return 8; }
  std::int32_t block_rows_max() const override { return 16; }
  bool has_selector() const override { return selector_; }
  void absorb(const std::vector<AbsorbLane>& lanes) override { absorbs.push_back(lanes); }
  void propose(const std::vector<Block>& asked, std::vector<BlockCandidates>& result) override {
    blocks.push_back(asked);
    result.clear();
    for (const Block& block : asked) {
      result.push_back(random_block(block.row_count - 1, 16, static_cast<std::uint64_t>(block.pending_token)));
    }
  }
  void pair_scores(const BlockCandidates& candidates, std::int32_t depth, std::int32_t predecessor,
                   float* scores) const override {
    ++pair_calls;
    for (std::int32_t c = 0; c < candidates.candidate_count; ++c) {
      scores[c] = pair_score(depth, predecessor,
                             candidates.tokens[static_cast<std::size_t>(depth * candidates.candidate_count + c)]);
    }
  }
  std::vector<std::vector<AbsorbLane>> absorbs;
  std::vector<std::vector<Block>> blocks;
  mutable int pair_calls = 0;

 private:
  bool selector_;
};

TEST(BlockSourceTest, DraftsTreesChainsAndOnlyWithAContext) {
  ScriptedDrafter drafter(true);
  BlockSource source(drafter);
  Lane tree({1, 2, 3}, 1), chain({4, 5, 6, 7}, 2), behind({8, 9, 10}, 3);
  for (Lane* lane : {&tree, &chain, &behind}) lane->state = source.open(lane->view());
  std::vector<DraftAbsorb> absorbs = {tree.absorb_all(true), chain.absorb_all(true), behind.absorb_all(true)};
  absorbs[2].rows.pop_back();  // its last row is missing
  std::vector<DraftRequest> requests = {tree.request(7, true), chain.request(3), behind.request(7, true)};
  source.absorb(absorbs);
  source.propose(requests);
  ASSERT_EQ(drafter.absorbs.size(), 1u);
  ASSERT_EQ(drafter.blocks.size(), 1u);
  ASSERT_EQ(drafter.blocks[0].size(), 2u) << "all lanes in one call, without the one behind";
  EXPECT_EQ(drafter.blocks[0][0].pending_token, 3);
  EXPECT_EQ(drafter.blocks[0][0].position, 2);
  EXPECT_EQ(drafter.blocks[0][0].row_count, 8);
  EXPECT_EQ(drafter.blocks[0][1].row_count, 8) << "a whole block, cut afterwards";
  EXPECT_EQ(drafter.blocks[0][1].pages, &chain.pages);
  EXPECT_EQ(requests[0].proposal.nodes.size(), 15u);
  EXPECT_EQ(requests[1].proposal.nodes.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(requests[1].proposal.nodes[i].parent, static_cast<std::int32_t>(i) - 1);
  }
  EXPECT_TRUE(requests[2].proposal.nodes.empty());
  EXPECT_GT(drafter.pair_calls, 0);
}

TEST(BlockSourceTest, ABlockEndsWithThePagesUnlessMoreWasAskedFor) {
  ScriptedDrafter drafter(true);
  BlockSource source(drafter);
  Lane lane(std::vector<std::int32_t>(60, 1), 1);
  lane.state = source.open(lane.view());
  for (const auto& [depth, rows] : {std::pair{2, 5}, std::pair{4, 5}, std::pair{7, 8}}) {
    lane.pages = {{}, {5}};
    if (depth == 7) lane.pages[1].push_back(6);
    std::vector<DraftAbsorb> absorbs = {lane.absorb_all(true)};
    std::vector<DraftRequest> requests = {lane.request(depth)};
    source.absorb(absorbs);
    source.propose(requests);
    EXPECT_EQ(drafter.blocks.back()[0].row_count, rows) << depth;
    EXPECT_EQ(static_cast<int>(requests[0].proposal.nodes.size()), depth);
  }
}

TEST(BlockSourceTest, WithoutASelectorItDraftsChains) {
  ScriptedDrafter drafter(false);
  BlockSource source(drafter);
  Lane lane({1, 2, 3}, 1);
  lane.state = source.open(lane.view());
  std::vector<DraftAbsorb> absorbs = {lane.absorb_all(true)};
  std::vector<DraftRequest> requests = {lane.request(15, true)};
  source.absorb(absorbs);
  source.propose(requests);
  ASSERT_EQ(requests[0].proposal.nodes.size(), 7u);
  EXPECT_EQ(requests[0].proposal.nodes[6].parent, 5);
  EXPECT_EQ(drafter.pair_calls, 0);
}

TEST(BlockSourceTest, BlocksGrowWhileTheirEndLands) {
  ScriptedDrafter drafter(true);
  BlockSource source(drafter);
  Lane lane({1, 2, 3}, 1);
  lane.state = source.open(lane.view());
  const auto next_rows = [&](std::size_t landed) {
    source.observe(lane.view(), {}, 15, std::vector<std::int32_t>(landed, 0));
    std::vector<DraftAbsorb> absorbs = {lane.absorb_all(true)};
    std::vector<DraftRequest> requests = {lane.request(15, true)};
    source.absorb(absorbs);
    source.propose(requests);
    return drafter.blocks.back()[0].row_count;
  };
  EXPECT_EQ(next_rows(3), 8);
  EXPECT_EQ(next_rows(7), 12) << "the whole block landed: five more";
  EXPECT_EQ(next_rows(8), 10) << "not its end: two more than landed";
  EXPECT_EQ(next_rows(9), 14);
  EXPECT_EQ(next_rows(13), 16) << "no more than the drafter takes";
  EXPECT_EQ(next_rows(0), 8) << "no less than it was trained for";
}

}  // namespace
}  // namespace tensorfold
