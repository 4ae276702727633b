// The store's folder and threads (see disk_store.h): opening, queues, reading. disk_writer.cpp holds how a state
// becomes durable.
#include "engine/cache/disk_store.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/crc32.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/log.h"

namespace tensorfold {
namespace {

constexpr std::size_t kIdDigits = 16;

std::string error_text() {
  return std::strerror(errno);
}

/// An id from "0123456789abcdef.state" or ".part"; 0: not ours.
std::uint64_t id_of(const std::string& name, const char* ending) {
  if (name.size() <= kIdDigits || name.compare(kIdDigits, std::string::npos, ending) != 0) return 0;
  if (name.find_first_not_of("0123456789abcdef") != kIdDigits) return 0;
  return std::strtoull(name.substr(0, kIdDigits).c_str(), nullptr, 16);
}

/// Makes a folder for this user alone, or checks that the one there is.
bool private_folder(const std::string& path, std::string& problem) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    problem = fmt::format("can't make {}: {}", path, error_text());
    return false;
  }
  struct stat facts {};
  if (::lstat(path.c_str(), &facts) != 0 || !S_ISDIR(facts.st_mode)) {
    problem = fmt::format("{} isn't a folder", path);
    return false;
  }
  if (facts.st_uid != ::geteuid() || (facts.st_mode & 077) != 0) {
    problem = fmt::format("{} is open to other users; make it this user's own, mode 700", path);
    return false;
  }
  return true;
}

}  // namespace

std::unique_ptr<StateRead::Part> StateRead::take() {
  const std::lock_guard lock(mutex_);
  if (parts_.empty()) return nullptr;
  std::unique_ptr<Part> part = std::move(parts_.front());
  parts_.pop_front();
  taken_.notify_all();
  return part;
}

bool StateRead::is_done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

bool StateRead::is_complete() const {
  const std::lock_guard lock(mutex_);
  return done_ && !failed_;
}

DiskStore::DiskStore(const DiskStoreOptions& options, bool resumes_anywhere, std::function<void()> wake)
    : options_(options),
      wake_(std::move(wake)),
      files_(options.files ? options.files : std::make_shared<FileLayer>()),
      root_(options.folder + "/v1"),
      states_folder_(root_ + "/states"),
      index_(resumes_anywhere) {}

std::unique_ptr<DiskStore> DiskStore::open(const DiskStoreOptions& options, bool resumes_anywhere,
                                           std::function<void()> wake) {
  std::unique_ptr<DiskStore> store(new DiskStore(options, resumes_anywhere, std::move(wake)));
  std::string problem;
  try {
    if (store->open_folder(problem) && store->lock(problem) && store->load_manifest(problem)) {
      store->sweep();
      store->writer_ = std::thread([raw = store.get()] { raw->run_writer(); });
      store->reader_ = std::thread([raw = store.get()] { raw->run_reader(); });
      return store;
    }
  } catch (const std::exception& error) {
    problem = error.what();
  }
  spdlog::warn("learning is off: {}", problem);
  return nullptr;
}

bool DiskStore::open_folder(std::string& problem) {
  std::error_code error;
  std::filesystem::create_directories(options_.folder, error);  // what it can't make, private_folder names
  return private_folder(root_, problem) && private_folder(states_folder_, problem);
}

bool DiskStore::lock(std::string& problem) {
  const std::string path = root_ + "/LOCK";
  lock_file_ = files_->open(path, O_RDWR | O_CREAT, 0600);
  if (lock_file_ < 0) {
    problem = fmt::format("can't open {}: {}", path, error_text());
    return false;
  }
  if (::flock(lock_file_, LOCK_EX | LOCK_NB) != 0) {
    problem = errno == EWOULDBLOCK ? fmt::format("another process uses {}; give this one its own --learn-dir", root_)
                                   : fmt::format("can't lock {}: {}", path, error_text());
    return false;
  }
  return true;
}

bool DiskStore::load_manifest(std::string& problem) {
  const std::string path = root_ + "/MANIFEST";
  manifest_file_ = files_->open(path, O_RDWR | O_CREAT | O_APPEND, 0600);
  if (manifest_file_ < 0) {
    problem = fmt::format("can't open {}: {}", path, error_text());
    return false;
  }
  struct stat facts {};
  if (::fstat(manifest_file_, &facts) != 0 || !S_ISREG(facts.st_mode)) {
    problem = fmt::format("{} isn't a file", path);
    return false;
  }
  const auto size = static_cast<std::uint64_t>(facts.st_size);
  ManifestContent content;
  if (size <= limits::kLearnManifestBytesMax) {
    std::vector<std::byte> bytes(size);
    if (size > 0 && !files_->read_all(manifest_file_, bytes.data(), bytes.size(), 0)) {
      problem = fmt::format("can't read {}: {}", path, error_text());
      return false;
    }
    content = decode_manifest(bytes);
  }
  if (content.valid_bytes < size) {
    spdlog::warn("learning: {} of {} bytes of {} are whole; the rest is dropped", content.valid_bytes, size, path);
  }
  if (content.valid_bytes != size && files_->truncate(manifest_file_, content.valid_bytes) != 0) {
    problem = fmt::format("can't repair {}: {}", path, error_text());
    return false;
  }
  manifest_bytes_ = content.valid_bytes;
  if (manifest_bytes_ == 0 && !append(manifest_magic(), true)) {
    problem = fmt::format("can't write {}: {}", path, error_text());
    return false;
  }
  next_id_ = content.next_id;
  next_use_ = content.next_use;
  day_ = content.day;
  day_bytes_ = content.day_bytes;
  // Parents have smaller ids than their children.
  for (auto& [id, state] : content.states) {
    struct stat file {};
    const bool is_there = ::lstat(state_path(id).c_str(), &file) == 0 && S_ISREG(file.st_mode) &&
                          static_cast<std::uint64_t>(file.st_size) == state.file_bytes;
    const bool has_parent = state.parent == 0 || index_.find(state.parent) != nullptr;
    if (is_there && has_parent) index_.add(std::move(state));
  }
  counters_.bytes = index_.bytes();
  counters_.states = index_.written_count();
  return true;
}

