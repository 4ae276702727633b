// See recall_folder.h.
#include "engine/draft/recall_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/limits.h"
#include "base/log.h"

namespace tensorfold {
namespace {

constexpr std::string_view kSuffix = ".recall1";  // with the format's version: another version's files are left alone
constexpr std::string_view kPartSuffix = ".part";
constexpr std::size_t kNumberDigits = 16;
constexpr auto kPause = std::chrono::seconds(60);
constexpr std::size_t kListedFilesMax = limits::kRecallBytesMax / limits::kRecallSegmentBytes + 1024;

std::string segment_name(std::uint64_t number) {
  return fmt::format("{:016x}{}", number, kSuffix);
}

std::optional<std::uint64_t> segment_number(std::string_view name) {
  if (name.size() != kNumberDigits + kSuffix.size() || name.substr(kNumberDigits) != kSuffix) return std::nullopt;
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + kNumberDigits, number, 16);
  if (error != std::errc() || end != name.data() + kNumberDigits || number == 0) return std::nullopt;
  return segment_name(number) == name ? std::optional(number) : std::nullopt;
}

std::string reason() {
  return std::strerror(errno);
}

void make_private_folders(const std::filesystem::path& path) {
  std::filesystem::path made;
  for (const std::filesystem::path& part : path) {
    made /= part;
    if (::mkdir(made.c_str(), 0700) == 0 || errno == EEXIST || errno == EISDIR) continue;
    std::error_code ignored;
    if (std::filesystem::is_directory(made, ignored)) continue;  // a read-only parent that exists
    fail(ErrorCode::kInvalidArgument, "recall: cannot create {}: {}; name another folder with --recall-dir",
         made.string(), reason());
  }
}

bool write_all(int descriptor, std::span<const std::byte> bytes, std::uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(descriptor, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
  }
  return true;
}

}  // namespace

RecallFile& RecallFile::operator=(RecallFile&& other) noexcept {
  if (this != &other) {
    reset();
    descriptor_ = other.release();
  }
  return *this;
}

void RecallFile::reset() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

int RecallFile::release() {
  return std::exchange(descriptor_, -1);
}

RecallFolder::RecallFolder(const std::filesystem::path& root, const RecallIdentity& identity, std::uint64_t bytes_max,
                           bool read_only)
    : identity_(identity), bytes_max_(bytes_max), read_only_(read_only) {
  std::string name;
  for (const std::uint8_t byte : identity) name += fmt::format("{:02x}", byte);
  path_ = root / name;
  open_folder(root);
  if (!read_only_) take_lock();
}

