"""Makes tiny models for a real vLLM on the CPU: a Llama target, a smaller draft and a random EAGLE-3 head.

Nothing is downloaded: tokenizer and models are trained on the source of Python's standard library, in about two
minutes on two cores. The models write Python-like text, which is enough to exercise every speculative method:
n-gram and suffix find something to copy, the draft agrees with the target now and then, the random head hardly
ever (a regression that a gate has to catch). They say nothing about the quality of a real model.

Run it with the interpreter of the vLLM environment (it needs torch, transformers and tokenizers):

    .vllm-lab/venv/bin/python tools/vllm_cpu/make_tiny.py --out .vllm-lab/models

The number of training steps is fixed and so is the seed, so the same machine makes the same weights again. A second
run with the same recipe does nothing (`manifest.json` holds its hash).
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import random
import shutil
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

SEED = 0
VOCAB = 2048
MAX_POSITIONS = 8192
"""Longest context that the configs allow. Training windows are shorter: text beyond them is poor, but not refused."""
STDLIB_FILES = 120
WINDOW_TOKENS, BATCH = 192, 8
TARGET = {"hidden": 192, "layers": 4, "heads": 3, "ffn": 512}
DRAFT = {"hidden": 96, "layers": 1, "heads": 3, "ffn": 256}
TARGET_STEPS, DRAFT_STEPS = 500, 500
EAGLE_VOCAB = 1024
"""Must be below VOCAB: vLLM refuses the d2t and t2d maps of a head with the whole vocabulary."""
EAGLE_FFN = 384
EAGLE_AUX_LAYERS = [1, 2, 3]
"""Named because vLLM's default layers (2, L//2, L-3) collide on four layers: the server dies on some prompts."""
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ '<|assistant|>' if m['role'] == 'assistant' else '<|user|>' }}"
    "{{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL_TOKENS = ["<pad>", "<bos>", "<eos>", "<|user|>", "<|assistant|>"]
FOLDERS = ("tiny-llama", "tiny-llama-draft", "tiny-llama-eagle3")


def recipe_hash(steps: tuple[int, int]) -> str:
    """Changes with this file, the interpreter's version (the training text) and the number of steps."""
    text = Path(__file__).read_bytes() + repr((sys.version_info[:3], steps)).encode()
    return hashlib.sha256(text).hexdigest()[:16]


