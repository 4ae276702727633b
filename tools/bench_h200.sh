#!/usr/bin/env bash
# All speed figures of the CUDA backend (issue 4, "How it is shown", points 2 to 5) on one NVIDIA GPU: short tables on stdout,
# the full reports as JSON in the output folder.
#
#   tools/bench_h200.sh [-b BINARY] [-o FOLDER] [-l LAYERS] [POINT ...]      points: 2 3 4 5 kernels (all)
#
# Point 5 compares with other engines where they are: LLAMA_BENCH names a CUDA build of llama.cpp's llama-bench, MODELS
# further GGUF files (real weights) beside the random 1.5B. PEAK_GBPS (4540, an H200's measured read speed) is what floors are
# taken from, BACKEND (cuda) what computes; -l cuts the synthetic models to so many layers, to try the script elsewhere.
set -uo pipefail
cd "$(dirname "$0")/.."
binary=build/release/bin/tensorfold out=bench/results/h200 layers=""
while getopts hb:o:l: option; do
  case $option in
    b) binary=$OPTARG ;;
    o) out=$OPTARG ;;
    l) layers="--layers $OPTARG" ;;
    h) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
done
shift $((OPTIND - 1))
points=" ${*:-2 3 4 5 kernels} "
for point in $points; do
  case $point in 2|3|4|5|kernels) ;; *) echo "bench_h200.sh: no such point: $point" >&2; exit 2 ;; esac
done
if [ ! -x "$binary" ]; then
  echo "bench_h200.sh: no $binary; build it: cmake --preset release -DTENSORFOLD_CUDA=ON && cmake --build build/release --target tensorfold" >&2
  exit 1
fi
backend=${BACKEND:-cuda} peak=${PEAK_GBPS:-4540} failed=0
dense="--synthetic qwen3.8-27b $layers" mixture="--synthetic qwen3.6-35b-a3b $layers"
mkdir -p "$out"

bench() {  # bench NAME ARGUMENTS...: one run, its report in NAME.json
  local name=$1 begin=$SECONDS
  shift
  printf '\n### %s\n' "$name"
  if ! "$binary" bench "$@" --backend "$backend" --output "$out/$name.json"; then
    echo "FAILED: $name"
    failed=1
  fi
  printf '(%s s)\n' $((SECONDS - begin))
}
wants() { [[ $points == *" $1 "* ]]; }

if wants 2; then  # one stream: >= 195 tokens/s and 8, 16 rows for <= 1.20, 1.40 passes of one; <= 1.7 ms a token
  bench 2-decode-27b decode $dense --context 512 --rows 1,4,8,16 --accepted 4
  bench 2-decode-35b-a3b decode $mixture --context 512 --rows 1,4,8,16 --accepted 4
fi
if wants 3; then  # prompts of 8,192 tokens: >= 8,000 and >= 28,000 tokens/s
  bench 3-prefill-27b prefill $dense --prompt-tokens 2048,8192
  bench 3-prefill-35b-a3b prefill $mixture --prompt-tokens 2048,8192
fi
if wants 3 || wants kernels; then  # the scan's share of a prompt: "gated delta" of the slices of 2,048 rows
  bench kernels-27b kernels $dense --context 4096 --rows 1,8,16,2048 --streams 64 --peak-gbps "$peak"
  bench kernels-35b-a3b kernels $mixture --context 4096 --rows 1,8,2048 --peak-gbps "$peak"
fi
if wants 4; then  # 16 and 64 streams at 2,048 tokens: >= 1,600 and >= 3,000 tokens/s, every reply as alone
  bench 4-concurrency-27b concurrency load $dense --context 2048 --streams 16,64 --reply-tokens 24
fi
if wants 5; then  # one stream beside llama.cpp on the same card: >= 1.3 times as fast
  random=$out/qwen2.5-1.5b-q4_1.gguf
  [ -f "$random" ] || "$binary" bench --synthetic qwen2.5-1.5b $layers --format q4_1 --write-gguf "$random" || failed=1
  for model in "$random" ${MODELS:-}; do
    bench "5-decode-$(basename "$model" .gguf)" "$model" decode --context 32 --reply-tokens 43 --rows 1
    [ -n "${LLAMA_BENCH:-}" ] && "$LLAMA_BENCH" -m "$model" -p 0 -n 128 -r 5 2>/dev/null
  done
fi
exit $failed
