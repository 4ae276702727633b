// The class behind make_cuda_backend(): device, stream, memory, the running pass and its graphs. See cuda_backend.h.
#include "ops/cuda/cuda_backend.h"

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <utility>

#include "base/cpu_relax.h"
#include "base/error.h"
#include "ops/cuda/cuda_context.h"
#include "ops/cuda/cuda_error.h"
#include "ops/cuda/cuda_memory.h"
#include "ops/cuda/cuda_operations.h"
#include "ops/cuda/graph_cache.h"
#include "ops/cuda/linear/gated_linear.h"
#include "ops/cuda/pass_block.h"
#include "ops/cuda/pass_store.h"
#include "ops/cuda/pass_timer.h"
#include "ops/cuda/row_buckets.h"

namespace tensorfold::ops {
namespace cuda {
namespace {

/// Bumped with any change of order or rounding in this folder.
constexpr int kArithmeticVersion = 1;
constexpr std::int64_t kCapturedRowsMax = 128;          // longer passes hide their launches behind their kernels
constexpr std::int64_t kPassRowsMax = 2048;
constexpr std::size_t kScratchSpareShare = 4;           // scratch memory grows by this part more than is asked for
constexpr std::uint64_t kCaptureBytesMin = 32u << 20;   // what the driver may want for one more captured pass
constexpr int kPassesUntilAskedAgain = 1000;            // asking the driver what is left takes longer than a launch
// Between two questions to the driver whether a pass whose draws are awaited has failed: each takes microseconds, in which nobody looks.
constexpr auto kDrawQueryTime = std::chrono::microseconds(200);
constexpr int kDrawLooksBetweenClockReads = 64;
// Launches for prompts are made from the lanes themselves, which a replay couldn't follow.
static_assert(kCapturedRowsMax <= kWindowRowsMax);

std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

/// The context that operations see, with the running pass behind it.
class BackendContext final : public CudaContext {
 public:
  explicit BackendContext(const CudaBackendOptions& options)
      : options_(options), memory_(std::make_shared<DeviceMemory>(options.device, options.memory_bytes_max)), store_(*memory_) {
    check(cudaSetDevice(options.device), "choosing the GPU");
    cudaDeviceProp properties = {};
    check(cudaGetDeviceProperties(&properties, options.device), "reading the GPU's properties");
    facts_.device = options.device;
    facts_.compute_capability = properties.major * 10 + properties.minor;
    facts_.sm_count = properties.multiProcessorCount;
    facts_.shared_bytes_max = static_cast<int>(properties.sharedMemPerBlockOptin);
    facts_.hopper = options.hopper_paths && facts_.compute_capability == 90;
    facts_.attention_partial_bytes_max = static_cast<std::int64_t>(memory_->attention_partial_bytes_max());
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream");
    memory_->set_on_free([this] { forget_graphs(); });  // a graph may point to what goes
  }
  ~BackendContext() override {
    memory_->set_on_free({});
    cudaStreamSynchronize(stream_);
    graphs_.clear();
    for (std::size_t kind = 0; kind < scratch_.size(); ++kind) {
      if (scratch_[kind] != nullptr) memory_->give_back(scratch_[kind], scratch_bytes_[kind]);
    }
    cudaStreamDestroy(stream_);
  }

  std::unique_ptr<Buffer> allocate(std::size_t bytes, const char* purpose) override {
    return memory_->allocate(MemoryPlace::kDevice, bytes, purpose);
  }

  void* scratch(Scratch kind, std::size_t bytes) override {
    const auto index = static_cast<std::size_t>(kind);
    if (bytes > scratch_bytes_[index]) {
      TF_ASSERT(state_ != State::kCapture);
      check(cudaStreamSynchronize(stream_), "growing scratch memory");
      graphs_.clear();
      if (scratch_[index] != nullptr) memory_->give_back(scratch_[index], scratch_bytes_[index]);
      scratch_[index] = nullptr;
      scratch_bytes_[index] = 0;
      const std::size_t grown = round_up(bytes + bytes / kScratchSpareShare, 1u << 20);
      scratch_[index] = memory_->take(grown, "operations' scratch memory");
      scratch_bytes_[index] = grown;
      check(cudaMemsetAsync(scratch_[index], 0, grown, stream_), "clearing scratch memory");
    }
    return scratch_[index];
  }

