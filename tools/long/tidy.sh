#!/usr/bin/env bash
# clang-tidy over src with the tree's .clang-tidy. Warnings are counted by check; only errors fail. The compile commands
# are those of the fuzz preset, because clang-tidy understands clang's flags.
set -uo pipefail
cmake --preset fuzz || { echo "configuring failed" >&3; exit 1; }
run-clang-tidy -p build/fuzz -quiet -j "$TENSORFOLD_JOBS" "$PWD/src/.*" >build/long/tidy_all.log 2>build/long/tidy_tool.log
status=$?

# A header's finding is printed once for every file that includes it.
findings() { sed "s/\x1b\[[0-9;]*m//g" build/long/tidy_all.log | grep -E "^[^ ]+:[0-9]+:[0-9]+: $1: " | sort -u; }
findings error
findings warning
echo "== warnings by check"
findings warning | grep -oE '\[[a-z0-9.,-]+\]$' | sort | uniq -c | sort -rn
files=$(grep -c '"file": ".*/src/' build/fuzz/compile_commands.json)
errors=$(findings error | wc -l)
# A tool that failed without a finding has looked at nothing.
if [ "$status" != 0 ] && [ "$errors" = 0 ]; then
  echo "run-clang-tidy failed with status $status; see build/long/tidy_tool.log" >&3
  exit 1
fi
echo "$files files, $errors errors, $(findings warning | wc -l) warnings" >&3
[ "$files" -gt 0 ] && [ "$errors" = 0 ]
