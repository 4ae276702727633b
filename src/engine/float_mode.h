// Puts a thread into the IEEE default mode (nearest, denormals kept) for a scope. The engine thread also enters compute
// loops, whose backends flush denormals; the sampler must not (one-arithmetic.md, "The CPU backend"), or a denormal
// logit would order differently on another machine.
#pragma once

#include <cstdint>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tensorfold {

class ScopedIeeeMode {
 public:
#if defined(__x86_64__)
  ScopedIeeeMode() : saved_(_mm_getcsr()) {
    _mm_setcsr(kDefaultMode);
  }
  ~ScopedIeeeMode() {
    _mm_setcsr(saved_);
  }

 private:
  static constexpr unsigned kDefaultMode = 0x1f80;  // all exceptions masked, nothing flushed
  unsigned saved_;
#elif defined(__aarch64__)
  ScopedIeeeMode() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" : : "r"(std::uint64_t{0}));
  }
  ~ScopedIeeeMode() {
    asm volatile("msr fpcr, %0" : : "r"(saved_));
  }

 private:
  std::uint64_t saved_ = 0;
#endif
 public:
  ScopedIeeeMode(const ScopedIeeeMode&) = delete;
  ScopedIeeeMode& operator=(const ScopedIeeeMode&) = delete;
};

}  // namespace tensorfold
