// The CUDA backend's linear layers on few rows: their bits against a literal one-row product over host-decoded weights, then
// their times beside the card's memory.
//
//   cuda_linear check          bits: every format, kernels, plans, row counts, stacked parts, lookups; prints what differs
//   cuda_linear small          a few layers of each kernel, for compute-sanitizer
//   cuda_linear time           the 27B's chain of four layers, small models' layers, other formats: us, TB/s, % of 4.54
//   cuda_linear sweep ROWS ..  times of every plan on the chain's shapes
//   cuda_linear load           how fast a matrix is packed and uploaded
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/bf16.h"
#include "cuda_harness.h"
#include "cuda_linear_reference.h"
#include "ops/cuda/cuda_operations.h"
#include "ops/cuda/linear/cuda_linear.h"
#include "ops/cuda/linear/gated_linear.h"
#include "ops/cuda/linear/linear_call.h"
#include "ops/cuda/linear/pack_tile.h"
#include "ops/linear/sample_weights.h"

namespace tensorfold::ops::cuda::bench {
namespace {

using cpu::SampleFormat;
using cpu::SampleMatrix;

constexpr std::uint16_t kNan = 0x7fff;

// --- bits ------------------------------------------------------------------------------------------------------------

bool same(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

struct Tally {
  long runs = 0, differ = 0, printed = 0;
  void note(const std::string& what, long differences, const std::string& first) {
    ++runs;
    if (differences == 0) return;
    ++differ;
    if (printed++ < 25) std::printf("  DIFFERS %s: %ld, first %s\n", what.c_str(), differences, first.c_str());
  }
};

/// x with a NaN row before, between and after the rows that are used.
struct Input {
  std::int64_t columns;
  std::vector<std::int32_t> rows;  // of x
  DeviceArray<std::uint16_t> x;
  DeviceArray<std::uint16_t> dense;  // the same rows, one after the other, then NaN
  DeviceArray<std::int32_t> device_rows;
};

Input make_input(std::int64_t columns, int count, std::mt19937& random) {
  Input input;
  input.columns = columns;
  const auto width = static_cast<std::size_t>(columns), rows = static_cast<std::size_t>(count);
  std::vector<std::uint16_t> x((2 * rows + 1) * width + 64, kNan), dense(rows * width + 4096, kNan);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  for (std::size_t r = 0; r < rows; ++r) {
    const std::size_t row = 2 * (rows - 1 - r) + 1;
    input.rows.push_back(static_cast<std::int32_t>(row));
    for (std::size_t k = 0; k < width; ++k) {
      const std::uint32_t draw = random() % 97;
      const float value = draw == 0 ? 0.0f : normal(random) * (draw == 1 ? 20.0f : 1.0f);
      x[row * width + k] = dense[r * width + k] = to_bf16(value).bits;
    }
  }
  input.x = DeviceArray(x);
  input.dense = DeviceArray(dense);
  input.device_rows = DeviceArray(input.rows);
  return input;
}

/// A layer, packed, and what the rule says of it.
struct Case {
  std::string name;
  std::unique_ptr<Linear> linear;
  DeviceArray<std::uint16_t> weights;
  std::vector<std::uint16_t> host_weights;
  DeviceArray<float> bias;
  LiteralLayer layer;
  const std::vector<PackedPart>& parts() const { return cuda_linear(linear.get()).parts(); }
};

Case make_case(CudaContext& context, const LinearSource& source, const std::string& name) {
  Case result;
  result.name = name;
  result.linear = load_linear(context, source);
  const std::int64_t columns = source.parts.front().columns;
  for (std::size_t i = 0; i < source.parts.size(); ++i) {
    const WeightView& view = source.parts[i];
    for (std::int64_t row = 0; row < view.rows; ++row) {
      const bool ordered = !source.row_orders.empty() && !source.row_orders[i].empty();
      std::vector<std::uint16_t> values(static_cast<std::size_t>(columns));
      packed_row_values(view, 0, ordered ? source.row_orders[i][static_cast<std::size_t>(row)] : row, values.data());
      result.host_weights.insert(result.host_weights.end(), values.begin(), values.end());
    }
  }
  result.weights = DeviceArray(result.host_weights);
  if (!source.bias.empty()) result.bias = DeviceArray(source.bias);
  result.layer.weights = result.weights.data();
  result.layer.rows = static_cast<std::int32_t>(result.linear->rows());
  result.layer.columns = static_cast<std::int32_t>(columns);
  result.layer.segment_tree = source.segment_tree;
  result.layer.bias = result.bias.data();
  return result;
}

class Checker {
 public:
  explicit Checker(BenchContext& context) : context_(context) {}

  /// What all rows of `input` must give; kept until the next expect().
  void expect(const Case& layer, const Input& input) {
    layer_ = &layer;
    input_ = &input;
    const auto count = static_cast<int>(input.rows.size());
    DeviceArray<float> y(std::int64_t{count} * layer.layer.rows);
    literal_product(layer.layer, input.x.data(), input.device_rows.data(), count, y.data(), layer.layer.rows, false,
                    context_.stream());
    context_.synchronise();
    expected_ = y.download();
  }

  enum class Kernel { kPortable, kDecode };
  /// The first `rows` rows, through `kernel`.
  void run(Kernel kernel, int rows, const DecodePlan& plan = {}, bool accumulate = false, bool indexed = false) {
    const std::int64_t outputs = layer_->layer.rows, stride = outputs + 3;
    std::vector<float> start(static_cast<std::size_t>(rows * stride), std::bit_cast<float>(0xffffffffu));
    if (accumulate) {  // each place its own value, so that a sum added to a neighbour's shows
      for (std::size_t i = 0; i < start.size(); ++i) start[i] = 0.3f + 0.01f * static_cast<float>(i % 251);
    }
    DeviceArray<float> y(start);
    LinearCall call;
    call.x = indexed ? input_->x.data() : input_->dense.data();
    call.row_index = indexed ? context_.ids(input_->rows.data(), rows) : IdsRef{};
    call.rows = rows;
    call.y = y.data();
    call.y_stride = stride;
    call.accumulate = accumulate;
    for (const PackedPart& part : layer_->parts()) {
      if (kernel == Kernel::kPortable) {
        portable_linear(context_, part, call);
      } else if (!decode_linear(context_, part, call, plan)) {
        ++refused_;
        context_.synchronise();
        return;
      }
    }
    context_.synchronise();
    const std::vector<float> got = y.download();
    long differences = 0;
    std::string first;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t n = 0; n < stride; ++n) {
        float wanted = start[static_cast<std::size_t>(r * stride + n)];
        if (n < outputs) {
          const float sum = expected_[static_cast<std::size_t>(r * outputs + n)];
          wanted = accumulate ? wanted + sum : sum;
        }
        const float value = got[static_cast<std::size_t>(r * stride + n)];
        if (same(value, wanted)) continue;
        if (differences++ == 0) {
          first = "row " + std::to_string(r) + " output " + std::to_string(n) + ": " + std::to_string(value) + " for " +
                  std::to_string(wanted);
        }
      }
    }
    const std::string what = layer_->name + (kernel == Kernel::kPortable ? " portable" : " decode") + " rows " +
                             std::to_string(rows) + (accumulate ? " accumulate" : "") + (indexed ? " indexed" : "") + " cluster " +
                             std::to_string(plan.cluster) + " slots " + std::to_string(plan.slots) + " tiles " +
                             std::to_string(plan.tiles_at_once) + " CTAs " + std::to_string(plan.ctas) + " buffers " + std::to_string(plan.buffers);
    tally_.note(what, differences, first);
  }

