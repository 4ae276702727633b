// The operations a model is made of, behind one interface that the executor drives and every backend implements:
// reference loops, CPU kernels, CUDA kernels. The boundary is here so that a family knows no backend and a backend knows
// no model. Each operation's parameters, shapes and exact arithmetic stand in its own header.
//
// Memory: pointers in parameters are backend memory (host memory for the CPU and reference backends) obtained from
// allocate(). `float*` buffers are fp32. `Activation*` buffers hold what one-arithmetic.md rule 3 rounds to bf16: norm
// outputs, inputs of linear layers, q, attention output. Their element is backend-defined (info().activation_bytes: 2 for
// bf16, 4 for the reference backend, whose `--rounding none` must not round); only backends look inside. Address element i
// with activation_at(). Matrices are row-major, rows outermost, without padding unless a stride is given.
//
// Row invariance: every operation computes each row from that row's inputs and constants of shapes and absolute positions
// alone. No call may let the number of rows, their neighbours or the threads enter a bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/host_memory.h"
#include "ops/attention.h"
#include "ops/block_convolution.h"
#include "ops/draw.h"
#include "ops/elementwise.h"
#include "ops/gated_delta.h"
#include "ops/linear.h"
#include "ops/moe.h"
#include "ops/norm.h"
#include "ops/pass_time.h"
#include "ops/types.h"

namespace tensorfold::ops {

struct BackendInfo {
  std::string name;             // "cpu", "reference", "cuda"
  std::string path;             // instruction set: "amx", "avx512", "avx2", "neon", "loops", "sm_90"
  int arithmetic_version = 0;   // bumped with any change of order or rounding; enters persistent cache keys
  int activation_bytes = 0;     // size of one Activation element
  int threads = 1;
  bool host_memory = true;      // buffers are host memory: results are read in place
  std::int64_t pass_rows_max = limits::kPassRowsMax;  // rows of one forward pass
};

/// Everything that the operations of one pass will be handed as host arrays. A backend whose memory is not the host's
/// brings it over in one copy, and knows each array again by its address.
struct PassInputs {
  struct Lanes {
    std::span<const LaneSpan> spans;
    std::int32_t window = 0;  // of the attention layers that use these spans; 0 = all keys
  };
  std::int64_t rows = 0;       // that hold a token
  std::int64_t row_count = 0;  // >= rows: row_bucket(rows); those beyond belong to no lane, what they yield is never read
  std::vector<Lanes> lanes;                         // one entry a cache group
  std::vector<std::span<const std::int32_t>> ids;   // tokens, positions, row lists: whatever operations will be given
  /// Names the sequence of operations: two passes with equal names, counts and shapes of trees run the same operations on
  /// the same buffers, so one may be replayed for the other. Empty: never replayed.
  std::string name;
  bool is_timed = false;  // nobody will wait for its end: Backend::take_pass_times() is to tell what it took
};

/// What bounds the passes of one engine.
struct PassBounds {
  std::int64_t rows = 0, lanes = 0, positions = 0;  // of a pass; of a pass; of a lane
  std::int32_t groups = 0;                          // cache groups
};

/// Backend memory, zeroed on allocation, at least 64-byte aligned, freed with the object.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual void* data() = 0;
  virtual std::size_t bytes() const = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const BackendInfo& info() const = 0;

  /// Throws Error(kResourceExhausted) naming `purpose` and the size.
  virtual std::unique_ptr<Buffer> allocate(std::size_t bytes, const char* purpose) = 0;
  /// Host memory that this backend's copies reach without a detour, and draw() may write.
  virtual std::unique_ptr<Buffer> allocate_host(std::size_t bytes, const char* purpose) {
    return allocate(bytes, purpose);
  }
  /// What allocate() can still give, less what the backend itself will need as it goes on.
  virtual MemoryAvailable memory_available() const { return {host_memory_available(), true}; }
  /// Queued. `source` may be backend memory, or host memory: that of allocate_host() must stay as it is until the copy has
  /// run, any other may be reused at once.
  virtual void copy_to_backend(void* destination, const void* source, std::size_t bytes) = 0;
  virtual void copy_to_host(void* destination, const void* source, std::size_t bytes) = 0;
  /// Queued: the bytes are there after synchronise(). `destination` is of allocate_host().
  virtual void queue_copy_to_host(void* destination, const void* source, std::size_t bytes) {
    copy_to_host(destination, source, bytes);
  }
  virtual void zero(void* destination, std::size_t bytes) = 0;
  /// Returns when all queued work is done (a no-op on the CPU).
  virtual void synchronise() = 0;
  /// Returns when none of the `count` results of a queued draw is kDrawPending any more, or when all queued work is done. They lie in
  /// memory of allocate_host() and were kDrawPending before the draw was queued. Other results of the pass may come later.
  virtual void await_draws(const std::int32_t* /*draws*/, std::int64_t /*count*/) { synchronise(); }

