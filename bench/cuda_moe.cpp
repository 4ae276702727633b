// The mixture of experts on the GPU: numbers against the reference backend, bits of every path against every other (rows
// alone, in batches of any size, beside NaN, with padding), and times of the shape of Qwen3.6-35B-A3B in a chain of layers
// whose weights are all different.
//
//   cuda_moe check [quick|all [NAME]]   exits with 1 when a number or a bit is wrong
//   cuda_moe time [rows ...]    us a layer, the floor (memory at 4.54 TB/s, products at 700 TFLOP/s) and the part of it reached
//   cuda_moe one ROWS PATH      one layer once, for a profiler
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/assert.h"
#include "base/bf16.h"
#include "cuda_harness.h"
#include "ops/cuda/cuda_operations.h"
#include "ops/cuda/linear/cuda_linear.h"
#include "ops/cuda/linear/gated_linear.h"
#include "ops/cuda/linear/linear_call.h"
#include "ops/cuda/moe/moe.h"
#include "ops/cuda/moe/routing.h"
#include "ops/linear/sample_weights.h"
#include "ops/reference/reference_backend.h"

namespace tensorfold::ops::cuda::bench {
namespace {

using cpu::SampleFormat;
using cpu::SampleMatrix;
using experts::ExpertWeights;
using experts::Path;

constexpr std::array kPaths = {Path::kPortable, Path::kWindow, Path::kGrouped};

const char* path_name(Path path) {
  return path == Path::kWindow ? "window" : path == Path::kGrouped ? "grouped" : "portable";
}

// --- one layer -------------------------------------------------------------------------------------------------------

SampleFormat affine(int bits, int group_size, WeightFormat scales = WeightFormat::kBF16) {
  return {WeightFormat::kAffine, bits, group_size, scales};
}

struct Shape {
  std::string name;
  std::int32_t hidden = 0, width = 0, experts = 0, top_k = 0;
  SampleFormat gate, up, down;
  bool tree = true, shared = true, normalise = true, skewed = false;
  ActivationKind kind = ActivationKind::kSilu;
};

/// Random weights; those of affine formats with bf16 or fp32 scales are of a size that keeps products near 1.
SampleMatrix make_weights(const SampleFormat& format, std::int64_t experts, std::int64_t rows, std::int64_t columns,
                          std::mt19937& random) {
  SampleMatrix sample = cpu::make_sample(format, experts, rows, columns, random);
  if (format.format != WeightFormat::kAffine || format.scale_format == WeightFormat::kF16) return sample;
  const float width = 4.0f / std::sqrt(static_cast<float>(columns)) / static_cast<float>(1 << format.bits);
  std::uniform_real_distribution<float> scales(0.5f * width, width);
  const std::size_t size = format.scale_format == WeightFormat::kF32 ? 4 : 2;
  for (std::size_t at = 0; at < sample.scales.size(); at += size) {
    const float scale = (random() & 1 ? 1.0f : -1.0f) * scales(random);
    const float pair[2] = {scale, -scale * static_cast<float>((1 << format.bits) - 1) / 2};
    const Bf16 rounded[2] = {to_bf16(pair[0]), to_bf16(pair[1])};
    std::memcpy(&sample.scales[at], size == 4 ? static_cast<const void*>(&pair[0]) : &rounded[0], size);
    std::memcpy(&sample.biases[at], size == 4 ? static_cast<const void*>(&pair[1]) : &rounded[1], size);
  }
  return sample;
}

/// Inputs of a layer's rows on the host.
struct Rows {
  std::vector<float> x, logits, residual, shared_output, shared_gate;
  std::int64_t count = 0;
};

Rows make_rows(const Shape& shape, std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const auto fill = [&](std::vector<float>& values, std::int64_t size, float scale) {
    values.resize(static_cast<std::size_t>(size));
    for (float& value : values) value = scale * normal(random);
  };
  Rows rows;
  rows.count = count;
  fill(rows.x, count * shape.hidden, 1.0f);
  for (float& value : rows.x) value = to_float(to_bf16(value));
  fill(rows.logits, count * shape.experts, 2.0f);
  if (shape.skewed) {
    for (std::int64_t row = 0; row < count; ++row) rows.logits[static_cast<std::size_t>(row * shape.experts + 1)] = 20.0f;
  }
  fill(rows.residual, count * shape.hidden, 1.0f);
  fill(rows.shared_output, count * shape.hidden, 1.0f);
  fill(rows.shared_gate, count * 3, 1.0f);
  return rows;
}

std::vector<float> slice(const std::vector<float>& values, std::int64_t first, std::int64_t count, std::int64_t width) {
  return {values.begin() + first * width, values.begin() + (first + count) * width};
}

Rows slice(const Shape& shape, const Rows& rows, std::int64_t first, std::int64_t count) {
  return {slice(rows.x, first, count, shape.hidden),        slice(rows.logits, first, count, shape.experts),
          slice(rows.residual, first, count, shape.hidden), slice(rows.shared_output, first, count, shape.hidden),
          slice(rows.shared_gate, first, count, 3),         count};
}

/// A shared expert's output by the operations for single layers.
void run_shared_before(BenchContext& context, const Linear& gate_up, const Linear& down, const Activation* x, std::int64_t rows,
                       ActivationKind kind, Activation* inner, float* output) {
  if (!gated_linear(context, {&gate_up, x, rows, kind, inner})) {
    std::printf("a shared expert that isn't stored in pairs\n");
    std::exit(1);
  }
  LinearParams down_call;
  down_call.weight = &down;
  down_call.x = inner;
  down_call.rows = rows;
  down_call.y = output;
  down_call.y_stride = down.rows();
  linear(context, down_call);
}

class Layer {
 public:
  Layer(BenchContext& context, const Shape& shape) : shape_(shape), context_(context) {
    std::mt19937 random(7);
    gate_ = make_weights(shape.gate, shape.experts, shape.width, shape.hidden, random);
    up_ = make_weights(shape.up, shape.experts, shape.width, shape.hidden, random);
    down_ = make_weights(shape.down, shape.experts, shape.hidden, shape.width, random);
    packed_gate_up_ = load_linear(context, gate_up_source());
    packed_down_ = load_linear(context, down_source());
    shared_gate_ = make_weights(shape.gate, 1, shape.width, shape.hidden, random);
    shared_up_ = make_weights(shape.up, 1, shape.width, shape.hidden, random);
    shared_down_ = make_weights(shape.down, 1, shape.hidden, shape.width, random);
    packed_shared_gate_up_ = load_linear(context, gate_up_source(shared_gate_, shared_up_));
    packed_shared_down_ = load_linear(context, down_source(shared_down_));
    context.synchronise("loading");
  }