  void check_embedding(std::mt19937& random) {
    const std::int64_t columns = layer_->layer.columns;
    std::vector<std::int32_t> tokens;
    for (int i = 0; i < 7; ++i) tokens.push_back(static_cast<std::int32_t>(random() % static_cast<unsigned>(layer_->layer.rows)));
    DeviceArray<float> out(tokens.size() * static_cast<std::size_t>(columns));
    EmbedParams params;
    params.table = layer_->linear.get();
    params.tokens = tokens.data();
    params.rows = static_cast<std::int64_t>(tokens.size());
    params.scale = 3.5f;
    params.out = out.data();
    embed(context_, params);
    context_.synchronise();
    const std::vector<float> got = out.download();
    long differences = 0;
    std::string first;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const std::size_t token = static_cast<std::size_t>(tokens[i / static_cast<std::size_t>(columns)]);
      const std::size_t k = i % static_cast<std::size_t>(columns);
      const float wanted = to_float(Bf16{layer_->host_weights[token * static_cast<std::size_t>(columns) + k]}) * 3.5f;
      if (!same(got[i], wanted) && differences++ == 0) first = "row " + std::to_string(token) + " column " + std::to_string(k);
    }
    tally_.note(layer_->name + " lookup", differences, first);
  }

  void check_gated(int rows, ActivationKind kind, bool hopper) {
    const int width = layer_->layer.rows / 2;
    const auto count = static_cast<std::size_t>(rows * width);
    DeviceArray<float> y(expected_);
    DeviceArray<std::uint16_t> wanted(count), got(std::vector<std::uint16_t>(count, kNan));
    literal_gate(y.data(), layer_->layer.rows, rows, width, kind, wanted.data(), context_.stream());
    context_.use_hopper_paths(hopper);
    const bool done =
        gated_linear(context_, {layer_->linear.get(), reinterpret_cast<const Activation*>(input_->dense.data()), rows,
                                kind, reinterpret_cast<Activation*>(got.data())});
    context_.use_hopper_paths(true);
    context_.synchronise();
    const auto a = wanted.download(), b = got.download();
    long differences = done ? 0 : 1;
    for (std::size_t i = 0; i < count; ++i) differences += a[i] != b[i];
    tally_.note(layer_->name + " gated rows " + std::to_string(rows), differences, done ? "" : "refused");
  }

