// What the engine sees of a drafter that is part of the model's forward machinery: the checkpoint's MTP head, or a block
// drafter (DFlash) loaded beside it. Both keep their keys and values in cache groups of their own (CacheGroup::draft), so
// that pages, sharing and snapshots are the engine's usual ones. Nothing here can change a committed row's logits: drafts
// propose, the target's own draw decides. Implemented in model/, driven by engine/draft/.
#pragma once

#include <cstdint>
#include <vector>

#include "model/round_plan.h"

namespace tensorfold {

/// A row of the last forward() that has been committed (prompt rows, and the accepted path of a window).
struct AbsorbRow {
  std::int32_t pass_row = 0;    // row of the last plan; it was flagged kRowWantsHidden (MTP) or kRowIsTapped (block drafter)
  std::int32_t position = 0;    // its sequence index
  std::int32_t next_token = 0;  // the token at position + 1
};

/// One lane's rows to absorb: ascending, consecutive positions; page tables cover them.
struct AbsorbLane {
  std::int32_t slot = 0;
  std::vector<AbsorbRow> rows;
  const std::vector<PageTable>* pages = nullptr;  // the lane's tables, one per cache group
  bool wants_result = false;  // MTP: logits after the last row (a draft follows)
};

/// Logits over the vocabulary, one row per entry that wanted them, in order; an id that is never drafted holds −1e30 (finite,
/// without probability). Host memory of the model, valid until the next call of the head.
struct DraftLogits {
  std::vector<std::int32_t> entries;  // index of the lane or step that each row belongs to
  const float* logits = nullptr;      // [entries.size(), vocabulary_size]
};

/// A multi-token-prediction head (families-a.md 1.5). Pair i joins the final-normed hidden state of row i with token
/// i + 1 and predicts token i + 2; its key is stored at index i.
class MtpHead {
 public:
  virtual ~MtpHead() = default;
  /// Most levels worth chaining.
  virtual std::int32_t depth_max() const = 0;
  /// Runs the pairs of all lanes as one batch.
  virtual void absorb(const std::vector<AbsorbLane>& lanes, DraftLogits& result) = 0;

  struct Step {
    std::int32_t source = 0;    // index of the entry of the previous absorb() or step() result that it continues
    std::int32_t token = 0;     // the drafted token
    std::int32_t position = 0;  // of the pair: one more than the pair it continues
    std::int32_t slot = 0;
    const std::vector<PageTable>* pages = nullptr;
  };
  /// One more level for some lanes: feeds the head's own output with the drafted token. Keys written here lie past the
  /// absorbed pairs and are overwritten by the next absorb().
  virtual void step(const std::vector<Step>& steps, DraftLogits& result) = 0;
};

/// The candidates of one drafted block: per depth (0 = the token after the pending one) the best ids of the target's head
/// over the drafter's hidden state, and what pair scores need.
struct BlockCandidates {
  std::int32_t depth_count = 0;
  std::int32_t candidate_count = 0;      // per depth
  std::vector<std::int32_t> tokens;      // [depth, candidate] by (unary descending, id ascending)
  std::vector<float> unary;              // [depth, candidate] logits
  std::vector<float> hidden_projection;  // [depth, rank]; empty when the drafter has no selector
};

/// A block drafter (DFlash2, DFlash; families-a.md 4).
class BlockDrafter {
 public:
  virtual ~BlockDrafter() = default;
  /// Rows of a block it was trained for, the pending token's row included; it may be asked for up to `block_rows_max`.
  virtual std::int32_t block_rows() const = 0;
  virtual std::int32_t block_rows_max() const = 0;
  virtual bool has_selector() const = 0;
  /// Writes the context keys and values of committed rows.
  virtual void absorb(const std::vector<AbsorbLane>& lanes) = 0;

  struct Block {
    std::int32_t pending_token = 0;
    std::int32_t position = 0;   // of the pending token = number of absorbed rows
    std::int32_t row_count = 0;  // pending token + masks
    std::int32_t slot = 0;
    const std::vector<PageTable>* pages = nullptr;
  };
  virtual void propose(const std::vector<Block>& blocks, std::vector<BlockCandidates>& result) = 0;
  /// scores[c] = pair score of candidate c at `depth` after `predecessor` (0 without a selector).
  virtual void pair_scores(const BlockCandidates& candidates, std::int32_t depth, std::int32_t predecessor,
                           float* scores) const = 0;
};

}  // namespace tensorfold
