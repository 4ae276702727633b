// What a decoding lane feeds in its next pass beside its pending token: drafts, or tokens that a rule forces. A window
// is cut here, before the pass, to what can still become tokens: nothing behind a stop token, nothing that the stream's
// rule excludes on that path. Cutting saves rows only; whatever stays is judged by the target's own draws afterwards.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/draft/draft_source.h"
#include "engine/path_rule.h"

namespace tensorfold {

enum class WindowKind : std::uint8_t {
  kPlain,    // the pending token alone
  kForced,   // tokens that a rule says must come, or that a preempted stream had come to
  kDrafted,  // the proposal of one source
};

/// Rows after the pending token. Any first n of them are a valid window.
struct DraftWindow {
  WindowKind kind = WindowKind::kPlain;
  std::int32_t source = -1;     // index of the source, with kDrafted
  DraftProposal proposal;       // what is left of it
  std::vector<double> chances;  // per node: that it is reached and lands
};

/// Whether the first `count` nodes branch, or leave a branch and come back.
bool is_tree(const std::vector<DraftNode>& nodes, std::int32_t count);
/// Depth of each node; 0: after the pending token.
std::vector<std::int32_t> node_depths(const std::vector<DraftNode>& nodes);

/// Why a proposal breaks the contract of draft_source.h; empty when it keeps it.
std::string proposal_fault(const DraftRequest& request, std::int32_t vocabulary_size);

/// Drops nodes, each with all that follows it: those that end the reply and those that `rule` (its state after the
/// pending token; may be null) excludes, forces to something else, ends at or throws on.
void cut_proposal(std::vector<DraftNode>& nodes, const PathRule* rule, const std::vector<std::int32_t>& stop_tokens,
                  std::int32_t vocabulary_size);

/// A chain of the tokens that `rule` forces next, at most `depth_max`, up to where it ends the reply.
std::vector<DraftNode> forced_nodes(const PathRule& rule, const std::vector<std::int32_t>& stop_tokens,
                                    std::int32_t depth_max, std::int32_t vocabulary_size);

}  // namespace tensorfold
