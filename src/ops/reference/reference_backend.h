// The reference backend: every operation of backend.h in plain loops with fp32 storage and fp64 sums. It is the
// executable specification: golden values of other implementations are met by it, and kernels are compared with it. It
// stands apart from the kernels so that a formula that is wrong there has nowhere to hide here.
#pragma once

#include <memory>

#include "ops/backend.h"

namespace tensorfold::ops {

enum class Rounding {
  kNone,     // nothing is ever rounded to bf16: weights are decode_row()'s fp32 values, keys and values stay fp32
  kBackend,  // the rounding points of one-arithmetic.md rule 3 (weights, norm outputs, inputs of linear layers, q, k,
             // v, probabilities, attention output), still with fp64 sums
};

/// `threads` counts the calling thread. Results don't depend on it. Threads never flush denormals.
std::unique_ptr<Backend> make_reference_backend(Rounding rounding, int threads = 1);

}  // namespace tensorfold::ops
