// Times the CPU's linear layers by format and number of rows: packed bytes read per second, as a share of what plain
// reads reach on this machine, and arithmetic per second.
//
//   kernels_linear [--path avx2|avx512|avx512_bf16|amx|neon] [--threads N] [--outputs N] [--inputs K] [--format NAME]
//                        [--rows R] [--seconds S]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/bf16.h"
#include "base/error.h"
#include "ops/cpu/linear.h"
#include "ops/linear/sample_weights.h"

namespace tensorfold::ops::cpu {
namespace {

struct Options {
  CpuPath path = CpuPath::kAvx2;
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  std::int64_t outputs = 4096;
  std::int64_t inputs = 2048;
  std::int64_t rows = 0;  // 0: the usual list
  std::string format;
  double seconds = 0.3;
};

// Best time of one call, in seconds: the least disturbed run says most about a kernel.
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

double read_bandwidth(ThreadPool& pool, double seconds) {
  constexpr std::size_t kWords = 32u << 20;  // 256 MiB: no cache holds it
  constexpr std::int64_t kPieces = 256;
  const std::vector<std::uint64_t> memory(kWords, 1);
  std::vector<std::uint64_t> sums(kPieces);
  const double time = best_time(seconds, [&] {
    pool.parallel_for(kPieces, [&](std::int64_t piece, int) {
      const std::uint64_t* from = memory.data() + static_cast<std::size_t>(piece) * (kWords / kPieces);
      std::uint64_t sum[8] = {};
      for (std::size_t i = 0; i < kWords / kPieces; i += 8) {
        for (std::size_t j = 0; j < 8; ++j) sum[j] += from[i + j];
      }
      for (const std::uint64_t value : sum) sums[static_cast<std::size_t>(piece)] += value;
    });
  });
  return static_cast<double>(kWords * sizeof(std::uint64_t)) / time;
}

// Enough copies of the layer that a pass over all of them finds none in a cache, as in a model.
std::vector<std::unique_ptr<CpuLinear>> make_layers(const Options& options, const SampleFormat& format,
                                                    ThreadPool& pool) {
  constexpr std::size_t kWorkingSetBytes = 160u << 20;
  std::mt19937 random(1);
  const SampleMatrix sample = make_sample(format, 1, options.outputs, options.inputs, random);
  LinearSource source;
  source.name = sample.view.name;
  source.parts = {sample.view};
  std::vector<std::unique_ptr<CpuLinear>> layers;
  std::size_t bytes = 0;
  while (bytes < kWorkingSetBytes) {
    layers.push_back(pack_linear(source, options.path, pool));
    bytes += layers.back()->packed_bytes();
  }
  return layers;
}

void measure(const Options& options, const SampleFormat& format, ThreadPool& pool, double bandwidth) {
  const auto layers = make_layers(options, format, pool);
  std::vector<std::int64_t> row_counts = {1, 2, 4, 8, 16, 64, 512};
  if (options.rows > 0) row_counts = {options.rows};
  for (const std::int64_t rows : row_counts) {
    std::vector<Bf16> x(static_cast<std::size_t>(rows * options.inputs), to_bf16(0.5f));
    std::vector<float> y(static_cast<std::size_t>(rows * options.outputs));
    LinearParams params;
    params.x = reinterpret_cast<const Activation*>(x.data());
    params.rows = rows;
    params.y = y.data();
    params.y_stride = options.outputs;
    // Few rows: a pass over all layers; many rows: the weights' place no longer matters.
    const std::size_t count = rows <= 16 ? layers.size() : 1;
    const double time = best_time(options.seconds,
                                  [&] {
                                    for (std::size_t i = 0; i < count; ++i) {
                                      params.weight = layers[i].get();
                                      linear(pool, params);
                                    }
                                  }) /
                        static_cast<double>(count);
    const double read = static_cast<double>(layers[0]->packed_bytes()) / time;
    const double operations = 2.0 * static_cast<double>(rows * options.outputs * options.inputs) / time;
    std::printf("%-16s %5lld rows %10.1f us %7.2f GB/s %5.1f %% of reads %9.1f GFLOP/s\n",
                sample_format_name(format).c_str(), static_cast<long long>(rows), time * 1e6, read * 1e-9,
                100.0 * read / bandwidth, operations * 1e-9);
    std::fflush(stdout);
  }
}

void run(const Options& options) {
  ThreadPool pool(options.threads, set_compute_thread_mode);
  const double bandwidth = read_bandwidth(pool, options.seconds);
  std::printf("path %s, %d threads, [%lld, %lld], plain reads %.1f GB/s\n", cpu_path_name(options.path),
              options.threads, static_cast<long long>(options.outputs), static_cast<long long>(options.inputs),
              bandwidth * 1e-9);
  for (const SampleFormat& format : all_sample_formats()) {
    const std::string name = sample_format_name(format);
    if (!options.format.empty() && name.find(options.format) == std::string::npos) continue;
    if (options.inputs % sample_column_multiple(format) == 0) measure(options, format, pool, bandwidth);
  }
}

Options read_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    const char* value = argv[i + 1];
    if (flag == "--path") setenv("TENSORFOLD_CPU_PATH", value, 1);
    if (flag == "--threads") options.threads = std::atoi(value);
    if (flag == "--outputs") options.outputs = std::atoll(value);
    if (flag == "--inputs") options.inputs = std::atoll(value);
    if (flag == "--rows") options.rows = std::atoll(value);
    if (flag == "--format") options.format = value;
    if (flag == "--seconds") options.seconds = std::atof(value);
  }
  options.path = select_cpu_path();
  return options;
}

}  // namespace
}  // namespace tensorfold::ops::cpu

int main(int argc, char** argv) {
  try {
    tensorfold::ops::cpu::run(tensorfold::ops::cpu::read_options(argc, argv));
    return 0;
  } catch (const tensorfold::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
