// Drafts from the checkpoint's multi-token-prediction head (engine.md 4.1). After every pass the committed rows, each
// with the token after it, run through the head as one batch over all streams; then the head is chained level by level,
// all streams together. Drafts are drawn with the target's own rule, seed and position, so that head and target agree
// wherever their distributions are close (engine.md 2.9). A chain ends where what it is worth has become small.
//
// Committed rows are absorbed also while another source drafts for the stream; not while the head sleeps because it
// doesn't pay (drafter.h): its keys of those rows stay zero, and its drafts are a little poorer afterwards. A stream that resumed a kept prefix
// has the head's keys with it except the last pair, which was another text's or is missing: its first drafts are a
// little poorer, nothing else.
#pragma once

#include <cstdint>

#include "engine/draft/draft_source.h"
#include "engine/host_sampler.h"

namespace tensorfold {

struct MtpOptions {
  std::int32_t depth_max = 0;   // levels; 0: as many as the head is good for
  double confidence_min = 0.3;  // a chain goes on while the product of its drafts' shares is at least this
};

class MtpSource : public DraftSource {
 public:
  /// `head` outlives the source.
  MtpSource(MtpHead& head, std::int32_t vocabulary_size, const MtpOptions& options = {});

  const DraftSourceFacts& facts() const override { return facts_; }
  std::unique_ptr<DraftState> open(const DraftStream& stream) override;
  void absorb(std::vector<DraftAbsorb>& batch) override;
  void propose(std::vector<DraftRequest>& batch) override;

 private:
  /// A chain that still grows.
  struct Chain {
    DraftRequest* request = nullptr;
    std::int32_t entry = 0;   // of the head's last result
    double confidence = 1.0;  // product of the shares so far
  };

  /// Draws the chain's next draft from its row of logits; false when the chain ends here.
  bool extend(Chain& chain, const float* logits);
  /// The draft's share of the head's best candidates, each with the noise that the target will add to it: a token that
  /// wins by the noise alone is as safe a draft as one that wins by its logit.
  double share(const float* logits, std::int32_t token, const SamplingRule& rule, std::int64_t position);
  const float* row(std::size_t index) const;

  MtpHead& head_;
  const std::int32_t vocabulary_size_;
  const MtpOptions options_;
  DraftSourceFacts facts_;
  HostSampler sampler_;
  DraftLogits result_;  // of the head's last call
  std::vector<sampling::Candidate> best_;
  std::vector<AdjustedLogit> adjusted_;
  std::vector<std::int32_t> path_;
};

}  // namespace tensorfold