/// Files that no record names: what a crash left behind. Only names of our own making are touched.
void DiskStore::sweep() {
  DIR* folder = ::opendir(states_folder_.c_str());
  if (folder == nullptr) return;
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(folder)) names.emplace_back(entry->d_name);
  ::closedir(folder);
  for (const std::string& name : names) {
    const std::uint64_t whole = id_of(name, ".state"), part = id_of(name, ".part");
    next_id_ = std::max({next_id_, whole + 1, part + 1});
    if (part != 0 || (whole != 0 && index_.find(whole) == nullptr)) files_->remove(states_folder_ + "/" + name);
  }
}

DiskStore::~DiskStore() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    stop_by_ = std::chrono::steady_clock::now() + options_.flush;
    for (const std::shared_ptr<StateRead>& read : to_read_) read->cancel();
    if (reading_ != nullptr) reading_->cancel();
    work_.notify_all();
  }
  if (writer_.joinable()) writer_.join();
  if (reader_.joinable()) reader_.join();
  if (manifest_file_ >= 0) files_->close(manifest_file_);
  if (lock_file_ >= 0) files_->close(lock_file_);  // gives the lock up
}

StoredPrefix DiskStore::resumable(const std::string& identity, const std::string& scope,
                                  std::span<const std::int32_t> tokens, std::int32_t position_max) const {
  const std::lock_guard lock(mutex_);
  return given_up_ ? StoredPrefix() : index_.resumable(identity, scope, tokens, position_max);
}

StoredPrefix DiskStore::covered(const std::string& identity, const std::string& scope,
                                std::span<const std::int32_t> tokens) const {
  const std::lock_guard lock(mutex_);
  return given_up_ ? StoredPrefix() : index_.covered(identity, scope, tokens);
}

bool DiskStore::can_write() const {
  const std::lock_guard lock(mutex_);
  return !paused_ && queued_bytes_ < limits::kLearnQueueBytesMax && to_write_.size() < limits::kLearnQueueStatesMax;
}

std::uint64_t DiskStore::next_id() {
  const std::lock_guard lock(mutex_);
  return next_id_++;
}

void DiskStore::write(std::unique_ptr<StateToWrite> state) {
  const StateHeader& header = state->header;
  StoredState stored;
  stored.id = header.id;
  stored.parent = header.parent;
  stored.begin = header.begin;
  stored.end = header.end;
  stored.is_written = false;
  stored.resume_point = state->resume_point;
  stored.identity = header.identity;
  stored.scope = header.scope;
  stored.tokens = header.tokens;
  const std::lock_guard lock(mutex_);
  if (paused_ || (header.parent != 0 && index_.find(header.parent) == nullptr)) return;  // it would continue nothing
  const std::uint64_t bytes = state->pages.size() + (state->snapshot != nullptr ? state->snapshot->size() : 0);
  to_write_.push_back(std::move(state));
  try {
    index_.add(std::move(stored));
  } catch (...) {
    to_write_.pop_back();  // what is queued is in the index
    throw;
  }
  queued_bytes_ += bytes;
  work_.notify_all();
}

/// Under mutex_, where a thread of the store's has met short memory and ends. The other one may be at work: from here on
/// neither changes the index, nor writes to the manifest what the index says. Files on disk stay good: the next start
/// reads them again.
void DiskStore::give_up() {
  if (!given_up_) spdlog::warn("learning is off until the next start: memory is short");
  given_up_ = paused_ = true;
  writing_ = false;
  to_write_.clear();
  queued_bytes_ = 0;
  const auto end = [](StateRead& read) {
    const std::lock_guard read_lock(read.mutex_);
    read.done_ = read.failed_ = true;
  };
  if (reading_ != nullptr) end(*reading_);
  for (const std::shared_ptr<StateRead>& read : to_read_) end(*read);
  to_read_.clear();
  idle_.notify_all();
  work_.notify_all();
}

