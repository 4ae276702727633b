// Kept states on disk (`--learn`): a folder with a lock, a manifest and one file a segment, written behind the replies
// and read ahead of prompts, each by a thread of its own. It survives kill -9 at any moment: a file counts only once
// its record is in the manifest, and it is whole before that. It knows nothing of the engine; what it is given and what
// it gives back are bytes with tokens. Whatever goes wrong with a file is a miss; whatever goes wrong with writing
// pauses learning, with one log line each time that changes.
//
//   FOLDER/v1/            0700, owned by this user
//     LOCK                held while a process uses the folder; a second one runs without learning
//     MANIFEST            learn_manifest.h
//     states/ID.state     state_file.h; .part while it is being written
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/host_pages.h"
#include "engine/cache/disk_index.h"
#include "engine/cache/file_layer.h"
#include "engine/cache/snapshot_pool.h"
#include "engine/cache/state_file.h"

namespace tensorfold {

struct DiskStoreOptions {
  std::string folder;
  std::uint64_t bytes_max = 32ull << 30;
  std::uint64_t free_bytes_min = 4ull << 30;        // learning pauses below
  std::uint64_t daily_bytes_max = 32ull << 30;      // written a day (UTC)
  std::chrono::milliseconds retry{30'000};          // a paused writer tries again after
  std::chrono::milliseconds flush{10'000};          // what is queued at the end may take
  std::shared_ptr<FileLayer> files;                 // null: the system's
  std::function<std::uint64_t()> now_unix_seconds;  // null: the clock
};

/// A segment to write: the header without id and checks, and the payload.
struct StateToWrite {
  StateHeader header;
  bool resume_point = false;
  std::vector<std::byte> pages;
  std::shared_ptr<const StateSnapshot> snapshot;  // may be null; complete
};

/// Reading a stored prefix back. The reader thread fills it, the engine thread takes from it.
class StateRead {
 public:
  struct Part {
    StateHeader header;
    HostPages payload;
  };
  /// The next part, or nothing for now. Parts come in the order of the chain.
  std::unique_ptr<Part> take();
  /// No further part will come. Parts may still be waiting.
  bool is_done() const;
  /// Every part was read and whole.
  bool is_complete() const;
  void cancel() { cancelled_.store(true); }

 private:
  friend class DiskStore;
  mutable std::mutex mutex_;
  std::condition_variable taken_;
  std::deque<std::unique_ptr<Part>> parts_;
  std::vector<StoredState> chain_;
  bool done_ = false;
  bool failed_ = false;
  std::atomic<bool> cancelled_{false};
};

struct DiskCounters {
  std::uint64_t bytes = 0;  // on disk
  std::uint64_t states = 0;
  std::uint64_t states_written = 0, states_read = 0, states_damaged = 0, states_evicted = 0;
  std::uint64_t bytes_written = 0;
  bool is_paused = false;
};

class DiskStore {
 public:
  /// Opens the folder, or explains in one log line why learning is off and returns null. `resumes_anywhere`: the model
  /// has full attention only. `wake` is called from the store's threads when there is something to take, or room to
  /// write; it must not block.
  static std::unique_ptr<DiskStore> open(const DiskStoreOptions& options, bool resumes_anywhere,
                                         std::function<void()> wake);
  ~DiskStore();  // writes what is queued, within a bound

  StoredPrefix resumable(const std::string& identity, const std::string& scope, std::span<const std::int32_t> tokens,
                         std::int32_t position_max) const;
  StoredPrefix covered(const std::string& identity, const std::string& scope,
                       std::span<const std::int32_t> tokens) const;

  /// Whether the queue has room for more (bytes in memory are bounded) and learning isn't paused.
  bool can_write() const;
  /// Ids are given in order; a segment's parent may still be in the queue.
  std::uint64_t next_id();
  /// Throws where memory is too short to queue it; then it never was.
  void write(std::unique_ptr<StateToWrite> state);
  std::shared_ptr<StateRead> read(const StoredPrefix& prefix);

  DiskCounters counters() const;
  /// Tests: until the queue is empty and written, or learning paused.
  void wait_until_written();

 private:
  DiskStore(const DiskStoreOptions& options, bool resumes_anywhere, std::function<void()> wake);

  bool open_folder(std::string& problem);
  bool lock(std::string& problem);
  bool load_manifest(std::string& problem);
  void sweep();

  void run_writer();
  void run_reader();
  void write_queued();
  void read_wanted();
  void give_up();
  bool write_state(StateToWrite& state, std::string& problem);
  bool write_file(StateToWrite& state, StoredState& stored, std::string& problem);
  bool make_room(std::uint64_t bytes, const StateHeader& header, std::string& problem);
  bool append(const std::vector<std::byte>& record, bool durable);
  bool cut_torn_record();
  void compact_if_worth();
  bool rewrite_manifest();
  void forget(std::uint64_t id);
  void remove_files(const std::vector<std::uint64_t>& ids);
  void set_paused(const std::string& problem);
  std::unique_ptr<StateRead::Part> read_state(const StoredState& state, std::string& problem);
  void note_use(const std::vector<StoredState>& chain);
  std::uint32_t today() const;
  std::string state_path(std::uint64_t id) const;

  DiskStoreOptions options_;
  std::function<void()> wake_;
  std::shared_ptr<FileLayer> files_;
  std::string root_, states_folder_;
  int lock_file_ = -1;
  int manifest_file_ = -1;

  mutable std::mutex mutex_;  // guards all below
  std::condition_variable work_, idle_;
  DiskIndex index_;
  std::uint64_t next_id_ = 1, next_use_ = 1;
  std::uint32_t day_ = 0;
  std::uint64_t day_bytes_ = 0;
  std::uint64_t manifest_bytes_ = 0;
  std::deque<std::unique_ptr<StateToWrite>> to_write_;
  std::uint64_t queued_bytes_ = 0;
  bool writing_ = false;
  std::shared_ptr<StateRead> reading_;
  std::deque<std::shared_ptr<StateRead>> to_read_;
  bool paused_ = false;
  std::string pause_reason_;
  bool given_up_ = false;  // a thread has ended for want of memory: all is a miss from now on
  bool stopping_ = false;
  std::chrono::steady_clock::time_point stop_by_;
  DiskCounters counters_;

  std::mutex manifest_mutex_;  // appending and rewriting; taken before mutex_ where both are
  bool manifest_is_torn_ = false;  // under manifest_mutex_: half a record follows its manifest_bytes_
  std::thread writer_, reader_;
};

}  // namespace tensorfold
