#include "checkpoint/checkpoint.h"

#include "base/error.h"
#include "checkpoint/directory_checkpoint.h"
#include "checkpoint/gguf_checkpoint.h"

namespace tensorfold {

std::shared_ptr<const Checkpoint> Checkpoint::open(const std::filesystem::path& path) {
  try {
    std::error_code error;
    const auto status = std::filesystem::status(path, error);
    if (std::filesystem::is_directory(status)) return open_directory(path);
    if (!std::filesystem::exists(status)) {
      fail(ErrorCode::kNotFound, "{}: no such file or folder; check the path", path.string());
    }
    return open_gguf(path);
  } catch (const std::filesystem::filesystem_error& error) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: {}; check that it can be read", path.string(), error.what());
  }
}

std::shared_ptr<const Checkpoint> Checkpoint::open_side_file(const std::filesystem::path& path) {
  try {
    return open_lone_file(path);
  } catch (const std::filesystem::filesystem_error& error) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: {}; check that it can be read", path.string(), error.what());
  }
}

}  // namespace tensorfold
