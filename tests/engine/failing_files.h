// A file layer that fails on demand: from the nth operation of a kind on, with a given errno, or after so many bytes.
#pragma once

#include <atomic>
#include <cerrno>
#include <limits>
#include <mutex>
#include <random>

#include "engine/cache/file_layer.h"

namespace tensorfold::testing {

class FailingFiles : public FileLayer {
 public:
  int open(const std::string& path, int flags, unsigned mode) override {
    if (open_error != 0 && (flags & 3) != 0 && path.find(".part") != std::string::npos) return fail(open_error);
    return FileLayer::open(path, flags, mode);
  }
  ssize_t read(int file, void* bytes, std::size_t size, std::uint64_t offset) override {
    if (read_error != 0) return fail(read_error);
    return FileLayer::read(file, bytes, size, offset);
  }
  ssize_t write(int file, const void* bytes, std::size_t size) override {
    if (bytes_left < static_cast<std::int64_t>(size)) {
      // A disk fills in the middle of a write.
      const std::int64_t some = bytes_left.exchange(0);
      if (some > 0) return FileLayer::write(file, bytes, static_cast<std::size_t>(some));
      return fail(ENOSPC);
    }
    bytes_left -= static_cast<std::int64_t>(size);
    bytes_written += size;
    return FileLayer::write(file, bytes, size);
  }
  int sync(int file) override { return sync_error != 0 ? fail(sync_error) : FileLayer::sync(file); }
  int truncate(int file, std::uint64_t size) override {
    return truncate_error != 0 ? fail(truncate_error) : FileLayer::truncate(file, size);
  }
  int rename(const std::string& from, const std::string& to) override {
    return rename_error != 0 ? fail(rename_error) : FileLayer::rename(from, to);
  }
  std::uint64_t free_bytes(const std::string& path) override {
    return free_bytes_told >= 0 ? static_cast<std::uint64_t>(free_bytes_told) : FileLayer::free_bytes(path);
  }

  std::atomic<int> open_error{0}, read_error{0}, sync_error{0}, rename_error{0}, truncate_error{0};
  std::atomic<std::int64_t> bytes_left{std::numeric_limits<std::int64_t>::max()};
  std::atomic<std::int64_t> free_bytes_told{-1};
  std::atomic<std::uint64_t> bytes_written{0};

 private:
  static int fail(int error) {
    errno = error;
    return -1;
  }
};

/// Any operation may fail, at random.
class FlakyFiles : public FileLayer {
 public:
  FlakyFiles(std::uint32_t seed, int one_in) : random_(seed), one_in_(one_in) {}
  int open(const std::string& path, int flags, unsigned mode) override {
    return fails() ? fail(EIO) : FileLayer::open(path, flags, mode);
  }
  ssize_t read(int file, void* bytes, std::size_t size, std::uint64_t offset) override {
    return fails() ? fail(EIO) : FileLayer::read(file, bytes, size, offset);
  }
  ssize_t write(int file, const void* bytes, std::size_t size) override {
    if (fails()) return fail(ENOSPC);
    return FileLayer::write(file, bytes, fails() ? (size + 1) / 2 : size);
  }
  int sync(int file) override { return fails() ? fail(EIO) : FileLayer::sync(file); }
  int rename(const std::string& from, const std::string& to) override {
    return fails() ? fail(EROFS) : FileLayer::rename(from, to);
  }
  int remove(const std::string& path) override { return fails() ? fail(EROFS) : FileLayer::remove(path); }

 private:
  bool fails() {
    const std::lock_guard lock(mutex_);
    return random_() % static_cast<std::uint32_t>(one_in_) == 0;
  }
  static int fail(int error) {
    errno = error;
    return -1;
  }
  std::mutex mutex_;
  std::mt19937 random_;
  int one_in_;
};

}  // namespace tensorfold::testing
