// Types that several operations share: the opaque activation element and the view of a lane's rows in a pass.
#pragma once

#include <cstdint>

#include "base/limits.h"

namespace tensorfold::ops {

/// Opaque element of an activation buffer; see backend.h. Never dereferenced outside a backend.
struct Activation;

/// The rows that one lane has in a pass. They are consecutive rows [first_row, first_row + row_count) of every
/// row-major buffer: a chain, in which row r feeds sequence index position + (r - first_row), or a tree of drafts
/// (`parents`).
struct LaneSpan {
  std::int32_t slot = 0;  // slot of the lane (recurrent state, window memory); 0 is the reserved padding slot
  std::int32_t first_row = 0;
  std::int32_t row_count = 0;
  std::int32_t position = 0;  // sequence index of the first row = number of tokens committed before it
  /// Page table of the lane for the operation's cache group: keys [64·i, 64·i + 64) live in page pages[i]. Covers every
  /// key of the rows' paths. Entry -1: released (only keys outside a sliding window), never read or written.
  const std::int32_t* pages = nullptr;
  /// A tree: [row_count] the row of the span that precedes each row on its path, an earlier one; -1 for row 0 alone,
  /// whose path is the committed sequence. Row r feeds sequence index position + depth of r. Null: a chain. Only
  /// windows (commits == false) of at most kTreeRowsMax rows are trees. Their keys and values stay in the slot
  /// (KvPool::trees) until attention_replay() moves those of the accepted path into the pages.
  const std::int32_t* parents = nullptr;
  /// Rows commit at once (prompt rows can't be rejected). Otherwise the rows are a window that may be cut short:
  /// recurrent operations leave the state as it is and keep the window's inputs in the slot ("Rolling back",
  /// one-arithmetic.md).
  bool commits = true;
  /// Rows of the slot's kept window that were accepted and still have to be replayed into the state before this pass's
  /// rows: window row indices, ascending along the accepted path. Empty when nothing is pending.
  const std::int32_t* replay_rows = nullptr;
  std::int32_t replay_count = 0;
  bool replay_tree = false;  // the kept window was a tree
  /// A drafter's block: its rows see one another whatever their order, so each sees keys up to the span's end (and back to
  /// its own window's start). A chain that attention() alone knows; never with `parents`.
  bool mutual = false;
};

}  // namespace tensorfold::ops