  void reserve_growth() {
    // An eighth more, and scratch's spare part: what attention holds beside the partial results themselves.
    const auto partials = static_cast<std::size_t>(facts_.attention_partial_bytes_max);
    scratch(Scratch::kPartials, partials + partials / 8);
    scratch(Scratch::kCounters, 1);
    store_.reserve_loose();
  }
  void reserve_passes(const PassBounds& bounds) {
    graphs_.clear();
    store_.reserve(PassBlock::bytes_max(bounds), stream_);
  }

  Lanes attention_lanes(const LaneSpan* spans, std::int32_t count, std::int32_t window) override {
    return find_lanes(spans, count, window, true);
  }
  Lanes lanes(const LaneSpan* spans, std::int32_t count) override { return find_lanes(spans, count, 0, false); }

  IdsRef ids(const std::int32_t* list, std::int64_t count) override {
    if (list == nullptr) return {};
    if (inputs_ != nullptr) {
      for (std::size_t i = 0; i < inputs_->ids.size(); ++i) {
        const auto& known = inputs_->ids[i];
        if (known.data() == list && static_cast<std::int64_t>(known.size()) >= count) {
          return {store_.header(), static_cast<std::int32_t>(i)};
        }
      }
    }
    PassInputs inputs;
    inputs.ids.push_back({list, static_cast<std::size_t>(count)});
    return {upload_loose(inputs), 0};
  }

  const PassHeader* pass() const override { return inputs_ != nullptr ? store_.header() : nullptr; }

  bool begin_pass(const PassInputs& inputs) {
    TF_ASSERT(state_ == State::kNone);
    TF_ASSERT(inputs.row_count >= inputs.rows);
    key_.clear();
    block_.build(inputs);
    if (store_.stage(block_, stream_)) graphs_.clear();
    inputs_ = &inputs;
    timer_.abandon();  // of a pass whose end failed
    timed_rows_ = inputs.is_timed ? inputs.rows : 0;
    state_ = State::kDirect;
    if (!options_.graphs || inputs.name.empty() || inputs.row_count > kCapturedRowsMax) return begin_direct();
    bool is_new = false;
    key_ = key_of(inputs);
    GraphCache::Entry& entry = graphs_.find(key_, is_new);
    if (is_new) return begin_direct();  // runs once as it is: whatever grows on demand grows now
    if (entry.graph != nullptr) {
      launch_graph(entry.graph);
      return false;
    }
    if (entry.uncaptured_passes > 0) {
      --entry.uncaptured_passes;
      return begin_direct();
    }
    if (memory_->left_on_device() < kCaptureBytesMin) {  // slower, but it runs
      entry.uncaptured_passes = kPassesUntilAskedAgain;
      return begin_direct();
    }
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capturing a pass");
    state_ = State::kCapture;
    fetch_arrays();
    return true;
  }

  void end_pass() {
    inputs_ = nullptr;
    if (std::exchange(state_, State::kNone) == State::kCapture) launch_captured();
    timer_.end(stream_);
  }
  std::vector<PassTime> take_pass_times() { return timer_.take(); }

  /// What was captured is dropped, and the next pass of this kind runs uncaptured again.
  void abandon_pass() {
    inputs_ = nullptr;
    timer_.abandon();
    if (std::exchange(state_, State::kNone) == State::kCapture) {
      cudaGraph_t graph = nullptr;
      cudaStreamEndCapture(stream_, &graph);
      if (graph != nullptr) cudaGraphDestroy(graph);
      cudaGetLastError();  // a capture that broke says so once more
    }
    graphs_.erase(key_);
  }

  DeviceMemory& memory() const { return *memory_; }

  void forget_graphs() {
    cudaStreamSynchronize(stream_);
    graphs_.clear();
  }

 private:
  enum class State { kNone, kDirect, kCapture };

  void launch_captured() {
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream_, &graph), "capturing a pass");
    cudaGraphExec_t runnable = nullptr;
    cudaError_t status = cudaGraphInstantiate(&runnable, graph, 0);
    if (status == cudaErrorMemoryAllocation) {  // the graphs that are kept are what can be given up for it
      cudaGetLastError();
      forget_graphs();
      status = cudaGraphInstantiate(&runnable, graph, 0);
    }
    cudaGraphDestroy(graph);
    check(status, "instantiating a captured pass");
    bool is_new = false;
    graphs_.find(key_, is_new).graph = runnable;
    launch_graph(runnable);
  }

