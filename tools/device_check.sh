#!/usr/bin/env bash
# Checks the CUDA backend on this machine's GPU: the tests of operations, of whole models and of the fold, then
# `tensorfold verify --backend cuda` on every golden checkpoint and on the demo model. Prints a short table; fails when
# anything failed.
#   tools/device_check.sh                       builds what is missing in build/release
#   tools/device_check.sh --binaries FOLDER     takes programs that were built elsewhere (test_ops_cuda, test_model_cuda,
#                                               tensorfold); what isn't there is left out
#   --schedules N    of verify, for each checkpoint (20)
#   --only PATTERN   rows of the table whose name matches (a shell pattern)
#   --sanitizer TOOL instead of all this: the tests of operations under compute-sanitizer's TOOL (memcheck, initcheck,
#                    racecheck, synccheck), each test by itself and at most --seconds N (240) long, --jobs N (8) at a time.
#                    The table shows the first 3 reports of a test, and nothing else of them is kept
#   --logs FOLDER    with --sanitizer: keeps all that the tool printed, as FOLDER/TEST.log, and has it print every report
#                    (tools/explain_racecheck.py fails on a log that lacks some)
set -uo pipefail
cd "$(dirname "$0")/.."
binaries="" schedules=20 only="*" sanitizer="" seconds=240 jobs=8 kept=""
while [ $# -gt 0 ]; do
  case $1 in
    --binaries) binaries=$(cd "$2" && pwd); shift 2 ;;
    --schedules) schedules=$2; shift 2 ;;
    --only) only=$2; shift 2 ;;
    --sanitizer) sanitizer=$2; shift 2 ;;
    --seconds) seconds=$2; shift 2 ;;
    --jobs) jobs=$2; shift 2 ;;
    --logs) mkdir -p "$2" && kept=$(cd "$2" && pwd) || exit 1; shift 2 ;;
    *) sed -n '2,15p' "$0"; exit 2 ;;
  esac
done
if [ -n "$kept" ] && [ -z "$sanitizer" ]; then echo "--logs goes with --sanitizer" >&2; exit 2; fi
if [ -z "$binaries" ]; then
  cmake --preset release -DTENSORFOLD_CUDA=ON -DTENSORFOLD_TESTS=ON -DTENSORFOLD_BENCH=ON >/dev/null &&
    cmake --build build/release -j"$(nproc)" --target test_ops_cuda test_model_cuda tensorfold || exit 1
  binaries=$PWD/build/release/bin
fi
export TENSORFOLD_SOURCE=$PWD
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
failures=0 rows=0

row() { printf '%-44s %s\n' "$1" "$2"; }
wanted() { case $1 in $only) return 0 ;; esac; return 1; }

tests() {  # tests NAME PROGRAM FILTER
  wanted "$1" || return 0
  local log=$logs/log start=$SECONDS status
  if [ ! -x "$binaries/$2" ]; then row "$1" "left out (no $2)"; return; fi
  rows=$((rows + 1))
  "$binaries/$2" --gtest_brief=1 --gtest_filter="$3" >"$log" 2>&1
  status=$?
  local passed failed skipped
  passed=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) tests\?\..*/\1/p' "$log")
  skipped=$(sed -n 's/^\[  SKIPPED \] \([0-9]*\) tests\?.*/\1/p' "$log" | tail -1)
  failed=$(grep -c '^\[  FAILED  \] .*(' "$log")
  row "$1" "${passed:-0} passed, $failed failed, ${skipped:-0} skipped, $((SECONDS - start)) s"
  if [ $status -eq 0 ]; then
    [ "${passed:-0}" -gt 0 ] && return
    echo "    nothing ran"
    sed -n '/no GPU/p' "$log" | head -n 1 | sed 's/^/    /'
  fi
  failures=$((failures + 1))
  [ -n "$passed" ] || echo "    the program ended early (exit status $status)"
  grep -v '^\[  PASSED\|^\[=====' "$log" | cut -c1-200 | head -n 20 | sed 's/^/    /'
}

