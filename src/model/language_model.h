// What the engine sees of a loaded model: facts, memory and one forward pass. It is an interface so that the engine's
// scheduling can be tested with a fake whose logits are a hash of the prefix, and because ranks on several GPUs will
// implement it too. Implemented by model/executor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/host_memory.h"
#include "base/limits.h"
#include "model/draft_head.h"
#include "model/round_plan.h"
#include "ops/draw.h"
#include "ops/pass_time.h"

namespace tensorfold {

/// Kinds of state a group of layers keeps for a stream.
enum class CacheKind : std::uint8_t { kFull, kSliding, kLatent, kRecurrent, kShared };

struct CacheGroup {
  CacheKind kind = CacheKind::kFull;
  std::int32_t layer_count = 0;
  std::int32_t window = 0;          // kSliding: keys (p − window, p] are visible
  std::uint64_t page_bytes = 0;     // bytes of one page over all the group's layers (0 for kRecurrent)
  std::uint64_t slot_bytes = 0;     // bytes of one slot over all the group's layers, without its window rows: recurrent
                                    // state, or keys and values of a tree (not part of slot_state_bytes())
  std::uint64_t slot_window_row_bytes = 0;  // of a slot, per row of the widest window (allocate_caches), with what passes
                                            // need to work on it
  bool draft = false;               // a drafter's own keys and values: never seen by a committed row
};

struct ModelFacts {
  std::string family;              // model_type
  std::string family_title;        // for people
  std::string checkpoint_id;       // hash of the configuration and of every tensor's bytes or file identity; may be empty in tests
  std::string backend;             // "cpu", "reference", "cuda"
  std::string backend_path;        // "amx", "avx2", ...
  std::int32_t arithmetic_version = 0;
  std::int32_t vocabulary_size = 0;
  std::int32_t hidden_size = 0;
  std::int32_t context_max = 0;    // positions the model supports
  std::int32_t pass_rows_max = 0;  // rows one forward() admits
  std::int32_t window_rows_max = limits::kWindowRowsMax;  // rows of a window that allocate_caches may ask for
  std::uint64_t packed_weight_bytes = 0;
  std::uint64_t position_bytes = 0;  // of tables of rotations, a position: they are as long as the longest stream
  std::vector<CacheGroup> groups;  // page tables in a plan are in this order; kRecurrent groups have empty tables
};

/// Result of a pass: one entry per row that asked for it, in row order. Memory is the model's, valid until the next call.
struct ForwardResult {
  std::vector<std::int32_t> logits_rows;   // plan row of each logits row
  const float* logits = nullptr;           // host memory, [logits_rows.size(), vocabulary_size], fp32; null when rows
                                           // were drawn where they lie: LanguageModel::logits_row() brings one
  std::vector<std::int32_t> draws;         // per logits row: token, or a code of ops/draw.h; empty: none was drawn
  std::vector<std::int32_t> hidden_rows;   // rows flagged kRowReturnsHidden
  const float* hidden = nullptr;           // [hidden_rows.size(), hidden_size], unrounded
  bool is_awaited = true;                  // false: the pass is queued, as nothing of it was wanted
};

class LanguageModel {
 public:
  virtual ~LanguageModel() = default;
  virtual const ModelFacts& facts() const = 0;

  /// Memory that pools may take. Where it is the model's alone (a GPU's), what passes need beside the pools is already taken
  /// or left out; call warm_up() first.
  virtual MemoryAvailable memory_available() const { return {host_memory_available(), true}; }
  /// Runs passes of up to `pass_rows` rows on small pools of its own, so that memory that grows with use has grown.
  virtual void warm_up(std::int32_t pass_rows) { (void)pass_rows; }