  const Shape& shape() const { return shape_; }
  ExpertWeights weights() const {
    return {cuda_linear(packed_gate_up_.get()).parts(), cuda_linear(packed_down_.get()).parts(), shape_.hidden, shape_.width};
  }
  MoeParams params() const {
    MoeParams params;
    params.experts = shape_.experts;
    params.router_stride = shape_.experts;
    params.top_k = shape_.top_k;
    params.normalise_top_k = shape_.normalise;
    params.kind = shape_.kind;
    params.gate_up = packed_gate_up_.get();
    params.down = packed_down_.get();
    params.shared_gate_stride = 3;
    return params;
  }

  bool fits(std::int64_t rows, Path path) const {
    MoeParams p = params();
    p.rows = rows;
    return experts::path_fits(context_, weights(), p, path);
  }

  /// residual afterwards; `chosen` may be null.
  std::vector<float> run(const Rows& rows, Path path, std::vector<std::int32_t>* chosen = nullptr) const {
    std::vector<Bf16> rounded(rows.x.size());
    std::transform(rows.x.begin(), rows.x.end(), rounded.begin(), [](float value) { return to_bf16(value); });
    const DeviceArray<Bf16> x(rounded);
    const DeviceArray<float> logits(rows.logits), residual(rows.residual), shared(rows.shared_output), gate(rows.shared_gate);
    MoeParams p = params();
    p.x = reinterpret_cast<const Activation*>(x.data());
    p.router_logits = logits.data();
    p.rows = rows.count;
    p.residual = residual.data();
    p.shared_output = shape_.shared ? shared.data() : nullptr;
    p.shared_gate = gate.data();
    if (chosen != nullptr) {
      chosen->resize(static_cast<std::size_t>(rows.count * shape_.top_k));
      p.chosen_experts = chosen->data();
    }
    context_.poison_scratch();
    experts::run_experts(context_, weights(), p, path);
    context_.synchronise(path_name(path));
    return residual.download();
  }

