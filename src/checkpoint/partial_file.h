// A file under construction: it is written as "NAME.partial" and has its name only once everything is in it and synced,
// so that a run that was stopped leaves nothing that looks whole. Shared by the writers of both containers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace tensorfold {

class PartialFile {
 public:
  /// Throws Error(kInvalidArgument) when the file can't be made.
  explicit PartialFile(const std::filesystem::path& path);
  ~PartialFile();  // removes what wasn't finished
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  /// Throws Error(kResourceExhausted) when the disk doesn't take it.
  void write(std::uint64_t offset, const void* data, std::size_t bytes);
  void finish();

 private:
  std::filesystem::path path_, partial_;
  int file_ = -1;
};

}  // namespace tensorfold
