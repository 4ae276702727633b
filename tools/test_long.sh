#!/usr/bin/env bash
# What is too slow for CI, in four parts: fuzzing, NEON under emulation, sanitizer builds, clang-tidy. One line a part;
# the rest is in build/long/*.log. Fails when a part fails. `./test --long` calls it; alone, it takes parts to run:
#   tools/test_long.sh [fuzz] [neon] [sanitizers] [tidy]
#   TENSORFOLD_FUZZ_SECONDS   of each fuzz target (600)
#   TENSORFOLD_JOBS           of the builds (all cores)
set -uo pipefail
cd "$(dirname "$0")/.."
export TENSORFOLD_LONG=1 TENSORFOLD_FUZZ_SECONDS="${TENSORFOLD_FUZZ_SECONDS:-600}" TENSORFOLD_JOBS="${TENSORFOLD_JOBS:-$(nproc)}"
parts=("$@")
((${#parts[@]})) || parts=(fuzz neon sanitizers tidy)

tools/long/install_packages.sh || exit 1
mkdir -p build/long
failed=0
for part in "${parts[@]}"; do
  if [ ! -x "tools/long/$part.sh" ]; then
    echo "no such part: $part" >&2
    exit 2
  fi
  # A part writes its log to its standard output and, at its end, one line for people to descriptor 3.
  if summary=$(tools/long/"$part.sh" 3>&1 >"build/long/$part.log" 2>&1); then
    echo "$part: passed: $summary"
  else
    echo "$part: FAILED (build/long/$part.log): $summary"
    failed=1
  fi
done
exit $failed