  const Linear& shared_gate_up() const { return *packed_shared_gate_up_; }
  const Linear& shared_down() const { return *packed_shared_down_; }

  /// With the shared expert of this layer, whose output is computed before, or by the operation from its layers; empty where
  /// the operation can't.
  std::vector<float> run_shared(const Rows& rows, bool as_layers) const {
    std::vector<Bf16> rounded(rows.x.size());
    std::transform(rows.x.begin(), rows.x.end(), rounded.begin(), [](float value) { return to_bf16(value); });
    const DeviceArray<Bf16> x(rounded), inner(static_cast<std::size_t>(rows.count * shape_.width));
    const DeviceArray<float> logits(rows.logits), residual(rows.residual), output(rows.residual.size()), gate(rows.shared_gate);
    MoeParams p = params();
    p.x = reinterpret_cast<const Activation*>(x.data());
    p.router_logits = logits.data();
    p.rows = rows.count;
    p.residual = residual.data();
    p.shared_gate = gate.data();
    p.shared_gate_up = packed_shared_gate_up_.get();
    p.shared_down = packed_shared_down_.get();
    context_.poison_scratch();
    if (as_layers && !moe_runs_shared(context_, p)) return {};
    if (!as_layers) {
      auto* activations = reinterpret_cast<Activation*>(inner.data());
      run_shared_before(context_, *packed_shared_gate_up_, *packed_shared_down_, p.x, rows.count, shape_.kind, activations,
                        output.data());
      p.shared_output = output.data();
    }
    moe(context_, p);
    context_.synchronise("running with a shared expert");
    return residual.download();
  }

  std::vector<float> run_reference(const Rows& rows, std::vector<std::int32_t>& chosen) const {
    const auto reference = make_reference_backend(Rounding::kBackend, 2);
    const auto gate_up = reference->load_linear(gate_up_source());
    const auto down = reference->load_linear(down_source());
    std::vector<float> residual = rows.residual;
    chosen.resize(static_cast<std::size_t>(rows.count * shape_.top_k));
    MoeParams p = params();
    p.gate_up = gate_up.get();
    p.down = down.get();
    p.x = reinterpret_cast<const Activation*>(rows.x.data());
    p.router_logits = rows.logits.data();
    p.rows = rows.count;
    p.residual = residual.data();
    p.shared_output = shape_.shared ? rows.shared_output.data() : nullptr;
    p.shared_gate = rows.shared_gate.data();
    p.chosen_experts = chosen.data();
    reference->moe(p);
    return residual;
  }

 private:
  LinearSource gate_up_source() const { return gate_up_source(gate_, up_); }
  LinearSource down_source() const { return down_source(down_); }
  static LinearSource gate_up_source(const SampleMatrix& gate, const SampleMatrix& up) {
    LinearSource source;
    source.name = "gate_up";
    source.parts = {gate.view, up.view};
    source.paired_halves = true;
    return source;
  }
  LinearSource down_source(const SampleMatrix& down) const {
    LinearSource source;
    source.name = "down";
    source.parts = {down.view};
    source.segment_tree = shape_.tree;
    return source;
  }

