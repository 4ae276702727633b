// See mtp_source.h.
#include "engine/draft/mtp_source.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/math_exact.h"

namespace tensorfold {
namespace {

constexpr std::int32_t kShareCandidates = 28;  // among which a draft's share is taken
constexpr double kScoreGapMax = 30.0;          // a gap beyond which a share is nothing
constexpr double kChancePrior = 0.7;
constexpr std::int32_t kNoEntry = -1;

struct MtpState : DraftState {
  std::int32_t entry = kNoEntry;  // of the last absorb(): whose row of logits a proposal begins with
};

MtpState& state_of(const DraftStream& stream) {
  return static_cast<MtpState&>(*stream.state);
}

}  // namespace

MtpSource::MtpSource(MtpHead& head, std::int32_t vocabulary_size, const MtpOptions& options)
    : head_(head), vocabulary_size_(vocabulary_size), options_(options), sampler_(vocabulary_size) {
  const std::int32_t depth = head.depth_max();
  TF_ASSERT(depth > 0);
  facts_.kind = DraftKind::kMtp;
  facts_.needs_hidden_rows = true;
  facts_.runs_model = true;
  facts_.depth_max = options.depth_max > 0 ? std::min(options.depth_max, depth) : depth;
  facts_.nodes_max = facts_.depth_max;
  facts_.chance_prior = kChancePrior;
}

std::unique_ptr<DraftState> MtpSource::open(const DraftStream& stream) {
  (void)stream;
  return std::make_unique<MtpState>();
}

void MtpSource::absorb(std::vector<DraftAbsorb>& batch) {
  std::vector<AbsorbLane> lanes;
  std::vector<MtpState*> states;  // per lane
  for (DraftAbsorb& entry : batch) {
    MtpState& state = state_of(entry.stream);
    state.entry = kNoEntry;
    if (entry.rows.empty()) continue;
    AbsorbLane lane;
    lane.slot = entry.stream.slot;
    lane.rows = entry.rows;
    lane.pages = entry.stream.pages;
    lane.wants_result = entry.wants_proposal;
    lanes.push_back(std::move(lane));
    states.push_back(&state);
  }
  result_ = {};
  if (lanes.empty()) return;
  head_.absorb(lanes, result_);
  for (std::size_t i = 0; i < result_.entries.size(); ++i) {
    states.at(static_cast<std::size_t>(result_.entries[i]))->entry = static_cast<std::int32_t>(i);
  }
}

const float* MtpSource::row(std::size_t index) const {
  return result_.logits + index * static_cast<std::size_t>(vocabulary_size_);
}

void MtpSource::propose(std::vector<DraftRequest>& batch) {
  std::vector<Chain> chains;
  for (DraftRequest& request : batch) {
    const std::int32_t entry = state_of(request.stream).entry;
    if (entry == kNoEntry) continue;
    Chain chain{&request, entry, 1.0};
    if (extend(chain, row(static_cast<std::size_t>(entry)))) chains.push_back(chain);
  }
  while (!chains.empty()) {
    std::vector<MtpHead::Step> steps;
    for (const Chain& chain : chains) {
      const DraftStream& stream = chain.request->stream;
      const std::vector<DraftNode>& nodes = chain.request->proposal.nodes;
      MtpHead::Step step;
      step.source = chain.entry;
      step.token = nodes.back().token;
      // The last absorbed pair is the one of the row before the pending token; each level is one further.
      step.position = static_cast<std::int32_t>(stream.context->size() + nodes.size()) - 2;
      step.slot = stream.slot;
      step.pages = stream.pages;
      steps.push_back(step);
    }
    DraftLogits next;
    head_.step(steps, next);
    result_ = std::move(next);
    std::vector<Chain> longer;
    for (std::size_t i = 0; i < result_.entries.size(); ++i) {
      Chain chain = chains.at(static_cast<std::size_t>(result_.entries[i]));
      chain.entry = static_cast<std::int32_t>(i);
      if (extend(chain, row(i))) longer.push_back(chain);
    }
    chains = std::move(longer);
  }
}

bool MtpSource::extend(Chain& chain, const float* logits) {
  DraftRequest& request = *chain.request;
  const DraftStream& stream = request.stream;
  std::vector<DraftNode>& nodes = request.proposal.nodes;
  adjusted_.clear();
  if (stream.logit_adjust != nullptr) {
    path_.clear();
    for (const DraftNode& node : nodes) path_.push_back(node.token);
    stream.logit_adjust->collect(logits, path_, adjusted_);
  }
  const auto position = static_cast<std::int64_t>(stream.context->size() + nodes.size());
  const Draw draw = sampler_.draw(logits, nullptr, *stream.sampling, position, adjusted_);
  if (draw.status != DrawStatus::kDrawn) {
    if (draw.status == DrawStatus::kNotFinite) request.failure = "the head's output is not finite";
    return false;
  }
  const double confidence = share(logits, draw.token, *stream.sampling, position);
  nodes.push_back({draw.token, static_cast<std::int32_t>(nodes.size()) - 1, confidence});
  chain.confidence *= confidence;
  const auto depth = static_cast<std::int32_t>(nodes.size());
  return depth < std::min({request.depth_max, request.nodes_max, facts_.depth_max}) &&
         chain.confidence >= options_.confidence_min;
}

double MtpSource::share(const float* logits, std::int32_t token, const SamplingRule& rule, std::int64_t position) {
  if (!sampler_.best(logits, kShareCandidates, best_)) return 0.0;
  const auto is_draft = [token](const sampling::Candidate& candidate) { return candidate.token == token; };
  if (std::none_of(best_.begin(), best_.end(), is_draft)) best_.push_back({logits[token], token});
  const bool samples = rule.temperature > 0.0;
  const double temperature = samples ? sampling::effective_temperature(rule.temperature) : 1.0;
  const std::uint64_t row = sampling::row_key(sampling::request_key(rule.seed), static_cast<std::uint64_t>(position));
  const auto score = [&](const sampling::Candidate& candidate) {
    const double noise = samples ? sampling::gumbel(sampling::noise_bits(row, candidate.token)) : 0.0;
    return sampling::scaled(candidate.logit, temperature) + noise;
  };
  const double draft = score({logits[token], token});
  double others = 0.0;  // relative to the draft
  for (const sampling::Candidate& candidate : best_) {
    if (candidate.token != token) others += exp_exact(std::min(score(candidate) - draft, kScoreGapMax));
  }
  return 1.0 / (1.0 + others);
}

}  // namespace tensorfold
