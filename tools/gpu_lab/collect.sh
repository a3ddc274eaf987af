#!/usr/bin/env bash
# On the GPU machine: the raw files of all runs, finished or not, and the logs, in pieces of at most 15 MB.
# `loadtest merge` and `loadtest gate` make everything else of them, on any machine.      usage: collect.sh OUT
set -euo pipefail
LAB=${LAB:-/tmp/lab}
out=${1:?usage: collect.sh OUT}
mkdir -p "$out"
cd "$LAB"
rm -f "$out"/h200.tar.xz.*
# gently, for a measurement may be going on; files grow while they are read; that is all right for logs, and a cell without done.json does not count
set +e
tar --exclude=runs/*/*/requests --exclude='*.parquet' --exclude='*.sock' -cf - runs ./*.log gpu.csv started \
  2> /dev/null | nice -n 19 xz -1 -T2 | split -b 15000000 -d - "$out/h200.tar.xz."
set -e
ls -l "$out"