  Tally& tally() { return tally_; }
  long refused() const { return refused_; }

 private:
  BenchContext& context_;
  const Case* layer_ = nullptr;
  const Input* input_ = nullptr;
  std::vector<float> expected_;
  Tally tally_;
  long refused_ = 0;
};

using Kernel = Checker::Kernel;

LinearSource source_of(const std::vector<const SampleMatrix*>& matrices, bool tree) {
  LinearSource source;
  source.name = "layer";
  for (const SampleMatrix* matrix : matrices) source.parts.push_back(matrix->view);
  source.segment_tree = tree;
  return source;
}

std::vector<std::int64_t> depths_of(const SampleFormat& format) {
  const std::int64_t multiple = cpu::sample_column_multiple(format);
  if (multiple == 1) return {1, 48, 83, 576, 1160};
  if (multiple == 256) return {256, 768, 2304};
  return {multiple, 5 * multiple, 640, 1152};
}

void check_formats(BenchContext& context, Checker& checker) {
  std::mt19937 random(1);
  for (const SampleFormat& format : cpu::all_sample_formats()) {
    int turn = 0;
    for (const std::int64_t columns : depths_of(format)) {
      for (const std::int64_t outputs : {17, 100}) {
        const bool tree = turn++ % 2 == 0;
        const SampleMatrix sample = cpu::make_sample(format, 1, outputs, columns, random);
        const Case layer = make_case(context, source_of({&sample}, tree),
                                     cpu::sample_format_name(format) + " " + std::to_string(outputs) + "x" + std::to_string(columns));
        const Input input = make_input(columns, 70, random);
        checker.expect(layer, input);
        for (const int rows : {1, 2, 5, 8, 9, 13, 16}) checker.run(Kernel::kDecode, rows, {}, rows == 5, rows % 2 == 1);
        for (const int rows : {1, 7, 8, 9, 16, 20, 33, 70}) checker.run(Kernel::kPortable, rows, {}, rows == 33, rows % 2 == 0);
        checker.check_embedding(random);
      }
    }
  }
}