  /// What comes after may read the arrays before it waits: nothing overlaps the fetch.
  void fetch_arrays() {
    store_.fetch(stream_);
    separate_next_launch();
  }
  void begin_time() {
    if (timed_rows_ > 0) timer_.begin(timed_rows_, stream_);
  }
  bool begin_direct() {
    begin_time();
    fetch_arrays();
    store_.note_launched();
    return true;
  }
  void launch_graph(cudaGraphExec_t graph) {
    begin_time();
    check(cudaGraphLaunch(graph, stream_), "launching a captured pass");
    store_.note_launched();
  }

  Lanes find_lanes(const LaneSpan* spans, std::int32_t count, std::int32_t window, bool window_matters) {
    if (inputs_ != nullptr) {
      for (std::size_t i = 0; i < inputs_->lanes.size(); ++i) {
        const auto& known = inputs_->lanes[i];
        if (known.spans.data() == spans && known.spans.size() == static_cast<std::size_t>(count) &&
            (!window_matters || known.window == window)) {
          return block_.lanes(i, store_.header());
        }
      }
    }
    PassInputs inputs;
    for (std::int32_t i = 0; i < count; ++i) {
      inputs.row_count = std::max<std::int64_t>(inputs.row_count, spans[i].first_row + spans[i].row_count);
    }
    inputs.rows = inputs.row_count;
    inputs.lanes.push_back({{spans, static_cast<std::size_t>(count)}, window});
    const PassHeader* header = upload_loose(inputs);
    return loose_block_.lanes(0, header);
  }

  const PassHeader* upload_loose(const PassInputs& inputs) {
    TF_ASSERT(state_ != State::kCapture);  // the pass should have announced what its operations are given
    loose_block_.build(inputs);
    return store_.upload_loose(loose_block_, stream_);
  }

  std::string key_of(const PassInputs& inputs) const {
    std::string key = inputs.name;
    const auto add = [&key](std::int64_t value) { key += ' ' + std::to_string(value); };
    add(inputs.row_count);
    for (const auto& list : inputs.ids) add(static_cast<std::int64_t>(list.size()));
    for (std::size_t group = 0; group < inputs.lanes.size(); ++group) {
      const Lanes lanes = block_.lanes(group, nullptr);
      add(lanes.lane_count);
      add(lanes.rows_max);
      add(lanes.any_tree * 2 + lanes.any_tree_replay);
      add(lanes.item_capacity);
      add(lanes.partial_row_capacity);
    }
    return key;
  }

