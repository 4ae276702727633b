// Attention on CUDA, alone: its bits (cuda_attention_checks.cpp), then its speed.
//
//   cuda_attention bits | quick | trees | time | prompts
//
// Times are medians of replays of a graph of launches, each with page tables of its own, so that keys and values come from
// memory: microseconds with the fold, TB/s of keys and values, per cent of 4.54 TB/s (what this GPU reads). Prompts:
// TFLOP/s of the causal half.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>

#include "cuda_attention_world.h"
#include "ops/cuda/attention/page_layout.h"

namespace tensorfold::ops::cuda::bench {
namespace {

constexpr std::size_t kPoolBytes = 10ull << 30;
constexpr std::size_t kRowsMax = 8192;

struct TimedPool {
  DeviceArray<std::byte> pages{kPoolBytes};
  DeviceArray<std::uint16_t> q{kRowsMax * 8192}, out{kRowsMax * 8192};
};

/// `bytes` of `values` over and over.
void fill_repeating(void* memory, std::size_t bytes, const std::vector<std::uint16_t>& values) {
  const std::size_t once = values.size() * 2;
  check(cudaMemcpy(memory, values.data(), once, cudaMemcpyHostToDevice), "filling");
  auto* to = static_cast<std::byte*>(memory);
  for (std::size_t at = once; at < bytes; at += once) {
    check(cudaMemcpy(to + at, memory, std::min(once, bytes - at), cudaMemcpyDeviceToDevice), "filling");
  }
  check(cudaStreamSynchronize(nullptr), "filling");
}

TimedPool make_pool() {
  TimedPool pool;
  std::vector<std::uint16_t> values(32u << 20);
  std::uint32_t state = 1;
  for (auto& value : values) {
    state = state * 1664525u + 1013904223u;
    const float x = static_cast<float>(state >> 8) / 8388608.0f - 1.0f;
    std::uint32_t bits;
    std::memcpy(&bits, &x, 4);
    value = static_cast<std::uint16_t>(bits >> 16);
  }
  fill_repeating(pool.pages.data(), pool.pages.bytes(), values);
  fill_repeating(pool.q.data(), pool.q.bytes(), values);
  return pool;
}

class Timing {
 public:
  Timing(BenchContext& context, const TimedPool& pool, const AttentionShape& shape)
      : context_(context), pool_(pool), shape_(shape), page_bytes_(kv_page_bytes({shape.kv_heads, shape.head_dim})) {
    page_count_ = static_cast<int>(kPoolBytes / page_bytes_);
    order_.resize(static_cast<std::size_t>(page_count_));
    std::iota(order_.begin(), order_.end(), 0);
    std::shuffle(order_.begin(), order_.end(), std::mt19937(5));
  }

  /// Median microseconds of one call; 0 when the pool can't hold it.
  double microseconds(int lanes, int context, int rows) {
    const int pages = (context + rows + kTileKeys - 1) / kTileKeys;
    const int need = lanes * pages;
    if (need > page_count_) return 0.0;
    const int copies = std::min(16, page_count_ / need);
    const int calls = std::max(copies, 4);
    std::vector<std::vector<std::int32_t>> tables;
    std::vector<std::vector<LaneSpan>> spans(static_cast<std::size_t>(copies));
    for (int i = 0; i < copies * lanes; ++i) {
      tables.emplace_back(order_.begin() + i * pages, order_.begin() + (i + 1) * pages);
    }
    for (int copy = 0; copy < copies; ++copy) {
      auto& mine = spans[static_cast<std::size_t>(copy)];
      for (int lane = 0; lane < lanes; ++lane) {
        LaneSpan span;
        span.slot = lane + 1;
        span.first_row = lane * rows;
        span.row_count = rows;
        span.position = context;
        span.pages = tables[static_cast<std::size_t>(copy * lanes + lane)].data();
        mine.push_back(span);
      }
      context_.keep_lanes(mine.data(), lanes, shape_.window);
    }
    const auto call = [&](int index) {
      const auto& mine = spans[static_cast<std::size_t>(index % copies)];
      AttentionParams p;
      p.geometry = {shape_.kv_heads, shape_.head_dim};
      p.heads = shape_.heads;
      p.q = reinterpret_cast<const Activation*>(pool_.q.data());
      p.pool = {pool_.pages.data(), page_bytes_, nullptr, 0};
      p.lanes = mine.data();
      p.lane_count = lanes;
      p.scale = 0.0625f;
      p.window = shape_.window;
      p.out = reinterpret_cast<Activation*>(pool_.out.data());
      attention(context_, p);
    };
    for (int i = 0; i < copies; ++i) call(i);
    CapturedGraph graph(context_, [&] {
      for (int i = 0; i < calls; ++i) call(i);
    });
    const double result = graph.microseconds(5) / calls;
    context_.forget_lanes();
    return result;
  }

