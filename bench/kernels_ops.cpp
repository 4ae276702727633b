// Times the CPU backend's operations other than linear layers, at shapes of real models: time of one call,
// multiply-adds per second where they dominate.
//
//   kernels_ops [--path avx2|avx512|avx512_bf16|amx|neon] [--threads N] [--seconds S]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "ops/cpu/cpu_backend.h"

namespace tensorfold::ops {
namespace {

struct Options {
  CpuBackendOptions backend;
  double seconds = 0.2;
};

// Best time of one call, in seconds.
double best_time(double seconds, const std::function<void()>& call) {
  using Clock = std::chrono::steady_clock;
  double best = 1e9;
  call();
  const auto start = Clock::now();
  for (int runs = 0; runs < 3 || std::chrono::duration<double>(Clock::now() - start).count() < seconds; ++runs) {
    const auto before = Clock::now();
    call();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - before).count());
  }
  return best;
}

void print_row(const std::string& name, double time, double multiply_adds) {
  std::printf("%-58s %10.1f us", name.c_str(), time * 1e6);
  if (multiply_adds > 0) std::printf(" %8.2f Gfma/s", multiply_adds / time * 1e-9);
  std::printf("\n");
}

std::vector<float> random_floats(std::int64_t count, float scale) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

void norms(Backend& backend, const Options& options, std::int64_t rows, std::int64_t width) {
  const auto x = random_floats(rows * width, 1.0f), weight = random_floats(width, 1.0f);
  const auto out = backend.allocate(static_cast<std::size_t>(rows * width) * 2, "bench");
  RmsNormParams params;
  params.x = x.data();
  params.x_stride = width;
  params.weight = weight.data();
  params.epsilon = 1e-6f;
  params.rows = rows;
  params.width = width;
  params.out = static_cast<Activation*>(out->data());
  const double time = best_time(options.seconds, [&] { backend.rms_norm(params); });
  print_row("rms_norm, " + std::to_string(rows) + " rows of " + std::to_string(width), time, 0);
}

void activation(Backend& backend, const Options& options, std::int64_t rows, std::int64_t width) {
  const auto gate_up = random_floats(rows * 2 * width, 1.0f);
  const auto out = backend.allocate(static_cast<std::size_t>(rows * width) * 2, "bench");
  GatedActivationParams params;
  params.gate_up = gate_up.data();
  params.rows = rows;
  params.width = width;
  params.out = static_cast<Activation*>(out->data());
  const double time = best_time(options.seconds, [&] { backend.gated_activation(params); });
  print_row("silu · up, " + std::to_string(rows) + " rows of " + std::to_string(width), time, 0);
}

struct AttentionShape {
  const char* name;
  std::int32_t heads, kv_heads, head_dim;
};

void attention(Backend& backend, const Options& options, const AttentionShape& shape, std::int32_t rows,
               std::int32_t context) {
  const std::int32_t page_count = context / 64 + 1;
  std::vector<std::int32_t> pages(static_cast<std::size_t>(page_count));
  std::iota(pages.begin(), pages.end(), 0);
  const KvGeometry geometry{shape.kv_heads, shape.head_dim};
  const std::size_t page_bytes = backend.kv_page_bytes(geometry);
  const auto pool = backend.allocate(page_bytes * pages.size(), "bench");
  const std::int32_t width = shape.heads * shape.head_dim, stride = width + 2 * shape.kv_heads * shape.head_dim;
  const auto qkv = random_floats(static_cast<std::int64_t>(rows) * stride, 0.3f);
  const auto q = backend.allocate(static_cast<std::size_t>(rows) * static_cast<std::size_t>(width) * 2, "bench");
  const auto out = backend.allocate(static_cast<std::size_t>(rows) * static_cast<std::size_t>(width) * 2, "bench");
  const auto table = random_floats(static_cast<std::int64_t>(context) * shape.head_dim, 0.5f);
  std::vector<std::int32_t> rope_positions(static_cast<std::size_t>(rows));
  std::iota(rope_positions.begin(), rope_positions.end(), context - rows);
  LaneSpan lane;
  lane.row_count = rows;
  lane.position = context - rows;
  lane.pages = pages.data();

  AttentionPrepareParams prepare;
  prepare.geometry = geometry;
  prepare.heads = shape.heads;
  prepare.qkv = qkv.data();
  prepare.stride = stride;
  prepare.q_head_stride = shape.head_dim;
  prepare.k_offset = width;
  prepare.v_offset = width + shape.kv_heads * shape.head_dim;
  prepare.rope = {table.data(), shape.head_dim, context};
  prepare.rope_positions = rope_positions.data();
  prepare.lanes = &lane;
  prepare.lane_count = 1;
  prepare.pool = {pool->data(), page_bytes};
  prepare.q_out = static_cast<Activation*>(q->data());
  AttentionParams params;
  params.geometry = geometry;
  params.heads = shape.heads;
  params.q = prepare.q_out;
  params.pool = prepare.pool;
  params.lanes = &lane;
  params.lane_count = 1;
  params.scale = 0.1f;
  params.out = static_cast<Activation*>(out->data());

  const std::string suffix =
      std::string(shape.name) + ", " + std::to_string(rows) + " rows at " + std::to_string(context);
  print_row("attention_prepare " + suffix, best_time(options.seconds, [&] { backend.attention_prepare(prepare); }), 0);
  double keys = 0;
  for (std::int32_t row = 0; row < rows; ++row) keys += lane.position + row + 1;
  print_row("attention " + suffix, best_time(options.seconds, [&] { backend.attention(params); }),
            2.0 * keys * shape.heads * shape.head_dim);
}