  CudaBackendOptions options_;
  std::shared_ptr<DeviceMemory> memory_;
  PassStore store_;
  PassTimer timer_;
  PassBlock block_, loose_block_;
  GraphCache graphs_;
  const PassInputs* inputs_ = nullptr;
  std::int64_t timed_rows_ = 0;  // of the running pass; 0: its time isn't asked for
  std::string key_;              // ...; empty: it isn't captured
  State state_ = State::kNone;
  std::array<void*, kScratchKinds> scratch_{};
  std::array<std::size_t, kScratchKinds> scratch_bytes_{};
};

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const CudaBackendOptions& options) : options_(options), context_(options) {
    info_.name = "cuda";
    info_.path = "sm_" + std::to_string(context_.facts().compute_capability);
    info_.arithmetic_version = kArithmeticVersion;
    info_.activation_bytes = 2;
    info_.threads = 1;
    info_.host_memory = options.pinned_buffers;
    info_.pass_rows_max = kPassRowsMax;
  }

  const BackendInfo& info() const override { return info_; }
  std::unique_ptr<Buffer> allocate(std::size_t bytes, const char* purpose) override {
    return context().memory().allocate(options_.pinned_buffers ? MemoryPlace::kPinnedHost : MemoryPlace::kDevice, bytes,
                                      purpose);
  }
  std::unique_ptr<Buffer> allocate_host(std::size_t bytes, const char* purpose) override {
    return context().memory().allocate(MemoryPlace::kPinnedHost, bytes, purpose);
  }
  MemoryAvailable memory_available() const override { return {context().memory().available(), false}; }
  void copy_to_backend(void* destination, const void* source, std::size_t bytes) override {
    if (bytes == 0) return;
    check(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDefault, context().stream()), "copying to the GPU");
  }
  void copy_to_host(void* destination, const void* source, std::size_t bytes) override {
    if (bytes == 0) return;
    check(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDefault, context().stream()), "copying from the GPU");
    synchronise();
  }
  void queue_copy_to_host(void* destination, const void* source, std::size_t bytes) override {
    if (bytes == 0) return;
    check(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDefault, context().stream()), "copying from the GPU");
  }
  void zero(void* destination, std::size_t bytes) override {
    if (bytes == 0) return;
    check(cudaMemsetAsync(destination, 0, bytes, context().stream()), "clearing memory");
  }
  void synchronise() override { check(cudaStreamSynchronize(context().stream()), "running operations"); }
  // The GPU writes draws over the bus as they fall; that the queue has ended would be heard of some microseconds later.
  void await_draws(const std::int32_t* draws, std::int64_t count) override {
    using Clock = std::chrono::steady_clock;
    auto query_time = Clock::now() + kDrawQueryTime;
    unsigned looks = 0;
    for (std::int64_t row = 0; row < count; ++row) {
      while (std::atomic_ref(const_cast<std::int32_t&>(draws[row])).load(std::memory_order_acquire) == kDrawPending) {
        cpu_relax();
        if (++looks % kDrawLooksBetweenClockReads != 0 || Clock::now() < query_time) continue;
        const cudaError_t status = cudaStreamQuery(context().stream());
        if (status != cudaErrorNotReady) return check(status, "running operations");  // who hasn't drawn by now won't
        query_time = Clock::now() + kDrawQueryTime;
      }
    }
  }

  void reserve_growth() override { context().reserve_growth(); }
  void reserve_passes(const PassBounds& bounds) override { context().reserve_passes(bounds); }
  std::vector<PassTime> take_pass_times() override { return context().take_pass_times(); }
  std::int64_t row_bucket(std::int64_t rows) const override { return cuda::row_bucket(rows); }
  bool begin_pass(const PassInputs& inputs) override {
    weight_loader_.reset();  // whoever computes has loaded
    try {
      return context().begin_pass(inputs);
    } catch (...) {
      context().abandon_pass();
      throw;
    }
  }
  void end_pass() override { context().end_pass(); }
  void abandon_pass() override { context().abandon_pass(); }

  std::unique_ptr<Linear> load_linear(const LinearSource& source) override {
    if (weight_loader_ == nullptr) weight_loader_ = cuda::weight_loader();
    return cuda::load_linear(context(), source);
  }
  void linear(const LinearParams& params) override { cuda::linear(context(), params); }
  void embed(const EmbedParams& params) override { cuda::embed(context(), params); }
  bool gated_linear(const GatedLinearParams& params) override {
    return cuda::gated_linear(context(), params);
  }
  bool norms_inputs(const Linear& weight, const RmsNormParams& norm) override {
    return cuda::norms_inputs(context(), weight, norm);
  }
  void rms_norm(const RmsNormParams& params) override { cuda::rms_norm(context(), params); }
  void rms_norm_add(const RmsNormAddParams& params) override { cuda::rms_norm_add(context(), params); }
  std::size_t kv_page_bytes(const KvGeometry& geometry) const override {
    if (geometry.head_dim % 8 != 0 || geometry.head_dim > 256) {
      fail(ErrorCode::kUnsupported,
           "The CUDA backend has no attention kernel for a head_dim of {} (multiples of 8 up to 256). Use --backend cpu.",
           geometry.head_dim);
    }
    return cuda::kv_page_bytes(geometry);
  }
  std::size_t kv_tree_bytes(const KvGeometry& geometry) const override { return cuda::kv_tree_bytes(geometry); }
  void attention_prepare(const AttentionPrepareParams& params) override { cuda::attention_prepare(context(), params); }
  void attention(const AttentionParams& params) override { cuda::attention(context(), params); }
  void attention_replay(const AttentionReplayParams& params) override { cuda::attention_replay(context(), params); }
  void gated_activation(const GatedActivationParams& params) override { cuda::gated_activation(context(), params); }
  void soft_cap(const SoftCapParams& params) override { cuda::soft_cap(context(), params); }
  void round_rows(const RoundRowsParams& params) override { cuda::round_rows(context(), params); }
  void block_convolution(const BlockConvolutionParams& params) override { cuda::block_convolution(context(), params); }
  std::size_t gated_delta_state_bytes(const GatedDeltaGeometry& geometry) const override {
    if (geometry.k_dim > kGatedDeltaDimensionMax || geometry.v_dim > kGatedDeltaDimensionMax) {
      fail(ErrorCode::kUnsupported,
           "The CUDA backend has no Gated DeltaNet kernel for heads of {} and {} dimensions (up to {}). Use --backend cpu.",
           geometry.k_dim, geometry.v_dim, kGatedDeltaDimensionMax);
    }
    return cuda::gated_delta_state_bytes(geometry);
  }
  std::size_t gated_delta_window_row_bytes(const GatedDeltaGeometry& geometry) const override {
    return cuda::gated_delta_window_row_bytes(geometry);
  }
  std::size_t gated_delta_work_row_bytes(const GatedDeltaGeometry& geometry) const override {
    const std::size_t bytes = cuda::gated_delta_work_row_bytes(geometry);
    return bytes + bytes / kScratchSpareShare;
  }
  void gated_delta(const GatedDeltaParams& params) override { cuda::gated_delta(context(), params); }
  void moe(const MoeParams& params) override { cuda::moe(context(), params); }
  bool moe_runs_shared(const MoeParams& params) override { return cuda::moe_runs_shared(context(), params); }
  bool can_draw(const SamplingRule& rule) const override { return cuda::can_draw(rule); }
  void draw(const DrawParams& params) override { cuda::draw(context(), params); }

 private:
  /// The GPU is a property of the calling thread: the one that loads isn't the one that serves.
  BackendContext& context() const {
    int current = -1;
    if (cudaGetDevice(&current) != cudaSuccess || current != options_.device) {
      check(cudaSetDevice(options_.device), "choosing the GPU");
    }
    return context_;
  }

  CudaBackendOptions options_;
  mutable BackendContext context_;
  BackendInfo info_;
  std::shared_ptr<void> weight_loader_;  // from the first load to the first pass
};

}  // namespace cuda

