// See temporary_folder.h.
#include "base/temporary_folder.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <system_error>

#include "base/error.h"

namespace tensorfold {

TemporaryFolder::TemporaryFolder() : TemporaryFolder(std::filesystem::temp_directory_path()) {}

TemporaryFolder::TemporaryFolder(const std::filesystem::path& parent) {
  std::string name = (parent / "tensorfold-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) {
    fail(ErrorCode::kNotFound, "no temporary folder: {}: {}", name, std::strerror(errno));
  }
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace tensorfold