  /// After a pass of the largest size: takes what operations come to want beyond it as contexts grow, so that memory_available()
  /// promises none of it.
  virtual void reserve_growth() {}

  // --- passes
  /// Takes what announcing passes within `bounds` needs, so that none of them takes any.
  virtual void reserve_passes(const PassBounds&) {}
  /// The row count that a pass of `rows` rows is padded to (equal buckets can share a captured graph).
  virtual std::int64_t row_bucket(std::int64_t rows) const { return rows; }
  /// Announces a pass. True: run its operations, then end_pass(). False: the backend replays an earlier pass of the same
  /// name and shape by itself and the operations must not be called; end_pass() all the same. `inputs` and what they
  /// refer to outlive end_pass(). Between the two nothing is allocated, freed or copied to the host.
  virtual bool begin_pass(const PassInputs&) { return true; }
  virtual void end_pass() {}
  /// Instead of end_pass(), when an operation threw: what the pass queued is of no use, and it isn't replayed.
  virtual void abandon_pass() {}
  /// Of the passes that were to be timed and are over: each once, in order. Never waits. None where nothing is queued; who doesn't ask
  /// after every pass may miss some.
  virtual std::vector<PassTime> take_pass_times() { return {}; }

  // --- linear.h
  virtual std::unique_ptr<Linear> load_linear(const LinearSource& source) = 0;
  virtual void linear(const LinearParams& params) = 0;
  virtual void embed(const EmbedParams& params) = 0;
  /// False: not available for this layer and row count; nothing was done.
  virtual bool gated_linear(const GatedLinearParams&) { return false; }
  /// Whether this layer may be given the norm that makes its input instead of that input (LinearParams::norm): then
  /// rms_norm() need not run before it. A matter of speed alone; the bits are the same.
  virtual bool norms_inputs(const Linear&, const RmsNormParams&) { return false; }

  // --- norm.h
  virtual void rms_norm(const RmsNormParams& params) = 0;
  virtual void rms_norm_add(const RmsNormAddParams& params) = 0;

  // --- attention.h
  virtual std::size_t kv_page_bytes(const KvGeometry& geometry) const = 0;
  virtual std::size_t kv_tree_bytes(const KvGeometry& geometry) const = 0;
  virtual void attention_prepare(const AttentionPrepareParams& params) = 0;
  virtual void attention(const AttentionParams& params) = 0;
  virtual void attention_replay(const AttentionReplayParams& params) = 0;

  // --- elementwise.h
  virtual void gated_activation(const GatedActivationParams& params) = 0;
  virtual void soft_cap(const SoftCapParams& params) = 0;
  virtual void round_rows(const RoundRowsParams& params) = 0;

  // --- block_convolution.h
  virtual void block_convolution(const BlockConvolutionParams& params) = 0;

  // --- gated_delta.h
  virtual std::size_t gated_delta_state_bytes(const GatedDeltaGeometry& geometry) const = 0;
  virtual std::size_t gated_delta_window_row_bytes(const GatedDeltaGeometry& geometry) const = 0;
  /// Memory that gated_delta() works in for each row of its slots' windows, whether they are full or not; 0: no such memory.
  virtual std::size_t gated_delta_work_row_bytes(const GatedDeltaGeometry&) const { return 0; }
  virtual void gated_delta(const GatedDeltaParams& params) = 0;

  // --- moe.h
  virtual void moe(const MoeParams& params) = 0;
  /// Whether moe() computes these rows' shared expert itself, from shared_gate_up and shared_down, when shared_output is null.
  virtual bool moe_runs_shared(const MoeParams&) { return false; }

  // --- draw.h
  virtual bool can_draw(const SamplingRule&) const { return false; }
  virtual void draw(const DrawParams&) {}
};

/// begin_pass() and its end, also when an operation throws.
class PassScope {
 public:
  PassScope(Backend& backend, const PassInputs& inputs) : backend_(backend), wants_operations_(backend.begin_pass(inputs)) {}
  ~PassScope() {
    if (!has_ended_) backend_.abandon_pass();
  }
  PassScope(const PassScope&) = delete;
  PassScope& operator=(const PassScope&) = delete;
  bool wants_operations() const { return wants_operations_; }
  void end() {
    has_ended_ = true;
    backend_.end_pass();
  }

 private:
  Backend& backend_;
  bool wants_operations_;
  bool has_ended_ = false;
};

/// Element `index` of an activation buffer.
inline Activation* activation_at(const BackendInfo& info, Activation* base, std::int64_t index) {
  return reinterpret_cast<Activation*>(reinterpret_cast<std::byte*>(base) + index * info.activation_bytes);
}

}  // namespace tensorfold::ops
