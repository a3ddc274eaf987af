#!/usr/bin/env bash
# On the GPU machine, in the background: unpacks the stream of parts as they come, then makes what can be made of it.
# Markers in LAB: head.ok, env.ok, target.ok, draft.ok, models.ended (with or without a draft), site.ok.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
LAB=${LAB:-/tmp/lab}
PYTHON=${PYTHON:-python3}
. "$LAB/parts/stream"
say() { echo "$(date +%T) $*"; }

feed() {   # every part in order, as soon as it is there
  for number in $(seq -w 00 "$last"); do
    until [ -e "$LAB/parts/part.$number" ]; do sleep 0.2; done
    cat "$LAB/parts/part.$number"
  done
}

environment() {   # loadtest in an environment of its own: it must not see vLLM's packages, nor vLLM its
  say "environment of loadtest"
  "$PYTHON" -m venv --without-pip "$LAB/venv"
  local into wheel
  into=$(echo "$LAB"/venv/lib/python3*/site-packages)
  "$PYTHON" -m pip --python "$LAB/venv/bin/python" install -q --no-index --no-deps --no-cache-dir "$LAB"/head/wheels/*.whl ||
    for wheel in "$LAB"/head/wheels/*.whl; do "$PYTHON" -m zipfile -e "$wheel" "$into"; done   # a pip that is too old
  echo "$LAB/repo" > "$into/loadtest.pth"
  "$LAB/venv/bin/python" -m loadtest --help > /dev/null
  touch "$LAB/env.ok"
  say "environment done"
}

models() {   # called where `set -e` does not hold, hence the chains
  export PYTHONPATH=$LAB/head/gguf HF_HUB_OFFLINE=1
  "$PYTHON" "$here/models.py" convert "$LAB/head/smollm2.gguf" "$LAB/models/smollm2" || return 1
  { "$PYTHON" "$here/models.py" widen "$LAB/models/smollm2" "$LAB/models/target" --width "${WIDE:-262144}" &&
    touch "$LAB/target.ok" && cat "$LAB/models/target/model.safetensors" > /dev/null; } &   # into the page cache
  local widening=$! failed=0
  CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=${DISTILL_GPU-0} \
    "$PYTHON" "$here/models.py" distill "$LAB/models/smollm2" "$LAB/models/draft" --seconds "${DISTILL_S:-120}" \
    --tokens "${DISTILL_TOKENS:-320}" ${DISTILL_UNTIL:+--until "$DISTILL_UNTIL"} && touch "$LAB/draft.ok" || failed=1
  wait "$widening" && [ "$failed" = 0 ]
}

compiling() {   # Python files as they come, again and again: what was half there is compiled once more
  while [ ! -e "$LAB/site.ok" ]; do
    sleep 5
    nice -n 10 "$PYTHON" -m compileall -q -j 8 "$LAB/site" > /dev/null 2>&1 || true
  done
}

site() {
  xz -dc -T0 | tar -C "$LAB/site" -xf -
  say "vLLM's packages are unpacked"
  local cuda lib
  cuda=$("$PYTHON" -c 'import nvidia; print(list(nvidia.__path__)[0])' || true)
  if [ -n "$cuda" ]; then   # torch looks for its CUDA libraries beside itself
    mkdir -p "$LAB/site/nvidia"
    for lib in "$cuda"/*; do ln -sfn "$lib" "$LAB/site/nvidia/"; done
    rm -f "$LAB/site/nvidia/nccl" && ln -sfn "$LAB/site/_nccl" "$LAB/site/nvidia/nccl"
  fi
  "$PYTHON" -m compileall -q -j 0 "$LAB/site" > /dev/null 2>&1 || true   # else each first start spends it
  touch "$LAB/site.ok"
  say "site done"
}

say "unpacking"
mkdir -p "$LAB/head" "$LAB/site" "$LAB/models"
{   # the model is the first thing in the head
  until [ -e "$LAB/head/wheels" ]; do sleep 0.2; done
  { models && say "models done" || say "models failed"; touch "$LAB/models.ended"; } > "$LAB/models.log" 2>&1
} < /dev/null &
feed | {
  head -c "$head_bytes" | tar -C "$LAB/head" -xf -
  touch "$LAB/head.ok"
  say "head unpacked"
  environment > "$LAB/environment.log" 2>&1 < /dev/null &
  compiling < /dev/null &
  site
  wait
}
