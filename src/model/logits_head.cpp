#include "model/logits_head.h"

namespace tensorfold {

const float* LogitsHead::run(const ops::Activation* normed, std::int64_t rows) {
  const std::int64_t count = rows * head_.rows();
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(float);
  if (!logits_ || logits_->bytes() < bytes) {
    logits_.reset();
    logits_ = backend_.allocate(bytes, "logits");
  }
  auto* logits = static_cast<float*>(logits_->data());
  ops::LinearParams params;
  params.weight = &head_;
  params.x = normed;
  params.rows = rows;
  params.y = logits;
  params.y_stride = head_.rows();
  backend_.linear(params);
  if (soft_cap_ > 0.0f) backend_.soft_cap({logits, count, soft_cap_});
  backend_.synchronise();
  if (backend_.info().host_memory) return logits;
  host_logits_.resize(static_cast<std::size_t>(count));
  backend_.copy_to_host(host_logits_.data(), logits, bytes);
  return host_logits_.data();
}

}  // namespace tensorfold
