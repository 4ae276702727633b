// The recall store's files: one folder, its lock, segments numbered upwards, their total size. Knows bytes and records,
// not texts; used by one thread at a time. Segments appear whole (written aside, then renamed) and grow by whole
// records; the oldest is removed when the total would pass its cap.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/draft/recall_segment.h"

namespace tensorfold {

/// A file descriptor that closes itself.
class RecallFile {
 public:
  RecallFile() = default;
  explicit RecallFile(int descriptor) : descriptor_(descriptor) {}
  RecallFile(RecallFile&& other) noexcept : descriptor_(other.release()) {}
  RecallFile& operator=(RecallFile&& other) noexcept;
  ~RecallFile() { reset(); }
  int get() const { return descriptor_; }
  bool is_open() const { return descriptor_ >= 0; }
  void reset();

 private:
  int release();
  int descriptor_ = -1;
};

class RecallFolder {
 public:
  /// Opens `root`/<identity in hex>. Throws Error when it can't be had or isn't the user's own. Becomes read-only, with
  /// a log line, when another process writes it.
  RecallFolder(const std::filesystem::path& root, const RecallIdentity& identity, std::uint64_t bytes_max,
               bool read_only);

  /// Each whole record, oldest first: (segment number, record, its tokens). Damage is skipped (one log line in all); a
  /// torn end of the newest segment is cut off.
  using OnRecord = std::function<void(std::uint64_t segment, const RecallScope&, std::span<const std::int32_t>)>;
  void load(std::int32_t vocabulary_size, const OnRecord& on_record);

  struct Appended {
    std::uint64_t segment = 0;           // that took the record; 0: nothing was written
    std::vector<std::uint64_t> removed;  // segments that left
  };
  /// Writes one record. After a failure nothing is written for a while (one log line); never throws for the disk's
  /// sake.
  Appended append(const RecallScope& scope, std::span<const std::int32_t> tokens);

  bool is_read_only() const { return read_only_; }
  const std::filesystem::path& path() const { return path_; }
  std::uint64_t byte_count() const { return bytes_; }

 private:
  struct File {
    std::uint64_t number = 0;
    std::uint64_t bytes = 0;
  };
  using Clock = std::chrono::steady_clock;

  void open_folder(const std::filesystem::path& root);
  void take_lock();
  std::vector<File> list_segments() const;
  std::vector<std::byte> read_segment(const File& file) const;
  void cut_torn_end(File& file, std::uint64_t whole_bytes);
  void remove_oldest(std::vector<std::uint64_t>& removed);
  bool open_next_segment();
  void pause(const char* what);

  std::filesystem::path path_;
  const RecallIdentity identity_;
  const std::uint64_t bytes_max_;
  bool read_only_;
  RecallFile folder_, lock_, active_;
  std::deque<File> files_;         // ascending numbers; the last one is appended to while active_ is open
  std::uint64_t last_number_ = 0;  // given to a segment so far
  std::uint64_t bytes_ = 0;        // of all files
  Clock::time_point paused_until_{};
};

}  // namespace tensorfold