void gated_delta(Backend& backend, const Options& options, const char* name, const GatedDeltaGeometry& geometry,
                 std::int32_t rows) {
  const std::int64_t values = static_cast<std::int64_t>(geometry.v_heads) * geometry.v_dim;
  const std::int64_t stride = geometry.conv_channels() + values + 2 * geometry.v_heads;
  const auto projected = random_floats(rows * stride, 1.0f);
  const auto conv_weight = random_floats(geometry.conv_channels() * geometry.conv_kernel, 0.3f);
  const std::vector<float> decay(static_cast<std::size_t>(geometry.v_heads), -0.5f);
  const std::vector<float> ones(static_cast<std::size_t>(std::max(geometry.v_heads, geometry.v_dim)), 1.0f);
  const std::size_t slot_bytes = backend.gated_delta_state_bytes(geometry) + 16 * backend.gated_delta_window_row_bytes(geometry);
  const auto slots = backend.allocate(slot_bytes * 2, "bench");
  const auto out = backend.allocate(static_cast<std::size_t>(rows * values) * 2, "bench");
  LaneSpan lane;
  lane.slot = 1;
  lane.row_count = rows;
  GatedDeltaParams params;
  params.geometry = geometry;
  params.projected = projected.data();
  params.stride = stride;
  params.z_offset = geometry.conv_channels();
  params.b_offset = params.z_offset + values;
  params.a_offset = params.b_offset + geometry.v_heads;
  params.conv_weight = conv_weight.data();
  params.decay = decay.data();
  params.dt_bias = ones.data();
  params.norm_weight = ones.data();
  params.epsilon = 1e-6f;
  params.slots = slots->data();
  params.slot_bytes = slot_bytes;
  params.lanes = &lane;
  params.lane_count = 1;
  params.out = static_cast<Activation*>(out->data());
  const double time = best_time(options.seconds, [&] { backend.gated_delta(params); });
  print_row(std::string("gated_delta ") + name + ", " + std::to_string(rows) + " rows", time,
            3.0 * rows * static_cast<double>(values) * geometry.k_dim);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    if (i + 1 == argc) fail(ErrorCode::kInvalidArgument, "{} needs a value", flag);
    const std::string value = argv[i + 1];
    if (flag == "--path") {
      options.backend.path = value;
    } else if (flag == "--threads") {
      options.backend.threads = std::atoi(value.c_str());
    } else if (flag == "--seconds") {
      options.seconds = std::atof(value.c_str());
    } else {
      fail(ErrorCode::kInvalidArgument, "unknown flag {}; use --path, --threads, --seconds", flag);
    }
  }
  return options;
}

void run(const Options& options) {
  const auto backend = make_cpu_backend(options.backend);
  std::printf("path %s, %d threads\n", backend->info().path.c_str(), backend->info().threads);
  norms(*backend, options, 1, 576);
  norms(*backend, options, 1, 5120);
  norms(*backend, options, 512, 2048);
  activation(*backend, options, 1, 1536);
  activation(*backend, options, 512, 1536);
  const AttentionShape small{"135M (9/3 x 64)", 9, 3, 64}, medium{"8B (32/8 x 128)", 32, 8, 128};
  const AttentionShape wide{"27B (24/4 x 256)", 24, 4, 256};
  for (const AttentionShape& shape : {small, medium, wide}) {
    for (const std::int32_t context : {256, 2048, 16384}) attention(*backend, options, shape, 1, context);
    attention(*backend, options, shape, 8, 2048);
    for (const std::int32_t context : {512, 4096}) attention(*backend, options, shape, 512, context);
  }
  const GatedDeltaGeometry two_b{16, 16, 128, 128, 4}, big{16, 48, 128, 128, 4};
  for (const std::int32_t rows : {1, 8, 512}) gated_delta(*backend, options, "2B", two_b, rows);
  for (const std::int32_t rows : {1, 8, 512}) gated_delta(*backend, options, "27B", big, rows);
}

}  // namespace
}  // namespace tensorfold::ops

int main(int argc, char** argv) {
  try {
    tensorfold::ops::run(tensorfold::ops::parse(argc, argv));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kernels_ops: %s\n", error.what());
    return 1;
  }
}
