// See file_layer.h.
#include "engine/cache/file_layer.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

namespace tensorfold {
namespace {
constexpr std::size_t kChunkBytes = 8u << 20;  // of one system call
}

int FileLayer::open(const std::string& path, int flags, unsigned mode) {
  return ::open(path.c_str(), flags | O_NOFOLLOW | O_CLOEXEC, mode);
}

ssize_t FileLayer::read(int file, void* bytes, std::size_t size, std::uint64_t offset) {
  return ::pread(file, bytes, size, static_cast<off_t>(offset));
}

ssize_t FileLayer::write(int file, const void* bytes, std::size_t size) {
  return ::write(file, bytes, size);
}

int FileLayer::sync(int file) {
  return ::fsync(file);
}

int FileLayer::truncate(int file, std::uint64_t size) {
  return ::ftruncate(file, static_cast<off_t>(size));
}

int FileLayer::rename(const std::string& from, const std::string& to) {
  return ::rename(from.c_str(), to.c_str());
}

int FileLayer::remove(const std::string& path) {
  return ::unlink(path.c_str());
}

void FileLayer::close(int file) {
  ::close(file);
}

std::uint64_t FileLayer::free_bytes(const std::string& path) {
  struct statvfs facts {};
  if (::statvfs(path.c_str(), &facts) != 0) return 0;
  return static_cast<std::uint64_t>(facts.f_bavail) * facts.f_frsize;
}

bool FileLayer::write_all(int file, const void* bytes, std::size_t size) {
  const auto* at = static_cast<const std::byte*>(bytes);
  while (size > 0) {
    const ssize_t written = write(file, at, std::min(size, kChunkBytes));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      if (written == 0) errno = ENOSPC;
      return false;
    }
    at += written;
    size -= static_cast<std::size_t>(written);
  }
  return true;
}

bool FileLayer::read_all(int file, void* bytes, std::size_t size, std::uint64_t offset) {
  auto* at = static_cast<std::byte*>(bytes);
  while (size > 0) {
    const ssize_t got = read(file, at, std::min(size, kChunkBytes), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      if (got == 0) errno = EIO;  // shorter than it should be
      return false;
    }
    at += got;
    offset += static_cast<std::uint64_t>(got);
    size -= static_cast<std::size_t>(got);
  }
  return true;
}

bool FileLayer::sync_directory(const std::string& directory) {
  const int file = open(directory, O_RDONLY | O_DIRECTORY, 0);
  if (file < 0) return false;
  const bool synced = sync(file) == 0;
  const int error = errno;
  close(file);
  errno = error;
  return synced;
}

}  // namespace tensorfold
