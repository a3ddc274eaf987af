#!/usr/bin/env bash
# On the GPU machine: starts run.sh in the background, unless it runs already.   usage: go.sh PLAN:GPU [PLAN:GPU ...]
set -euo pipefail
LAB=${LAB:-/tmp/lab}
[ -e "$LAB/run.log" ] && { echo "started before: $(head -n 1 "$LAB/run.log")"; exit 0; }
LAB=$LAB setsid nohup "$LAB/repo/tools/gpu_lab/run.sh" "$@" > "$LAB/run.log" 2>&1 < /dev/null &
sleep 1
cat "$LAB/run.log"