void check_plans(BenchContext& context, Checker& checker) {
  std::mt19937 random(2);
  using enum WeightFormat;
  const std::vector<SampleFormat> formats = {
      {kAffine, 4, 64, kBF16}, {kAffine, 4, 128, kBF16}, {kAffine, 4, 32, kBF16}, {kAffine, 8, 64, kBF16}, {kQ4_K}, {kQ6_K}, {kBF16}};
  for (const SampleFormat& format : formats) {
    for (const std::int64_t columns : {512, 2048, 5120, 6144, 17408}) {
      for (const bool tree : {false, true}) {
        const std::int64_t outputs = columns > 8192 ? 200 : 600;
        const SampleMatrix sample = cpu::make_sample(format, 1, outputs, columns, random);
        const Case layer = make_case(context, source_of({&sample}, tree),
                                     cpu::sample_format_name(format) + " " + std::to_string(outputs) + "x" + std::to_string(columns));
        const Input input = make_input(columns, 16, random);
        checker.expect(layer, input);
        checker.run(Kernel::kPortable, 16);
        for (const int rows : {1, 4, 8, 11, 16}) {
          for (const int cluster : {1, 2, 4}) {
            DecodePlan plan;
            plan.cluster = cluster;
            checker.run(Kernel::kDecode, rows, plan);
            if (format.bits == 4 && format.group_size == 64) {
              for (const int tiles : {2, 3}) {
                plan.tiles_at_once = tiles;
                plan.ctas = 1 + static_cast<int>(random() % 2);
                checker.run(Kernel::kDecode, rows, plan);
              }
              plan.tiles_at_once = plan.ctas = 0;
            }
            plan.clusters = 3;  // many turns
            plan.slots = 1 + static_cast<int>(random() % 3);
            plan.buffers = 1 + static_cast<int>(random() % 2);
            checker.run(Kernel::kDecode, rows, plan);
          }
        }
      }
    }
  }
}

void check_sources(BenchContext& context, Checker& checker) {
  std::mt19937 random(3);
  using enum WeightFormat;
  const std::int64_t columns = 512;
  {  // parts of several formats, a row order, bias
    const SampleMatrix q = cpu::make_sample({kQ4_K}, 1, 40, columns, random), k = cpu::make_sample({kQ6_K}, 1, 16, columns, random);
    const SampleMatrix v = cpu::make_sample({kAffine, 5, 64, kF16}, 1, 7, columns, random);
    const SampleMatrix w = cpu::make_sample({kAffine, 5, 64, kF16}, 1, 30, columns, random);
    LinearSource source = source_of({&q, &k, &v, &w}, false);
    source.row_orders.resize(4);
    source.row_orders[0].resize(40);
    std::iota(source.row_orders[0].begin(), source.row_orders[0].end(), 0);
    std::shuffle(source.row_orders[0].begin(), source.row_orders[0].end(), random);
    for (int n = 0; n < 93; ++n) source.bias.push_back(static_cast<float>(n) * 0.37f - 9.0f);
    const Case layer = make_case(context, source, "q|k|v|w with bias");
    if (layer.parts().size() != 3) std::printf("  %zu parts for 3\n", layer.parts().size());
    const Input input = make_input(columns, 40, random);
    checker.expect(layer, input);
    for (const int rows : {1, 8, 16}) checker.run(Kernel::kDecode, rows, {}, rows == 8);
    for (const int rows : {1, 21, 40}) checker.run(Kernel::kPortable, rows, {}, rows == 21);
    checker.check_embedding(random);
  }
  for (const SampleFormat& format : {SampleFormat{kAffine, 4, 64, kBF16}, SampleFormat{kQ4_K}, SampleFormat{kBF16}}) {
    for (const bool two : {false, true}) {
      const SampleMatrix gate = cpu::make_sample(format, 1, two ? 104 : 208, columns, random);
      const SampleMatrix up = cpu::make_sample(format, 1, 104, columns, random);
      LinearSource source = two ? source_of({&gate, &up}, false) : source_of({&gate}, false);
      source.paired_halves = true;
      const Case layer = make_case(context, source, "gate|up " + cpu::sample_format_name(format));
      if (!layer.parts().front().paired_halves) std::printf("  not stored in pairs\n");
      const Input input = make_input(columns, 40, random);
      checker.expect(layer, input);
      for (const int rows : {1, 8, 16}) checker.run(Kernel::kDecode, rows);
      for (const int rows : {3, 40}) checker.run(Kernel::kPortable, rows);
      for (const int rows : {1, 5, 16}) {
        checker.check_gated(rows, ActivationKind::kSilu, true);
        checker.check_gated(rows, ActivationKind::kGeluTanh, rows != 1);
      }
    }
  }
  for (const int bits : {2, 4, 5, 8}) {  // scales that only some forms can hold
    for (const WeightFormat scales : {kF32, kBF16}) {
      for (const cpu::ScaleRange range : {cpu::ScaleRange::kSmall, cpu::ScaleRange::kTiny}) {
        const SampleMatrix sample = cpu::make_sample({kAffine, bits, 64, scales}, 1, 40, 192, random, range);
        const Case layer = make_case(context, source_of({&sample}, false), "small scales " + std::to_string(bits));
        const Input input = make_input(192, 16, random);
        checker.expect(layer, input);
        checker.run(Kernel::kDecode, 5);
        checker.run(Kernel::kPortable, 16);
        checker.check_embedding(random);
      }
      SampleMatrix sample = cpu::make_sample({kAffine, bits, 64, scales}, 1, 40, 192, random);
      const float large[2] = {scales == kF32 ? 3e33f : 1.5f, 0x1p121f};
      for (const float scale : large) {
        const std::uint32_t word = std::bit_cast<std::uint32_t>(scale);
        std::memcpy(sample.scales.data() + 8, reinterpret_cast<const std::byte*>(&word) + (scales == kF32 ? 0 : 2), scales == kF32 ? 4 : 2);
        const Case layer = make_case(context, source_of({&sample}, false), "a large scale " + std::to_string(bits));
        const Input input = make_input(192, 16, random);
        checker.expect(layer, input);
        checker.run(Kernel::kDecode, 5);
        checker.run(Kernel::kPortable, 16);
        checker.check_embedding(random);
      }
    }
  }
}

