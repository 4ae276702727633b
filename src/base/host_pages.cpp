// See host_pages.h.
#include "base/host_pages.h"

#include <sys/mman.h>

#include <new>
#include <utility>

namespace tensorfold {
namespace {

constexpr std::size_t kHugePageBytes = 2u << 20;  // of smaller pieces none fits

}  // namespace

HostPages::HostPages(std::size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  void* pages = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) throw std::bad_alloc();
  if (bytes >= kHugePageBytes) ::madvise(pages, bytes, MADV_HUGEPAGE);  // a wish: it may say no
  data_ = static_cast<std::byte*>(pages);
}

HostPages::~HostPages() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

HostPages::HostPages(HostPages&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

HostPages& HostPages::operator=(HostPages&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace tensorfold
