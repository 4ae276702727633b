// A folder of its own under the system's temporary one (or another), gone with the object. For work whose files nobody keeps:
// verifying, tests.
#pragma once

#include <filesystem>

namespace tensorfold {

class TemporaryFolder {
 public:
  /// Throws Error(kNotFound) when none can be made.
  TemporaryFolder();
  explicit TemporaryFolder(const std::filesystem::path& parent);
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace tensorfold