int check_all(BenchContext& context) {
  Checker checker(context);
  check_formats(context, checker);
  std::printf("formats: %ld runs, %ld differ, %ld refused\n", checker.tally().runs, checker.tally().differ, checker.refused());
  std::fflush(stdout);
  check_sources(context, checker);
  std::printf("sources: %ld runs, %ld differ, %ld refused\n", checker.tally().runs, checker.tally().differ, checker.refused());
  std::fflush(stdout);
  check_plans(context, checker);
  std::printf("in all: %ld runs, %ld differ, %ld refused\n", checker.tally().runs, checker.tally().differ, checker.refused());
  return checker.tally().differ == 0 ? 0 : 1;
}

int small(BenchContext& context) {
  Checker checker(context);
  std::mt19937 random(4);
  using enum WeightFormat;
  for (const SampleFormat& format : {SampleFormat{kAffine, 4, 64, kBF16}, SampleFormat{kAffine, 3, 32, kBF16}, SampleFormat{kQ4_K},
                                     SampleFormat{kQ6_K}, SampleFormat{kQ8_0}, SampleFormat{kBF16}}) {
    const SampleMatrix sample = cpu::make_sample(format, 1, 140, 2304, random);
    const Case layer = make_case(context, source_of({&sample}, true), cpu::sample_format_name(format));
    const Input input = make_input(2304, 40, random);
    checker.expect(layer, input);
    for (const int rows : {1, 8, 16}) {
      DecodePlan plan;
      plan.cluster = 1 + rows % 2;
      checker.run(Kernel::kDecode, rows, plan);
      plan.clusters = 2;
      plan.cluster = rows == 8 ? 4 : 2;
      checker.run(Kernel::kDecode, rows, plan);
    }
    checker.run(Kernel::kPortable, 16);
    checker.run(Kernel::kPortable, 40);
    checker.check_embedding(random);
  }
  std::printf("small: %ld runs, %ld differ, %ld refused\n", checker.tally().runs, checker.tally().differ, checker.refused());
  return checker.tally().differ == 0 ? 0 : 1;
}

// --- time ------------------------------------------------------------------------------------------------------------

