#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: numeric agreement of real weights, then one-stream decoding beside llama.cpp and
# transformers. Part `peers` of tools/test_long.sh, not one of its usual parts. Environment:
#   MODELS        GGUF files with real weights; tokens of FILE.gguf are read from FILE.tokens where that exists
#   LLAMA_BENCH   a CUDA build of llama-bench (bench/peers/build_llama.sh), waited for up to LLAMA_SECONDS (240)
#   TENSORFOLD, DUMP_LOGITS   binaries (build/release/bin), PYTHON (python3), RESULTS (build/long)
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
tensorfold=${TENSORFOLD:-build/release/bin/tensorfold} dump=${DUMP_LOGITS:-build/release/bin/dump_logits}
python=${PYTHON:-python3} results=${RESULTS:-build/long} status=0 jobs=()
{ true >&3; } 2>/dev/null || exec 3>&1
mkdir -p "$results"
: "${LLAMA_BENCH:?names the llama-bench to compare with}"

random=$results/qwen2.5-1.5b-random.gguf
[ -f "$random" ] || "$tensorfold" bench --synthetic qwen2.5-1.5b --format q4_1 --write-gguf "$random" || exit 1

for model in ${MODELS:-}; do  # side by side: none of it is timed
  name=$(basename "$model" .gguf) tokens=()
  [ -f "${model%.gguf}.tokens" ] && tokens=(--tokens "${model%.gguf}.tokens")
  "$python" tools/long/compare_backends.py "$model" "${tokens[@]}" --dump "$dump" --backends "${BACKENDS:-cuda,cpu,reference+rounding}" \
    --result "$results/agreement-$name.json" >"$results/agreement-$name.txt" 2>"$results/agreement-$name.err" &
  jobs+=($!)
done
for job in "${jobs[@]}"; do wait "$job" || status=1; done
cat "$results"/agreement-*.txt
((status == 0)) || tail -n 5 "$results"/agreement-*.err

for ((second = 0; second < ${LLAMA_SECONDS:-240}; ++second)); do [ -x "$LLAMA_BENCH" ] && break; sleep 1; done
[ -x "$LLAMA_BENCH" ] || { echo "no $LLAMA_BENCH"; status=1; }
# shellcheck disable=SC2086
"$python" bench/peers/compare_engines.py ${MODELS:-} "$random" --llama-bench "$LLAMA_BENCH" --tensorfold "$tensorfold" \
  --rounds "${ROUNDS:-3}" --compile-seconds-max "${COMPILE_SECONDS:-180}" --result "$results/engines.json" \
  | tee "$results/engines.txt"
((PIPESTATUS[0] == 0)) || status=1
echo "agreement and engines: $results/agreement-*.txt, $results/engines.txt" >&3
exit $status
