// What every operation of the CUDA backend is given: the device, the stream, scratch memory and the pass's data. The
// boundary is here so that an operation's file knows kernels and nothing of passes, graphs or allocation.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "ops/cuda/pass_data.h"
#include "ops/types.h"

namespace tensorfold::ops {
class Buffer;
}

namespace tensorfold::ops::cuda {

/// Dynamic shared memory that any kernel may be launched with; for more a kernel's attribute is set.
constexpr std::size_t kPlainSharedBytes = 48 * 1024;

struct DeviceFacts {
  int device = 0;
  int compute_capability = 0;     // 90 = 9.0
  int sm_count = 0;
  int shared_bytes_max = 0;       // a block can opt in to
  bool hopper = false;            // sm_90a kernels are in this binary, run here and are wanted
  /// Of scratch memory, for attention's partial results; what takes more is walked in slices.
  std::int64_t attention_partial_bytes_max = 512ll << 20;
};

/// Scratch memory that operations may use between their own launches. Contents don't survive the operation, except in
/// kCounters, which is zero whenever no operation runs: who counts there, leaves zeros. Operations run one after the other
/// (each waits for the one before), so they share it.
enum class Scratch { kPartials, kCounters, kActivations, kPlan };
constexpr int kScratchKinds = 4;

/// A cache group's lanes in device memory, and what the host may build a launch on: these numbers are part of a captured
/// pass's identity, so they hold for every pass that replays the same graph. Capacities are rounded up (powers of two).
struct Lanes {
  LanesRef ref;
  std::int32_t lane_count = 0;
  std::int64_t row_count = 0;              // rows of the pass, with padding: length of row_lane
  std::int32_t rows_max = 0;               // >= rows of the widest lane
  bool any_tree = false;                   // a lane has parents
  bool any_tree_replay = false;
  std::int64_t item_capacity = 0;          // >= PassGroup::item_count; 0: no lane is a window
  std::int64_t partial_row_capacity = 0;   // >= sum over items of their lane's row_count
};

class CudaContext {
 public:
  virtual ~CudaContext() = default;
  const DeviceFacts& facts() const { return facts_; }
  cudaStream_t stream() const { return stream_; }

  /// The next launch is to begin when all before it has ended and is visible, whatever it reads before it waits (launch.cuh).
  void separate_next_launch() { next_may_overlap_ = false; }
  /// Whether the launch that is made now may begin earlier.
  bool take_overlap() { return std::exchange(next_may_overlap_, true); }

  /// Device memory for what is loaded once (weights). Throws Error(kResourceExhausted). A context without a backend (a
  /// benchmark's) takes it from no account.
  virtual std::unique_ptr<Buffer> allocate(std::size_t bytes, const char* purpose);

  /// At least `bytes` of device memory, 256-byte aligned; grows when it must (never while a pass is captured: it ran
  /// once before with the same sizes).
  virtual void* scratch(Scratch kind, std::size_t bytes) = 0;

  /// The lanes that attention was handed, in device memory: those of the running pass, or copied now. `window` as in
  /// AttentionParams; it decides which items are listed.
  virtual Lanes attention_lanes(const LaneSpan* spans, std::int32_t count, std::int32_t window) = 0;
  /// The same for operations that don't care for items.
  virtual Lanes lanes(const LaneSpan* spans, std::int32_t count) = 0;
  /// A list of `count` ids in device memory; null gives a reference without a header.
  virtual IdsRef ids(const std::int32_t* list, std::int64_t count) = 0;
  /// The number of rows of the running pass that hold a token, in device memory (PassHeader::rows); null outside a pass,
  /// when every row does.
  virtual const PassHeader* pass() const = 0;

 protected:
  DeviceFacts facts_;
  cudaStream_t stream_ = nullptr;

 private:
  bool next_may_overlap_ = true;
};

}  // namespace tensorfold::ops::cuda