std::shared_ptr<StateRead> DiskStore::read(const StoredPrefix& prefix) {
  auto read = std::make_shared<StateRead>();
  const std::lock_guard lock(mutex_);
  if (given_up_) {
    read->done_ = read->failed_ = true;
    return read;
  }
  for (const std::uint64_t id : prefix.chain) {
    const StoredState* state = index_.find(id);
    if (state == nullptr) break;  // gone in between: what comes before it still serves
    read->chain_.push_back(*state);
  }
  to_read_.push_back(read);
  work_.notify_all();
  return read;
}

DiskCounters DiskStore::counters() const {
  const std::lock_guard lock(mutex_);
  DiskCounters counters = counters_;
  counters.is_paused = paused_;
  return counters;
}

void DiskStore::wait_until_written() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return paused_ || (to_write_.empty() && !writing_); });
}

void DiskStore::run_reader() {
  try {
    read_wanted();
  } catch (const std::exception&) {
    const std::lock_guard lock(mutex_);
    give_up();
  }
  if (wake_) wake_();
}

void DiskStore::read_wanted() {
  while (true) {
    std::shared_ptr<StateRead> read;
    {
      std::unique_lock lock(mutex_);
      work_.wait(lock, [this] { return stopping_ || !to_read_.empty(); });
      if (to_read_.empty()) return;
      read = to_read_.front();
      to_read_.pop_front();
      reading_ = read;
      if (stopping_) read->cancel();
    }
    bool failed = read->chain_.empty();
    for (const StoredState& state : read->chain_) {
      if (read->cancelled_.load()) failed = true;
      if (failed) break;
      std::string problem;
      std::unique_ptr<StateRead::Part> part;
      try {
        part = read_state(state, problem);
      } catch (const std::exception& error) {
        problem = error.what();
      }
      if (part == nullptr) {
        failed = true;
        spdlog::warn("learning: {} can't be used and is dropped: {}", state_path(state.id), problem);
        forget(state.id);
        break;
      }
      std::unique_lock lock(read->mutex_);
      // One part ahead of the engine is enough, and bounds what lies in memory.
      while (read->parts_.size() >= 2 && !read->cancelled_.load()) {
        read->taken_.wait_for(lock, std::chrono::milliseconds(20));
      }
      read->parts_.push_back(std::move(part));
      lock.unlock();
      if (wake_) wake_();
    }
    if (!failed) note_use(read->chain_);
    {
      const std::lock_guard lock(read->mutex_);
      read->done_ = true;
      read->failed_ = failed;
    }
    if (wake_) wake_();
  }
}

/// A whole, checked state; null with a reason otherwise.
std::unique_ptr<StateRead::Part> DiskStore::read_state(const StoredState& state, std::string& problem) {
  const int file = files_->open(state_path(state.id), O_RDONLY, 0);
  if (file < 0) {
    problem = error_text();
    return nullptr;
  }
  const auto finish = [&](std::unique_ptr<StateRead::Part> part) {
    files_->close(file);
    return part;
  };
  struct stat facts {};
  if (::fstat(file, &facts) != 0 || !S_ISREG(facts.st_mode) ||
      static_cast<std::uint64_t>(facts.st_size) != state.file_bytes || state.file_bytes < kStateFilePrefixBytes) {
    problem = "it has another size than was written";
    return finish(nullptr);
  }
  auto part = std::make_unique<StateRead::Part>();
  try {
    std::vector<std::byte> header(kStateFilePrefixBytes);
    if (!files_->read_all(file, header.data(), header.size(), 0)) fail(ErrorCode::kInternal, "{}", error_text());
    header.resize(std::min<std::uint64_t>(state_header_bytes(header), state.file_bytes));
    if (!files_->read_all(file, header.data(), header.size(), 0)) fail(ErrorCode::kInternal, "{}", error_text());
    part->header = decode_state_header(header, state.file_bytes);
    const StateHeader& read = part->header;
    if (read.id != state.id || read.parent != state.parent || read.begin != state.begin || read.end != state.end ||
        read.identity != state.identity || read.scope != state.scope || read.tokens != state.tokens) {
      fail(ErrorCode::kInvalidCheckpoint, "it holds another state than the manifest says");
    }
    part->payload = HostPages(state.file_bytes - header.size());
    if (!files_->read_all(file, part->payload.data(), part->payload.size(), header.size())) {
      fail(ErrorCode::kInternal, "{}", error_text());
    }
    std::size_t index = 0;
    const std::byte* at = part->payload.data();
    const auto check = [&](std::uint64_t bytes) {
      if (crc32(at, bytes) != read.checks[index++]) fail(ErrorCode::kInvalidCheckpoint, "a checksum is wrong");
      at += bytes;
    };
    for (const StateGroup& group : read.groups) {
      for (std::uint32_t block = 0; block < group.blocks; ++block) check(group.page_bytes);
    }
    if (read.snapshot_bytes > 0) check(read.snapshot_bytes);
  } catch (const std::exception& error) {
    problem = error.what();
    return finish(nullptr);
  }
  {
    const std::lock_guard lock(mutex_);
    ++counters_.states_read;
  }
  return finish(std::move(part));
}

std::string DiskStore::state_path(std::uint64_t id) const {
  return fmt::format("{}/{:016x}.state", states_folder_, id);
}

}  // namespace tensorfold