  /// Allocates the pools, once, before the first pass: `page_counts[g]` pages for group g (page 0, reserved for padding
  /// rows, is included) and `slot_count` slots (slot 0 likewise), whose windows hold up to `window_rows` rows. Throws
  /// Error(kResourceExhausted).
  virtual void allocate_caches(const std::vector<std::int32_t>& page_counts, std::int32_t slot_count,
                               std::int32_t window_rows) = 0;
  /// After allocate_caches(): takes what passes of up to `pass_rows` rows, `lanes` streams and `logits_rows` rows of logits will want, so
  /// that serving takes no more of a memory that is the model's alone. Throws Error(kResourceExhausted).
  virtual void reserve_passes(std::int32_t pass_rows, std::int32_t lanes, std::int32_t logits_rows) {
    (void)pass_rows, (void)lanes, (void)logits_rows;
  }
  /// Pages are zeroed when handed to a stream; so is the state of slots (window memory is written before it is read).
  virtual void zero_page(std::int32_t group, std::int32_t page) = 0;
  virtual void zero_slot(std::int32_t slot) = 0;
  /// Copies a page's or slot's content inside the pools (copy on write, forks); of a slot also what is pending in it.
  virtual void copy_page(std::int32_t group, std::int32_t from, std::int32_t to) = 0;
  virtual void copy_slot(std::int32_t from, std::int32_t to) = 0;
  /// Tests: fill a page or slot that fell free with NaN, so that whoever reads a stale one shows it. Optional.
  virtual void poison_page(std::int32_t group, std::int32_t page) { (void)group, (void)page; }
  virtual void poison_slot(std::int32_t slot) {
    for (std::size_t group = 0; group < facts().groups.size(); ++group) {
      if (facts().groups[group].kind == CacheKind::kRecurrent) poison_page(static_cast<std::int32_t>(group), slot);
    }
  }
  /// Replays what is pending in `lane.slot` (its replay_rows; position, pages and replay_tree as in a plan's lane);
  /// afterwards exactly one canonical state exists. Writes pages when the window was a tree.
  virtual void settle(const PlanLane& lane) = 0;

  /// Snapshots: a page's bytes (CacheGroup::page_bytes) and a settled slot's state (slot_state_bytes()) in host memory.
  /// Copies of slots are queued where `out` and `bytes` are memory of allocate_snapshot(): the host may read or change it after
  /// finish_copies() alone, further copies follow in order.
  virtual void read_page(std::int32_t group, std::int32_t page, std::byte* out) = 0;
  virtual void write_page(std::int32_t group, std::int32_t page, const std::byte* bytes) = 0;
  virtual std::size_t slot_state_bytes() const = 0;
  virtual void read_slot(std::int32_t slot, std::byte* out) = 0;
  virtual void write_slot(std::int32_t slot, const std::byte* bytes) = 0;
  /// slot_state_bytes() of host memory that a GPU's copy engines reach; may outlive the model. Throws Error(kResourceExhausted).
  virtual std::shared_ptr<std::byte[]> allocate_snapshot() {
    return std::shared_ptr<std::byte[]>(new std::byte[slot_state_bytes()]);
  }
  virtual void finish_copies() {}

  /// Drafters that share the model's embedding, head and caches; null when the checkpoint has none.
  virtual MtpHead* mtp_head() { return nullptr; }
  virtual BlockDrafter* block_drafter() { return nullptr; }

  /// Runs one pass. The plan must satisfy: rows <= pass_rows_max, spans cover the rows in order, a non-committing span has
  /// at most the window rows of allocate_caches, page tables cover every position, ids are inside the vocabulary. Rows of
  /// a window form a chain or a tree (PlanRow::parent_row); a tree has at most kTreeRowsMax rows, parents before children.
  virtual void forward(const RoundPlan& plan, ForwardResult& result) = 0;
  /// The same with something for the host to do: calls `host_work` once, between queueing the pass and waiting for it
  /// where passes are queued, so that both take their time together. It must not throw or touch the model. When
  /// forward_beside() throws, it may not have been called.
  virtual void forward_beside(const RoundPlan& plan, ForwardResult& result, const std::function<void()>& host_work) {
    host_work();
    forward(plan, result);
  }
  /// What passes took that weren't awaited and are over: each once, in order. Never waits. To be asked after every pass.
  virtual std::vector<ops::PassTime> take_pass_times() { return {}; }
  /// Row `index` of the last pass's logits [vocabulary_size] in host memory, valid until the next call or forward().
  virtual const float* logits_row(const ForwardResult& result, std::size_t index) {
    return result.logits + index * static_cast<std::size_t>(facts().vocabulary_size);
  }
};

}  // namespace tensorfold
