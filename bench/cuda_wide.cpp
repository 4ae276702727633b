// The CUDA backend's wide linear kernels (windows of more than a decode window's rows, prompts): their bits against a literal
// one-row product on the device, then their times beside the card's limits.
//
//   cuda_wide check [quick]    bits: shapes, formats, row counts, plans; prints what differs
//   cuda_wide stress           the same launches many times
//   cuda_wide time [rows ...]  microseconds, dependent launches in a CUDA graph, weights rotated through memory
//   cuda_wide plans ROWS       times of every plan on the 27B's shapes
#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "cuda_harness.h"
#include "cuda_wide_reference.h"
#include "ops/cuda/linear/wide.h"

namespace tensorfold::ops::cuda::bench {
namespace {

struct Format {
  int bits = 4;
  ScaleKind kind = ScaleKind::kBf16Pair;
  int group = 64;
  bool small = true;
};

const char* kind_name(ScaleKind kind) {
  constexpr const char* kNames[] = {"values", "bf16", "fp16", "fp32", "half", "scale-min", "scale"};
  return kNames[static_cast<int>(kind)];
}

int scale_bytes(const Format& format) {
  const int groups = kBlockColumns / std::max(format.group, 1);
  switch (format.kind) {
    case ScaleKind::kNone:
      return 0;
    case ScaleKind::kFloatPair:
      return groups * 16 * 8;
    case ScaleKind::kHalf:
      return groups * 16 * 2;
    case ScaleKind::kScaleMin:
      return groups * 16 * 2 + 64;
    case ScaleKind::kScale:
      return groups * 16 + 32;
    default:
      return groups * 16 * 4;
  }
}

struct Shape {
  int columns = 0, rows = 0;
  bool tree = false, paired = false;
};

PackedPart describe(const Shape& shape, const Format& format) {
  PackedPart part;
  part.bits = format.bits;
  part.scale_kind = format.kind;
  part.group_size = format.group;
  while (format.group > 1 << part.group_shift) ++part.group_shift;
  part.zero_point = format.kind == ScaleKind::kHalf ? 1 << (format.bits - 1) : 0;
  part.small_scales = format.small;
  part.block_bytes = 256 * format.bits + scale_bytes(format);
  part.rows = shape.rows;
  part.tiles = (shape.rows + kTileRows - 1) / kTileRows;
  part.columns = shape.columns;
  part.k_blocks = (shape.columns + kBlockColumns - 1) / kBlockColumns;
  part.segment_blocks = segment_length(shape.columns) / kBlockColumns;
  part.segments = (part.k_blocks + part.segment_blocks - 1) / part.segment_blocks;
  part.segment_tree = shape.tree;
  part.paired_halves = shape.paired;
  return part;
}

std::int64_t part_blocks(const PackedPart& part) {
  return static_cast<std::int64_t>(part.tiles) * part.k_blocks;
}
std::int64_t part_bytes(const PackedPart& part) {
  return part_blocks(part) * part.block_bytes;
}

std::string plan_name(const WidePlan& plan) {
  constexpr const char* kModes[] = {"sequential", "tree", "split"};
  return std::string(kModes[static_cast<int>(plan.mode)]) + " n" + std::to_string(plan.tokens) + " x" + std::to_string(plan.groups) +
         " cluster " + std::to_string(plan.cluster) + " grid " + std::to_string(plan.grid) + " ring " + std::to_string(plan.stages);
}

// --- bits ------------------------------------------------------------------------------------------------------------

class Checker {
 public:
  explicit Checker(BenchContext& context) : context_(context), difference_(1) {}

  struct Case {
    Shape shape;
    Format format;
    std::vector<int> row_counts;
    int repeats = 1;
    bool every_plan = false, bias = false, accumulate = false, strided = false, gathered = false, poisoned_neighbour = false,
         gated = false;
  };

