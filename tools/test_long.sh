#!/usr/bin/env bash
# What is too slow for CI, in four parts: fuzzing, NEON under emulation, sanitizer builds, clang-tidy. One line a part;
# the rest is in build/long/*.log. Fails when a part fails. `./test --long` calls it; alone, it takes parts to run:
#   tools/test_long.sh [fuzz] [neon] [sanitizers] [tidy]     default: all four, hours on two cores
#   tools/test_long.sh peers                                 only by name, on a machine with a GPU: tools/long/peers.sh
#   TENSORFOLD_FUZZ_SECONDS   of each fuzz target (600)
#   TENSORFOLD_JOBS           of the builds (all cores)
set -uo pipefail
cd "$(dirname "$0")/.."
export TENSORFOLD_LONG=1 TENSORFOLD_FUZZ_SECONDS="${TENSORFOLD_FUZZ_SECONDS:-600}" TENSORFOLD_JOBS="${TENSORFOLD_JOBS:-$(nproc)}"
usage() { sed -n '2,8s/^# \{0,1\}//p' tools/test_long.sh; }
parts=("$@")
((${#parts[@]})) || parts=(fuzz neon sanitizers tidy)
for part in "${parts[@]}"; do
  case $part in
    fuzz|neon|sanitizers|tidy|peers) ;;
    -h|--help) usage; exit 0 ;;
    *) echo "tools/test_long.sh: no such part: $part" >&2; usage >&2; exit 2 ;;
  esac
done

tools/long/install_packages.sh || exit 1
mkdir -p build/long
failed=0
for part in "${parts[@]}"; do
  # A part writes its log to its standard output and, at its end, one line for people to descriptor 3.
  if summary=$(tools/long/"$part.sh" 3>&1 >"build/long/$part.log" 2>&1); then
    echo "$part: passed: $summary"
  else
    echo "$part: FAILED (build/long/$part.log): $summary"
    failed=1
  fi
done
exit $failed
