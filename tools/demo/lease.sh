#!/usr/bin/env bash
# One lease of a lent GPU machine, from bare to trained. `lease.sh kernels` and `lease.sh smoke` check kernels and speeds; `lease.sh all` runs every
# stage and is started detached, so that it outlives the call that starts it; `lease.sh wait SECONDS` watches it and copies
# what there is to $OUT. State lies in /tmp/demo; scripts beside this file.
set -u
here=$(cd "$(dirname "$0")" && pwd)
work=/tmp/demo
mkdir -p $work
export PYTHONUNBUFFERED=1 TORCHINDUCTOR_CACHE_DIR=$work/inductor TRITON_CACHE_DIR=$work/triton PYTHONPATH=$work/site
cd "$here"
taskset -p -c ${DEMO_CPUS:-0-7} $$ >/dev/null

kernels() {
  nvidia-smi --query-gpu=name,memory.used --format=csv,noheader
  python3 check_gated_delta.py
  python3 smoke.py
}

smoke() {
  local began=$SECONDS
  python3 prompts.py --count 3000 --out $work/p0.jsonl
  python3 - <<'PY'
import json, os, random, sys
sys.path.insert(0, ".")
from program_text import edits
os.makedirs("/tmp/demo/t0", exist_ok=True)
rng = random.Random(1)
with open("/tmp/demo/t0/shard000.jsonl", "w") as out:
    out.writelines(json.dumps([i, edits.prose(rng)]) + "\n" for i in range(2000))
open("/tmp/demo/t0/done", "w")
PY
  python3 corpus.py build --teacher $work/t0 --prompts $work/p0.jsonl --out $work/c0 --program 60000 | tail -5
  echo "== corpus after $((SECONDS - began)) s"
  timeout 150 python3 train.py --corpus $work/c0 --out $work/m0 --seconds ${SMOKE_TRAIN:-55} | grep -v "^$"
  echo "== training after $((SECONDS - began)) s"
  timeout 150 python3 drafter.py --corpus $work/c0 --model $work/m0/model.pt --out $work/d0 --seconds 8 --prompts 4000 --text-seconds 5
  echo "== drafter after $((SECONDS - began)) s"
}

stage() { echo "=== $(date +%T) $*"; }

all() {
  rm -f $work/finished
  stage teacher
  python3 prompts.py --count 500000 --out $work/prompts.jsonl
  python3 corpus.py build --teacher $work/teacher --prompts $work/prompts.jsonl --out $work/corpus &
  local corpus=$!
  python3 teacher.py --gguf $work/teacher.gguf --tokenizer $work/smollm2_tokenizer.json --prompts $work/prompts.jsonl \
    --out $work/teacher --seconds ${TEACHER_SECONDS:-125}
  wait $corpus
  stage train
  python3 train.py --corpus $work/corpus --out $work/model --seconds ${TRAIN_SECONDS:-390}
  stage drafter
  python3 drafter.py --corpus $work/corpus --model $work/model/model.pt --out $work/drafter --seconds ${DRAFT_SECONDS:-175}
  stage export
  [ -f $work/drafter/model.pt ] || cp $work/model/model.pt $work/drafter/model.pt
  python3 export.py --model $work/drafter/model.pt --drafter $work/drafter/drafter.pt --tokenizer $work/corpus/tokenizer.json --out $work/export
  stage finished
  touch $work/finished
}

collect() {
  cp $work/all.log $OUT/ 2>/dev/null
  if [ -f $work/finished ]; then
    cp $work/export/*.safetensors $OUT/
    cp $work/export/dflash2/model.safetensors $OUT/drafter.safetensors
    rm $OUT/all.log
    gzip -c $work/corpus/held.jsonl > $work/held.jsonl.gz
    tar czf $OUT/rest.tgz -C $work all.log export/config.json export/model.safetensors.index.json export/dflash2/config.json \
      corpus/tokenizer.json held.jsonl.gz model/log.jsonl drafter/drafter_log.jsonl drafter/evaluation.json
  elif [ -f $work/model/model.pt ] || [ -f $work/model/checkpoint.pt ]; then
    local from=$work/model/model.pt
    [ -f $from ] || from=$work/model/checkpoint.pt
    python3 export.py --model $from --tokenizer $work/corpus/tokenizer.json --out $work/early && cp $work/early/*.safetensors $OUT/
    cp $work/corpus/tokenizer.json $OUT/
  fi
  ls -la $OUT
}

watch() {
  local until=$((SECONDS + $1))
  while [ $SECONDS -lt $until ] && [ ! -f $work/finished ] && [ ! -f $work/failed ]; do sleep 1; done
  tail -n 60 $work/all.log | cut -c1-400
  collect
}

case $1 in
  kernels) kernels ;;
  smoke) smoke ;;
  all) all ;;
  start)
    rm -f $work/failed
    setsid bash -c "bash $here/lease.sh all > $work/all.log 2>&1 || touch $work/failed" < /dev/null > /dev/null 2>&1 &
    ;;
  wait) watch "$2" ;;
esac