  Shape shape_;
  BenchContext& context_;
  SampleMatrix gate_, up_, down_, shared_gate_, shared_up_, shared_down_;
  std::unique_ptr<Linear> packed_gate_up_, packed_down_, packed_shared_gate_up_, packed_shared_down_;
};

// --- checks ----------------------------------------------------------------------------------------------------------

constexpr int kFailuresPrinted = 30;
int failures = 0;

/// Counts differing bit patterns between `actual` and rows [first, ..) of `expected`, and says where the first one is.
void expect_bits(const std::string& what, const std::vector<float>& actual, const std::vector<float>& expected,
                 std::int64_t first, std::int64_t hidden) {
  std::int64_t different = 0, at = -1;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const float other = expected[i + static_cast<std::size_t>(first * hidden)];
    if (std::bit_cast<std::uint32_t>(actual[i]) == std::bit_cast<std::uint32_t>(other)) continue;
    if (different++ == 0) at = static_cast<std::int64_t>(i);
  }
  if (different == 0) return;
  if (++failures > kFailuresPrinted) return;
  std::printf("  WRONG %s: %lld of %zu differ, first at row %lld column %lld: %.9g, expected %.9g\n", what.c_str(),
              static_cast<long long>(different), actual.size(), static_cast<long long>(at / hidden),
              static_cast<long long>(at % hidden), actual[static_cast<std::size_t>(at)],
              expected[static_cast<std::size_t>(at + first * hidden)]);
}

void check_numbers(const Layer& layer, const Rows& rows) {
  const Shape& shape = layer.shape();
  std::vector<std::int32_t> expected_chosen;
  const std::vector<float> expected = layer.run_reference(rows, expected_chosen);
  double square = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    square += std::pow(static_cast<double>(expected[i]) - static_cast<double>(rows.residual[i]), 2);
  }
  const double size = std::sqrt(square / static_cast<double>(expected.size()));
  for (const Path path : kPaths) {
    if (!layer.fits(rows.count, path)) {
      std::printf(" [%s: not this layer]", path_name(path));
      continue;
    }
    std::vector<std::int32_t> chosen;
    const std::vector<float> actual = layer.run(rows, path, &chosen);
    double worst = 0.0;
    std::size_t at = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const double error = std::abs(static_cast<double>(actual[i]) - static_cast<double>(expected[i])) / size;
      if (error <= worst) continue;  // NaN counts as worst
      worst = std::isnan(error) ? INFINITY : error;
      at = i;
    }
    std::printf(" %s %.2e", path_name(path), worst);
    if (chosen != expected_chosen) {
      ++failures;
      std::printf(" WRONG choice of experts");
    }
    if (!(worst < 0.02)) {
      ++failures;
      std::printf(" WRONG at row %zu column %zu: %g, expected %g", at / static_cast<std::size_t>(shape.hidden),
                  at % static_cast<std::size_t>(shape.hidden), static_cast<double>(actual[at]),
                  static_cast<double>(expected[at]));
    }
  }
}

std::int64_t check_bits(const Layer& layer, const Rows& rows, const std::vector<std::int64_t>& counts) {
  const Shape& shape = layer.shape();
  const std::vector<float> all = layer.run(rows, Path::kPortable);
  std::int64_t calls = 0;
  for (const std::int64_t count : counts) {
    if (count > rows.count) continue;
    for (const std::int64_t first : std::set<std::int64_t>{0, (rows.count - count) / 2, rows.count - count}) {
      const Rows part = slice(shape, rows, first, count);
      for (const Path path : kPaths) {
        if (!layer.fits(count, path)) continue;
        ++calls;
        expect_bits(shape.name + " " + path_name(path) + " rows " + std::to_string(first) + "+" + std::to_string(count),
                    layer.run(part, path), all, first, shape.hidden);
      }
    }
  }
  return calls;
}

/// The shared expert among the others against its output by single layers; how many row counts the operation took.
int check_shared(const Layer& layer, const Rows& rows) {
  int taken = 0;
  for (const std::int64_t count : {1, 2, 3, 7, 8, 9, 13, 16}) {
    const std::int64_t first = std::min<std::int64_t>(count, rows.count - count);
    const Rows part = slice(layer.shape(), rows, first, count);
    const std::vector<float> actual = layer.run_shared(part, true);
    if (actual.empty()) continue;
    ++taken;
    expect_bits(layer.shape().name + " with its shared expert, rows " + std::to_string(count), actual,
                layer.run_shared(part, false), 0, layer.shape().hidden);
  }
  return taken;
}

