// The few file operations that the disk store is made of, behind one seam: tests replace it to make any of them fail,
// so that a full or broken disk is tried for real. Errors are errno values, as the system reports them.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace tensorfold {

class FileLayer {
 public:
  virtual ~FileLayer() = default;
  /// Never follows a link in the last component, never leaks to child processes. -1 and errno on failure.
  virtual int open(const std::string& path, int flags, unsigned mode);
  virtual ssize_t read(int file, void* bytes, std::size_t size, std::uint64_t offset);
  virtual ssize_t write(int file, const void* bytes, std::size_t size);
  virtual int sync(int file);
  virtual int truncate(int file, std::uint64_t size);
  virtual int rename(const std::string& from, const std::string& to);
  virtual int remove(const std::string& path);
  virtual void close(int file);
  /// Bytes that this user may still write on the file system of `path`; 0 when it can't be known.
  virtual std::uint64_t free_bytes(const std::string& path);

  // Built from the above; false and errno on failure.
  bool write_all(int file, const void* bytes, std::size_t size);
  bool read_all(int file, void* bytes, std::size_t size, std::uint64_t offset);
  /// Makes a rename or removal inside `directory` durable.
  bool sync_directory(const std::string& directory);
};

}  // namespace tensorfold
