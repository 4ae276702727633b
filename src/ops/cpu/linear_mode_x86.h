// Leaving and entering the compute threads' denormal mode around the decoding of extreme scales. Included inside an
// unnamed namespace. The fences on memory keep the compiler from moving arithmetic across the switch.

using FloatMode = unsigned;

TF_INLINE FloatMode enter_default_mode() {
  const unsigned mode = _mm_getcsr();
  _mm_setcsr(mode & ~0x8040u);
  asm volatile("" ::: "memory");
  return mode;
}
TF_INLINE void restore_mode(FloatMode mode) {
  asm volatile("" ::: "memory");
  _mm_setcsr(mode);
}
