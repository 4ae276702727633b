// Large pieces of host memory, straight from the system: zero without being touched, on huge pages where it gives them, so that
// what is written once and read once doesn't cost a page fault for every 4 KiB. In base because backends, weights and the disk
// store take such pieces.
#pragma once

#include <cstddef>

namespace tensorfold {

class HostPages {
 public:
  HostPages() = default;
  /// `bytes` of zeros; throws std::bad_alloc. None for 0.
  explicit HostPages(std::size_t bytes);
  ~HostPages();
  HostPages(HostPages&& other) noexcept;
  HostPages& operator=(HostPages&& other) noexcept;

  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace tensorfold
