// The safetensors container: one file's header into checked tensors that point into its mapping (formats.md section 1).
// Which files make up a checkpoint is safetensors_files.h's business.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/mapped_file.h"

namespace tensorfold {

struct SafetensorsFile {
  std::vector<TensorInfo> tensors;  // in the order of their data
  std::string format;               // __metadata__ "format": "pt", "mlx", ... or empty
};

/// Throws Error(kInvalidCheckpoint) that names the file and the tensor.
SafetensorsFile read_safetensors(const MappedFile& file);

}  // namespace tensorfold
