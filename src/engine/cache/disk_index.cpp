// See disk_index.h.
#include "engine/cache/disk_index.h"

#include <algorithm>

#include "base/error.h"

namespace tensorfold {

/// A walk through all segments that agree with the query; the stack is explicit, a chain may be long.
struct DiskIndex::Search {
  const DiskIndex& index;
  std::span<const std::int32_t> tokens;
  std::int32_t position_max;
  bool any_position;
  bool resumes;  // what is on its way doesn't count
  StoredPrefix best;

  struct Visit {
    std::uint64_t id = 0;
    std::size_t depth = 0;
  };

  void from(const std::vector<std::uint64_t>& roots) {
    std::vector<Visit> open;
    std::vector<std::uint64_t> chain;
    for (const std::uint64_t id : roots) open.push_back({id, 0});
    while (!open.empty()) {
      const Visit visit = open.back();
      open.pop_back();
      const StoredState& state = index.states_.at(visit.id);
      if (resumes && !state.is_written) continue;
      chain.resize(visit.depth);
      chain.push_back(visit.id);
      const std::size_t begin = state.begin;
      if (begin >= tokens.size()) continue;
      const std::span<const std::int32_t> rest = tokens.subspan(begin);
      const std::size_t most = std::min(rest.size(), state.tokens.size());
      const auto common = static_cast<std::size_t>(
          std::mismatch(state.tokens.begin(), state.tokens.begin() + static_cast<std::ptrdiff_t>(most), rest.begin())
              .first -
          state.tokens.begin());
      if (common == 0) continue;
      const auto position = static_cast<std::int32_t>(begin + common);
      const bool whole = common == state.tokens.size();
      if (any_position) {
        consider(std::min(position, position_max), chain);
      } else if (whole && state.resume_point && position <= position_max) {
        consider(position, chain);
      }
      const auto children = index.children_.find(visit.id);
      if (children == index.children_.end()) continue;
      for (const std::uint64_t child : children->second) {
        if (index.states_.at(child).begin <= static_cast<std::uint32_t>(position))
          open.push_back({child, visit.depth + 1});
      }
    }
  }

  void consider(std::int32_t position, const std::vector<std::uint64_t>& chain) {
    if (position <= best.position) return;
    best.position = position;
    best.chain = chain;
    best.begins.clear();
    for (const std::uint64_t id : chain) best.begins.push_back(index.states_.at(id).begin);
  }
};

std::string DiskIndex::root_key(const std::string& identity, const std::string& scope) {
  return identity + '\n' + scope;
}

void DiskIndex::add(StoredState state) {
  TF_ASSERT(states_.count(state.id) == 0);
  TF_ASSERT(state.parent == 0 || states_.count(state.parent) == 1);
  std::vector<std::uint64_t>& siblings =
      state.parent == 0 ? roots_[root_key(state.identity, state.scope)] : children_[state.parent];
  const std::uint64_t id = state.id, written_bytes = state.is_written ? state.file_bytes : 0;
  const bool is_written = state.is_written;
  siblings.push_back(id);
  try {
    states_.emplace(id, std::move(state));
  } catch (...) {
    siblings.pop_back();  // what is listed is there
    throw;
  }
  bytes_ += written_bytes;
  written_count_ += is_written ? 1 : 0;
}

std::vector<std::uint64_t> DiskIndex::remove(std::uint64_t id) {
  std::vector<std::uint64_t> removed;
  const auto found = states_.find(id);
  if (found == states_.end()) return removed;
  std::vector<std::uint64_t>& siblings = found->second.parent == 0
                                             ? roots_[root_key(found->second.identity, found->second.scope)]
                                             : children_[found->second.parent];
  removed.push_back(id);
  for (std::size_t i = 0; i < removed.size(); ++i) {
    const auto children = children_.find(removed[i]);
    if (children != children_.end()) removed.insert(removed.end(), children->second.begin(), children->second.end());
  }
  std::erase(siblings, id);  // from here on nothing needs memory
  for (const std::uint64_t each : removed) {
    const StoredState& state = states_.at(each);
    if (state.is_written) bytes_ -= state.file_bytes, --written_count_;
    children_.erase(each);
    states_.erase(each);
  }
  return removed;
}

const StoredState* DiskIndex::find(std::uint64_t id) const {
  const auto found = states_.find(id);
  return found == states_.end() ? nullptr : &found->second;
}

bool DiskIndex::has_children(std::uint64_t id) const {
  const auto found = children_.find(id);
  return found != children_.end() && !found->second.empty();
}

StoredPrefix DiskIndex::search(const std::string& identity, const std::string& scope,
                               std::span<const std::int32_t> tokens, std::int32_t position_max, bool any_position,
                               bool resumes) const {
  Search search{*this, tokens, position_max, any_position, resumes, {}};
  const auto roots = roots_.find(root_key(identity, scope));
  if (roots != roots_.end()) search.from(roots->second);
  return search.best;
}

StoredPrefix DiskIndex::resumable(const std::string& identity, const std::string& scope,
                                  std::span<const std::int32_t> tokens, std::int32_t position_max) const {
  return search(identity, scope, tokens, position_max, resumes_anywhere_, true);
}

StoredPrefix DiskIndex::covered(const std::string& identity, const std::string& scope,
                                std::span<const std::int32_t> tokens) const {
  return search(identity, scope, tokens, static_cast<std::int32_t>(tokens.size()), true, false);
}

std::uint64_t DiskIndex::least_used(std::span<const std::uint64_t> spared) const {
  const StoredState* least = nullptr;
  for (const auto& [id, state] : states_) {
    if (!state.is_written || has_children(id) || std::find(spared.begin(), spared.end(), id) != spared.end()) continue;
    if (least == nullptr || state.last_use < least->last_use) least = &state;
  }
  return least == nullptr ? 0 : least->id;
}

void DiskIndex::set_written(std::uint64_t id, std::uint64_t file_bytes, std::uint64_t use) {
  StoredState& state = states_.at(id);
  TF_ASSERT(!state.is_written);
  state.is_written = true;
  state.file_bytes = file_bytes;
  state.last_use = use;
  bytes_ += file_bytes;
  ++written_count_;
}

void DiskIndex::set_last_use(std::uint64_t id, std::uint64_t use) {
  const auto found = states_.find(id);
  if (found != states_.end()) found->second.last_use = use;
}

}  // namespace tensorfold