struct Shape {
  int columns, rows;
};
constexpr Shape kChain[] = {{5120, 14336}, {6144, 5120}, {5120, 34816}, {17408, 5120}};

PackedPart describe(const Shape& shape, const PackedStorage& storage) {
  PackedPart part;
  part.bits = storage.bits;
  part.scale_kind = storage.scale_kind;
  part.group_size = storage.group_size;
  part.group_shift = std::countr_zero(static_cast<unsigned>(storage.group_size));
  part.zero_point = storage.zero_point;
  part.small_scales = storage.bits == 4 && storage.scale_kind == ScaleKind::kBf16Pair && storage.group_size == 64;
  part.block_bytes = packed_block_bytes(storage);
  part.rows = shape.rows;
  part.tiles = (shape.rows + kTileRows - 1) / kTileRows;
  part.columns = shape.columns;
  part.k_blocks = (shape.columns + kBlockColumns - 1) / kBlockColumns;
  part.segment_blocks = segment_length(shape.columns) / kBlockColumns;
  part.segments = (part.k_blocks + part.segment_blocks - 1) / part.segment_blocks;
  part.expert_bytes = static_cast<std::int64_t>(part.tiles) * part.k_blocks * part.block_bytes;
  return part;
}

double bytes_of(const PackedPart& part) {
  return static_cast<double>(part.tiles) * part.k_blocks * part.block_bytes;
}

class Timer {
 public:
  static constexpr std::size_t kArenaBytes = 1400u << 20;
  explicit Timer(BenchContext& context)
      : context_(context), arena_(kArenaBytes), x_(std::size_t{64} * 32768), y_(std::size_t{16} * 300000) {
    x_.fill(0x3c);
    y_.fill(0);
  }

  void fill(const PackedPart& like) {
    PackedPart part = like;
    part.blocks = arena_.data();
    fill_blocks(part, arena_.count() / part.block_bytes, 5, context_.stream());
    context_.synchronise();
  }

  /// Microseconds of the sequence, its launches in a graph, each waiting for the one before, weights never the same twice
  /// within what the L2 cache holds. Negative: a plan doesn't fit.
  double time(const std::vector<PackedPart>& sequence, int rows, const std::vector<DecodePlan>& plans) {
    double per = 0;
    for (const PackedPart& part : sequence) per += bytes_of(part);
    const int copies = std::clamp(static_cast<int>(static_cast<double>(arena_.count()) / per), 1, 4000);
    const int repeats = std::clamp(static_cast<int>(300e6 / per) + 1, 2, 200);
    bool fits = true;
    CapturedGraph graph(context_, [&] {
      for (int r = 0; r < repeats && fits; ++r) {
        fits =
            launch(sequence, rows, plans, static_cast<std::size_t>(next_++ % copies) * static_cast<std::size_t>(per));
      }
    });
    return fits ? graph.microseconds(7) / repeats : -1;
  }

 private:
  /// The sequence once, its weights from `place` of the arena on; false: a plan doesn't fit.
  bool launch(const std::vector<PackedPart>& sequence, int rows, const std::vector<DecodePlan>& plans,
              std::size_t place) {
    for (std::size_t i = 0; i < sequence.size(); ++i) {
      PackedPart part = sequence[i];
      part.blocks = arena_.data() + place / 256 * 256;
      place += static_cast<std::size_t>(bytes_of(part));
      LinearCall call;
      call.x = x_.data();
      call.rows = rows;
      call.y = y_.data();
      call.y_stride = part.rows;
      if (!decode_linear(context_, part, call, plans.empty() ? DecodePlan{} : plans[i])) return false;
    }
    return true;
  }

  BenchContext& context_;
  DeviceArray<std::uint8_t> arena_;
  DeviceArray<std::uint16_t> x_;
  DeviceArray<float> y_;
  int next_ = 0;
};

void print_time(const char* name, int rows, double bytes, double microseconds) {
  std::printf("%-34s rows %2d  %8.2f us  %5.2f TB/s  %4.1f %%\n", name, rows, microseconds, bytes / microseconds / 1e6,
              100 * bytes / microseconds / kMemoryBytesPerMicrosecond);
}

