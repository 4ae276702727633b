#!/usr/bin/env bash
# The C++ tests under the address and undefined-behaviour sanitizers, and those of the rooms that have threads of their
# own (engine, serve) under the thread sanitizer.
set -uo pipefail
export ASAN_OPTIONS=detect_stack_use_after_return=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1
export TENSORFOLD_SHARED="${TENSORFOLD_SHARED:-$(cd .. && pwd)/shared}"
unset TENSORFOLD_LONG  # sweeps over 2^32 values are for optimised builds

failed=() passed=()
run_tests() {  # run_tests PRESET PROGRAM...
  local preset=$1; shift
  for program in "$@"; do
    echo "== $preset: $program"
    if "$program" --gtest_brief=1; then
      passed+=("$preset/${program##*/test_}")
    else
      failed+=("$preset/${program##*/test_}")
    fi
  done
}

cmake --preset asan && cmake --build build/asan -j"$TENSORFOLD_JOBS" || { echo "the asan build failed" >&3; exit 1; }
run_tests asan build/asan/bin/test_*
cmake --preset tsan && cmake --build build/tsan -j"$TENSORFOLD_JOBS" --target test_engine test_serve ||
  { echo "the tsan build failed" >&3; exit 1; }
run_tests tsan build/tsan/bin/test_engine build/tsan/bin/test_serve

if ((${#failed[@]})); then
  echo "failed: ${failed[*]}" >&3
  exit 1
fi
echo "${passed[*]}" >&3
