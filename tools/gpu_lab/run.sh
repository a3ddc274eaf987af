#!/usr/bin/env bash
# On the GPU machine, in the background: measures plans, one per GPU at the same time, each on cores of its own.
#   usage: run.sh PLAN:GPU[:CONFIG,CONFIG] [PLAN:GPU[:CONFIG,CONFIG] ...]
#     run.sh vllm-h200-draft:0 vllm-h200-ngram:1         one server after the other: 22 minutes
#     run.sh vllm-h200-draft:0:baseline,draft-4          these two start together and stay; windows fit the time left
#   LAB (/tmp/lab), LAB_MINUTES: from the first part on, after which runs are stopped (25); what was measured stays.
#   A file LAB/deadline (seconds since the epoch) goes before LAB_MINUTES and may come or change at any time.
# A config that fails is marked by loadtest, and the run goes on; a run that fails leaves the others alone.
set -uo pipefail
LAB=${LAB:-/tmp/lab}
plans=${PLANS:-$LAB/repo/plans}
python=${LOADTEST_PYTHON:-$LAB/venv/bin/python}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$LAB/runs"
say() { echo "$(date +%T) $*"; }
left() {
  local deadline
  deadline=$(cat "$LAB/deadline" 2> /dev/null) || deadline=$(($(cat "$LAB/started") + 60 * ${LAB_MINUTES:-25}))
  echo $((deadline - $(date +%s)))
}

wait_for() {   # marker file
  [ -e "$LAB/$1" ] || say "waiting for $1"
  until [ -e "$LAB/$1" ]; do
    [ "$(left)" -gt 60 ] || { say "no $1 in time"; return 1; }
    if [ -e "$LAB/models.ended" ]; then   # nobody makes it any more
      case $1 in target.ok | draft.ok) sleep 1; [ -e "$LAB/$1" ] || { say "no $1: see models.log"; return 1; } ;; esac
    fi
    sleep 0.5
  done
}

cores() {   # index of the run -> "client cores" "server cores"; "- -" where there are too few to share
  local each=$(($(nproc) / runs)) first
  first=$(($1 * each))
  [ "$each" -ge 8 ] || { echo "- -"; return; }
  local client=$((each / 3 > 5 ? 5 : each / 3))   # master, workers, scraper; the rest for the server
  echo "$first-$((first + client - 1)) $((first + client))-$((first + each - 1))"
}

caches() {   # caches of its own: two servers that compile the same thing at once must not meet
  export VLLM_CACHE_ROOT=$LAB/cache/$1 TORCHINDUCTOR_CACHE_DIR=$LAB/cache/$1/inductor TRITON_CACHE_DIR=$LAB/cache/$1/triton
}

measure() (   # PLAN:GPU[:CONFIGS] INDEX
  IFS=: read -r plan gpu configs <<< "$1"
  exec > "$LAB/runs/$plan.log" 2>&1
  read -r client server <<< "$(cores "$2")"
  pin=()
  [ "$client" = - ] || pin=(taskset -c "$client")
  export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=$gpu
  ulimit -n "$(ulimit -Hn)"
  cd "$LAB/repo" || exit 1
  wait_for env.ok && wait_for site.ok && wait_for target.ok || exit 1
  if [ -n "$configs" ]; then together; else in_turn; fi
)

in_turn() {
  # the draft is distilled on one GPU: that one has to be free, and a plan that names the draft needs it
  if grep -q models/draft "$plans/$plan.toml" || [ "$gpu" = "${DISTILL_GPU-0}" ]; then wait_for models.ended; fi
  caches "$plan"
  [ "$server" = - ] || export VLLM_CORES=$server
  say "plan $plan on GPU $gpu, client on cores $client, server on cores $server, $(left) s left"
  timeout --signal TERM --kill-after 60 "$(left)" "${pin[@]}" "$python" -m loadtest run "$plans/$plan.toml" \
    --out "$LAB/runs/$plan" --no-gate
  say "plan $plan ended with exit code $?"
}

together() {
  local servers=$LAB/runs/$plan.servers config line again pid pids=()
  mkdir -p "$servers"
  for config in ${configs//,/ }; do
    line=$("$python" "$here/together.py" serve "$plans/$plan.toml" "$config") || return 1
    case $line in *models/draft*) wait_for draft.ok || continue ;; esac
    echo "$line" > "$servers/$config.command"
    again=
    case $line in *--speculative-config*) again=" || env VLLM_USE_V2_MODEL_RUNNER=0 $line" ;; esac   # vLLM's older runner
    (caches "$plan-$config"; exec setsid bash -c "env $line$again") > "$servers/$config.log" 2>&1 < /dev/null &
    pids+=("$config=$!")
    say "$config: process $!"
  done
  "$python" "$here/together.py" ready "$plans/$plan.toml" "${pids[@]}" --seconds $(($(left) - 60)) \
    --bursts "${WARM_BURSTS:-1,8,32,128}" || say "a server is missing: its cells will count as not measured"
  [ "$gpu" != "${DISTILL_GPU-0}" ] || wait_for models.ended
  if [ "$server" != - ]; then   # while they started, all cores were theirs
    for config in "${pids[@]}"; do
      for pid in $(ps -o pid= -s "${config#*=}"); do taskset -a -c -p "$server" "$pid" > /dev/null; done
    done
  fi
  "$python" "$here/together.py" plan "$plans/$plan.toml" "$plans/$plan-attached.toml" --configs "$configs" \
    --left $(($(left) - 15)) || return 1   # merging, and a little that goes wrong
  say "plan $plan on GPU $gpu, client on cores $client, servers on cores $server, $(left) s left"
  timeout --signal TERM --kill-after 15 "$(left)" "${pin[@]}" "$python" -m loadtest run "$plans/$plan-attached.toml" \
    --out "$LAB/runs/$plan" --no-gate
  say "plan $plan ended with exit code $?"
  for config in "${pids[@]}"; do kill -TERM -- "-${config#*=}" 2> /dev/null; done
}

runs=$#
say "start: $*; $(nproc) cores, $(left) s left"
nvidia-smi -L 2> /dev/null
nvidia-smi --query-gpu=timestamp,index,clocks.sm,power.draw,utilization.gpu,memory.used,temperature.gpu \
  --format=csv,nounits -l 2 > "$LAB/gpu.csv" 2> /dev/null &
monitor=$!
index=0
jobs=()
for what in "$@"; do
  measure "$what" "$index" &
  jobs+=($!)
  index=$((index + 1))
done
wait "${jobs[@]}"
kill "$monitor" 2> /dev/null
touch "$LAB/ended"
say "all ended, $(left) s left"
