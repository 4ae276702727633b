// Times of the CUDA backend's Gated DeltaNet mixer and row operations, as a pass runs them: dependent launches in captured
// passes (prompts: uncaptured), every layer with slots of its own, so that states come from memory. Their numbers and bits
// are the tests' (tests/ops: rows, gated_delta, tree_gated_delta on the GPU).
//
//   cuda_rows [PART]   microseconds an operation, of the lines whose name contains PART ("27B lanes 64")
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cuda_harness.h"
#include "ops/cuda/cuda_backend.h"

namespace tensorfold::ops::cuda::bench {
namespace {

class Bench {
 public:
  Bench() : backend_(make_cuda_backend()) {}
  Backend& backend() { return *backend_; }

  float* random(std::int64_t count, float scale = 1.0f) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) value = scale * (static_cast<float>(generator_() >> 8) * 0x1p-23f - 1.0f);
    auto buffer = backend_->allocate(values.size() * sizeof(float), "random values");
    backend_->copy_to_backend(buffer->data(), values.data(), values.size() * sizeof(float));
    backend_->synchronise();
    return static_cast<float*>(keep(std::move(buffer)));
  }
  void* zeros(std::size_t bytes) { return keep(backend_->allocate(bytes, "buffers")); }
  void release() { buffers_.clear(); }

  /// Microseconds of one pass: the median of several runs of `repeats` passes.
  double time(const PassInputs& inputs, int repeats, const std::function<void()>& operations) {
    const auto pass = [&] {
      if (backend_->begin_pass(inputs)) operations();
      backend_->end_pass();
    };
    for (int i = 0; i < 3; ++i) pass();  // direct, captured, replayed
    backend_->synchronise();
    std::vector<double> times;
    for (int run = 0; run < 5; ++run) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < repeats; ++i) pass();
      backend_->synchronise();
      times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() / repeats);
    }
    return median(times);
  }

 private:
  void* keep(std::unique_ptr<Buffer> buffer) {
    buffers_.push_back(std::move(buffer));
    return buffers_.back()->data();
  }
  std::unique_ptr<Backend> backend_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::mt19937 generator_{1};
};

struct DeltaCase {
  int lanes, rows;
  bool commits;
  int replays;
  bool tree = false;
};

bool is_wanted(const std::string& name, const std::string& part) {
  return name.find(part) != std::string::npos;
}

void time_delta(Bench& bench, const std::string& part, const char* model, const GatedDeltaGeometry& g, const DeltaCase& c) {
  const std::string name = std::string(model) + " lanes " + std::to_string(c.lanes) + " rows " + std::to_string(c.rows) +
                           (c.tree ? " tree" : "") + " replays " + std::to_string(c.replays);
  if (!is_wanted(name, part)) return;
  Backend& backend = bench.backend();
  const int layers = c.lanes * c.rows >= 2048 ? 4 : c.lanes >= 64 ? 6 : c.lanes >= 8 ? 24 : 48;
  const std::int64_t rows = static_cast<std::int64_t>(c.lanes) * c.rows, values = static_cast<std::int64_t>(g.v_heads) * g.v_dim;
  GatedDeltaParams p;
  p.geometry = g;
  p.z_offset = g.conv_channels();
  p.b_offset = p.z_offset + values;
  p.a_offset = p.b_offset + g.v_heads;
  p.stride = p.a_offset + g.v_heads;
  p.projected = bench.random(rows * p.stride);
  p.conv_weight = bench.random(g.conv_channels() * g.conv_kernel, 0.5f);
  p.decay = bench.random(g.v_heads, 0.0f);
  p.dt_bias = bench.random(g.v_heads);
  p.norm_weight = bench.random(g.v_dim);
  p.epsilon = 1e-6f;
  p.out = static_cast<Activation*>(bench.zeros(static_cast<std::size_t>(rows * values * 2)));
  p.slot_bytes = backend.gated_delta_state_bytes(g) + 16 * backend.gated_delta_window_row_bytes(g);
  std::vector<void*> slots;
  for (int layer = 0; layer < layers; ++layer) slots.push_back(bench.zeros(p.slot_bytes * static_cast<std::size_t>(c.lanes + 1)));
  std::vector<std::int32_t> replays, parents;
  for (int i = 0; i < c.replays; ++i) replays.push_back(i);
  for (int i = 0; i < c.rows && c.tree; ++i) parents.push_back((i + 1) / 2 - 1);
  std::vector<LaneSpan> spans;
  for (int lane = 0; lane < c.lanes; ++lane) {
    LaneSpan span;
    span.slot = lane + 1;
    span.first_row = lane * c.rows;
    span.row_count = c.rows;
    span.position = 100;
    span.commits = c.commits;
    span.replay_rows = replays.data();
    span.replay_count = c.replays;
    if (c.tree) span.parents = parents.data();
    spans.push_back(span);
  }
  p.lanes = spans.data();
  p.lane_count = c.lanes;
  PassInputs inputs;
  inputs.rows = inputs.row_count = rows;
  inputs.lanes.push_back({spans, 0});
  inputs.name = "delta";
  const double us = bench.time(inputs, rows > 2048 ? 3 : 10, [&] {
    for (void* slot : slots) {
      p.slots = slot;
      backend.gated_delta(p);
    }
  }) / layers;
  const double bytes = static_cast<double>(c.lanes) * static_cast<double>(backend.gated_delta_state_bytes(g)) * 2;
  std::printf("%-38s %9.2f us  (states: floor %.1f us, %.2f TB/s)  %.0f ns a row\n", name.c_str(), us,
              bytes / kMemoryBytesPerMicrosecond, bytes / us / 1e6, us * 1000 / static_cast<double>(rows));
  std::fflush(stdout);
  bench.release();
}

