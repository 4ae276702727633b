#include "checkpoint/mapped_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/error.h"
#include "base/limits.h"
#include "checkpoint/checkpoint.h"

namespace tensorfold {
namespace {

// What the handler may look at: plain atomics in static storage, never a lock or the heap. `path` is published last and
// withdrawn first, so that a slot with a path has a valid range.
struct GuardSlot {
  std::atomic<bool> taken{false};
  std::atomic<std::uintptr_t> begin{0};
  std::atomic<std::uintptr_t> end{0};
  std::atomic<const char*> path{nullptr};
};
static_assert(std::atomic<const char*>::is_always_lock_free && std::atomic<std::uintptr_t>::is_always_lock_free);
std::array<GuardSlot, 2 * limits::kShardCountMax> guard_slots;

std::size_t page_bytes() {
  static const std::size_t bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

// -1 when the table is full: the mapping works all the same, only the handler can't name the file.
int guard_insert(const std::byte* data, std::size_t size, const char* path) {
  for (std::size_t i = 0; i < guard_slots.size(); ++i) {
    GuardSlot& slot = guard_slots[i];
    if (slot.taken.exchange(true)) continue;
    slot.begin = reinterpret_cast<std::uintptr_t>(data);
    // A mapping reaches to the end of its last page, and so may the fault.
    slot.end = reinterpret_cast<std::uintptr_t>(data) + (size + page_bytes() - 1) / page_bytes() * page_bytes();
    slot.path = path;
    return static_cast<int>(i);
  }
  return -1;
}

void guard_remove(int index) {
  if (index < 0) return;
  guard_slots[static_cast<std::size_t>(index)].path = nullptr;
  guard_slots[static_cast<std::size_t>(index)].taken = false;
}

void write_text(const char* text) {
  std::size_t length = std::strlen(text);
  while (length > 0) {
    const ssize_t written = ::write(STDERR_FILENO, text, length);
    if (written <= 0) return;
    text += written;
    length -= static_cast<std::size_t>(written);
  }
}

extern "C" void on_bus_error(int signal_number, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  for (const GuardSlot& slot : guard_slots) {
    const char* path = slot.path;
    if (path == nullptr || address < slot.begin || address >= slot.end) continue;
    write_text("tensorfold: checkpoint ");
    write_text(path);
    write_text(
        " was truncated or became unreadable while it was mapped; don't change or move a checkpoint that is in use."
        " Restore the file and start again.\n");
    ::_exit(1);
  }
  // Not ours: let the default action report it, as if this handler weren't here.
  ::signal(signal_number, SIG_DFL);
  ::raise(signal_number);
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path), path_text_(path.string()) {
  const int file = ::open(path_text_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) {
    const ErrorCode code = errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kInvalidCheckpoint;
    fail(code, "{}: can't be opened ({}); check that the file is there and readable", path_text_, std::strerror(errno));
  }
  struct stat status {};
  if (::fstat(file, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size <= 0) {
    ::close(file);
    fail(ErrorCode::kInvalidCheckpoint, "{}: empty or not a regular file; download the file again", path_text_);
  }
  size_ = static_cast<std::size_t>(status.st_size);
  void* mapping = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
  const int map_error = errno;
  ::close(file);
  if (mapping == MAP_FAILED) {
    fail(ErrorCode::kInvalidCheckpoint, "{}: can't be mapped ({}); check the limit on virtual memory (ulimit -v)",
         path_text_, std::strerror(map_error));
  }
  data_ = static_cast<const std::byte*>(mapping);
  guard_slot_ = guard_insert(data_, size_, path_text_.c_str());
}

MappedFile::~MappedFile() {
  guard_remove(guard_slot_);
  ::munmap(const_cast<std::byte*>(data_), size_);
}

bool MappedFile::contains(const std::byte* data, std::size_t bytes) const {
  return data >= data_ && data <= data_ + size_ && bytes <= static_cast<std::size_t>(data_ + size_ - data);
}

void MappedFile::drop_pages(const std::byte* data, std::size_t bytes) const {
  TF_ASSERT(contains(data, bytes));
  const std::size_t page = page_bytes();
  const auto begin = (reinterpret_cast<std::uintptr_t>(data) + page - 1) / page * page;
  const auto end = (reinterpret_cast<std::uintptr_t>(data) + bytes) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

void install_mapped_file_guard() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigemptyset(&action.sa_mask);
  TF_ASSERT(::sigaction(SIGBUS, &action, nullptr) == 0);
}

}  // namespace tensorfold
