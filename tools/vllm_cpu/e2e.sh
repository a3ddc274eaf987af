#!/usr/bin/env bash
# Runs a plan against real vLLM servers on the CPU and checks that the result is whole. The verdict itself may be
# pass, fail or inconclusive: on a machine this small the draft model really is slower. A crash or a gap is an error.
#   usage: tools/vllm_cpu/e2e.sh PLAN [OUT folder]
set -euo pipefail
cd "$(dirname "$0")/../.."
plan=${1:?usage: e2e.sh PLAN [OUT]}
out=${2:-reports}
.venv/bin/loadtest doctor "$plan" --out "$out"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
set +e
.venv/bin/loadtest run "$plan" --out "$out" | tee "$log"
code=${PIPESTATUS[0]}
set -e
case $code in
  0 | 98 | 99) echo "e2e: gate exit code $code" ;;
  *) echo "e2e: loadtest run ended with code $code" >&2; exit "$code" ;;
esac
run=$(sed -n 's/^run: //p' "$log" | tail -n 1)
.venv/bin/python tools/vllm_cpu/check_run.py "$run"