const PackedStorage kAffine4 = {4, ScaleKind::kBf16Pair, 64, 0};

std::vector<PackedPart> chain_of(const std::vector<Shape>& shapes, const PackedStorage& storage) {
  std::vector<PackedPart> parts;
  for (const Shape& shape : shapes) parts.push_back(describe(shape, storage));
  return parts;
}

void time_chain(Timer& timer, const char* name, const std::vector<Shape>& shapes, const PackedStorage& storage,
                const std::vector<int>& rows_list) {
  const std::vector<PackedPart> parts = chain_of(shapes, storage);
  timer.fill(parts.front());
  double bytes = 0;
  for (const PackedPart& part : parts) bytes += bytes_of(part);
  for (const int rows : rows_list) print_time(name, rows, bytes, timer.time(parts, rows, {}));
  std::fflush(stdout);
}

void time_all(BenchContext& context) {
  Timer timer(context);
  time_chain(timer, "27B chain, 4-bit g64 bf16", {std::begin(kChain), std::end(kChain)}, kAffine4, {1, 2, 4, 8, 16});
  for (const Shape& shape : kChain) {
    time_chain(timer, (std::to_string(shape.columns) + "x" + std::to_string(shape.rows)).c_str(), {shape}, kAffine4, {1, 8, 16});
  }
  const std::vector<Shape> llama = {{4096, 6144}, {4096, 4096}, {4096, 28672}, {14336, 4096}};
  const PackedStorage formats[] = {{16, ScaleKind::kNone, 128, 0},     {8, ScaleKind::kBf16Pair, 64, 0}, {6, ScaleKind::kBf16Pair, 64, 0},
                                   {4, ScaleKind::kHalfPair, 32, 0},   {4, ScaleKind::kHalf, 32, 8},     {8, ScaleKind::kHalf, 32, 128},
                                   {4, ScaleKind::kScaleMin, 32, 0},   {5, ScaleKind::kScaleMin, 32, 0}, {6, ScaleKind::kScale, 16, 0}};
  const char* const names[] = {"bf16", "8-bit g64", "6-bit g64", "Q4_1", "Q4_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K"};
  for (std::size_t i = 0; i < std::size(formats); ++i) {
    time_chain(timer, (std::string("llama-8b layer, ") + names[i]).c_str(), llama, formats[i], {1, 8, 16});
  }
  time_chain(timer, "SmolLM2 layer, bf16", {{576, 960}, {576, 576}, {576, 3072}, {1536, 576}}, formats[0], {1, 8, 16});
  time_chain(timer, "Qwen2.5-1.5B layer, 4-bit", {{1536, 2048}, {1536, 1536}, {1536, 17920}, {8960, 1536}}, kAffine4, {1, 8, 16});
  time_chain(timer, "Qwen2.5-1.5B layer, Q4_K", {{1536, 2048}, {1536, 1536}, {1536, 17920}, {8960, 1536}}, formats[6], {1, 8});
  time_chain(timer, "head 5120x248320, 4-bit", {{5120, 248320}}, kAffine4, {1, 8, 16});
}

