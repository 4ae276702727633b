#!/usr/bin/env bash
# Every fuzz target for TENSORFOLD_FUZZ_SECONDS from its committed seeds. What libFuzzer finds worth keeping goes to
# build/fuzz/corpus/, a crashing input to build/fuzz/crashes/ (add it to tests/fuzz/corpus/ with the fix).
set -uo pipefail
cmake --preset fuzz && cmake --build build/fuzz -j"$TENSORFOLD_JOBS" || { echo "the build failed" >&3; exit 1; }

failed=0 summary=()
mkdir -p build/fuzz/crashes
for program in build/fuzz/bin/fuzz_*; do
  target=${program##*/fuzz_}
  mkdir -p "build/fuzz/corpus/$target"
  "$program" -max_total_time="$TENSORFOLD_FUZZ_SECONDS" -timeout=20 -rss_limit_mb=3000 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/crashes/$target-" "build/fuzz/corpus/$target" "tests/fuzz/corpus/$target" \
    >"build/long/fuzz_$target.log" 2>&1
  result=$?
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "build/long/fuzz_$target.log")
  echo "$target: status $result, ${executions:-no} executions"
  if [ $result = 0 ]; then
    summary+=("$target $executions")
  else
    summary+=("$target CRASHED (build/long/fuzz_$target.log)")
    failed=1
  fi
done
((${#summary[@]})) || { echo "no fuzz targets were built" >&3; exit 1; }
(IFS=,; echo "executions in $TENSORFOLD_FUZZ_SECONDS s each: ${summary[*]}") >&3
exit $failed
