// Leaving and entering the compute threads' denormal mode around the decoding of extreme scales. Included inside an
// unnamed namespace. The clobber of memory keeps the compiler from moving arithmetic across the switch.

using FloatMode = std::uint64_t;

TF_INLINE FloatMode enter_default_mode() {
  constexpr FloatMode kFlushToZero = 1ull << 24;
  FloatMode mode = 0;
  asm volatile("mrs %0, fpcr" : "=r"(mode) : : "memory");
  asm volatile("msr fpcr, %0" : : "r"(mode & ~kFlushToZero) : "memory");
  return mode;
}
TF_INLINE void restore_mode(FloatMode mode) {
  asm volatile("msr fpcr, %0" : : "r"(mode) : "memory");
}