/// Rows that went wrong, and padding, keep it to themselves.
void check_neighbours(BenchContext& context, const Layer& layer, const Rows& rows) {
  const Shape& shape = layer.shape();
  const std::int64_t count = std::min<std::int64_t>(rows.count, 24), live = count - 5;
  const Rows clean = slice(shape, rows, 0, count);
  Rows dirty = clean;
  const auto set = [](std::vector<float>& values, std::int64_t row, std::int64_t width, float value) {
    std::fill_n(values.begin() + row * width, width, value);
  };
  set(dirty.x, 3, shape.hidden, NAN);
  dirty.logits[static_cast<std::size_t>(5 * shape.experts + 2)] = NAN;
  dirty.logits[static_cast<std::size_t>(7 * shape.experts)] = INFINITY;
  for (std::int64_t row = live; row < count; ++row) {
    set(dirty.x, row, shape.hidden, NAN);
    set(dirty.logits, row, shape.experts, row % 2 == 0 ? NAN : 1.0f);
  }
  PassHeader header = {};
  header.rows = static_cast<std::int32_t>(live);
  header.row_count = static_cast<std::int32_t>(count);
  const DeviceArray<PassHeader> pass(std::vector<PassHeader>{header});
  for (const Path path : kPaths) {
    if (!layer.fits(count, path)) continue;
    const std::vector<float> expected = layer.run(clean, path);
    context.set_pass(pass.data());
    const std::vector<float> actual = layer.run(dirty, path);
    context.set_pass(nullptr);
    for (std::int64_t row = 0; row < live; ++row) {
      const auto begin = actual.begin() + row * shape.hidden;
      const std::vector<float> values(begin, begin + shape.hidden);
      if (row == 3 || row == 5 || row == 7) {
        if (!std::all_of(values.begin(), values.end(), [](float value) { return std::isnan(value); })) {
          ++failures;
          std::printf("  WRONG %s %s: row %lld should be NaN\n", shape.name.c_str(), path_name(path), static_cast<long long>(row));
        }
      } else {
        expect_bits(shape.name + " " + path_name(path) + " beside NaN, row " + std::to_string(row), values, expected, row,
                    shape.hidden);
      }
    }
  }
}

std::vector<Shape> shapes() {
  const SampleFormat four = affine(4, 64);
  std::vector<Shape> all = {
      {"35B-A3B narrow", 2048, 512, 32, 8, four, four, four},
      {"tiny", 64, 24, 4, 2, affine(4, 32), affine(4, 32), {WeightFormat::kBF16}},
      {"odd", 96, 20, 7, 3, affine(8, 32), affine(8, 32), {WeightFormat::kF16}},
      {"two parts", 256, 128, 5, 2, four, affine(8, 64), four},
      {"skewed", 512, 256, 16, 4, four, four, four},
      {"sequential down", 1152, 384, 12, 3, four, four, four},
      {"wide", 640, 1280, 6, 2, four, four, four},
      {"q4_k q6_k", 512, 256, 9, 3, {WeightFormat::kQ4_K}, {WeightFormat::kQ4_K}, {WeightFormat::kQ6_K}},
      {"q8_0 q4_0", 512, 256, 9, 3, {WeightFormat::kQ8_0}, {WeightFormat::kQ8_0}, {WeightFormat::kQ4_0}},
      {"q5_1", 512, 256, 9, 3, {WeightFormat::kQ5_1}, {WeightFormat::kQ5_1}, {WeightFormat::kQ5_1}},
      {"bf16", 512, 256, 9, 3, {WeightFormat::kBF16}, {WeightFormat::kBF16}, {WeightFormat::kBF16}},
      {"many experts", 64, 32, 600, 64, affine(4, 32), affine(4, 32), affine(4, 32)},
  };
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    const SampleFormat small = affine(bits, 32), large = affine(bits, 128), half = affine(bits, 64, WeightFormat::kF16);
    const SampleFormat most_scales = affine(bits, 32, WeightFormat::kF32);
    all.push_back({"affine " + std::to_string(bits) + " g32", 384, 256, 6, 2, small, small, small});
    all.push_back({"affine " + std::to_string(bits) + " g32, f32", 384, 256, 6, 2, most_scales, most_scales, most_scales});
    all.push_back({"affine " + std::to_string(bits) + " g128, f16", 256, 128, 6, 2, large, large, half});
  }
  all[4].skewed = true;
  all[5].tree = false;
  all[6].kind = ActivationKind::kGeluTanh;
  all[6].normalise = false;
  all[6].shared = false;
  return all;
}