  void run(const Case& c) {
    PackedPart part = describe(c.shape, c.format);
    DeviceArray<std::uint8_t> blocks(part_bytes(part));
    part.blocks = blocks.data();
    fill_blocks(part, part_blocks(part), seed_++, context_.stream());
    DeviceArray<float> bias(part.rows);
    fill_floats(bias.data(), part.rows, seed_++, context_.stream());
    if (c.bias) part.bias = bias.data();
    part.first_row = c.strided ? 3 : 0;
    const std::int64_t stride = c.strided ? part.rows + 8 : part.rows;
    const int most = *std::max_element(c.row_counts.begin(), c.row_counts.end());
    x_rows_ = c.gathered ? most + 5 : most;
    DeviceArray<std::uint16_t> x(static_cast<std::int64_t>(x_rows_) * part.columns);
    fill_activations(x.data(), x.count(), seed_++, context_.stream());
    if (c.poisoned_neighbour) {
      check(cudaMemsetAsync(x.data() + static_cast<std::int64_t>(kPoisonedRow) * part.columns, 0xff,
                            static_cast<std::size_t>(part.columns) * 2, context_.stream()),
            "poisoning a row");
    }
    DeviceArray<float> expected(most * stride), got(most * stride), before(most * stride);
    for (const int rows : c.row_counts) {
      std::vector<std::int32_t> sample;
      const int step = std::max(1, rows / 24);
      for (int row = 0; row < rows; row += step) sample.push_back(row);
      if (sample.back() != rows - 1) sample.push_back(rows - 1);
      if (c.poisoned_neighbour) std::erase(sample, kPoisonedRow);
      const DeviceArray<std::int32_t> rows_list(sample);
      if (c.accumulate) {
        fill_floats(before.data(), before.count(), 5, context_.stream());
      } else {
        before.fill(0xff, context_.stream());
      }
      expected.copy_from(before, context_.stream());
      const std::uint16_t* input = x.data();
      DeviceArray<std::uint16_t> gathered(c.gathered ? static_cast<std::int64_t>(rows) * part.columns : 0);
      LinearCall call;
      call.x = x.data(), call.rows = rows, call.y = got.data(), call.y_stride = stride, call.accumulate = c.accumulate;
      if (c.gathered) {
        call.row_index = gather(rows, part.columns, x.data(), gathered.data());
        input = gathered.data();
      }
      literal_product(part, input, rows_list.data(), static_cast<int>(sample.size()), expected.data(), stride, c.accumulate,
                      context_.stream());
      std::int64_t compared = stride;
      if (c.gated) {
        const std::int64_t width = part.rows / 2;
        DeviceArray<float> sums(expected.count());
        sums.copy_from(expected, context_.stream());
        expected.copy_from(before, context_.stream());
        literal_gate(sums.data(), stride, rows_list.data(), static_cast<int>(sample.size()), width, ActivationKind::kSilu,
                     expected.data(), context_.stream());
        context_.synchronise("the literal gate");
        call.gated = got.data();
        call.kind = ActivationKind::kSilu;
        compared = width / 2;  // pairs of bf16, as if they were floats
      }
      for (const WidePlan& plan : plans(part, rows, c.every_plan)) {
        for (int repeat = 0; repeat < c.repeats; ++repeat) {
          got.copy_from(before, context_.stream());
          run_wide_plan(context_, part, call, plan);
          judge(part, c, rows, plan, got, expected, rows_list, compared);
        }
      }
    }
  }

  int finish() const {
    std::printf("bits: %d calls, %llu differing elements, %d calls differ\n", calls_, total_, bad_);
    return bad_ == 0 && calls_ > 0 ? 0 : 1;
  }

 private:
  static constexpr int kPoisonedRow = 2;

  /// A list by which row r reads x row (7·r + 3) mod the rows there are, and the rows that it reads.
  IdsRef gather(int rows, int columns, const std::uint16_t* x, std::uint16_t* gathered) {
    std::vector<std::int32_t> list;
    for (int row = 0; row < rows; ++row) {
      const int from = (7 * row + 3) % x_rows_;
      list.push_back(from);
      check(cudaMemcpyAsync(gathered + static_cast<std::int64_t>(row) * columns, x + static_cast<std::int64_t>(from) * columns,
                            static_cast<std::size_t>(columns) * 2, cudaMemcpyDeviceToDevice, context_.stream()),
            "gathering");
    }
    return context_.ids(list.data(), rows);
  }

