// Memory, facts and threads of the reference backend. The threads' denormal mode is set here because the same caller
// may have run CPU kernels, which flush.
#include "ops/reference/reference_backend.h"

#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "ops/reference/reference_operations.h"
#include "ops/row_tree.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace tensorfold::ops {
namespace {

/// Clears flush-to-zero (bit 15) and denormals-are-zero (bit 6) on the calling thread.
void keep_denormals() {
#if defined(__SSE2__)
  _mm_setcsr(_mm_getcsr() & ~0x8040u);
#elif defined(__aarch64__)
  std::uint64_t mode = 0;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  mode &= ~(std::uint64_t{1} << 24);
  asm volatile("msr fpcr, %0" : : "r"(mode));
#endif
}

class HostBuffer final : public Buffer {
 public:
  HostBuffer(void* data, std::size_t bytes) : data_(data), bytes_(bytes) {}
  ~HostBuffer() override { std::free(data_); }
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;
  void* data() override { return data_; }
  std::size_t bytes() const override { return bytes_; }

 private:
  void* data_;
  std::size_t bytes_;
};

}  // namespace

ReferenceBackend::ReferenceBackend(Rounding rounding, int threads)
    : rounding_(rounding), pool_(threads, keep_denormals) {
  info_.name = "reference";
  info_.path = rounding == Rounding::kNone ? "loops" : "loops-rounded";
  info_.arithmetic_version = 1;
  info_.activation_bytes = sizeof(float);
  info_.threads = threads;
}

std::unique_ptr<Buffer> ReferenceBackend::allocate(std::size_t bytes, const char* purpose) {
  constexpr std::size_t kAlignment = 64;
  // One alignment unit at least, so that an empty buffer has an address too.
  const std::size_t rounded = bytes > SIZE_MAX - kAlignment ? 0 : (bytes / kAlignment + 1) * kAlignment;
  void* data = rounded == 0 ? nullptr : std::aligned_alloc(kAlignment, rounded);
  if (data == nullptr) {
    fail(ErrorCode::kResourceExhausted,
         "no memory for {} ({} bytes): lower --context or --parallel, or use a smaller model", purpose, bytes);
  }
  std::memset(data, 0, rounded);
  return std::make_unique<HostBuffer>(data, bytes);
}

void ReferenceBackend::copy_to_backend(void* destination, const void* source, std::size_t bytes) {
  if (bytes > 0) std::memcpy(destination, source, bytes);
}

void ReferenceBackend::copy_to_host(void* destination, const void* source, std::size_t bytes) {
  if (bytes > 0) std::memcpy(destination, source, bytes);
}

void ReferenceBackend::zero(void* destination, std::size_t bytes) {
  if (bytes > 0) std::memset(destination, 0, bytes);
}

std::vector<LaneRow> rows_of_lanes(const LaneSpan* lanes, std::int32_t lane_count) {
  std::vector<LaneRow> rows;
  for (std::int32_t l = 0; l < lane_count; ++l) {
    const LaneSpan& lane = lanes[l];
    const RowTree tree = lane.parents != nullptr ? row_tree(lane) : RowTree{};
    for (std::int32_t row = 0; row < lane.row_count; ++row) {
      const std::int32_t depth = lane.parents != nullptr ? tree.depth[static_cast<std::size_t>(row)] : row;
      rows.push_back({&lane, lane.first_row + row, depth});
    }
  }
  return rows;
}

std::unique_ptr<Backend> make_reference_backend(Rounding rounding, int threads) {
  TF_ASSERT(threads >= 1);
  return std::make_unique<ReferenceBackend>(rounding, threads);
}

}  // namespace tensorfold::ops
