// The check of invariants, apart from error.h so that CUDA sources, whose compiler stumbles over fmt, can include it.
#pragma once

namespace tensorfold {

[[noreturn]] void assert_failed(const char* expression, const char* file, int line);

}  // namespace tensorfold

// Always on: the checks guard invariants whose breach would emit wrong tokens, and they sit outside inner loops.
#define TF_ASSERT(expression) \
  ((expression) ? (void)0 : ::tensorfold::assert_failed(#expression, __FILE__, __LINE__))
