// See recall_source.h.
#include "engine/draft/recall_source.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/limits.h"

namespace tensorfold {
namespace {

constexpr double kChancePrior = 0.8;
constexpr double kChanceObservations = 4.0;  // what the prior counts for
constexpr double kChanceDecay = 0.9;         // of old observations, at each new one
constexpr int kMissesUntilSilent = 4;        // windows in a row of which nothing landed
constexpr int kSilentRounds = 16;

/// What the store has been worth to one stream.
class RecallState : public DraftState {
 public:
  explicit RecallState(const std::string& owner) : scope(recall_scope(owner)) {}

  /// Chance that the first draft lands, and that a later one does once its parent has.
  double first_chance() const { return first_.chance(); }
  double later_chance() const { return later_.chance(); }

  void observe(std::int32_t fed, std::int32_t landed) {
    first_.add(landed > 0);
    for (std::int32_t depth = 1; depth < std::min(fed, landed + 1); ++depth) later_.add(landed > depth);
    misses_ = landed > 0 ? 0 : misses_ + 1;
    if (misses_ < kMissesUntilSilent) return;
    misses_ = 0;
    silent_rounds_ = kSilentRounds;
  }

  bool is_silent() {
    if (silent_rounds_ == 0) return false;
    --silent_rounds_;
    return true;
  }

  const RecallScope scope;
  RecallIndex::Place place;      // where the text was found last
  std::size_t place_tokens = 0;  // tokens of the context then

 private:
  struct Rate {
    double hits = kChancePrior * kChanceObservations, tries = kChanceObservations;
    double chance() const { return hits / tries; }
    void add(bool hit) {
      hits = hits * kChanceDecay + (hit ? 1.0 : 0.0);
      tries = tries * kChanceDecay + 1.0;
    }
  };

  Rate first_, later_;
  int misses_ = 0;
  int silent_rounds_ = 0;
};

}  // namespace

RecallSource::RecallSource(std::shared_ptr<RecallStore> store, std::int32_t vocabulary_size, bool shared_by_all)
    : store_(std::move(store)), vocabulary_size_(vocabulary_size), shared_by_all_(shared_by_all) {
  TF_ASSERT(store_ != nullptr);
  facts_.kind = DraftKind::kRecall;
  facts_.depth_max = limits::kWideWindowRowsMax - 1;
  facts_.nodes_max = limits::kWideWindowRowsMax - 1;
  facts_.chance_prior = kChancePrior;
}

std::unique_ptr<DraftState> RecallSource::open(const DraftStream& stream) {
  return std::make_unique<RecallState>(shared_by_all_ ? "all" : "key " + *stream.owner);
}

void RecallSource::propose(std::vector<DraftRequest>& batch) {
  for (DraftRequest& request : batch) propose(request);
}

void RecallSource::propose(DraftRequest& request) {
  auto& state = static_cast<RecallState&>(*request.stream.state);
  if (state.is_silent()) return;
  const std::span<const std::int32_t> context = *request.stream.context;
  TF_ASSERT(state.place_tokens <= context.size());
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(std::min(request.depth_max, facts_.depth_max)));
  std::size_t count = 0;
  state.place = store_->look_up(state.scope, context, state.place, context.subspan(state.place_tokens), tokens, count);
  state.place_tokens = context.size();
  for (std::size_t i = 0; i < count && tokens[i] < vocabulary_size_; ++i) {
    request.proposal.nodes.push_back(
        {tokens[i], static_cast<std::int32_t>(i) - 1, i == 0 ? state.first_chance() : state.later_chance()});
  }
  request.proposal.match_length = request.proposal.nodes.empty() ? 0 : state.place.match_length;
}

void RecallSource::observe(const DraftStream& stream, const DraftProposal& proposal, std::int32_t fed_count,
                           const std::vector<std::int32_t>& landed) {
  if (fed_count <= 0) return;
  TF_ASSERT(fed_count <= static_cast<std::int32_t>(proposal.nodes.size()));
  static_cast<RecallState&>(*stream.state).observe(fed_count, static_cast<std::int32_t>(landed.size()));
}

void RecallSource::close(const DraftStream& stream) {
  store_->record(static_cast<RecallState&>(*stream.state).scope, *stream.context);
}

}  // namespace tensorfold
