// How a state becomes durable, and how room is made for it (see disk_store.h). Order: the file is written under another
// name, synced, renamed, its folder synced; then its record is appended and synced. Whatever is cut off leaves a file
// without a record, which the next start removes.
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "base/crc32.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/log.h"
#include "engine/cache/disk_store.h"

namespace tensorfold {
namespace {

constexpr std::uint64_t kCompactBytesMin = 1u << 20;
constexpr std::uint64_t kSecondsPerDay = 86'400;

}  // namespace

void DiskStore::run_writer() {
  try {
    write_queued();
  } catch (const std::exception&) {
    const std::lock_guard lock(mutex_);
    give_up();
  }
}

void DiskStore::write_queued() {
  while (true) {
    std::unique_ptr<StateToWrite> state;
    {
      std::unique_lock lock(mutex_);
      if (paused_ && !stopping_) {
        // What was queued when writing failed is stale by the time it works again.
        work_.wait_for(lock, options_.retry, [this] { return stopping_ || given_up_; });
        if (given_up_) return;
        if (!stopping_) {
          paused_ = false;
          continue;
        }
      }
      work_.wait(lock, [this] { return stopping_ || !to_write_.empty(); });
      const bool out_of_time = stopping_ && (paused_ || std::chrono::steady_clock::now() > stop_by_);
      if (to_write_.empty() || out_of_time) {
        idle_.notify_all();
        return;
      }
      state = std::move(to_write_.front());
      to_write_.pop_front();
      writing_ = true;
    }
    const std::uint64_t bytes = state->pages.size() + (state->snapshot != nullptr ? state->snapshot->size() : 0);
    std::string problem;
    bool written = false;
    try {
      written = write_state(*state, problem);
    } catch (const std::exception& error) {
      problem = error.what();
    }
    const std::lock_guard lock(mutex_);
    if (given_up_) return;
    writing_ = false;
    queued_bytes_ -= std::min(queued_bytes_, bytes);
    if (!written) index_.remove(state->header.id);  // and what was to continue it
    if (!problem.empty()) {
      set_paused(problem);
    } else if (written && !pause_reason_.empty()) {
      spdlog::info("learning goes on");
      pause_reason_.clear();
    }
    if (to_write_.empty() || paused_) idle_.notify_all();
    if (wake_ && !stopping_) wake_();  // there is room in the queue
  }
}

/// One line until it works again; what is queued is let go.
void DiskStore::set_paused(const std::string& problem) {
  paused_ = true;
  for (const std::unique_ptr<StateToWrite>& state : to_write_) index_.remove(state->header.id);
  to_write_.clear();
  queued_bytes_ = 0;
  if (pause_reason_.empty()) spdlog::warn("learning is paused: {}", problem);
  pause_reason_ = problem;
}

std::uint32_t DiskStore::today() const {
  const std::uint64_t seconds =
      options_.now_unix_seconds ? options_.now_unix_seconds() : static_cast<std::uint64_t>(std::time(nullptr));
  return static_cast<std::uint32_t>(seconds / kSecondsPerDay);
}

/// False without a problem: not worth writing (any more). With a problem: learning pauses.
bool DiskStore::write_state(StateToWrite& state, std::string& problem) {
  StateHeader& header = state.header;
  StoredState stored;
  {
    const std::lock_guard lock(mutex_);
    const StoredState* known = given_up_ ? nullptr : index_.find(header.id);
    if (known == nullptr) return false;  // what it continues has failed, or was dropped since
    stored = *known;
  }
  const std::byte* at = state.pages.data();
  header.checks.clear();
  for (const StateGroup& group : header.groups) {
    for (std::uint32_t block = 0; block < group.blocks; ++block, at += group.page_bytes) {
      header.checks.push_back(crc32(at, group.page_bytes));
    }
  }
  TF_ASSERT(at == state.pages.data() + state.pages.size());
  if (state.snapshot != nullptr) header.checks.push_back(crc32(state.snapshot->data(), state.snapshot->size()));
  stored.file_bytes = encode_state_header(header).size() + header.payload_bytes();
  if (!make_room(stored.file_bytes, header, problem)) return false;
  if (!write_file(state, stored, problem)) return false;
  const std::uint32_t day = today();
  {
    const std::lock_guard lock(mutex_);
    if (given_up_) return false;  // a file without a record: the next start removes it
    if (day != day_) day_ = day, day_bytes_ = 0;
    day_bytes_ += stored.file_bytes;
    stored.last_use = next_use_++;
  }
  if (!append(encode_added(stored), true) || !append(encode_day(day_, day_bytes_), false)) {
    problem = fmt::format("can't write {}/MANIFEST: {}", root_, std::strerror(errno));
    files_->remove(state_path(stored.id));
    return false;
  }
  {
    const std::lock_guard lock(mutex_);
    if (given_up_) return false;  // whole, and on record: the next start finds it
    counters_.bytes_written += stored.file_bytes;
    ++counters_.states_written;
    if (index_.find(stored.id) == nullptr) {  // what it continues was found damaged while this was being written
      remove_files({stored.id});
      return false;
    }
    index_.set_written(stored.id, stored.file_bytes, stored.last_use);
    counters_.bytes = index_.bytes();
    counters_.states = index_.written_count();
  }
  compact_if_worth();
  return true;
}

bool DiskStore::write_file(StateToWrite& state, StoredState& stored, std::string& problem) {
  const std::string path = state_path(stored.id);
  const std::string part = fmt::format("{}/{:016x}.part", states_folder_, stored.id);
  const std::vector<std::byte> header = encode_state_header(state.header);
  const int file = files_->open(part, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  bool done = file >= 0;
  if (done) {
    done = files_->write_all(file, header.data(), header.size()) &&
           files_->write_all(file, state.pages.data(), state.pages.size()) &&
           (state.snapshot == nullptr || files_->write_all(file, state.snapshot->data(), state.snapshot->size())) &&
           files_->sync(file) == 0;
    const int error = errno;
    files_->close(file);
    errno = error;
  }
  done = done && files_->rename(part, path) == 0 && files_->sync_directory(states_folder_);
  if (done) return true;
  problem = fmt::format("can't write {}: {}", path, std::strerror(errno));
  files_->remove(part);
  files_->remove(path);
  return false;
}

/// Room on the disk, in the budget and in the day. Least recently used segments go first, never those it continues.
bool DiskStore::make_room(std::uint64_t bytes, const StateHeader& header, std::string& problem) {
  const std::uint64_t free = files_->free_bytes(options_.folder);
  if (free < options_.free_bytes_min || free - options_.free_bytes_min < bytes) {
    problem = fmt::format("{} has {} MiB left and {} MiB are to stay free", options_.folder, free >> 20,
                          options_.free_bytes_min >> 20);
    return false;
  }
  std::vector<std::uint64_t> removed;
  {
    const std::lock_guard lock(mutex_);
    if (today() == day_ && day_bytes_ + bytes > options_.daily_bytes_max) {
      problem = fmt::format("{} MiB were written today, which is what a day may write", day_bytes_ >> 20);
      return false;
    }
    if (bytes > options_.bytes_max) return false;
    std::vector<std::uint64_t> spared;
    for (const StoredState* state = index_.find(header.parent); state != nullptr; state = index_.find(state->parent)) {
      spared.push_back(state->id);
    }
    while (!given_up_ && index_.bytes() + bytes > options_.bytes_max) {
      const std::uint64_t least = index_.least_used(spared);
      if (least == 0) break;
      removed.push_back(least);  // may fail: before the index forgets what has a file
      index_.remove(least);
      ++counters_.states_evicted;
    }
    counters_.bytes = index_.bytes();
    counters_.states = index_.written_count();
    if (given_up_ || index_.bytes() + bytes > options_.bytes_max) bytes = 0;
  }
  for (const std::uint64_t id : removed) append(encode_removed(id), false);
  remove_files(removed);
  return bytes > 0;
}

bool DiskStore::append(const std::vector<std::byte>& record, bool durable) {
  const std::lock_guard lock(manifest_mutex_);
  if (!cut_torn_record()) return false;
  const bool written = files_->write_all(manifest_file_, record.data(), record.size()) &&
                       (!durable || files_->sync(manifest_file_) == 0);
  if (written) {
    manifest_bytes_ += record.size();
    return true;
  }
  const int error = errno;
  manifest_is_torn_ = true;
  cut_torn_record();
  errno = error;
  return false;
}

/// Under manifest_mutex_. Reading ends at half a record, so nothing may be appended behind one: where it can't be cut
/// off now, it is cut off before the next record, or that one isn't written either.
bool DiskStore::cut_torn_record() {
  if (!manifest_is_torn_) return true;
  if (files_->truncate(manifest_file_, manifest_bytes_) != 0) return false;
  manifest_is_torn_ = false;
  return true;
}

void DiskStore::forget(std::uint64_t id) {
  std::vector<std::uint64_t> removed;
  {
    const std::lock_guard lock(mutex_);
    if (given_up_) return;
    removed = index_.remove(id);
    counters_.states_damaged += removed.empty() ? 0 : 1;
    counters_.bytes = index_.bytes();
    counters_.states = index_.written_count();
  }
  // Children first: a log cut in between leaves no child without its parent.
  std::reverse(removed.begin(), removed.end());
  for (const std::uint64_t each : removed) append(encode_removed(each), false);
  remove_files(removed);
}

void DiskStore::remove_files(const std::vector<std::uint64_t>& ids) {
  for (const std::uint64_t id : ids) files_->remove(state_path(id));
}

void DiskStore::note_use(const std::vector<StoredState>& chain) {
  std::vector<std::byte> records;
  {
    const std::lock_guard lock(mutex_);
    if (given_up_) return;
    for (const StoredState& state : chain) {
      index_.set_last_use(state.id, next_use_);
      const std::vector<std::byte> record = encode_used(state.id, next_use_++);
      records.insert(records.end(), record.begin(), record.end());
    }
  }
  append(records, false);
}

void DiskStore::compact_if_worth() {
  std::uint64_t live = 0;
  {
    const std::lock_guard lock(mutex_);
    if (given_up_) return;
    for (const auto& [id, state] : index_.states()) live += encode_added(state).size();  // on their way, too: no matter
  }
  {
    const std::lock_guard lock(manifest_mutex_);
    if (manifest_bytes_ < kCompactBytesMin || manifest_bytes_ < 2 * live) return;
  }
  if (!rewrite_manifest()) spdlog::warn("learning: {}/MANIFEST can't be rewritten: {}", root_, std::strerror(errno));
}

bool DiskStore::rewrite_manifest() {
  const std::lock_guard manifest_lock(manifest_mutex_);
  const std::string path = root_ + "/MANIFEST", part = root_ + "/MANIFEST.part";
  std::vector<std::byte> bytes = manifest_magic();
  {
    const std::lock_guard lock(mutex_);
    const auto add = [&bytes](const std::vector<std::byte>& record) {
      bytes.insert(bytes.end(), record.begin(), record.end());
    };
    for (const auto& [id, state] : index_.states()) {
      if (state.is_written) add(encode_added(state));
    }
    add(encode_day(day_, day_bytes_));
  }
  const int file = files_->open(part, O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0600);
  if (file < 0) return false;
  const bool renamed =
      files_->write_all(file, bytes.data(), bytes.size()) && files_->sync(file) == 0 && files_->rename(part, path) == 0;
  if (!renamed) {
    const int error = errno;
    files_->close(file);
    files_->remove(part);
    errno = error;
    return false;
  }
  // The new one is the manifest from here on, also if a crash may still bring the old name back: what is appended to a
  // file that no name leads to would be lost for certain.
  files_->close(manifest_file_);
  manifest_file_ = file;
  manifest_bytes_ = bytes.size();
  manifest_is_torn_ = false;
  return files_->sync_directory(root_);
}

}  // namespace tensorfold
