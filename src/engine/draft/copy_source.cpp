// Copy drafts (see copy_source.h).
#include "engine/draft/copy_source.h"

#include <algorithm>

#include "base/limits.h"

namespace tensorfold {
namespace {

constexpr std::int32_t kPlaceTokens = 3;       // indexed
constexpr std::int32_t kMatchMin = 4;          // a shorter match says too little
constexpr std::int32_t kMatchMax = 64;         // a longer one says no more
constexpr std::int32_t kPlacesMax = 64;        // looked at per question, the latest first
constexpr std::size_t kBucketsMin = 1u << 10;  // a power of two
constexpr std::int32_t kFirstWidth = 7;        // drafts, until a whole window lands
constexpr std::int32_t kMissesMax = 4;         // windows in a row without a landed draft
constexpr std::int32_t kSilentRounds = 16;
constexpr double kDecay = 0.9;        // of what landed and missed, per window
constexpr double kMatchWeight = 8.0;  // drafts that the match's length counts for

/// Chance that the next token agrees, going by the length of the match alone.
double match_chance(std::int32_t length) {
  return std::min(0.5 + 0.06 * (length - kPlaceTokens), 0.95);
}

struct CopyState : DraftState {
  CopyIndex index;
  std::int32_t width = kFirstWidth;
  std::int32_t misses = 0;
  std::int32_t silent_rounds = 0;
  double landed = 0.0, missed = 0.0;  // recent drafts
};

CopyState& state_of(const DraftStream& stream) {
  return static_cast<CopyState&>(*stream.state);
}

}  // namespace

std::size_t CopyIndex::bucket(const std::vector<std::int32_t>& context, std::int32_t end) const {
  std::uint64_t hash = 0;
  for (std::int32_t i = end - kPlaceTokens + 1; i <= end; ++i) {
    hash = (hash ^ static_cast<std::uint32_t>(context[static_cast<std::size_t>(i)])) * 0x9E3779B97F4A7C15u;
  }
  return static_cast<std::size_t>(hash >> 32) & (latest_.size() - 1);
}

void CopyIndex::add(const std::vector<std::int32_t>& context, std::int32_t end) {
  std::int32_t& latest = latest_[bucket(context, end)];
  previous_[static_cast<std::size_t>(end)] = latest;
  latest = end + 1;
}

void CopyIndex::grow(const std::vector<std::int32_t>& context) {
  std::size_t buckets = std::max(latest_.size(), kBucketsMin);
  while (buckets < context.size()) buckets *= 2;
  auto known = static_cast<std::int32_t>(previous_.size());
  if (buckets != latest_.size()) {
    latest_.assign(buckets, 0);
    known = 0;
  }
  previous_.resize(context.size(), 0);
  for (std::int32_t end = std::max(known, kPlaceTokens - 1); end < static_cast<std::int32_t>(context.size()); ++end) {
    add(context, end);
  }
  last_token_ = context.empty() ? -1 : context.back();
}

CopyIndex::Match CopyIndex::find(const std::vector<std::int32_t>& context) {
  const bool is_same_text =
      previous_.size() <= context.size() && (previous_.empty() || context[previous_.size() - 1] == last_token_);
  if (!is_same_text) *this = {};
  grow(context);
  Match best;
  const auto last = static_cast<std::int32_t>(context.size()) - 1;
  if (last < kPlaceTokens - 1) return best;
  std::int32_t place = previous_[static_cast<std::size_t>(last)];
  for (std::int32_t looked = 0; place > 0 && looked < kPlacesMax; ++looked) {
    const std::int32_t end = place - 1;
    std::int32_t length = 0;
    while (length < kMatchMax && length <= end &&
           context[static_cast<std::size_t>(end - length)] == context[static_cast<std::size_t>(last - length)]) {
      ++length;
    }
    if (length > best.length) best = {end, length};
    if (length == kMatchMax) break;
    place = previous_[static_cast<std::size_t>(end)];
  }
  return best.length >= kPlaceTokens ? best : Match{};
}

CopySource::CopySource() {
  facts_.kind = DraftKind::kCopy;
  facts_.depth_max = limits::kWideWindowRowsMax - 1;
  facts_.nodes_max = facts_.depth_max;
}

std::unique_ptr<DraftState> CopySource::open(const DraftStream&) {
  return std::make_unique<CopyState>();
}

void CopySource::propose(std::vector<DraftRequest>& batch) {
  for (DraftRequest& request : batch) {
    CopyState& state = state_of(request.stream);
    if (state.silent_rounds > 0) {
      --state.silent_rounds;
      continue;
    }
    const std::vector<std::int32_t>& context = *request.stream.context;
    const CopyIndex::Match match = state.index.find(context);
    if (match.length < kMatchMin) continue;
    const double chance =
        (kMatchWeight * match_chance(match.length) + state.landed) / (kMatchWeight + state.landed + state.missed);
    std::vector<DraftNode>& nodes = request.proposal.nodes;
    const auto known = static_cast<std::int32_t>(context.size()) - 1 - match.end;  // then it repeats itself
    const std::int32_t count = std::min(state.width, request.depth_max);
    for (std::int32_t i = 0; i < count; ++i) {
      const std::int32_t token = i < known ? context[static_cast<std::size_t>(match.end + 1 + i)]
                                           : nodes[static_cast<std::size_t>(i - known)].token;
      nodes.push_back({token, i - 1, chance});
    }
    request.proposal.match_length = match.length;
  }
}

void CopySource::observe(const DraftStream& stream, const DraftProposal& proposal, std::int32_t fed_count,
                         const std::vector<std::int32_t>& landed) {
  CopyState& state = state_of(stream);
  const auto kept = static_cast<std::int32_t>(landed.size());
  state.landed = kDecay * state.landed + kept;
  state.missed = kDecay * state.missed + (kept < fed_count ? 1.0 : 0.0);
  if (kept < fed_count) {
    state.width = kFirstWidth;
  } else if (fed_count == static_cast<std::int32_t>(proposal.nodes.size())) {
    state.width = std::min(2 * state.width + 1, facts_.depth_max);
  }
  state.misses = kept == 0 ? state.misses + 1 : 0;
  if (state.misses < kMissesMax) return;
  state.misses = 0;
  state.silent_rounds = kSilentRounds;
}

}  // namespace tensorfold
