#!/usr/bin/env bash
# The computing rooms built for AArch64, their tests under qemu, and the logits of every golden checkpoint on NEON against
# those of x86-64, bit for bit.
set -uo pipefail
cmake --preset aarch64 && cmake --build build/aarch64 -j"$TENSORFOLD_JOBS" || { echo "the build failed" >&3; exit 1; }
cmake --preset release -DTENSORFOLD_BENCH=ON && cmake --build build/release -j"$TENSORFOLD_JOBS" --target dump_logits ||
  { echo "the x86-64 build failed" >&3; exit 1; }

# The sweeps of TENSORFOLD_LONG over 2^32 values are for real machines. Emulation is some thirty times slower than one,
# so a test's own time limit doesn't count.
status=0
env -u TENSORFOLD_LONG ctest --test-dir build/aarch64 -j"$TENSORFOLD_JOBS" --timeout 3600 --no-tests=error \
  --output-on-failure >build/long/neon_ctest.log 2>&1 || status=1
tests=$(grep -E 'tests passed' build/long/neon_ctest.log)
logits=$(python3 tools/long/compare_logits.py build/release/bin/dump_logits build/aarch64/bin/dump_logits) || status=1
echo "${tests:-no tests ran}; $(tail -n 1 <<<"$logits")" >&3
echo "$logits"
exit $status