verify() {  # verify NAME MODEL
  wanted "verify $1" || return 0
  local start=$SECONDS log=$logs/log status
  rows=$((rows + 1))
  "$binaries/tensorfold" verify "$2" --backend cuda --schedules "$schedules" --json >"$log" 2>&1
  status=$?
  if [ $status -ne 0 ] && grep -q 'has no attention kernel' "$log"; then
    row "verify $1" "refused by name: $(sed -n 's/.*\(head_dim of [0-9]*\).*/\1/p' "$log" | head -n 1)"
    return
  fi
  local compared bits
  compared=$(sed -n 's/.*"rows":\([0-9]*\).*/\1/p' "$log") bits=$(sed -n 's/.*"differing_bits":\([0-9]*\).*/\1/p' "$log")
  row "verify $1" "${compared:-no} rows, ${bits:-?} differing bits, $((SECONDS - start)) s"
  [ $status -eq 0 ] && return
  failures=$((failures + 1))
  cut -c1-600 "$log" | tail -n 5 | sed 's/^/    /'
}

sanitise() {  # sanitise TEST: its rows are printed together, as several run at once
  local log=${kept:-$logs}/$1.log start=$SECONDS status limit=3
  [ -z "$kept" ] || limit=0  # none
  timeout "$seconds" compute-sanitizer --tool "$sanitizer" --error-exitcode 99 --print-limit "$limit" \
    "$binaries/test_ops_cuda" --gtest_brief=1 --gtest_filter="$1" >"$log" 2>&1
  status=$?
  local result="exit status $status"
  case $status in
    0) result="clean" ;;
    99) result="ERRORS" ;;
    124) result="not finished" ;;
  esac
  grep -qE 'ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards' "$log" || [ $status -ne 0 ] || result="no summary"
  row "$sanitizer $1" "$result, $((SECONDS - start)) s" >"$logs/$1.row"
  [ "$result" = ERRORS ] && grep -v '^Running\|^\[' "$log" | cut -c1-160 | head -n 12 | sed 's/^/    /' >>"$logs/$1.row"
  cat "$logs/$1.row"
}

if [ -n "$sanitizer" ]; then
  names=$("$binaries/test_ops_cuda" --gtest_list_tests | awk '/^[^ ]/{suite=$1} /^ /{print suite $1}')
  count=0
  for name in $names; do
    wanted "$name" || continue
    count=$((count + 1))
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do sleep 0.2; done
    sanitise "$name" &
  done
  wait
  clean=$(grep -h "^$sanitizer " "$logs"/*.row | grep -c ' clean, ')
  echo "$clean of $count tests are clean under $sanitizer."
  [ "$clean" -eq "$count" ] && [ "$count" -gt 0 ]
  exit
fi

command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
for suite in CudaPass PassBlock GraphCache Rows BlockConvolution CudaLinear NormedLinear Moe Attention AttentionSlices TreeAttention MutualAttention \
             GatedDelta TreeGatedDelta; do
  tests "$suite" test_ops_cuda "$suite.*"
done
tests "draws" test_model_cuda "DeviceDraw.*"
tests "memory" test_model_cuda "CudaMemory.*"
tests "golden values" test_model_cuda "*Golden.*"
tests "row counts and graphs" test_model_cuda "*Buckets.*"
tests "windows and trees" test_model_cuda "*Windows.*"
tests "drafters" test_model_cuda "*GoldenMtp.*:Mtp.*:*GoldenDrafter.*:Drafter.*:DrafterBits.*:TrainedDrafts.*"
tests "fold" test_model_cuda "*GoldenFold.*"
tests "drafts through the engine" test_model_cuda "*GoldenDrafts.*:Models/TrainedDrafts.*"
tests "kept prefixes" test_model_cuda "*GoldenReuse.*:FoldReuse.*"
if [ -x "$binaries/tensorfold" ]; then
  for model in tests/golden/models/*/; do
    name=$(basename "$model")
    [ -f "$model/model.gguf" ] && model=$model/model.gguf
    verify "$name" "$model"
  done
  [ -f models/demo/model.safetensors ] && verify demo models/demo
else
  row "verify" "left out (no tensorfold)"
fi
echo
if [ $rows -eq 0 ]; then echo "Nothing ran: no program was found, or no row is called '$only'."; exit 1; fi
[ $failures -eq 0 ] && echo "All of it passed." || echo "$failures of the above failed."
exit $((failures > 0))
