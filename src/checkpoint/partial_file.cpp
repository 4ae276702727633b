// See partial_file.h.
#include "checkpoint/partial_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "base/error.h"

namespace tensorfold {
namespace {

std::string error_text() {
  return std::strerror(errno);
}

}  // namespace

PartialFile::PartialFile(const std::filesystem::path& path) : path_(path), partial_(path.string() + ".partial") {
  file_ = ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file_ < 0) fail(ErrorCode::kInvalidArgument, "{}: can't be written: {}", partial_.string(), error_text());
}

PartialFile::~PartialFile() {
  if (file_ < 0) return;
  ::close(file_);
  ::unlink(partial_.c_str());
}

void PartialFile::write(std::uint64_t offset, const void* data, std::size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t count = ::pwrite(file_, from, bytes, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      fail(ErrorCode::kResourceExhausted, "{}: writing failed: {}", partial_.string(), error_text());
    }
    from += count;
    offset += static_cast<std::uint64_t>(count);
    bytes -= static_cast<std::size_t>(count);
  }
}

void PartialFile::finish() {
  const bool synced = ::fsync(file_) == 0;
  const bool closed = ::close(file_) == 0;
  file_ = -1;
  if (!synced || !closed || std::rename(partial_.c_str(), path_.c_str()) != 0) {
    const std::string why = error_text();
    ::unlink(partial_.c_str());
    fail(ErrorCode::kResourceExhausted, "{}: writing failed: {}", path_.string(), why);
  }
}

}  // namespace tensorfold