int run_checks(bool quick, const std::string& only) {
  BenchContext context;
  for (const Shape& shape : shapes()) {
    if (shape.name.find(only) == std::string::npos) continue;
    const bool large = shape.hidden >= 2048;
    if (quick && large) continue;
    std::printf("%s:", shape.name.c_str());
    const Layer layer(context, shape);
    const Rows rows = make_rows(shape, quick ? 40 : large ? 2048 : 300, 11);
    check_numbers(layer, slice(shape, rows, 0, large ? 8 : 40));
    std::printf("\n");
    std::fflush(stdout);
    const std::vector<std::int64_t> counts =
        quick ? std::vector<std::int64_t>{1, 3, 17, 40}
              : std::vector<std::int64_t>{1, 2, 3, 5, 8, 16, 17, 37, 64, 100, 128, 300, 777, 2048};
    const std::int64_t calls = check_bits(layer, rows, counts);
    check_neighbours(context, layer, rows);
    const int shared = cuda_linear(&layer.shared_gate_up()).parts().front().paired_halves ? check_shared(layer, rows) : 0;
    if (shared == 0 && large) ++failures;
    std::printf("  bits: %lld calls, %d with the shared expert, %d failures so far\n", static_cast<long long>(calls), shared,
                failures);
    std::fflush(stdout);
  }
  std::printf(failures == 0 ? "all right\n" : "%d FAILURES\n", failures);
  return failures == 0 ? 0 : 1;
}

// --- times -----------------------------------------------------------------------------------------------------------

constexpr int kLayers = 40;
constexpr std::int32_t kPackedExperts = 16;  // that are packed on the host; copies of them make a layer

/// kLayers layers of the true shape, each with its own memory.
class Model {
 public:
  Model(BenchContext& context, std::int32_t row_capacity)
      : context_(context),
        shape_({"35B-A3B", 2048, 512, kPackedExperts, 8, affine(4, 64), affine(4, 64), affine(4, 64)}),
        sample_(context, shape_),
        row_capacity_(row_capacity),
        x_(static_cast<std::size_t>(row_capacity) * 2048),
        inner_(static_cast<std::size_t>(row_capacity) * 512),
        residual_(static_cast<std::size_t>(row_capacity) * 2048),
        shared_(static_cast<std::size_t>(row_capacity) * 2048),
        gate_(static_cast<std::size_t>(row_capacity)),
        logits_(static_cast<std::size_t>(kLayers) * static_cast<std::size_t>(row_capacity) * kExperts) {
    inner_.fill(0);
    gate_.fill(0);
    shape_.experts = kExperts;
    for (const auto* part : {&sample_.weights().gate_up.front(), &sample_.weights().down.front()}) {
      copy_experts(*part, kPackedExperts, static_cast<std::size_t>(kLayers) * kExperts / kPackedExperts);
    }
    for (const auto* linear : {&sample_.shared_gate_up(), &sample_.shared_down()}) {
      copy_experts(cuda_linear(linear).parts().front(), 1, kLayers);
    }
    const Rows rows = make_rows({"", 2048, 512, 1, 1, {}, {}, {}}, row_capacity, 5);
    std::vector<Bf16> rounded(rows.x.size());
    std::transform(rows.x.begin(), rows.x.end(), rounded.begin(), [](float value) { return to_bf16(value); });
    x_.upload(rounded);
    residual_.upload(rows.residual);
    shared_.upload(rows.shared_output);
    std::mt19937 random(3);
    host_logits_.resize(static_cast<std::size_t>(kLayers) * static_cast<std::size_t>(row_capacity) * kExperts);
    for (float& value : host_logits_) value = static_cast<float>(random() >> 8) * 0x1p-22f;
    logits_.upload(host_logits_);
  }

