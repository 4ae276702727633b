// One file mapped read-only into memory, and the table that lets the SIGBUS handler name it. It is apart from the
// readers because a mapping's lifetime, its pages and the signal that a truncated file raises belong together.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

namespace tensorfold {

class MappedFile {
 public:
  /// Throws Error(kNotFound | kInvalidCheckpoint) when the file can't be opened, is empty or isn't a regular file.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  bool contains(const std::byte* data, std::size_t bytes) const;
  /// Gives back the whole pages inside the range; a later read fetches them from the file again.
  void drop_pages(const std::byte* data, std::size_t bytes) const;

 private:
  std::filesystem::path path_;
  std::string path_text_;  // what the signal handler prints: must not move while mapped
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  int guard_slot_ = -1;
};

}  // namespace tensorfold
