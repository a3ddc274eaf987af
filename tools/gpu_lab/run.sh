#!/usr/bin/env bash
# On the GPU machine, in the background: measures plans, one per GPU at the same time, each on cores of its own.
#   usage: run.sh PLAN:GPU [PLAN:GPU ...]        for example  run.sh vllm-h200-draft:0 vllm-h200-ngram:1
#   LAB (/tmp/lab), LAB_MINUTES: from the first part on, after which runs are stopped (25); what was measured stays
# A config that fails is marked by loadtest, and the run goes on; a run that fails leaves the others alone.
set -uo pipefail
LAB=${LAB:-/tmp/lab}
plans=${PLANS:-$LAB/repo/plans}
loadtest=${LOADTEST:-$LAB/venv/bin/python -m loadtest}
deadline=$(($(cat "$LAB/started") + 60 * ${LAB_MINUTES:-25}))
mkdir -p "$LAB/runs"
say() { echo "$(date +%T) $*"; }
left() { echo $((deadline - $(date +%s))); }

wait_for() {   # marker file
  [ -e "$LAB/$1" ] || say "waiting for $1"
  until [ -e "$LAB/$1" ]; do
    [ "$(left)" -gt 60 ] || { say "no $1 in time"; return 1; }
    [ "$1" != target.ok ] || [ ! -e "$LAB/models.ended" ] || { sleep 1; [ -e "$LAB/$1" ] || { say "no target: see models.log"; return 1; }; }
    sleep 0.5
  done
}

cores() {   # index of the run -> "client cores" "server cores"; empty where there are too few to share
  local each=$(($(nproc) / runs)) first
  first=$(($1 * each))
  [ "$each" -ge 8 ] || { echo "- -"; return; }
  local client=$((each / 3 > 5 ? 5 : each / 3))   # master, workers, scraper; the rest for the server
  echo "$first-$((first + client - 1)) $((first + client))-$((first + each - 1))"
}

measure() (   # PLAN GPU INDEX
  exec > "$LAB/runs/$1.log" 2>&1
  read -r client server <<< "$(cores "$3")"
  wait_for env.ok && wait_for site.ok && wait_for target.ok || exit 1
  # the draft is distilled on one GPU: that one has to be free, and a plan that names the draft needs it
  if grep -q models/draft "$plans/$1.toml" || [ "$2" = "${DISTILL_GPU-0}" ]; then wait_for models.ended; fi
  export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=$2
  # a compile cache of its own: two servers that compile the same thing at once must not meet
  export VLLM_CACHE_ROOT=$LAB/cache/$1 TORCHINDUCTOR_CACHE_DIR=$LAB/cache/$1/inductor TRITON_CACHE_DIR=$LAB/cache/$1/triton
  local pin=()
  if [ "$server" != - ]; then export VLLM_CORES=$server; pin=(taskset -c "$client"); fi
  say "plan $1 on GPU $2, client on cores $client, server on cores $server, $(left) s left"
  ulimit -n "$(ulimit -Hn)"
  cd "$LAB/repo" || exit 1
  # shellcheck disable=SC2086
  timeout --signal TERM --kill-after 60 "$(left)" "${pin[@]}" $loadtest run "$plans/$1.toml" --out "$LAB/runs/$1" --no-gate
  say "plan $1 ended with exit code $?"
)

runs=$#
say "start: $*; $(nproc) cores, $(left) s left"
nvidia-smi -L 2> /dev/null
nvidia-smi --query-gpu=timestamp,index,clocks.sm,power.draw,utilization.gpu,memory.used,temperature.gpu \
  --format=csv,nounits -l 2 > "$LAB/gpu.csv" 2> /dev/null &
monitor=$!
index=0
pids=()
for what in "$@"; do
  measure "${what%:*}" "${what##*:}" "$index" &
  pids+=($!)
  index=$((index + 1))
done
wait "${pids[@]}"
kill "$monitor" 2> /dev/null
touch "$LAB/ended"
say "all ended, $(left) s left"