void time_rows(Bench& bench, const std::string& part, std::int64_t rows) {
  if (!is_wanted("norm rows " + std::to_string(rows), part)) return;
  constexpr std::int64_t kWidth = 5120, kWide = 17408, kTimes = 64;
  Backend& backend = bench.backend();
  float* x = bench.random(rows * kWidth);
  float* weight = bench.random(kWidth);
  float* gate_up = bench.random(rows * 2 * kWide);
  auto* out = static_cast<Activation*>(bench.zeros(static_cast<std::size_t>(rows * kWide * 2)));
  const auto time = [&](const char* what, double bytes, const std::function<void()>& operation) {
    PassInputs inputs;
    inputs.rows = inputs.row_count = rows;
    inputs.name = what;
    const double us = bench.time(inputs, 10, [&] {
      for (int i = 0; i < kTimes; ++i) operation();
    }) / kTimes;
    std::printf("%-18s rows %4ld: %7.2f us  (floor %.2f us)\n", what, static_cast<long>(rows), us,
                bytes * static_cast<double>(rows) / kMemoryBytesPerMicrosecond);
  };
  RmsNormParams norm;
  norm.x = x;
  norm.x_stride = norm.width = kWidth;
  norm.weight = weight;
  norm.epsilon = 1e-6f;
  norm.rows = rows;
  norm.out = out;
  time("rms_norm", kWidth * 6, [&] { backend.rms_norm(norm); });
  RmsNormAddParams add{gate_up, weight, 1e-6f, rows, kWidth, x};
  time("rms_norm_add", kWidth * 12, [&] { backend.rms_norm_add(add); });
  GatedActivationParams gated{gate_up, rows, kWide, ActivationKind::kSilu, out};
  time("gated_activation", kWide * 10, [&] { backend.gated_activation(gated); });
  std::fflush(stdout);
  bench.release();
}

int run(const std::string& part) {
  Bench bench;
  const GatedDeltaGeometry dense{16, 48, 128, 128, 4}, sparse{16, 32, 128, 128, 4};
  for (const auto& [model, geometry] : {std::pair{"27B", dense}, std::pair{"35B-A3B", sparse}}) {
    for (const int lanes : {1, 8, 64}) {
      time_delta(bench, part, model, geometry, {lanes, 1, false, 1});
      time_delta(bench, part, model, geometry, {lanes, 1, true, 0});
      if (lanes <= 8) time_delta(bench, part, model, geometry, {lanes, 16, false, 4});
    }
    time_delta(bench, part, model, geometry, {1, 16, false, 4, true});
    time_delta(bench, part, model, geometry, {1, 2048, true, 0});
    time_delta(bench, part, model, geometry, {1, 8192, true, 0});
    time_delta(bench, part, model, geometry, {4, 2048, true, 0});
  }
  for (const int rows : {1, 8, 64, 2048}) time_rows(bench, part, rows);
  return 0;
}

}  // namespace
}  // namespace tensorfold::ops::cuda::bench

int main(int argc, char** argv) {
  using namespace tensorfold::ops::cuda::bench;
  return guarded(stderr, [&] { return run(argc > 1 ? argv[1] : ""); });
}