void sweep_shape(Timer& timer, const PackedPart& part, int rows) {
  struct Result {
    double us;
    DecodePlan plan;
  };
  std::vector<Result> results;
  struct Build {
    int tiles, stages, ctas, warps;
  };
  const std::vector<Build> narrow = {{3, 2, 1, 12}, {2, 3, 1, 12}, {2, 2, 1, 12}, {2, 3, 1, 16}, {1, 3, 2, 16}, {3, 2, 2, 8}};
  const std::vector<Build> wide = {{2, 2, 1, 16}, {3, 2, 1, 12}, {2, 3, 1, 12}, {1, 3, 1, 16}};
  for (const Build& build : rows <= 8 ? narrow : wide) {
    for (const int cluster : {1, 2, 4}) {
      for (int slots = 1; slots <= 8; ++slots) {
        for (const int buffers : {1, 2}) {
          DecodePlan plan;
          plan.cluster = cluster, plan.slots = slots, plan.buffers = buffers;
          plan.tiles_at_once = build.tiles, plan.stages = build.stages, plan.ctas = build.ctas, plan.warps = build.warps;
          const double us = timer.time({part}, rows, {plan});
          if (us > 0) results.push_back({us, plan});
        }
      }
    }
  }
  std::sort(results.begin(), results.end(), [](const Result& a, const Result& b) { return a.us < b.us; });
  std::printf("%dx%d rows %d: default %.2f |", part.columns, part.rows, rows, timer.time({part}, rows, {}));
  for (std::size_t i = 0; i < std::min<std::size_t>(results.size(), 7); ++i) {
    const DecodePlan& plan = results[i].plan;
    std::printf(" %.2f (%d/SM W%d G%d S%d c%d s%d b%d)", results[i].us, plan.ctas, plan.warps, plan.tiles_at_once, plan.stages, plan.cluster,
                plan.slots, plan.buffers);
  }
  std::printf("\n");
  std::fflush(stdout);
}

void load_speed(BenchContext& context) {
  std::mt19937 random(7);
  using enum WeightFormat;
  for (const SampleFormat& format : {SampleFormat{kAffine, 4, 64, kBF16}, SampleFormat{kBF16}, SampleFormat{kQ4_K}, SampleFormat{kQ6_K},
                                     SampleFormat{kAffine, 8, 64, kBF16}}) {
    const std::int64_t columns = 5120, rows = 34816, sample_rows = 64;
    SampleMatrix sample = cpu::make_sample(format, 1, sample_rows, columns, random);
    const auto repeat = [&](std::vector<std::byte>& bytes) {
      const std::size_t once = bytes.size();
      bytes.resize(once * static_cast<std::size_t>(rows / sample_rows));
      for (std::size_t at = once; at < bytes.size(); at += once) std::memcpy(bytes.data() + at, bytes.data(), once);
    };
    repeat(sample.data), repeat(sample.scales), repeat(sample.biases);
    sample.view.rows = rows;
    sample.view.data = sample.data.data(), sample.view.data_bytes = sample.data.size();
    sample.view.scales = sample.scales.data(), sample.view.biases = sample.biases.data();
    double best = 1e9;
    std::size_t packed = 0;
    std::unique_ptr<Linear> keep;  // and with it the loader's threads and staging
    for (int i = 0; i < 3; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      auto layer = load_linear(context, source_of({&sample}, false));
      context.synchronise();
      best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
      packed = layer->packed_bytes();
      keep = std::move(layer);
    }
    const double file = static_cast<double>(sample.data.size() + sample.scales.size() + sample.biases.size());
    std::printf("load %-16s %.2f GB in %.3f s: %.2f GB/s, packed %.4f of the file\n", cpu::sample_format_name(format).c_str(),
                file / 1e9, best, file / best / 1e9, static_cast<double>(packed) / file);
  }
}

int run(int count, char** arguments) {
  const std::string mode = count > 1 ? arguments[1] : "check";
  BenchContext context;
  context.refuse_scratch();  // a layer of few rows needs none, so a pass plans none for it
  std::printf("%s, %d multiprocessors\n", context.gpu_name().c_str(), context.facts().sm_count);
  if (mode == "check") return check_all(context);
  if (mode == "small") return small(context);
  if (mode == "time") return time_all(context), 0;
  if (mode == "load") return load_speed(context), 0;
  if (mode == "sweep") {
    Timer timer(context);
    const std::vector<PackedPart> parts = chain_of({std::begin(kChain), std::end(kChain)}, kAffine4);
    timer.fill(parts.front());
    for (int i = 2; i < count; ++i) {
      for (const PackedPart& part : parts) sweep_shape(timer, part, std::atoi(arguments[i]));
    }
    return 0;
  }
  std::printf("cuda_linear check | small | time | sweep ROWS .. | load\n");
  return 2;
}

}  // namespace
}  // namespace tensorfold::ops::cuda::bench

int main(int count, char** arguments) {
  using namespace tensorfold::ops::cuda::bench;
  return guarded(stdout, [&] { return run(count, arguments); });
}