  std::vector<WidePlan> plans(const PackedPart& part, int rows, bool every) {
    std::vector<WidePlan> list;
    WidePlan chosen;
    if (choose_wide_plan(context_.facts(), part, rows, chosen)) list.push_back(chosen);
    if (!every) return list;
    for (const SumMode mode : {SumMode::kSequential, SumMode::kTree, SumMode::kSplit}) {
      if (mode == (part.segment_tree ? SumMode::kSequential : SumMode::kTree)) continue;
      for (const int tokens : {32, 64, 128, 192}) {
        if (tokens == 192 && mode != SumMode::kSequential) continue;
        if (tokens < 128 && mode == SumMode::kTree) continue;
        for (int i = 2; i <= 11; ++i) {
          WidePlan plan;
          plan.mode = mode, plan.tokens = tokens, plan.groups = i / 2, plan.cluster = 1 + i % 2;
          if (complete_wide_plan(context_.facts(), part, rows, plan)) list.push_back(plan);
        }
      }
    }
    return list;
  }

  void judge(const PackedPart& part, const Case& c, int rows, const WidePlan& plan, const DeviceArray<float>& got,
             const DeviceArray<float>& expected, const DeviceArray<std::int32_t>& sample, std::int64_t stride) {
    difference_.fill(0, context_.stream());
    count_differences(got.data(), stride, expected.data(), stride, sample.data(), static_cast<int>(sample.count()), stride,
                      difference_.data(), context_.stream());
    context_.synchronise("running the kernels");
    const Difference found = difference_.download().front();
    const bool zero = context_.counters_are_zero();
    ++calls_;
    total_ += found.count;
    if (found.count == 0 && zero) return;
    if (++bad_ <= 12) {
      std::printf("  K %d N %d%s%s, %d bits %s g%d, %d rows, %s: %llu differ, first at row %lld column %lld%s\n", part.columns,
                  part.rows, part.segment_tree ? " tree" : "", part.paired_halves ? " paired" : "", part.bits,
                  kind_name(c.format.kind), c.format.group, rows, plan_name(plan).c_str(), found.count, found.first / stride,
                  found.first % stride, zero ? "" : ", COUNTERS NOT ZERO");
      describe_differences(got, expected, sample, stride);
    }
  }

  // Per row of the sample: how many columns differ, from where to where, and one pair of values.
  void describe_differences(const DeviceArray<float>& got, const DeviceArray<float>& expected,
                            const DeviceArray<std::int32_t>& sample, std::int64_t stride) {
    const std::vector<float> a = got.download(), b = expected.download();
    int shown = 0;
    for (const std::int32_t row : sample.download()) {
      int count = 0;
      std::int64_t first = 0, last = 0;
      for (std::int64_t column = 0; column < stride; ++column) {
        const auto at = static_cast<std::size_t>(row * stride + column);
        if (std::memcmp(&a[at], &b[at], 4) == 0) continue;
        if (count++ == 0) first = column;
        last = column;
      }
      if (count == 0 || ++shown > 4) continue;
      const auto at = static_cast<std::size_t>(row * stride + first);
      std::printf("    row %d: %d columns of %lld to %lld; got %g, expected %g\n", row, count, static_cast<long long>(first),
                  static_cast<long long>(last), static_cast<double>(a[at]), static_cast<double>(b[at]));
    }
  }

