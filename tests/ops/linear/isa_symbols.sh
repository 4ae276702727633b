#!/bin/sh
# Usage: isa_symbols.sh <nm> <libtf_ops_cpu.a>. Objects compiled for one instruction set may define no symbol outside that
# set's namespace, and no weak one: the linker could keep it for code that runs on every machine.
set -eu
"$1" --demangle --defined-only "$2" | awk '
  /^[^ ]*\.o:$/ { isa = ""; if (match($0, /_(avx2|avx512|amx|neon)\.cpp/)) isa = substr($0, RSTART + 1, RLENGTH - 5); seen += isa != ""; next }
  isa == "" || NF < 3 { next }
  $2 ~ /^[wWvVu]$/ { print "weak symbol in " isa ": " $0; bad = 1 }
  $2 ~ /^[A-Z]$/ && $0 !~ ("cpu::" isa "::") { print "symbol outside cpu::" isa ": " $0; bad = 1 }
  END { if (!seen) { print "no instruction-set objects found"; bad = 1 } exit bad }'
