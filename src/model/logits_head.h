// The model's output head as every user of it runs it: product, soft-cap, and the copy to host memory where the
// backend's memory is not the host's. Apart from the executor because drafters read the same head into buffers of their
// own.
#pragma once

#include <cstdint>
#include <memory>

#include "ops/backend.h"

namespace tensorfold {

class LogitsHead {
 public:
  /// `head` outlives this. `soft_cap` 0 = none.
  LogitsHead(ops::Backend& backend, const ops::Linear& head, float soft_cap)
      : backend_(backend), head_(head), soft_cap_(soft_cap) {}

  /// Makes room for `rows` rows of logits.
  void reserve(std::int64_t rows);
  /// Makes room for what read() brings of `rows` rows.
  void reserve_on_host(std::int64_t rows);
  /// Computes logits [rows, vocabulary] of final-normed rows, for which there is room, into backend memory.
  void run(const ops::Activation* normed, std::int64_t rows);
  /// The first `rows` rows of the last run(), fp32 in host memory, valid until the next one.
  const float* read(std::int64_t rows);
  /// One of them, valid until the next read of any kind.
  const float* read_row(std::int64_t row);
  /// Where run() leaves them, in backend memory.
  const float* data() const { return static_cast<const float*>(logits_->data()); }

 private:
  /// Copies `rows` rows from `first` on to the host.
  const float* copy(std::int64_t first, std::int64_t rows);

  ops::Backend& backend_;
  const ops::Linear& head_;
  float soft_cap_;
  std::unique_ptr<ops::Buffer> logits_;
  std::unique_ptr<ops::Buffer> host_logits_;  // only when the backend's memory is not the host's
};

}  // namespace tensorfold