  BenchContext& context_;
  DeviceArray<Difference> difference_;
  std::uint32_t seed_ = 1;
  int x_rows_ = 0, calls_ = 0, bad_ = 0;
  unsigned long long total_ = 0;
};

constexpr Shape k27bLayer[] = {{5120, 14336, false, false}, {6144, 5120, true, false}, {5120, 34816, false, true}, {17408, 5120, true, false}};

// Launches that each read what the one before wrote, as a graph with programmatic dependent launch, against the same
// launches one by one. How many of them differ.
int check_chains(BenchContext& context) {
  int differing = 0, runs = 0;
  for (const int rows : {20, 64, 128, 300}) {
    for (const bool tree : {false, true}) {
      constexpr int kLayers = 8;
      const Shape shape{2048, 2048, tree, false};
      std::vector<PackedPart> parts;
      PackedPart part = describe(shape, {});
      DeviceArray<std::uint8_t> blocks(kLayers * part_bytes(part));
      for (int i = 0; i < kLayers; ++i) {
        part.blocks = blocks.data() + i * part_bytes(part);
        fill_blocks(part, part_blocks(part), static_cast<std::uint32_t>(40 + i), context.stream());
        parts.push_back(part);
      }
      const std::int64_t count = static_cast<std::int64_t>(rows) * shape.columns;
      DeviceArray<std::uint16_t> start(count), x(count);
      DeviceArray<float> y(count);
      fill_activations(start.data(), count, 3, context.stream());
      const auto layers = [&](bool waits) {
        x.copy_from(start, context.stream());
        for (const PackedPart& layer : parts) {
          LinearCall call;
          call.x = x.data(), call.rows = rows, call.y = y.data(), call.y_stride = shape.rows;
          if (!wide_linear(context, layer, call)) fail(ErrorCode::kInternal, "no plan");
          if (waits) context.synchronise("a layer");
          to_activations(y.data(), shape.rows, x.data(), rows, shape.columns, 0.5f, context.stream());
          if (waits) context.synchronise("rounding");
        }
      };
      const auto result = [&] {
        context.synchronise("a chain");
        std::vector<std::uint32_t> bits;
        for (const float value : y.download()) bits.push_back(std::bit_cast<std::uint32_t>(value));
        return bits;
      };
      layers(true);
      const auto expected = result();
      CapturedGraph graph(context, [&] { layers(false); });
      for (int repeat = 0; repeat < 12; ++repeat) {
        graph.replay();
        differing += result() != expected;
        ++runs;
      }
    }
  }
  std::printf("chains of 8 dependent layers: %d of %d graph runs differ from the layers one by one\n", differing, runs);
  return differing;
}

// The same launches over and over: what is wrong once in a thousand times.
int check_stress(BenchContext& context) {
  Checker checker(context);
  using enum ScaleKind;
  const Format four, values{16, kNone, 0, false}, eight{8, kBf16Pair, 64, false};
  for (const Format& format : {values, four, eight}) {
    checker.run({{1664, 2056, true, false}, format, {20, 64, 150}, 250, true});
    checker.run({{1536, 2056, false, false}, format, {20, 64, 150}, 250, true});
  }
  return checker.finish();
}

int check_bits(BenchContext& context, bool quick) {
  Checker checker(context);
  const Format four;
  if (quick) {
    checker.run({{1536, 512, false, true}, four, {17, 70, 200}, 1, true});
    checker.run({{1536, 200, true, false}, four, {40, 129}, 1, true});
    checker.run({{576, 320}, {6, ScaleKind::kScale, 16, false}, {33}});
    checker.run({{576, 320}, {16, ScaleKind::kNone, 0, false}, {33, 200}});
    return checker.finish();
  }
  for (const Shape& shape : k27bLayer) checker.run({shape, four, {17, 32, 33, 64, 65, 128, 129, 300}});
  checker.run({{5120, 34816, false, true}, four, {64, 2048}, 1, true});
  checker.run({{6144, 5120, true, false}, four, {64, 500, 2048}, 1, true});
  // Odd shapes, every plan.
  for (const bool tree : {false, true}) {
    for (const int columns : {8, 136, 576, 1000, 1536, 5128, 17408}) {
      for (const int rows : {1, 40, 1000, 4104}) checker.run({{columns, rows, tree, false}, four, {9, 47, 130}, 1, columns <= 1536});
    }
  }
  checker.run({{1536, 1008, false, true}, four, {50, 128, 400}, 1, true, true, true, true, true, false});
  checker.run({{1536, 1024, false, true}, four, {50, 128, 400}, 1, true, true, false, false, true, false, true});
  checker.run({{3072, 1024, true, true}, four, {50, 128, 400}, 1, true, true, false, false, false, true, true});
  checker.run({{3072, 1000, true, false}, four, {50, 128, 400}, 1, true, true, true, true, true, false});
  checker.run({{3072, 1000, true, false}, four, {40, 100, 200}, 1, true, false, false, false, false, true});
  using enum ScaleKind;
  std::vector<Format> formats;
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    for (const int group : {32, 64, 128}) {
      for (const ScaleKind kind : {kBf16Pair, kHalfPair, kFloatPair}) formats.push_back({bits, kind, group, false});
    }
    if (bits == 4 || bits == 5) formats.push_back({bits, kScaleMin, 32, false});
    if (bits == 4 || bits == 5 || bits == 8) formats.push_back({bits, kHalf, 32, false});
  }
  formats.push_back({4, kBf16Pair, 128, true});
  formats.push_back({6, kScale, 16, false});
  formats.push_back({16, kNone, 0, false});
  for (const Format& format : formats) {
    checker.run({{1536, 320, false, false}, format, {20, 64, 100, 150, 400}});
    checker.run({{1664, 2056, true, false}, format, {20, 64, 150}});
  }
  const int status = checker.finish();
  return check_chains(context) == 0 ? status : 1;
}

// --- times -----------------------------------------------------------------------------------------------------------

struct Launch {
  Shape shape;
  WidePlan plan;
};

class Timer {
 public:
  explicit Timer(BenchContext& context)
      : context_(context), arena_(kArenaBytes), x_(static_cast<std::int64_t>(kRowsMax) * 17408), y_(static_cast<std::int64_t>(kRowsMax) * 34816) {
    PackedPart part = describe({5120, 16}, {});
    part.blocks = arena_.data();
    fill_blocks(part, kArenaBytes / part.block_bytes, 9, context_.stream());
    fill_activations(x_.data(), x_.count(), 5, context_.stream());
  }

