#include "ops/cpu/isa.h"

#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tensorfold::ops::cpu {
namespace {

#if defined(__x86_64__)

struct CpuidLeaf {
  std::uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

CpuidLeaf cpuid(std::uint32_t leaf, std::uint32_t subleaf) {
  CpuidLeaf result;
  if (__get_cpuid_count(leaf, subleaf, &result.eax, &result.ebx, &result.ecx, &result.edx) == 0) return {};
  return result;
}

// XCR0: which register states the operating system saves. Only valid when CPUID says OSXSAVE.
std::uint64_t enabled_register_states() {
  if ((cpuid(1, 0).ecx & (1u << 27)) == 0) return 0;
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<std::uint64_t>(high) << 32) | low;
}

constexpr std::uint64_t kAvxState = 0x6;              // SSE and AVX
constexpr std::uint64_t kAvx512State = 0xe6;          // and opmask, upper ZMM
constexpr std::uint64_t kTileState = 0x60000 | 0xe6;  // and TILECFG, TILEDATA

bool request_tile_permission() {
  constexpr long kArchReqXcompPerm = 0x1023;
  constexpr long kTileDataFeature = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kTileDataFeature) == 0;
}

void require(bool present, const char* feature, std::string& missing) {
  if (present) return;
  if (!missing.empty()) missing += ", ";
  missing += feature;
}

// Names of the features that `path` needs and this machine lacks; empty when it can run.
std::string missing_features(CpuPath path) {
  std::string missing;
  if (path == CpuPath::kNeon) return "an ARM64 CPU";
  const CpuidLeaf basic = cpuid(1, 0);
  const CpuidLeaf extended = cpuid(7, 0);
  const CpuidLeaf extended1 = cpuid(7, 1);
  const std::uint64_t states = enabled_register_states();
  require((extended.ebx >> 5) & 1, "AVX2", missing);
  require((basic.ecx >> 12) & 1, "FMA", missing);
  require((basic.ecx >> 29) & 1, "F16C", missing);
  require((states & kAvxState) == kAvxState, "operating system support for AVX", missing);
  if (path == CpuPath::kAvx2) return missing;
  require((extended.ebx >> 16) & 1, "AVX512F", missing);
  require((extended.ebx >> 17) & 1, "AVX512DQ", missing);
  require((extended.ebx >> 30) & 1, "AVX512BW", missing);
  require((extended.ebx >> 31) & 1, "AVX512VL", missing);
  require((states & kAvx512State) == kAvx512State, "operating system support for AVX-512", missing);
  if (path == CpuPath::kAvx512) return missing;
  require((extended1.eax >> 5) & 1, "AVX512_BF16", missing);
  if (path == CpuPath::kAvx512Bf16) return missing;
  require((extended.edx >> 24) & 1, "AMX-TILE", missing);
  require((extended.edx >> 22) & 1, "AMX-BF16", missing);
  require((states & kTileState) == kTileState, "operating system support for AMX", missing);
  if (missing.empty()) require(request_tile_permission(), "the kernel's permission to use AMX", missing);
  return missing;
}

#elif defined(__aarch64__)

std::string missing_features(CpuPath path) {
  return path == CpuPath::kNeon ? "" : "an x86-64 CPU";
}

#else
#error "the CPU backend is written for x86-64 and ARM64"
#endif

}  // namespace

const char* cpu_path_name(CpuPath path) {
  switch (path) {
    case CpuPath::kAvx2:
      return "avx2";
    case CpuPath::kAvx512:
      return "avx512";
    case CpuPath::kAvx512Bf16:
      return "avx512_bf16";
    case CpuPath::kAmx:
      return "amx";
    case CpuPath::kNeon:
      return "neon";
  }
  return "?";
}

bool cpu_path_available(CpuPath path) {
  return missing_features(path).empty();
}

CpuPath select_cpu_path() {
  const char* forced = std::getenv("TENSORFOLD_CPU_PATH");
  if (forced != nullptr && *forced != '\0') {
    for (const CpuPath path : kCpuPaths) {
      if (std::string(forced) != cpu_path_name(path)) continue;
      const std::string missing = missing_features(path);
      if (missing.empty()) return path;
      fail(ErrorCode::kUnsupported,
           "TENSORFOLD_CPU_PATH={} can't run here: this machine lacks {}. Unset it to use the best path available.",
           forced, missing);
    }
    fail(ErrorCode::kUnsupported, "TENSORFOLD_CPU_PATH={} is not a path; use amx, avx512_bf16, avx512, avx2 or neon, or unset it.",
         forced);
  }
  for (const CpuPath path : kCpuPaths) {
    if (cpu_path_available(path)) return path;
  }
  fail(ErrorCode::kUnsupported,
       "the CPU backend needs at least AVX2 with FMA: this machine lacks {}. Run on a newer CPU, or with "
       "--backend reference.",
       missing_features(CpuPath::kAvx2));
}

namespace {

#if defined(__x86_64__)
constexpr unsigned long long kFlushBits = 0x8040;  // flush to zero, denormals are zero
unsigned long long read_mode() {
  return _mm_getcsr();
}
void write_mode(unsigned long long mode) {
  _mm_setcsr(static_cast<unsigned>(mode));
}
#else
constexpr unsigned long long kFlushBits = 1ull << 24;  // FZ
unsigned long long read_mode() {
  unsigned long long mode = 0;
  asm volatile("mrs %0, fpcr" : "=r"(mode) : : "memory");
  return mode;
}
void write_mode(unsigned long long mode) {
  asm volatile("msr fpcr, %0" : : "r"(mode) : "memory");
}
#endif

}  // namespace

void set_compute_thread_mode() {
  write_mode(read_mode() | kFlushBits);
}

DefaultModeScope::DefaultModeScope() : saved_(read_mode()) {
  write_mode(saved_ & ~kFlushBits);
}
DefaultModeScope::~DefaultModeScope() {
  write_mode(saved_);
}

}  // namespace tensorfold::ops::cpu
