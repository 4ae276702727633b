// ops/cpu/isa.h for a program whose AMX is emulated: AMX is there, the other paths are left to the ordinary tests.
#include "ops/cpu/isa.h"

#include <immintrin.h>

#include <cstdlib>
#include <string>

#include "base/error.h"

namespace tensorfold::ops::cpu {
namespace {

constexpr unsigned kFlushBits = 0x8040;

}  // namespace

const char* cpu_path_name(CpuPath path) {
  constexpr const char* kNames[] = {"avx2", "avx512", "avx512_bf16", "amx", "neon"};
  return kNames[static_cast<int>(path)];
}

bool cpu_path_available(CpuPath path) {
  return path == CpuPath::kAmx;
}

CpuPath select_cpu_path() {
  const char* forced = std::getenv("TENSORFOLD_CPU_PATH");
  if (forced != nullptr && std::string(forced) != "amx") fail(ErrorCode::kUnsupported, "only AMX is emulated");
  return CpuPath::kAmx;
}

void set_compute_thread_mode() {
  _mm_setcsr(_mm_getcsr() | kFlushBits);
}

DefaultModeScope::DefaultModeScope() : saved_(_mm_getcsr()) {
  _mm_setcsr(static_cast<unsigned>(saved_) & ~kFlushBits);
}
DefaultModeScope::~DefaultModeScope() {
  _mm_setcsr(static_cast<unsigned>(saved_));
}

}  // namespace tensorfold::ops::cpu