  /// Microseconds of one pass over `sequence`: the median of several replays of a graph that holds many, each with weights
  /// of its own.
  double microseconds(const std::vector<Launch>& sequence, int rows) {
    std::int64_t bytes = 0;
    for (const Launch& launch : sequence) bytes += part_bytes(describe(launch.shape, {}));
    const int copies = static_cast<int>(std::clamp<std::int64_t>(kArenaBytes / bytes, 1, rows > 128 ? 4 : 20));
    queue(sequence, rows, 1);  // scratch memory grows here
    context_.synchronise();
    return CapturedGraph(context_, [&] { queue(sequence, rows, copies); }).microseconds(7) / copies;
  }

  Launch chosen(const Shape& shape, int rows) {
    Launch launch{shape, {}};
    if (!choose_wide_plan(context_.facts(), describe(shape, {}), rows, launch.plan)) fail(ErrorCode::kInternal, "no plan");
    return launch;
  }

  static double floor_microseconds(const Shape& shape, int rows) {
    return std::max(static_cast<double>(part_bytes(describe(shape, {}))) / kMemoryBytesPerMicrosecond,
                    2.0 * rows * shape.columns * shape.rows / kFlopsPerMicrosecond);
  }

 private:
  static constexpr std::int64_t kArenaBytes = 2ll << 30;
  static constexpr int kRowsMax = 2048;

  void queue(const std::vector<Launch>& sequence, int rows, int copies) {
    std::int64_t used = 0;
    for (int copy = 0; copy < copies; ++copy) {
      for (const Launch& launch : sequence) {
        PackedPart part = describe(launch.shape, {});
        if (used + part_bytes(part) > kArenaBytes) used = 0;
        part.blocks = arena_.data() + used;
        used += part_bytes(part);
        LinearCall call;
        call.x = x_.data(), call.rows = rows, call.y = y_.data(), call.y_stride = launch.shape.rows;
        run_wide_plan(context_, part, call, launch.plan);
      }
    }
  }

