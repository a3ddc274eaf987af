#!/usr/bin/env bash
# A real vLLM on the CPU and tiny models to serve with it: install.sh, then make_tiny.py. See docs/vllm-cpu.md.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
export VLLM_LAB=${VLLM_LAB:-$root/.vllm-lab}
"$here/install.sh"
"$VLLM_LAB/venv/bin/python" "$here/make_tiny.py" --out "$VLLM_LAB/models"
