#!/usr/bin/env bash
# On the GPU machine: takes in one folder of parts, any order. The first call (part 00) starts what goes on in the
# background while the others travel: unpacking, loadtest's environment, the models.
#   usage: receive.sh FOLDER        LAB: where everything goes (/tmp/lab)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
LAB=${LAB:-/tmp/lab}
folder=${1:?usage: receive.sh FOLDER}
mkdir -p "$LAB/parts"
(cd "$folder" && sha256sum --quiet -c -- *.sha256)
if [ -e "$folder/stream" ]; then
  [ -e "$LAB/started" ] || date +%s > "$LAB/started"
  if [ ! -e "$LAB/repo" ]; then   # a copy, so that a later call cannot change what runs
    mkdir -p "$LAB/repo.tmp"
    if [ -e "$folder/repo.tar.xz" ]; then tar -C "$LAB/repo.tmp" -xJf "$folder/repo.tar.xz"   # a state that was checked
    else cp -r "$here/../../"{loadtest,locustfiles,plans,datasets,tools,pyproject.toml} "$LAB/repo.tmp/"; fi
    mv "$LAB/repo.tmp" "$LAB/repo"
  fi
  cp "$folder/stream" "$LAB/parts/"
fi
for part in "$folder"/part.??; do
  cp "$part" "$LAB/parts/.new" && mv "$LAB/parts/.new" "$LAB/parts/${part##*/}"   # a part is there whole or not at all
done
if [ -e "$folder/stream" ] && [ ! -e "$LAB/unpack.log" ]; then
  LAB=$LAB setsid nohup "$LAB/repo/tools/gpu_lab/unpack.sh" > "$LAB/unpack.log" 2>&1 < /dev/null &
fi
echo "$(ls "$LAB/parts" | grep -c '^part') parts; $(tail -n 1 "$LAB/unpack.log" 2> /dev/null || true)"
