// Running a conversion: the planned tensors are computed row by row and written, memory bounded by a block of rows
// whatever the checkpoint's size. The result appears under its name at once, when all of it is on disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "convert/plan.h"

namespace tensorfold {

/// How far a matrix moved: what a reader of the result sees against what the source says.
struct MatrixError {
  std::string path;
  std::string format;         // "4-bit, group 64", "bf16"
  bool quantised = false;
  double relative_rms = 0.0;  // root mean square of the difference over that of the source
  double largest = 0.0;       // largest absolute difference
  std::int64_t elements = 0;
};

struct ConversionReport {
  std::vector<MatrixError> matrices;
  std::int64_t vectors = 0;
  std::vector<std::string> copied_files;
  std::uint64_t bytes_before = 0;  // of the source's files
  std::uint64_t bytes_after = 0;
};

/// Writes the plan into the new folder `out`. Throws Error(kInvalidArgument) when `out` exists or can't be made.
ConversionReport convert(const ConversionPlan& plan, const std::filesystem::path& out,
                         const std::function<void(double fraction, const std::string& what)>& progress = {});

/// Throws Error(kInvalidArgument) when `out` can't become a new folder. Called before any work.
void check_output_folder(const std::filesystem::path& out);

}  // namespace tensorfold
