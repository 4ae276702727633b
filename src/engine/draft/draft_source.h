// The interface between a round and whoever guesses its next tokens. A source proposes; the target's own draws decide
// (engine.md 2.8), so nothing behind this interface can change a token, only how many rounds a reply takes. There is
// one object of a source per engine; what it knows of a stream lives in a DraftState that the stream owns and that dies
// with it (N4). Everything is called on the engine thread, between two passes.
//
// After each pass the round walks the windows, delivers tokens, and then calls the sources (models absorb before any of
// them drafts):
//   observe()   per stream whose window came from this source: what landed
//   absorb()    all streams of the pass together: the rows that were committed, each with the token after it
//   propose()   those of them that shall draft now, all together
// A source that runs a model and doesn't pay for a stream sleeps: it isn't called, its rows aren't kept, and when it
// wakes, rows are missing between two calls of absorb(). A stream whose prompt isn't done is absorbed and not asked. A stream with drafts off never reaches a source. A source
// that throws is silenced for the streams of that call, with one log line; a source that fails for one stream alone
// sets `failure` in that stream's entry. The stream goes on without it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/sampling_rule.h"
#include "model/draft_head.h"

namespace tensorfold {

class LogitAdjust;

enum class DraftKind : std::uint8_t { kCopy, kRecall, kMtp, kBlock };
inline constexpr std::size_t kDraftKindCount = 4;

/// Lower-case word for statistics and logs: "copy", "recall", "mtp", "block".
const char* draft_kind_name(DraftKind kind);

/// One drafted token: a row of the next window.
struct DraftNode {
  std::int32_t token = 0;
  std::int32_t parent = -1;  // index of an earlier node; -1: it follows the pending token
  double chance = 0.0;       // estimated chance that it lands, given that its parent landed
};

/// What one source proposes for one stream. Parents stand before children, siblings have different tokens, depth and
/// size stay within what was asked. Any prefix of the nodes is a valid proposal, best first: the round may keep only
/// the first n.
struct DraftProposal {
  std::vector<DraftNode> nodes;
  std::int32_t match_length = 0;  // copy and recall: tokens of context that matched
};

/// What a source states about itself, once.
struct DraftSourceFacts {
  DraftKind kind = DraftKind::kCopy;
  bool needs_hidden_rows = false;  // absorbed rows are flagged kRowWantsHidden
  bool needs_tapped_rows = false;  // ... kRowIsTapped
  bool runs_model = false;         // proposing takes the backend's time: asked only when no cheap source is as good
  bool one_pass = false;           // ... the same time however deep: a block drafter
  std::int32_t depth_max = 0;      // most levels worth asking for
  std::int32_t nodes_max = 0;      // most nodes of a proposal
  double chance_prior = 0.5;       // that a draft lands, before anything was observed
};

/// A source's own knowledge of one stream.
class DraftState {
 public:
  virtual ~DraftState() = default;
};

/// What a source may see of a stream. Valid during the call.
struct DraftStream {
  DraftState* state = nullptr;                         // what open() returned for this stream
  const std::vector<std::int32_t>* context = nullptr;  // prompt ++ reply; while decoding, the last token is pending
  std::int32_t prompt_length = 0;
  const LogitAdjust* logit_adjust = nullptr;  // penalties and biases after the context; null: none
  const SamplingRule* sampling = nullptr;  // draw drafts with it: same rule, seed and absolute position (engine.md 2.9)
  const std::string* owner = nullptr;      // scope of the API key: what one owner wrote never drafts for another
  std::int32_t slot = 0;
  const std::vector<PageTable>* pages = nullptr;  // one per cache group; null where the call needs none
};

/// The committed rows of one stream in the last pass: rows of a prompt slice, or the accepted path of its window.
struct DraftAbsorb {
  DraftStream stream;
  std::vector<AbsorbRow> rows;  // ascending, consecutive positions; the last one's next_token ends the known context
  bool wants_proposal = false;  // propose() follows for this stream
  std::string failure;          // set by the source
};

/// One stream that shall draft.
struct DraftRequest {
  DraftStream stream;
  /// >= 1: levels that can be used. Where a model is run, page tables cover the pending token and as many after it.
  std::int32_t depth_max = 0;
  std::int32_t nodes_max = 0;  // >= depth_max: nodes that can be used
  bool trees = false;          // false: a chain, please; a tree has at most limits::kTreeRowsMax - 1 nodes
  DraftProposal proposal;      // filled in by the source; left empty when it has nothing to say
  std::string failure;         // set by the source
};

class DraftSource {
 public:
  virtual ~DraftSource() = default;
  virtual const DraftSourceFacts& facts() const = 0;

  /// A stream begins. `context` is its prompt; the first rows that are absorbed may lie behind a resumed prefix. Null:
  /// nothing to offer for this stream. `slot` and `pages` aren't known yet.
  virtual std::unique_ptr<DraftState> open(const DraftStream& stream) = 0;
  virtual void absorb(std::vector<DraftAbsorb>& batch) { (void)batch; }
  /// Called only for streams whose `wants_proposal` was set in this source's last absorb(), perhaps not for all of
  /// them. Other sources absorb and propose in between; nothing else touches the model's drafters.
  virtual void propose(std::vector<DraftRequest>& batch) = 0;
  /// The window held the first `fed_count` (> 0) nodes of the last proposal; `landed` are those on the accepted path,
  /// in order. `proposal` lacks what the stream's rule excluded. Not called for the window in which the stream ended.
  virtual void observe(const DraftStream& stream, const DraftProposal& proposal, std::int32_t fed_count,
                       const std::vector<std::int32_t>& landed) {
    (void)stream, (void)proposal, (void)fed_count, (void)landed;
  }
  /// The stream has ended, well or not; its state is destroyed next. `context` holds all its tokens.
  virtual void close(const DraftStream& stream) { (void)stream; }
};

}  // namespace tensorfold
