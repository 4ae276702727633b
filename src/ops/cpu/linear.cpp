// Running linear layers: x is packed once a call, then (part, panels, rows) tasks go to the path's kernels. How the
// work is cut depends on the number of threads; what a task computes doesn't, so neither do the bits.
#include "ops/cpu/linear.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#include "base/error.h"

namespace tensorfold::ops::cpu {
namespace {

// Grows and never shrinks: one a thread, as large as the largest layer that it has met.
class AlignedBuffer {
 public:
  ~AlignedBuffer() { std::free(data_); }
  AlignedBuffer() = default;
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;

  std::byte* at_least(std::size_t bytes) {
    if (bytes > bytes_) {
      std::free(data_);
      bytes_ = (bytes + 4095) / 4096 * 4096;
      data_ = static_cast<std::byte*>(std::aligned_alloc(4096, bytes_));
      if (data_ == nullptr) {
        bytes_ = 0;
        throw std::bad_alloc();
      }
    }
    return data_;
  }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

const LinearKernels& kernels_of(CpuPath path) {
#if defined(__x86_64__)
  switch (path) {
    case CpuPath::kAvx512:
      return avx512::kLinearKernels;
    case CpuPath::kAvx512Bf16:
      return avx512_bf16::kLinearKernels;
    case CpuPath::kAmx:
      return amx::kLinearKernels;
    default:
      return avx2::kLinearKernels;
  }
#else
  static_cast<void>(path);
  return neon::kLinearKernels;
#endif
}

struct Job {
  const Bf16* x;
  const std::int32_t* row_index;
  std::int64_t rows;
  std::int64_t expert;
  float* y;
  // Filled by plan():
  const LinearKernels* kernels;
  std::size_t x_offset;
  std::int64_t first_x_unit, first_task;
  std::int64_t panels_per_task, row_splits;
};

std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

std::int64_t panel_groups(const CpuLinear& weight, std::int64_t panels_per_task) {
  std::int64_t groups = 0;
  for (const PackedPart& part : weight.parts()) groups += divide_up(part.panels, panels_per_task);
  return groups;
}

// A few tasks a thread even out; more would only cost. With too few panels for that, rows are cut as well.
void cut(const CpuLinear& weight, Job& job, std::int64_t threads, std::int64_t jobs, std::size_t x_bytes) {
  constexpr std::int64_t kTasksPerThread = 6;
  // With few rows a task is bound by memory and has to fill its prefetch and decode pipeline anew: fewer, longer ones
  // (SmolLM2, two threads: 10.0 ms a token with 6, 6.9 ms with 2).
  constexpr std::int64_t kTasksPerThreadOfFewRows = 2;
  constexpr std::int64_t kMaxPanelsOfFewRows = 64;
  constexpr std::int64_t kMinUnitsPerSplit = 4;
  const bool few_rows = job.rows <= job.kernels->few_rows;
  const std::int64_t wanted = divide_up(threads * (few_rows ? kTasksPerThreadOfFewRows : kTasksPerThread), jobs);
  const std::int64_t at_once = job.kernels->panels_per_task;
  job.row_splits = 1;
  if (few_rows) {
    std::int64_t panels = 0;
    for (const PackedPart& part : weight.parts()) panels += part.panels;
    const std::int64_t share = std::clamp<std::int64_t>(panels / wanted, 1, kMaxPanelsOfFewRows);
    job.panels_per_task = share > at_once ? share / at_once * at_once : share;
    return;
  }
  job.panels_per_task = at_once;
  const std::int64_t groups = panel_groups(weight, job.panels_per_task);
  const std::int64_t units = job.kernels->x_units(job.rows);
  const std::int64_t most_splits = std::max<std::int64_t>(1, units / kMinUnitsPerSplit);
  if (groups < wanted) job.row_splits = std::min(most_splits, divide_up(wanted, groups));
  if (job.kernels->x_cache_bytes != 0) {
    const auto slices = static_cast<std::int64_t>(x_bytes / job.kernels->x_cache_bytes) + 1;
    job.row_splits = std::max(job.row_splits, std::min(most_splits, slices));
  }
}

LinearTask make_task(const CpuLinear& weight, const Job& job, std::int64_t index, std::int64_t y_stride,
                     bool accumulate) {
  // Neighbouring tasks read the same rows of x, which are then in the cache.
  const std::int64_t groups_of_split = panel_groups(weight, job.panels_per_task);
  std::int64_t group = index % groups_of_split;
  const std::int64_t split = index / groups_of_split;
  const PackedPart* part = nullptr;
  for (const PackedPart& candidate : weight.parts()) {
    part = &candidate;
    const std::int64_t groups = divide_up(candidate.panels, job.panels_per_task);
    if (group < groups) break;
    group -= groups;
  }
  const std::int64_t first = group * job.panels_per_task;
  const std::int64_t count = std::min(job.panels_per_task, part->panels - first);
  const std::int64_t first_row = part->first_row + first * kPanelRows;
  const std::int64_t units = job.kernels->x_units(job.rows);
  LinearTask task;
  task.layout = part->layout;
  task.panels = part->data() + (job.expert * part->panels + first) * part->layout.panel_bytes;
  task.panel_count = static_cast<int>(count);
  task.last_panel_rows =
      static_cast<int>(std::min<std::int64_t>(kPanelRows, part->rows - (first + count - 1) * kPanelRows));
  task.decode_in_default_mode = part->decode_in_default_mode;
  task.rows = job.rows;
  task.first_unit = units * split / job.row_splits;
  task.unit_count = units * (split + 1) / job.row_splits - task.first_unit;
  task.y = job.y + first_row;
  task.y_stride = y_stride;
  task.bias = weight.bias().empty() ? nullptr : weight.bias().data() + first_row;
  task.accumulate = accumulate;
  return task;
}

std::size_t find_job(std::span<const Job> jobs, std::int64_t index, std::int64_t Job::*first) {
  const auto after = std::upper_bound(jobs.begin(), jobs.end(), index,
                                      [&](std::int64_t value, const Job& job) { return value < job.*first; });
  return static_cast<std::size_t>(after - jobs.begin()) - 1;
}

void run_jobs(ThreadPool& pool, const CpuLinear& weight, std::span<Job> jobs, std::int64_t y_stride, bool accumulate) {
  constexpr std::int64_t kInlinePackElements = 16384;
  thread_local AlignedBuffer x_buffer;
  const std::int64_t blocks = divide_up(weight.columns(), kBlockColumns);
  std::size_t x_bytes = 0;
  std::int64_t x_units = 0;
  std::int64_t tasks = 0;
  std::int64_t rows = 0;
  for (Job& job : jobs) {
    job.kernels = &kernels_of(weight.path());
    job.x_offset = x_bytes;
    job.first_x_unit = x_units;
    job.first_task = tasks;
    const std::size_t job_x_bytes = job.kernels->packed_x_bytes(job.rows, blocks);
    cut(weight, job, pool.thread_count(), static_cast<std::int64_t>(jobs.size()), job_x_bytes);
    x_bytes += (job_x_bytes + 63) / 64 * 64;
    x_units += job.kernels->x_units(job.rows);
    tasks += panel_groups(weight, job.panels_per_task) * job.row_splits;
    rows += job.rows;
  }
  std::byte* packed = x_buffer.at_least(x_bytes);
  const auto pack = [&](std::int64_t unit, int) {
    const Job& job = jobs[find_job(jobs, unit, &Job::first_x_unit)];
    job.kernels->pack_x(reinterpret_cast<const std::uint16_t*>(job.x), weight.columns(), job.row_index, job.rows,
                        blocks, unit - job.first_x_unit, packed + job.x_offset);
  };
  if (rows * weight.columns() <= kInlinePackElements) {
    for (std::int64_t unit = 0; unit < x_units; ++unit) pack(unit, 0);
  } else {
    pool.parallel_for(x_units, pack);
  }
  pool.parallel_for(tasks, [&](std::int64_t index, int) {
    thread_local AlignedBuffer scratch;
    const Job& job = jobs[find_job(jobs, index, &Job::first_task)];
    LinearTask task = make_task(weight, job, index - job.first_task, y_stride, accumulate);
    task.x = packed + job.x_offset;
    task.scratch = scratch.at_least(job.kernels->scratch_bytes(job.rows));
    job.kernels->run(task);
  });
}

}  // namespace

void linear(ThreadPool& pool, const LinearParams& params) {
  if (params.rows == 0) return;
  TF_ASSERT(params.weight != nullptr && params.x != nullptr && params.y != nullptr && params.rows > 0);
  const auto& weight = static_cast<const CpuLinear&>(*params.weight);
  TF_ASSERT(weight.experts() == 1 && params.y_stride >= weight.rows());
  Job job{};
  job.x = reinterpret_cast<const Bf16*>(params.x);
  job.row_index = params.row_index;
  job.rows = params.rows;
  job.y = params.y;
  run_jobs(pool, weight, {&job, 1}, params.y_stride, params.accumulate);
}

void linear_experts(ThreadPool& pool, const CpuLinear& weight, const Bf16* x, std::span<const ExpertJob> jobs,
                    std::int64_t y_stride) {
  TF_ASSERT(y_stride >= weight.rows());
  std::vector<Job> planned;
  planned.reserve(jobs.size());
  for (const ExpertJob& expert : jobs) {
    TF_ASSERT(expert.expert >= 0 && expert.expert < weight.experts());
    if (expert.rows == 0) continue;
    Job job{};
    job.x = x;
    job.row_index = expert.row_index;
    job.rows = expert.rows;
    job.expert = expert.expert;
    job.y = expert.y;
    planned.push_back(job);
  }
  if (!planned.empty()) run_jobs(pool, weight, planned, y_stride, false);
}

void linear_expert(ThreadPool& pool, const CpuLinear& weight, std::int32_t expert, const Bf16* x, std::int64_t rows,
                   const std::int32_t* row_index, float* y, std::int64_t y_stride) {
  const ExpertJob job{expert, row_index, rows, y};
  linear_experts(pool, weight, x, {&job, 1}, y_stride);
}

}  // namespace tensorfold::ops::cpu