  const AttentionShape& shape() const { return shape_; }
  double kv_bytes_per_key() const { return 4.0 * shape_.kv_heads * shape_.head_dim; }

 private:
  BenchContext& context_;
  const TimedPool& pool_;
  AttentionShape shape_;
  std::size_t page_bytes_;
  int page_count_;
  std::vector<std::int32_t> order_;
};

void print_window(Timing& timing, int lanes, int context, int rows, const char* kernel) {
  const double time = timing.microseconds(lanes, context, rows);
  if (time == 0.0) return;
  const double keys = timing.shape().window > 0 ? std::min(context, timing.shape().window) : context;
  const double rate = lanes * (keys + rows) * timing.kv_bytes_per_key() / time / 1e6;
  std::printf(" %s %.1f us %.2f (%.0f%%)", kernel, time, rate, rate / 4.54 * 100.0);
  std::fflush(stdout);
}

}  // namespace

void time_attention(BenchContext& context, bool prompts) {
  const TimedPool pool = make_pool();
  for (const AttentionShape& shape : {AttentionShape{24, 4, 256}, AttentionShape{32, 8, 128}, AttentionShape{9, 3, 64}, AttentionShape{4, 1, 256}}) {
    Timing timing(context, pool, shape);
    std::printf("%d/%d/%d\n", shape.heads, shape.kv_heads, shape.head_dim);
    for (int rows : {2048, 8192}) {
      for (const bool hopper : {true, false}) {
        if (!hopper && rows > 2048) continue;
        context.use_hopper_paths(hopper);
        const double time = timing.microseconds(1, 0, rows);
        std::printf(" prompt %d %s %.3f ms %.0f TFLOP/s;", rows, hopper ? "hopper" : "mma", time / 1000.0,
                    2.0 * shape.heads * shape.head_dim * static_cast<double>(rows) * rows / time / 1e6);
      }
    }
    std::printf("\n");
    if (prompts) continue;
    for (const int keys : {2048, 32768, 131072}) {
      for (const int lanes : {1, 8, 64}) {
        if (keys == 131072 && lanes == 64) continue;
        for (const int rows : {1, 4, 8, 16}) {
          if (shape.head_dim != 256 && rows == 4) continue;
          if (keys == 131072 && rows != 1 && rows != 16) continue;
          std::printf(" %dk x %d, w=%d:", keys / 1024, lanes, rows);
          for (const bool hopper : {false, true}) {
            context.use_hopper_paths(hopper);
            print_window(timing, lanes, keys - 1, rows, hopper ? "hopper" : "mma");
          }
          std::printf("\n");
        }
      }
    }
  }
}

namespace {

int run(int count, char** arguments) {
  const std::string what = count > 1 ? arguments[1] : "bits";
  BenchContext context;
  if (what == "bits" || what == "quick") {
    const long wrong = check_attention(context, what == "quick");
    std::printf("%ld wrong\n", wrong);
    return wrong == 0 ? 0 : 1;
  }
  if (what == "trees") return check_attention_trees(context) == 0 ? 0 : 1;
  time_attention(context, what == "prompts");
  return 0;
}

}  // namespace
}  // namespace tensorfold::ops::cuda::bench

int main(int count, char** arguments) {
  using namespace tensorfold::ops::cuda::bench;
  return guarded(stderr, [&] { return run(count, arguments); });
}
