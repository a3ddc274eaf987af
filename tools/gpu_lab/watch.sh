#!/usr/bin/env bash
# On the GPU machine: shows how far everything is for SECONDS, or until the runs have ended; then, with a folder, brings
# what was measured so far there.        usage: watch.sh SECONDS [OUT folder]
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
LAB=${LAB:-/tmp/lab}
until_s=$(($(date +%s) + ${1:?usage: watch.sh SECONDS [OUT]}))
deadline=$(cat "$LAB/deadline" 2> /dev/null) && [ "$until_s" -gt $((deadline + 12)) ] && until_s=$((deadline + 12))   # the machine goes soon
state() {
  echo "== $(date +%T), $((($(date +%s) - $(cat "$LAB/started")) / 60)) min; there: $(cd "$LAB" && ls -d ./*.ok models.ended ended 2> /dev/null | tr '\n' ' ')"
  for log in unpack models environment run; do [ -s "$LAB/$log.log" ] && echo "  $log: $(tail -n 1 "$LAB/$log.log" | cut -c -160)"; done
  for log in "$LAB"/runs/*.log; do
    [ -e "$log" ] || continue
    name=$(basename "$log" .log)
    echo "  $name: $(ls "$LAB/runs/$name"/*/cells/*/done.json 2> /dev/null | wc -l) cells done, $(ls "$LAB/runs/$name"/*/servers/*/failed.json 2> /dev/null | wc -l) starts failed"
    grep -v '^$' "$log" | tail -n 2 | cut -c -300 | sed 's/^/    /'
    for failed in "$LAB/runs/$name"/*/servers/*/failed.json; do
      [ -e "$failed" ] && echo "    $(basename "$(dirname "$failed")") failed: $(grep -m 1 '"diagnosis"' "$failed" | cut -c -400)"
    done
    for server in "$LAB/runs/$name.servers"/*.log; do
      [ -e "$server" ] && echo "    $(basename "$server" .log): $(tail -n 1 "$server" | cut -c -200)"
    done
    server=$(ls -td "$LAB/runs/$name"/*/servers/*/ 2> /dev/null | head -n 1)
    [ -e "$server/server.log" ] && echo "    $(basename "$server"): $(tail -n 1 "$server/server.log" | cut -c -200)"
  done
}
state
while [ "$(date +%s)" -lt "$until_s" ] && [ ! -e "$LAB/ended" ]; do
  sleep 5
  now=$(date +%s)
  [ $((now % ${EVERY_S:-60})) -lt 5 ] && state
done
state
[ -z "${2:-}" ] || "$here/collect.sh" "$2"
