// What `tensorfold bench` was asked to do, read from its words and flags and checked together.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cli/flags.h"
#include "convert/synthetic/synthetic_checkpoint.h"
#include "serve/backend_choice.h"

namespace tensorfold::cli {

enum class BenchPart { kLoad, kDecode, kPrefill, kConcurrency, kKernels };

struct BenchOptions {
  std::string model;                          // or
  std::optional<SyntheticOptions> synthetic;  // one of the two
  BackendChoice backend;
  std::set<BenchPart> parts;
  std::string gguf_file, mlx_folder;  // to write

  std::int32_t context = 2048;
  std::int32_t reply_tokens = 64;
  std::vector<std::int32_t> prompt_tokens{512, 2048};
  std::vector<std::int32_t> streams{1, 4, 16, 64};
  std::vector<std::int32_t> kernel_lanes;  // kernels: passes of so many lanes of one row, beside `rows`
  std::vector<std::int32_t> rows{1, 4, 8, 16};
  std::int32_t accepted = 4;
  std::int32_t compare_streams_max = 2147483647;
  bool compare_drafts = false;
  std::int32_t repeated_tokens = 0;
  double temperature = 0.0;
  std::int32_t repeats = 3;
  double peak_bytes_per_second = 0.0;  // 0: not given
  std::uint64_t seed = 1;
  bool json = false;
  std::string output;  // file for the JSON report; "": none

  bool wants(BenchPart part) const { return parts.count(part) > 0; }
  /// "synthetic:qwen3-0.6b" or the path.
  std::string model_name() const;
};

/// Throws UsageError.
BenchOptions bench_options(const Arguments& arguments);

}  // namespace tensorfold::cli