  BenchContext& context_;
  DeviceArray<std::uint8_t> arena_;
  DeviceArray<std::uint16_t> x_;
  DeviceArray<float> y_;
};

void time_rows(Timer& timer, int rows) {
  std::vector<Launch> layer;
  double layer_floor = 0, layer_flops = 0;
  const auto report = [&](const char* name, double us, double floor, double flops, const std::string& plan) {
    std::printf("%4d rows  %-12s %8.2f us, floor %7.2f, %3.0f %%  %4.0f TFLOP/s  %s\n", rows, name, us, floor, 100 * floor / us,
                flops / us / 1e6, plan.c_str());
  };
  for (const Shape& shape : k27bLayer) {
    const Launch launch = timer.chosen(shape, rows);
    const double floor = Timer::floor_microseconds(shape, rows), flops = 2.0 * rows * shape.columns * shape.rows;
    const std::string name = std::to_string(shape.columns) + "x" + std::to_string(shape.rows);
    report(name.c_str(), timer.microseconds({launch}, rows), floor, flops, plan_name(launch.plan));
    layer.push_back(launch);
    layer_floor += floor;
    layer_flops += flops;
  }
  report("layer", timer.microseconds(layer, rows), layer_floor, layer_flops, "");
}

// The fastest plans of each shape, and the one that would be chosen.
void time_plans(BenchContext& context, Timer& timer, int rows) {
  for (const Shape& shape : k27bLayer) {
    struct Timed {
      double us;
      WidePlan plan;
    };
    std::vector<Timed> timed;
    for (const SumMode mode : {shape.tree ? SumMode::kTree : SumMode::kSequential, SumMode::kSplit}) {
      for (const int tokens : {32, 64, 128, 192}) {
        if (tokens == 192 && (mode != SumMode::kSequential || rows <= 128)) continue;
        if (tokens < 128 && (mode == SumMode::kTree || rows > tokens)) continue;
        if (tokens / 2 >= rows && tokens > 32 && mode != SumMode::kTree) continue;
        for (int i = 2; i <= 11; ++i) {
          Launch launch{shape, {}};
          launch.plan.mode = mode, launch.plan.tokens = tokens, launch.plan.groups = i / 2, launch.plan.cluster = 1 + i % 2;
          const PackedPart part = describe(shape, {});
          if (!complete_wide_plan(context.facts(), part, rows, launch.plan)) continue;
          timed.push_back({timer.microseconds({launch}, rows), launch.plan});
        }
      }
    }
    std::sort(timed.begin(), timed.end(), [](const Timed& a, const Timed& b) { return a.us < b.us; });
    const WidePlan chosen = timer.chosen(shape, rows).plan;
    for (std::size_t i = 0; i < timed.size(); ++i) {
      const bool is_chosen = plan_name(timed[i].plan) == plan_name(chosen);
      if (i >= 4 && !is_chosen) continue;
      std::printf("%d rows %dx%d %s: %.1f us, %.2f floors, estimated %.1f%s\n", rows, shape.columns, shape.rows,
                  plan_name(timed[i].plan).c_str(), timed[i].us, timed[i].us / Timer::floor_microseconds(shape, rows),
                  timed[i].plan.cost / 1755, is_chosen ? " CHOSEN" : "");
    }
  }
}

int run(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  BenchContext context;
  std::printf("%s, %d multiprocessors, %d bytes of shared memory\n", context.gpu_name().c_str(),
              context.facts().sm_count, context.facts().shared_bytes_max);
  if (what == "check") return check_bits(context, argc > 2 && std::string(argv[2]) == "quick");
  if (what == "stress") return check_stress(context);
  Timer timer(context);
  std::vector<int> rows;
  for (int i = 2; i < argc; ++i) rows.push_back(std::atoi(argv[i]));
  if (rows.empty()) rows = {16, 32, 64, 128, 256, 512, 1024, 2048};
  if (what == "time") {
    for (const int count : rows) time_rows(timer, count);
  } else if (what == "plans") {
    for (const int count : rows) time_plans(context, timer, count);
  } else {
    std::fprintf(stderr, "cuda_wide check [quick] | stress | time [rows ...] | plans ROWS ...\n");
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace tensorfold::ops::cuda::bench

int main(int argc, char** argv) {
  using namespace tensorfold::ops::cuda::bench;
  return guarded(stderr, [&] { return run(argc, argv); });
}
