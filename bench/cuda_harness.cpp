// See cuda_harness.h.
#include "cuda_harness.h"

#include <exception>
#include <utility>

namespace tensorfold::ops::cuda::bench {
namespace {

constexpr std::size_t kBlocksHeld = 16;  // more than the lists and lanes of any one operation

}  // namespace

BenchContext::BenchContext() {
  cudaDeviceProp properties = {};
  check(cudaGetDeviceProperties(&properties, 0), "reading the GPU's properties");
  gpu_name_ = properties.name;
  facts_.compute_capability = properties.major * 10 + properties.minor;
  facts_.sm_count = properties.multiProcessorCount;
  facts_.shared_bytes_max = static_cast<int>(properties.sharedMemPerBlockOptin);
  use_hopper_paths(true);
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream");
}

void* BenchContext::scratch(Scratch kind, std::size_t bytes) {
  TF_ASSERT(!refuses_scratch_);
  auto& memory = scratch_[static_cast<std::size_t>(kind)];
  if (bytes > memory.bytes()) {
    synchronise("growing scratch memory");
    memory = {};  // before the new memory is there: both may not fit
    memory = DeviceArray<std::uint8_t>(bytes);
    memory.fill(kind == Scratch::kCounters ? 0 : 0xff);
  }
  return memory.data();
}

void BenchContext::poison_scratch() {
  for (auto& memory : scratch_) {
    if (&memory != &scratch_[static_cast<std::size_t>(Scratch::kCounters)]) memory.fill(0xff, stream_);
  }
}

bool BenchContext::counters_are_zero() const {
  const auto bytes = scratch_[static_cast<std::size_t>(Scratch::kCounters)].download();
  return std::all_of(bytes.begin(), bytes.end(), [](std::uint8_t byte) { return byte == 0; });
}

const PassHeader* BenchContext::upload(const PassBlock& block) {
  synchronise("uploading lists");  // and so nothing reads the oldest block any more
  if (blocks_.size() == kBlocksHeld) blocks_.pop_front();
  blocks_.emplace_back(block.words());
  return reinterpret_cast<const PassHeader*>(blocks_.back().data());
}

Lanes BenchContext::attention_lanes(const LaneSpan* spans, std::int32_t count, std::int32_t window) {
  if (const auto found = kept_.find({spans, window}); found != kept_.end()) {
    TF_ASSERT(found->second.count == count);
    return found->second.lanes;
  }
  PassInputs inputs;
  for (std::int32_t i = 0; i < count; ++i) {
    inputs.rows = std::max<std::int64_t>(inputs.rows, spans[i].first_row + spans[i].row_count);
  }
  inputs.row_count = inputs.rows + padding_rows_;
  inputs.lanes.push_back({{spans, static_cast<std::size_t>(count)}, window});
  PassBlock block;
  block.build(inputs);
  return block.lanes(0, upload(block));
}

void BenchContext::keep_lanes(const LaneSpan* spans, std::int32_t count, std::int32_t window) {
  kept_.erase({spans, window});
  const Lanes lanes = attention_lanes(spans, count, window);
  kept_[{spans, window}] = {std::move(blocks_.back()), lanes, count};
  blocks_.pop_back();
}

IdsRef BenchContext::ids(const std::int32_t* list, std::int64_t count) {
  if (list == nullptr) return {};
  PassInputs inputs;
  inputs.rows = inputs.row_count = count;
  inputs.ids.push_back({list, static_cast<std::size_t>(count)});
  PassBlock block;
  block.build(inputs);
  return {upload(block), 0};
}

CapturedGraph::CapturedGraph(BenchContext& context, const std::function<void()>& launches) : context_(context) {
  check(cudaStreamBeginCapture(context.stream(), cudaStreamCaptureModeThreadLocal), "capturing");
  try {
    launches();
  } catch (...) {  // the stream would go on recording, and nothing on it would run any more
    cudaStreamEndCapture(context.stream(), &graph_);
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
    throw;
  }
  check(cudaStreamEndCapture(context.stream(), &graph_), "capturing");
}

CapturedGraph::~CapturedGraph() {
  if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
  cudaGraphDestroy(graph_);
}

void CapturedGraph::replay() {
  if (executable_ == nullptr) check(cudaGraphInstantiate(&executable_, graph_, 0), "instantiating");
  check(cudaGraphLaunch(executable_, context_.stream()), "replaying");
}

double CapturedGraph::microseconds(int runs) {
  cudaEvent_t begin = nullptr, end = nullptr;
  check(cudaEventCreate(&begin), "creating an event");
  check(cudaEventCreate(&end), "creating an event");
  std::vector<double> times;
  for (int run = -1; run < runs; ++run) {
    check(cudaEventRecord(begin, context_.stream()), "timing");
    replay();
    check(cudaEventRecord(end, context_.stream()), "timing");
    check(cudaEventSynchronize(end), "timing");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin, end), "timing");
    if (run >= 0) times.push_back(static_cast<double>(milliseconds) * 1000.0);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return median(std::move(times));
}

double median(std::vector<double> values) {
  TF_ASSERT(!values.empty());
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int guarded(std::FILE* errors, const std::function<int()>& program) {
  try {
    return program();
  } catch (const std::exception& error) {
    std::fprintf(errors, "%s\n", error.what());
    return 1;
  }
}

}  // namespace tensorfold::ops::cuda::bench
