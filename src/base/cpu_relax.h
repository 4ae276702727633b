// What a thread does between two looks at memory that another one, or a device, will write: tells the core that it waits.
// Alone in a header because whoever spins needs it and nothing else.
#pragma once

namespace tensorfold {

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace tensorfold
