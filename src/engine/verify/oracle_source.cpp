// Drafts with mistakes (see oracle_source.h).
#include "engine/verify/oracle_source.h"

#include <algorithm>
#include <utility>

#include "engine/draft/draft_window.h"

namespace tensorfold::fold {

void KnownReplies::add(std::vector<std::int32_t> context) {
  const std::lock_guard lock(mutex_);
  contexts_.push_back(std::move(context));
}

std::int32_t KnownReplies::next_token(const std::vector<std::int32_t>& context) const {
  const std::lock_guard lock(mutex_);
  for (const std::vector<std::int32_t>& known : contexts_) {
    if (known.size() > context.size() && std::equal(context.begin(), context.end(), known.begin())) {
      return known[context.size()];
    }
  }
  return -1;
}

struct OracleSource::State : DraftState {
  std::int32_t prompt_length = 0;
  std::int32_t absorbed = -1;  // position after the last absorbed row; -1: none yet
  bool may_propose = false;
};

OracleSource::State& OracleSource::state_of(const DraftStream& stream) {
  State& state = static_cast<State&>(*stream.state);
  require(state.prompt_length == stream.prompt_length);
  return state;
}

std::int32_t OracleSource::draw(std::int32_t low, std::int32_t high) {
  return low + static_cast<std::int32_t>(random_() % static_cast<std::uint64_t>(high - low + 1));
}

bool OracleSource::chance(double share) {
  return draw(0, 999) < static_cast<std::int32_t>(share * 1000);
}

std::unique_ptr<DraftState> OracleSource::open(const DraftStream& stream) {
  ++opened;
  require(stream.state == nullptr && static_cast<std::int32_t>(stream.context->size()) == stream.prompt_length);
  auto state = std::make_unique<State>();
  state->prompt_length = stream.prompt_length;
  return state;
}

void OracleSource::absorb(std::vector<DraftAbsorb>& batch) {
  for (DraftAbsorb& entry : batch) {
    State& state = state_of(entry.stream);
    require(!entry.rows.empty());
    for (const AbsorbRow& row : entry.rows) {
      // Between two calls rows may be missing: where a model doesn't pay it is left alone.
      const bool may_skip = options_.facts.runs_model && &row == entry.rows.data() && row.position > state.absorbed;
      require(state.absorbed < 0 || row.position == state.absorbed || may_skip);
      state.absorbed = row.position + 1;
      const auto next = static_cast<std::size_t>(state.absorbed);
      require(next < entry.stream.context->size() && (*entry.stream.context)[next] == row.next_token);
    }
    state.may_propose = entry.wants_proposal;
  }
}

void OracleSource::propose(std::vector<DraftRequest>& batch) {
  for (DraftRequest& request : batch) {
    State& state = state_of(request.stream);
    require(state.may_propose && request.depth_max >= 1 && request.nodes_max >= request.depth_max);
    require(state.absorbed + 1 == static_cast<std::int32_t>(request.stream.context->size()));
    state.may_propose = false;
    ++proposed;
    fill(request, request.trees && chance(options_.tree_share));
  }
}

// The trunk follows the reply until a mistake; in a tree other nodes hang off it anywhere, some of them in its stead.
void OracleSource::fill(DraftRequest& request, bool tree) {
  std::vector<DraftNode>& nodes = request.proposal.nodes;
  const std::int32_t most = tree ? std::min(request.nodes_max, limits::kTreeRowsMax - 1) : request.depth_max;
  const std::int32_t count = chance(0.5) ? most : draw(1, most);
  std::vector<std::vector<std::int32_t>> paths;  // each node's context, itself included
  std::vector<std::int32_t> depths;
  while (static_cast<std::int32_t>(nodes.size()) < count) {
    const auto last = static_cast<std::int32_t>(nodes.size()) - 1;
    const std::int32_t parent = tree && chance(0.5) ? draw(-1, last) : last;
    const std::int32_t depth = parent < 0 ? 0 : depths[static_cast<std::size_t>(parent)] + 1;
    std::vector<std::int32_t> path = parent < 0 ? *request.stream.context : paths[static_cast<std::size_t>(parent)];
    std::int32_t token = options_.known != nullptr ? options_.known->next_token(path) : -1;
    if (token < 0 || chance(options_.wrong_share)) token = draw(0, options_.vocabulary_size - 1);
    const bool is_taken = std::any_of(nodes.begin(), nodes.end(), [&](const DraftNode& node) {
      return node.parent == parent && node.token == token;
    });
    if (is_taken || depth >= request.depth_max) {
      if (!tree || chance(0.1)) break;
      continue;
    }
    nodes.push_back({token, parent, 0.9});
    depths.push_back(depth);
    path.push_back(token);
    paths.push_back(std::move(path));
  }
}

void OracleSource::observe(const DraftStream& stream, const DraftProposal& proposal, std::int32_t fed_count,
                           const std::vector<std::int32_t>& landed) {
  state_of(stream);
  require(fed_count > 0 && fed_count <= static_cast<std::int32_t>(proposal.nodes.size()));
  std::int32_t before = -1;
  for (const std::int32_t node : landed) {
    require(node < fed_count && proposal.nodes[static_cast<std::size_t>(node)].parent == before);
    before = node;
  }
  ++(is_tree(proposal.nodes, fed_count) ? trees : chains);
  ++landed_windows.at(landed.size());
}

void OracleSource::close(const DraftStream& stream) {
  state_of(stream);
  ++closed;
}

}  // namespace tensorfold::fold
