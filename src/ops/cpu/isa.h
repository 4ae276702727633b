// Which instruction set the CPU backend runs on, decided once at start-up, and the floating-point mode of its threads.
// It is apart from the kernels so that they can be compiled with their own flags and never ask this question
// themselves.
#pragma once

namespace tensorfold::ops::cpu {

enum class CpuPath { kAvx2, kAvx512, kAvx512Bf16, kAmx, kNeon };

/// Every path, the fastest first; those of other processors are never available.
inline constexpr CpuPath kCpuPaths[] = {CpuPath::kAmx, CpuPath::kAvx512Bf16, CpuPath::kAvx512, CpuPath::kAvx2,
                                        CpuPath::kNeon};

/// "avx2", "avx512", "avx512_bf16", "amx", "neon": the values of TENSORFOLD_CPU_PATH.
const char* cpu_path_name(CpuPath path);

/// Whether this build, machine and operating system can run `path`. For AMX the kernel's permission is asked for, which
/// holds for the whole process from then on.
bool cpu_path_available(CpuPath path);

/// The fastest available path, or the one that TENSORFOLD_CPU_PATH forces. All paths give the same bits. Throws
/// Error(kUnsupported) naming what the CPU lacks.
CpuPath select_cpu_path();

/// Sets the arithmetic mode of the calling compute thread: denormals are zero on input and flushed on output. Never
/// called on the reference backend's or the sampler's threads.
void set_compute_thread_mode();

/// The default mode (denormals kept) for a scope on a compute thread, where a decoded value must be decode_row's.
class DefaultModeScope {
 public:
  DefaultModeScope();
  ~DefaultModeScope();
  DefaultModeScope(const DefaultModeScope&) = delete;
  DefaultModeScope& operator=(const DefaultModeScope&) = delete;

 private:
  unsigned long long saved_;
};

}  // namespace tensorfold::ops::cpu