void RecallFolder::open_folder(const std::filesystem::path& root) {
  if (!read_only_) make_private_folders(root);
  const RecallFile parent(::open(root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!parent.is_open()) {
    if (read_only_ && errno == ENOENT) return;  // nothing to read
    fail(ErrorCode::kInvalidArgument, "recall: cannot open the folder {}: {}; name another with --recall-dir",
         root.string(), reason());
  }
  const std::string name = path_.filename().string();
  if (!read_only_ && ::mkdirat(parent.get(), name.c_str(), 0700) != 0 && errno != EEXIST) {
    fail(ErrorCode::kInvalidArgument, "recall: cannot create {}: {}; name another folder with --recall-dir",
         path_.string(), reason());
  }
  folder_ = RecallFile(::openat(parent.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder_.is_open()) {
    if (read_only_ && errno == ENOENT) return;
    fail(ErrorCode::kInvalidArgument, "recall: cannot open {}: {}; it must be a folder, not a link", path_.string(),
         reason());
  }
  struct stat status {};
  if (::fstat(folder_.get(), &status) != 0 || status.st_uid != ::geteuid()) {
    fail(ErrorCode::kInvalidArgument, "recall: {} belongs to another user; name another folder with --recall-dir",
         path_.string());
  }
  if ((status.st_mode & 0077) != 0 && ::fchmod(folder_.get(), 0700) != 0) {
    fail(ErrorCode::kInvalidArgument, "recall: {} is open to other users and can't be closed to them: {}",
         path_.string(), reason());
  }
}

void RecallFolder::take_lock() {
  lock_ = RecallFile(::openat(folder_.get(), "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (lock_.is_open() && ::flock(lock_.get(), LOCK_EX | LOCK_NB) == 0) return;
  if (lock_.is_open() && errno == EWOULDBLOCK) {
    spdlog::warn("recall: another server writes {}; this one only reads it", path_.string());
  } else {
    spdlog::warn("recall: cannot write {}: {}; it is only read", path_.string(), reason());
  }
  lock_.reset();
  read_only_ = true;
}

std::vector<RecallFolder::File> RecallFolder::list_segments() const {
  std::vector<File> files;
  const int descriptor = ::openat(folder_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* listing = descriptor >= 0 ? ::fdopendir(descriptor) : nullptr;
  if (listing == nullptr) {
    if (descriptor >= 0) ::close(descriptor);
    return files;
  }
  std::vector<std::string> leftovers;
  while (const dirent* entry = ::readdir(listing)) {
    const std::string_view name = entry->d_name;
    if (const auto number = segment_number(name)) {
      if (files.size() < kListedFilesMax) files.push_back({*number, 0});
    } else if (name.ends_with(kPartSuffix) && leftovers.size() < kListedFilesMax) {
      leftovers.emplace_back(name);
    }
  }
  ::closedir(listing);
  if (!read_only_) {
    for (const std::string& name : leftovers) ::unlinkat(folder_.get(), name.c_str(), 0);
  }
  std::sort(files.begin(), files.end(), [](const File& a, const File& b) { return a.number < b.number; });
  return files;
}

std::vector<std::byte> RecallFolder::read_segment(const File& file) const {
  std::vector<std::byte> bytes;
  const RecallFile opened(
      ::openat(folder_.get(), segment_name(file.number).c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat status {};
  if (!opened.is_open() || ::fstat(opened.get(), &status) != 0) return bytes;
  const bool is_usable = S_ISREG(status.st_mode) && status.st_uid == ::geteuid() &&
                         static_cast<std::uint64_t>(status.st_size) <= limits::kRecallSegmentBytes;
  if (!is_usable) return bytes;
  bytes.resize(static_cast<std::size_t>(status.st_size));
  std::size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t count =
        ::pread(opened.get(), bytes.data() + filled, bytes.size() - filled, static_cast<off_t>(filled));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    filled += static_cast<std::size_t>(count);
  }
  bytes.resize(filled);
  return bytes;
}

void RecallFolder::load(std::int32_t vocabulary_size, const OnRecord& on_record) {
  if (!folder_.is_open()) return;
  std::vector<File> files = list_segments();
  const std::size_t files_max = static_cast<std::size_t>(bytes_max_ / limits::kRecallSegmentBytes);
  std::size_t damaged_bytes = 0, damaged_files = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    File& file = files[i];
    const std::string name = segment_name(file.number);
    last_number_ = file.number;
    if (files.size() - i > files_max) {  // the cap was lowered: the oldest leave
      if (!read_only_) ::unlinkat(folder_.get(), name.c_str(), 0);
      continue;
    }
    const std::vector<std::byte> bytes = read_segment(file);
    const RecallScan scan = scan_recall_segment(bytes, identity_, vocabulary_size);
    if (!scan.is_segment || scan.segment_number != file.number) {
      damaged_bytes += bytes.size();
      ++damaged_files;
      if (!read_only_) ::unlinkat(folder_.get(), name.c_str(), 0);
      continue;
    }
    file.bytes = bytes.size();
    const bool is_last = i + 1 == files.size();
    const std::size_t damaged = scan.damaged_bytes + (bytes.size() - scan.valid_end);
    damaged_bytes += damaged;
    damaged_files += damaged > 0 ? 1 : 0;
    if (is_last && !read_only_) cut_torn_end(file, scan.valid_end);
    for (const RecallRecord& record : scan.records) {
      std::vector<std::int32_t> tokens(record.token_count);
      std::memcpy(tokens.data(), bytes.data() + record.tokens_at, tokens.size() * sizeof(std::int32_t));
      on_record(file.number, record.scope, tokens);
    }
    bytes_ += file.bytes;
    files_.push_back(file);
  }
  if (damaged_files > 0) {
    spdlog::warn("recall: {} damaged bytes in {} files of {} are left out", damaged_bytes, damaged_files,
                 path_.string());
  }
}

void RecallFolder::cut_torn_end(File& file, std::uint64_t whole_bytes) {
  const std::string name = segment_name(file.number);
  RecallFile opened(::openat(folder_.get(), name.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC));
  if (!opened.is_open()) return;  // a new segment is begun instead
  if (whole_bytes < file.bytes && ::ftruncate(opened.get(), static_cast<off_t>(whole_bytes)) != 0) return;
  file.bytes = whole_bytes;
  active_ = std::move(opened);
}

void RecallFolder::remove_oldest(std::vector<std::uint64_t>& removed) {
  const File oldest = files_.front();
  ::unlinkat(folder_.get(), segment_name(oldest.number).c_str(), 0);
  bytes_ -= oldest.bytes;
  files_.pop_front();
  removed.push_back(oldest.number);
}

bool RecallFolder::open_next_segment() {
  if (active_.is_open()) ::fdatasync(active_.get());
  active_.reset();
  const std::uint64_t number = ++last_number_;
  const std::string name = segment_name(number), part = name + std::string(kPartSuffix);
  RecallFile file(::openat(folder_.get(), part.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file.is_open()) return false;
  const std::vector<std::byte> header = recall_header(number, identity_);
  if (!write_all(file.get(), header, 0) || ::fdatasync(file.get()) != 0 ||
      ::renameat(folder_.get(), part.c_str(), folder_.get(), name.c_str()) != 0) {
    const int error = errno;
    ::unlinkat(folder_.get(), part.c_str(), 0);
    errno = error;
    return false;
  }
  ::fsync(folder_.get());
  files_.push_back({number, header.size()});  // may fail: before its file is the one that is written
  active_ = std::move(file);
  bytes_ += header.size();
  return true;
}

void RecallFolder::pause(const char* what) {
  spdlog::warn("recall: cannot {} in {}: {}; nothing is recorded for {} seconds", what, path_.string(), reason(),
               kPause.count());
  paused_until_ = Clock::now() + kPause;
}

RecallFolder::Appended RecallFolder::append(const RecallScope& scope, std::span<const std::int32_t> tokens) {
  Appended appended;
  if (read_only_ || Clock::now() < paused_until_) return appended;
  std::vector<std::byte> bytes;
  append_recall_record(bytes, scope, tokens);
  const bool fits = active_.is_open() && files_.back().bytes + bytes.size() <= limits::kRecallSegmentBytes;
  while (!files_.empty() && (fits ? files_.size() > 1 : true) &&
         bytes_ + bytes.size() + (fits ? 0 : kRecallHeaderBytes) > bytes_max_) {
    remove_oldest(appended.removed);
  }
  if (!fits && !open_next_segment()) {
    pause("begin a file");
    return appended;
  }
  File& file = files_.back();
  if (!write_all(active_.get(), bytes, file.bytes)) {
    pause("write");
    if (::ftruncate(active_.get(), static_cast<off_t>(file.bytes)) != 0) active_.reset();  // a fresh file next time
    return appended;
  }
  file.bytes += bytes.size();
  bytes_ += bytes.size();
  appended.segment = file.number;
  return appended;
}

}  // namespace tensorfold