def training_text() -> list[str]:
    """Source of the first modules of the standard library, in the order of their names."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:STDLIB_FILES]
    if not files:
        raise SystemExit("make_tiny.py: the standard library's source is not there; use a Python that ships it")
    return [file.read_text(encoding="utf-8", errors="ignore") for file in files]


def train_tokenizer(text: list[str]) -> Any:
    """Byte-level BPE, so every language can be written: about one token per byte outside ASCII."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=SPECIAL_TOKENS, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(text, trainer)
    bpe.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>")
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def train_llama(shape: dict[str, int], steps: int, ids: Any, folder: Path, tokenizer: Any) -> dict[str, Any]:
    """Trains a Llama of `shape` for `steps` steps and saves it with its tokenizer; returns what the manifest keeps."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=shape["hidden"],
            intermediate_size=shape["ffn"],
            num_hidden_layers=shape["layers"],
            num_attention_heads=shape["heads"],
            num_key_value_heads=shape["heads"],
            head_dim=shape["hidden"] // shape["heads"],
            max_position_embeddings=MAX_POSITIONS,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
            tie_word_embeddings=False,
        )
    )
    # Warm-up and decay: with a constant rate of 2e-3 the four layers end up worse than the draft's one.
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=steps + 1, pct_start=0.1)
    start, loss_value = time.monotonic(), float("nan")
    for step in range(1, steps + 1):
        starts = torch.randint(0, len(ids) - WINDOW_TOKENS, (BATCH,)).tolist()
        batch = torch.stack([ids[s : s + WINDOW_TOKENS] for s in starts])
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        loss_value = float(loss.item())
        if step % 100 == 0:
            elapsed_s = time.monotonic() - start
            print(f"{folder.name}: step {step} of {steps}, loss {loss_value:.2f}, {elapsed_s:.0f} s", flush=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    parameters = sum(p.numel() for p in model.parameters())
    return {"parameters": parameters, "steps": steps, "last_loss": round(loss_value, 3)}


def random_eagle3(folder: Path) -> dict[str, Any]:
    """An untrained EAGLE-3 head for the target: it drafts, and the target accepts next to nothing."""
    import torch
    from safetensors.torch import save_file

    hidden, heads = TARGET["hidden"], TARGET["heads"]
    head_dim = hidden // heads

    def weight(*shape: int) -> Any:
        return torch.randn(*shape) * 0.02

    layer = "midlayer."
    tensors = {
        "fc.weight": weight(hidden, 3 * hidden),
        layer + "self_attn.q_proj.weight": weight(heads * head_dim, 2 * hidden),
        layer + "self_attn.k_proj.weight": weight(heads * head_dim, 2 * hidden),
        layer + "self_attn.v_proj.weight": weight(heads * head_dim, 2 * hidden),
        layer + "self_attn.o_proj.weight": weight(hidden, heads * head_dim),
        layer + "mlp.gate_proj.weight": weight(EAGLE_FFN, hidden),
        layer + "mlp.up_proj.weight": weight(EAGLE_FFN, hidden),
        layer + "mlp.down_proj.weight": weight(hidden, EAGLE_FFN),
        layer + "hidden_norm.weight": torch.ones(hidden),
        layer + "input_layernorm.weight": torch.ones(hidden),
        layer + "post_attention_layernorm.weight": torch.ones(hidden),
        "norm.weight": torch.ones(hidden),
        "lm_head.weight": weight(EAGLE_VOCAB, hidden),
        "d2t": torch.zeros(EAGLE_VOCAB, dtype=torch.int64),
        "t2d": torch.arange(VOCAB) < EAGLE_VOCAB,
    }
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": EAGLE_FFN,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": head_dim,
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": MAX_POSITIONS,
        "vocab_size": VOCAB,
        "draft_vocab_size": EAGLE_VOCAB,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "attention_bias": False,
        "torch_dtype": "float32",
        "eagle_aux_hidden_state_layer_ids": EAGLE_AUX_LAYERS,
    }
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    return {"parameters": sum(t.numel() for t in tensors.values()), "steps": 0, "last_loss": None}


def make(out: Path, steps: tuple[int, int], recipe: str) -> dict[str, Any]:
    """Makes the three folders below `out` and returns the manifest."""
    import torch

    random.seed(SEED)
    torch.manual_seed(SEED)
    text = training_text()
    tokenizer = train_tokenizer(text)
    ids = torch.tensor([token for module in text for token in tokenizer(module).input_ids])
    print(f"{len(text)} modules, {len(ids)} tokens, vocabulary {len(tokenizer)}", flush=True)
    target, draft, eagle = FOLDERS
    models = {
        target: train_llama(TARGET, steps[0], ids, out / target, tokenizer),
        draft: train_llama(DRAFT, steps[1], ids, out / draft, tokenizer),
        eagle: random_eagle3(out / eagle),
    }
    python = ".".join(map(str, sys.version_info[:3]))
    return {"recipe": recipe, "seed": SEED, "python": python, "torch": torch.__version__, "models": models}


def main() -> None:
    parser = argparse.ArgumentParser(description="Tiny target, draft and EAGLE-3 head for a vLLM on the CPU.")
    parser.add_argument("--out", type=Path, default=Path(".vllm-lab/models"), help="folder for the models")
    parser.add_argument("--target-steps", type=int, default=TARGET_STEPS, help="training steps of the target")
    parser.add_argument("--draft-steps", type=int, default=DRAFT_STEPS, help="training steps of the draft")
    args = parser.parse_args()
    steps = (args.target_steps, args.draft_steps)
    if min(steps) < 1:
        parser.error(f"--target-steps and --draft-steps must be at least 1; seen {steps}")
    recipe = recipe_hash(steps)
    manifest_file = args.out / "manifest.json"
    if manifest_file.exists() and json.loads(manifest_file.read_text()).get("recipe") == recipe:
        print(f"the tiny models are in {args.out} already (recipe {recipe})")
        return
    if args.out.exists() and not manifest_file.exists() and any(args.out.iterdir()):
        parser.error(f"--out {args.out} holds files that this script did not make; name a new or empty folder")
    missing = [name for name in ("torch", "transformers", "tokenizers") if importlib.util.find_spec(name) is None]
    if missing:
        parser.error(f"{sys.executable} has no {', '.join(missing)}; run this with the Python that install.sh made")
    unfinished = args.out.with_name(args.out.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    start = time.monotonic()
    manifest = make(unfinished, steps, recipe)
    (unfinished / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    # Whole or not at all: a run that breaks off leaves the models of the run before alone.
    shutil.rmtree(args.out, ignore_errors=True)
    unfinished.rename(args.out)
    print(f"made {', '.join(FOLDERS)} in {args.out} in {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
