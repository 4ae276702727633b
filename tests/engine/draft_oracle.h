// A draft source for tests that knows the reply a stream will give, and proposes it with mistakes: right up to a depth
// drawn at random, wrong behind it, as chains and as trees. So windows are cut short at every depth, siblings land, and
// whatever a rejected row leaves behind has someone to read it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "engine/draft/draft_source.h"

namespace tensorfold::testing {

struct OracleOptions {
  DraftKind kind = DraftKind::kMtp;
  std::int32_t depth_max = 15;
  std::int32_t nodes_max = 15;
  std::int32_t vocabulary_size = 61;
  double wrong_share = 0.2;  // of the drafts on the trunk
  double tree_share = 0.5;   // of the proposals
  bool runs_model = false;
  std::uint64_t seed = 1;
  /// The token that follows `context`; -1: unknown, then the draft is a guess. May throw.
  std::function<std::int32_t(const std::vector<std::int32_t>& context)> next_token;
};

class DraftOracle : public DraftSource {
 public:
  explicit DraftOracle(OracleOptions options) : options_(std::move(options)), random_(options_.seed) {
    facts_.kind = options_.kind;
    facts_.depth_max = options_.depth_max;
    facts_.nodes_max = options_.nodes_max;
    facts_.runs_model = options_.runs_model;
  }

  const DraftSourceFacts& facts() const override { return facts_; }

  std::unique_ptr<DraftState> open(const DraftStream& stream) override {
    ++opened;
    auto state = std::make_unique<State>();
    state->prompt_length = stream.prompt_length;
    return state;
  }

  void absorb(std::vector<DraftAbsorb>& batch) override {
    for (DraftAbsorb& entry : batch) {
      State& state = of(entry.stream);
      for (const AbsorbRow& row : entry.rows) {
        if (row.position != state.absorbed && state.absorbed != 0) ++contract_breaches;
        state.absorbed = row.position + 1;
        const auto next = static_cast<std::size_t>(row.position) + 1;
        if (next >= entry.stream.context->size() || (*entry.stream.context)[next] != row.next_token)
          ++contract_breaches;
      }
      state.may_propose = entry.wants_proposal;
    }
  }

  void propose(std::vector<DraftRequest>& batch) override {
    for (DraftRequest& request : batch) {
      State& state = of(request.stream);
      if (!state.may_propose || state.absorbed + 1 != static_cast<std::int32_t>(request.stream.context->size())) {
        ++contract_breaches;
      }
      state.may_propose = false;
      ++proposed;
      const bool tree = request.trees && draw(0, 999) < static_cast<std::int32_t>(options_.tree_share * 1000);
      fill(request, tree);
    }
  }

  void observe(const DraftStream& stream, const DraftProposal& proposal, std::int32_t fed_count,
               const std::vector<std::int32_t>& landed) override {
    of(stream);
    if (fed_count <= 0 || fed_count > static_cast<std::int32_t>(proposal.nodes.size())) ++contract_breaches;
    std::int32_t before = -1;
    for (const std::int32_t node : landed) {
      if (node >= fed_count || proposal.nodes[static_cast<std::size_t>(node)].parent != before) ++contract_breaches;
      before = node;
    }
    ++observed;
    landed_depth_max = std::max(landed_depth_max.load(), static_cast<std::int32_t>(landed.size()));
  }

  void close(const DraftStream& stream) override {
    of(stream);
    ++closed;
  }

  std::atomic<int> opened{0}, closed{0}, proposed{0}, observed{0}, contract_breaches{0};
  std::atomic<std::int32_t> landed_depth_max{0};

 private:
  struct State : DraftState {
    std::int32_t prompt_length = 0, absorbed = 0;
    bool may_propose = false;
  };

  State& of(const DraftStream& stream) {
    auto* state = dynamic_cast<State*>(stream.state);
    if (state == nullptr || state->prompt_length != stream.prompt_length) ++contract_breaches;
    return *state;
  }
  std::int32_t draw(std::int32_t low, std::int32_t high) {
    return low + static_cast<std::int32_t>(random_() % static_cast<std::uint64_t>(high - low + 1));
  }

  // The trunk follows the reply until a mistake; in a tree other nodes hang off it anywhere, some of them in its stead.
  void fill(DraftRequest& request, bool tree) {
    std::vector<DraftNode>& nodes = request.proposal.nodes;
    const std::int32_t most = tree ? std::min(request.nodes_max, 15) : request.depth_max;
    const std::int32_t count = draw(1, most);
    std::vector<std::vector<std::int32_t>> paths;  // context of each node, itself included
    std::vector<std::int32_t> depths;
    while (static_cast<std::int32_t>(nodes.size()) < count) {
      const auto last = static_cast<std::int32_t>(nodes.size()) - 1;
      const std::int32_t parent = tree ? draw(draw(0, 1) == 0 ? -1 : last, last) : last;
      const std::int32_t depth = parent < 0 ? 0 : depths[static_cast<std::size_t>(parent)] + 1;
      std::vector<std::int32_t> path = parent < 0 ? *request.stream.context : paths[static_cast<std::size_t>(parent)];
      std::int32_t token = options_.next_token ? options_.next_token(path) : -1;
      if (token < 0 || draw(0, 999) < static_cast<std::int32_t>(options_.wrong_share * 1000)) {
        token = draw(0, options_.vocabulary_size - 1);
      }
      bool is_new = depth < request.depth_max;
      for (const DraftNode& node : nodes) is_new = is_new && (node.parent != parent || node.token != token);
      if (!is_new) {
        if (!tree || draw(0, 9) == 0) break;
        continue;
      }
      nodes.push_back({token, parent, 0.9});
      depths.push_back(depth);
      path.push_back(token);
      paths.push_back(std::move(path));
    }
  }

  OracleOptions options_;
  DraftSourceFacts facts_;
  std::mt19937_64 random_;
};

}  // namespace tensorfold::testing