  MoeParams params(int layer, std::int64_t rows) const {
    MoeParams p = sample_.params();
    p.experts = kExperts;
    p.router_stride = kExperts;
    p.x = reinterpret_cast<const Activation*>(x_.data());
    p.router_logits = logits_.data() + static_cast<std::size_t>(layer) * static_cast<std::size_t>(row_capacity_) * kExperts;
    p.rows = rows;
    p.residual = residual_.data();
    p.shared_output = shared_.data();
    p.shared_gate = gate_.data();
    p.shared_gate_stride = 1;
    return p;
  }
  std::array<PackedPart, 2> parts(int layer) const {
    std::array<PackedPart, 2> result = {sample_.weights().gate_up.front(), sample_.weights().down.front()};
    for (std::size_t i = 0; i < 2; ++i) {
      result[i].blocks = memory_[i].data() + static_cast<std::int64_t>(layer) * kExperts * result[i].expert_bytes;
    }
    return result;
  }
  /// Few rows with their shared expert: of two launches before, or within.
  void run_shared(int layer, std::int64_t rows, bool within) {
    const auto both = parts(layer);
    std::array<PackedPart, 2> shared = {cuda_linear(&sample_.shared_gate_up()).parts().front(),
                                        cuda_linear(&sample_.shared_down()).parts().front()};
    for (std::size_t i = 0; i < 2; ++i) shared[i].blocks = memory_[2 + i].data() + layer * shared[i].expert_bytes;
    ExpertWeights weights{{&both[0], 1}, {&both[1], 1}, shape_.hidden, shape_.width};
    MoeParams p = params(layer, rows);
    if (within) {
      p.shared_output = nullptr;
      weights.shared_gate_up = &shared[0];
      weights.shared_down = &shared[1];
    } else {
      LinearCall gate_up, down;
      gate_up.x = x_.data();
      gate_up.gated = inner_.data();
      down.x = inner_.data();
      down.y = shared_.data();
      down.y_stride = shape_.hidden;
      gate_up.rows = down.rows = static_cast<std::int32_t>(rows);
      TF_ASSERT(decode_linear(context_, shared[0], gate_up) && decode_linear(context_, shared[1], down));
    }
    experts::run_experts(context_, weights, p, Path::kWindow);
  }
  void run(int layer, std::int64_t rows, Path path) {
    const auto both = parts(layer);
    const ExpertWeights weights{{&both[0], 1}, {&both[1], 1}, shape_.hidden, shape_.width};
    experts::run_experts(context_, weights, params(layer, rows), path);
  }
  bool fits(std::int64_t rows, Path path) const {
    const auto both = parts(0);
    return experts::path_fits(context_, {{&both[0], 1}, {&both[1], 1}, shape_.hidden, shape_.width}, params(0, rows), path);
  }
  Path chosen_path(std::int64_t rows) const {
    const auto both = parts(0);
    return experts::choose_path(context_, {{&both[0], 1}, {&both[1], 1}, shape_.hidden, shape_.width}, params(0, rows));
  }
  /// Distinct experts of a layer, on average.
  double experts_used(std::int64_t rows) const {
    std::int64_t used = 0;
    for (int layer = 0; layer < kLayers; ++layer) {
      std::set<std::int32_t> ids;
      for (std::int64_t row = 0; row < rows && ids.size() < kExperts; ++row) {
        const float* logits = host_logits_.data() + (static_cast<std::size_t>(layer) * static_cast<std::size_t>(row_capacity_) +
                                                     static_cast<std::size_t>(row)) * kExperts;
        std::array<std::int32_t, kExperts> order;
        for (std::int32_t i = 0; i < kExperts; ++i) order[static_cast<std::size_t>(i)] = i;
        std::partial_sort(order.begin(), order.begin() + shape_.top_k, order.end(),
                          [&](std::int32_t a, std::int32_t b) { return logits[a] > logits[b]; });
        ids.insert(order.begin(), order.begin() + shape_.top_k);
      }
      used += static_cast<std::int64_t>(ids.size());
    }
    return static_cast<double>(used) / kLayers;
  }
  double expert_bytes() const {
    const auto both = parts(0);
    return static_cast<double>(both[0].expert_bytes + both[1].expert_bytes);
  }
  double row_operations() const { return 2.0 * 3.0 * shape_.hidden * shape_.width * shape_.top_k; }

