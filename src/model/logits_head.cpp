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
  backend_.synchronise();
  const auto* logits = static_cast<const float*>(logits_->data());
  if (backend_.info().host_memory) return logits;
  const auto count = static_cast<std::size_t>(rows * head_.rows());
  host_logits_.resize(count);
  backend_.copy_to_host(host_logits_.data(), logits, count * sizeof(float));
  return host_logits_.data();
}

const float* LogitsHead::read_row(std::int64_t row) {
  const std::int64_t vocabulary = head_.rows();
  if (backend_.info().host_memory) return read(row + 1) + row * vocabulary;
  host_logits_.resize(static_cast<std::size_t>(vocabulary));
  backend_.copy_to_host(host_logits_.data(), data() + row * vocabulary,
                        static_cast<std::size_t>(vocabulary) * sizeof(float));
  return host_logits_.data();
}

}  // namespace tensorfold
