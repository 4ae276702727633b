#include "base/error.h"

#include <cstdio>
#include <cstdlib>

namespace tensorfold {

void assert_failed(const char* expression, const char* file, int line) {
  std::fprintf(stderr, "tensorfold: internal invariant broken: %s (%s:%d)\n", expression, file, line);
  std::abort();
}

}  // namespace tensorfold