namespace {

/// Whether this build has kernels for the GPU: the same major capability and no newer a minor one, or, for "90a", that one.
bool has_kernels_for(int compute_capability) {
  std::istringstream list(TENSORFOLD_CUDA_ARCHITECTURE_LIST);
  for (std::string each; std::getline(list, each, ',');) {
    const int built = std::atoi(each.c_str());
    const bool exact = !std::isdigit(static_cast<unsigned char>(each.back()));
    if (exact ? built == compute_capability
              : built / 10 == compute_capability / 10 && built <= compute_capability) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::vector<CudaDevice> cuda_devices(std::string& reason) {
  std::vector<CudaDevice> devices;
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    cudaGetLastError();
    reason = status == cudaErrorInsufficientDriver
                 ? "no NVIDIA driver is loaded, or one older than this build's CUDA"
                 : cudaGetErrorString(status);
    return devices;
  }
  if (count == 0) reason = "no GPU is visible";
  for (int index = 0; index < count; ++index) {
    cudaDeviceProp properties = {};
    if (cudaGetDeviceProperties(&properties, index) != cudaSuccess) continue;
    CudaDevice device;
    device.index = index;
    device.name = properties.name;
    device.compute_capability = properties.major * 10 + properties.minor;
    device.memory_bytes = properties.totalGlobalMem;
    if (device.compute_capability < 80) {
      device.unusable = "its compute capability is below 8.0";
    } else if (!has_kernels_for(device.compute_capability)) {
      device.unusable = fmt::format("this build has kernels for sm_{} alone; configure it with "
                                    "-DTENSORFOLD_CUDA_ARCHITECTURES={}",
                                    TENSORFOLD_CUDA_ARCHITECTURE_LIST, device.compute_capability);
    }
    devices.push_back(std::move(device));
  }
  return devices;
}

std::unique_ptr<Backend> make_cuda_backend(const CudaBackendOptions& options) {
  std::string reason;
  const auto devices = cuda_devices(reason);
  if (devices.empty()) fail(ErrorCode::kUnsupported, "The CUDA backend can't run here: {}. Use --backend cpu.", reason);
  for (const CudaDevice& device : devices) {
    if (device.index != options.device) continue;
    if (!device.unusable.empty()) {
      fail(ErrorCode::kUnsupported, "GPU {} ({}) can't be used: {}.", device.index, device.name, device.unusable);
    }
    return std::make_unique<cuda::CudaBackend>(options);
  }
  fail(ErrorCode::kInvalidArgument, "There is no GPU {}: this machine shows {} (0 to {}).", options.device,
       devices.size(), devices.size() - 1);
}

}  // namespace tensorfold::ops
