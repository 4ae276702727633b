#include "model/logits_head.h"

#include <bit>

#include "base/error.h"

namespace tensorfold {

void LogitsHead::reserve(std::int64_t rows) {
  // Doubling keeps a backend's memory, and what it captured over it, from moving with every row more.
  const auto room = static_cast<std::size_t>(std::bit_ceil(static_cast<std::uint64_t>(rows)));
  const std::size_t bytes = room * static_cast<std::size_t>(head_.rows()) * sizeof(float);
  if (logits_ && logits_->bytes() >= bytes) return;
  logits_.reset();
  logits_ = backend_.allocate(bytes, "logits");
}

void LogitsHead::reserve_on_host(std::int64_t rows) {
  if (backend_.info().host_memory) return;
  const auto row_bytes = static_cast<std::size_t>(head_.rows()) * sizeof(float);
  if (host_logits_ && host_logits_->bytes() >= static_cast<std::size_t>(rows) * row_bytes) return;
  host_logits_.reset();
  host_logits_ = backend_.allocate_host(std::bit_ceil(static_cast<std::size_t>(rows)) * row_bytes, "logits on the host");
}

void LogitsHead::run(const ops::Activation* normed, std::int64_t rows) {
  const std::int64_t count = rows * head_.rows();
  TF_ASSERT(logits_ && logits_->bytes() >= static_cast<std::size_t>(count) * sizeof(float));
  auto* logits = static_cast<float*>(logits_->data());
  ops::LinearParams params;
  params.weight = &head_;
  params.x = normed;
  params.rows = rows;
  params.y = logits;
  params.y_stride = head_.rows();
  backend_.linear(params);
  if (soft_cap_ > 0.0f) backend_.soft_cap({logits, count, soft_cap_});
}

const float* LogitsHead::read(std::int64_t rows) {
  if (!backend_.info().host_memory) return copy(0, rows);
  backend_.synchronise();
  return data();
}

const float* LogitsHead::read_row(std::int64_t row) {
  return backend_.info().host_memory ? read(row + 1) + row * head_.rows() : copy(row, 1);
}

const float* LogitsHead::copy(std::int64_t first, std::int64_t rows) {
  reserve_on_host(rows);
  backend_.queue_copy_to_host(host_logits_->data(), data() + first * head_.rows(),
                              static_cast<std::size_t>(rows * head_.rows()) * sizeof(float));
  backend_.synchronise();
  return static_cast<const float*>(host_logits_->data());
}

}  // namespace tensorfold