 private:
  static constexpr std::int32_t kExperts = 256;

  /// `copies` of so many experts, one after the other.
  void copy_experts(const PackedPart& part, std::size_t experts, std::size_t copies) {
    const auto bytes = static_cast<std::size_t>(part.expert_bytes) * experts;
    DeviceArray<std::uint8_t> memory(bytes * copies);
    for (std::size_t i = 0; i < copies; ++i) {
      check(cudaMemcpyAsync(memory.data() + i * bytes, part.blocks, bytes, cudaMemcpyDeviceToDevice, context_.stream()),
            "copying");
    }
    context_.synchronise("copying");
    memory_.push_back(std::move(memory));
  }

  BenchContext& context_;
  Shape shape_;
  Layer sample_;
  std::int32_t row_capacity_;
  DeviceArray<Bf16> x_, inner_;
  DeviceArray<float> residual_, shared_, gate_, logits_;
  std::vector<float> host_logits_;
  std::vector<DeviceArray<std::uint8_t>> memory_;
};

/// Median of five replays of a captured chain, in us a layer.
double time_chain(BenchContext& context, const std::function<void(int)>& layer) {
  layer(0);  // scratch grows here
  context.synchronise("running once");
  CapturedGraph chain(context, [&] {
    for (int i = 0; i < kLayers; ++i) layer(i);
  });
  return chain.microseconds(5) / kLayers;
}

void run_times(std::vector<std::int64_t> row_counts) {
  BenchContext context;
  Model model(context, 2048);
  for (const std::int64_t rows : row_counts) {
    const double used = model.experts_used(rows);
    const double bytes = used * model.expert_bytes();
    const double operations = static_cast<double>(rows) * model.row_operations();
    const double floor = std::max(bytes / kMemoryBytesPerMicrosecond, operations / kFlopsPerMicrosecond);
    std::printf("%5lld rows, %.1f experts, floor %.1f us:", static_cast<long long>(rows), used, floor);
    for (const Path path : kPaths) {
      if (!model.fits(rows, path) || (path == Path::kPortable && rows > 256)) continue;
      const double time = time_chain(context, [&](int layer) { model.run(layer, rows, path); });
      std::printf("  %s%s %.1f us (%.0f %%, %.2f TB/s, %.0f TFLOP/s)", path_name(path), path == model.chosen_path(rows) ? "*" : "",
                  time, 100.0 * floor / time, bytes / time / 1e6, operations / time / 1e6);
    }
    if (rows <= kDecodeRowsMax) {
      const double before = time_chain(context, [&](int layer) { model.run_shared(layer, rows, false); });
      const double within = time_chain(context, [&](int layer) { model.run_shared(layer, rows, true); });
      std::printf("  window with a shared expert: launched before %.1f us, within %.1f us", before, within);
    }
    std::printf("\n");
    std::fflush(stdout);
  }
}

void run_one(std::int64_t rows, const std::string& name) {
  BenchContext context;
  Model model(context, 2048);
  for (const Path path : kPaths) {
    if (name == path_name(path)) model.run(1, rows, path);
  }
  context.synchronise();
}

int run(int count, char** arguments) {
  const std::string mode = count > 1 ? arguments[1] : "";
  if (mode == "check") return run_checks(count > 2 && std::string(arguments[2]) == "quick", count > 3 ? arguments[3] : "");
  if (mode == "one" && count == 4) {
    run_one(std::atoll(arguments[2]), arguments[3]);
    return 0;
  }
  if (mode == "time") {
    std::vector<std::int64_t> rows;
    for (int i = 2; i < count; ++i) rows.push_back(std::atoll(arguments[i]));
    run_times(rows.empty() ? std::vector<std::int64_t>{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048} : rows);
    return 0;
  }
  std::printf("cuda_moe check [quick|all [NAME]] | time [rows ...] | one ROWS PATH\n");
  return 2;
}

}  // namespace
}  // namespace tensorfold::ops::cuda::bench

int main(int count, char** arguments) {
  using namespace tensorfold::ops::cuda::bench;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  return guarded(stdout, [&] { return run(count, arguments); });
}
