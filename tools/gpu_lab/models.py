"""The GPU lab's models, made from SmolLM2-135M-Instruct.

convert  GGUF -> a Hugging Face folder in bf16
widen    the target: each MLP widened by zero columns, so the same function at the cost of a large model
distill  the draft: some of its layers, trained for a bounded time on text that the target's function wrote

The prompts of the distillation are made here; none of `datasets/` is among them, so that the draft is not trained on
what is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

HEADS, KV_HEADS, HEAD_DIM, LAYERS = 9, 3, 64, 30
"""SmolLM2-135M."""
EOS = 2
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
    "vocab_size": 49152,
    "bos_token_id": 1,
    "eos_token_id": EOS,
    "pad_token_id": EOS,
    "dtype": "bfloat16",
}
NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTSIDE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def convert(source: Path, out: Path) -> None:
    """Read the GGUF file, undo llama.cpp's interleaving of the rotary halves, write weights, config and tokenizer."""
    import numpy as np
    import torch
    from gguf import GGUFReader, dequantize
    from safetensors.torch import save_file
    from transformers import AutoTokenizer

    weights = {}
    for tensor in GGUFReader(source).tensors:
        w = torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type)))
        name = OUTSIDE.get(tensor.name)
        if name is None:
            _, layer, rest = tensor.name.split(".", 2)
            key = rest.removesuffix(".weight")
            if key in ("attn_q", "attn_k"):
                heads = HEADS if key == "attn_q" else KV_HEADS
                w = w.reshape(heads, w.shape[0] // heads // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)
            name = f"model.layers.{layer}.{NAMES[key]}.weight"
        weights[name] = w.to(torch.bfloat16).contiguous()
    out.mkdir(parents=True, exist_ok=True)
    save_file(weights, out / "model.safetensors", {"format": "pt"})
    (out / "config.json").write_text(json.dumps(CONFIG, indent=1))
    AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name).save_pretrained(out)
    say(f"converted: {len(weights)} tensors, {sum(w.numel() for w in weights.values()) / 1e6:.1f} M parameters")


def widen(source: Path, out: Path, width: int) -> None:
    """Write the widened weights as a sparse file: the zeros are holes, so 27 GB take little time and disk."""
    import numpy as np
    import torch
    from safetensors.torch import load_file

    weights = load_file(source / "model.safetensors")
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = parameters = 0
    for name, w in weights.items():
        shape = list(w.shape)
        if ".mlp." in name:
            shape[1 if "down_proj" in name else 0] = width
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
        parameters += size // 2
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the data has to be aligned
    out.mkdir(parents=True, exist_ok=True)
    path = out / "model.safetensors"
    with path.open("wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        f.truncate(f.tell() + at)
    with path.open("r+b") as f:
        for name, w in weights.items():
            here = 8 + len(text) + header[name]["data_offsets"][0]
            row_bytes = 2 * header[name]["shape"][-1]
            rows = w.view(torch.uint16).numpy()
            if 2 * rows.shape[-1] == row_bytes:
                os.pwrite(f.fileno(), rows.tobytes(), here)
                continue
            for i, row in enumerate(rows):
                os.pwrite(f.fileno(), row.tobytes(), here + i * row_bytes)
    (out / "config.json").write_text(json.dumps(CONFIG | {"intermediate_size": width}, indent=1))
    copy_tokenizer(source, out)
    say(f"widened to {width}: {parameters / 1e9:.2f} billion parameters")


def copy_tokenizer(source: Path, out: Path) -> None:
    """Everything of the tokenizer and its chat template."""
    for file in source.iterdir():
        if "token" in file.name or "template" in file.name:
            shutil.copy(file, out)


def prompts() -> list[str]:
    """500 questions of both kinds, always the same."""
    r = random.Random(1)
    things = (
        "stack queue linked list binary tree heap graph cache parser tokenizer matrix bank account inventory calendar "
        "text editor chess board calculator todo list http client csv reader logger rate limiter lru cache trie"
    )
    asks = (
        "Write a Python class for a {}.",
        "Write a Python function that validates a {} and add unit tests.",
        "Refactor this code for a {} and explain:\nclass Thing:\n    def __init__(self):\n        self.items = []\n",
    )
    topics = (
        "the sky, a healthy breakfast, learning to swim, remote work, black holes, the French revolution, gardening, "
        "how vaccines work, saving money, sleep, a trip to Rome, climate change, chess openings, music theory, "
        "running a marathon, cooking rice, job interviews, volcanoes, elections, friendship"
    )
    talk = (
        "Tell me about {}.",
        "What should a beginner know about {}?",
        "Write a short story about {}.",
        "Give me five tips on {}.",
        "Summarise the arguments for and against {}.",
    )
    code = [ask.format(" ".join(r.sample(things.split(), 2))) for ask in asks for _ in range(100)]
    chat = [ask.format(topic) for ask in talk for topic in topics.split(", ")]
    found = code + 2 * chat
    r.shuffle(found)
    return found


def written_by(teacher: Any, tokenizer: Any, device: str, tokens: int) -> list[Any]:
    """Three passes over the prompts at different temperatures: tensors of token ids, rows x length, left-padded."""
    import torch

    asked = [
        tokenizer.apply_chat_template([{"role": "user", "content": p}], add_generation_prompt=True, tokenize=False)
        for p in prompts()
    ]
    inputs = tokenizer(asked, return_tensors="pt", padding=True).to(device)
    found = []
    for temperature in (0.0, 0.7, 1.0):
        how = {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
        with torch.no_grad():
            ids = teacher.generate(**inputs, max_new_tokens=tokens, pad_token_id=EOS, **how)
        found.append(ids.cpu())
        say(f"the teacher wrote {tuple(ids.shape)} at temperature {temperature}")
    return found


def student_of(teacher: Any, layers: int, device: str) -> Any:
    """A model of `layers` layers that starts from layers of the teacher, spread over its depth."""
    import torch
    from transformers import AutoModelForCausalLM

    config = type(teacher.config)(**{**CONFIG, "num_hidden_layers": layers})
    keep = [round(i * (LAYERS - 1) / (layers - 1)) for i in range(layers)]
    start = {}
    for name, w in teacher.state_dict().items():
        parts = name.split(".")
        if parts[1] == "layers":
            if int(parts[2]) not in keep:
                continue
            parts[2] = str(keep.index(int(parts[2])))
        start[".".join(parts)] = w.float()
    student = AutoModelForCausalLM.from_config(config, dtype=torch.float32).to(device)
    missing, unexpected = student.load_state_dict(start, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:  # tied to the embedding
        raise SystemExit(f"the draft's layers do not fit the teacher's: missing {missing}, unexpected {unexpected}")
    return student


def distill(source: Path, out: Path, layers: int, seconds: float, tokens: int, batch: int, until: Path | None) -> None:
    """Train the student on the teacher's distribution (KL divergence) for `seconds`; the loss is printed.

    Half of `seconds` is enough once the file `until` exists: then somebody waits for the GPU.
    """
    import torch
    from safetensors.torch import save_file
    from torch.nn import functional
    from transformers import AutoModelForCausalLM, AutoTokenizer

    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.padding_side = "left"
    tokenizer.pad_token = "<|im_end|>"
    teacher = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).to(device).eval()
    texts = written_by(teacher, tokenizer, device, tokens)
    student = student_of(teacher, layers, device)
    optimizer = torch.optim.AdamW(student.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.01)
    steps = 0
    start = time.monotonic()
    while (share := (time.monotonic() - start) / seconds) < 1:
        if until is not None and share > 0.5 and until.exists():
            break
        text = random.choice(texts)
        ids = text[torch.randint(len(text), (batch,))].to(device)
        mask = torch.ones_like(ids)  # padding is left out: every EOS but the first after another token
        mask[ids == EOS] = 0
        mask[:, 1:][ids[:, :-1] != EOS] = 1
        with torch.no_grad(), torch.autocast(device, torch.bfloat16):
            wanted = teacher(ids, attention_mask=mask).logits.float()
        for group in optimizer.param_groups:
            group["lr"] = 6e-4 * min(1, (steps + 1) / 50) * (1 - 0.95 * share)
        with torch.autocast(device, torch.bfloat16):
            seen = student(ids, attention_mask=mask).logits.float()
        logs = functional.log_softmax(seen, -1), functional.log_softmax(wanted, -1)
        each = functional.kl_div(*logs, log_target=True, reduction="none").sum(-1)
        loss = (each * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        steps += 1
        if steps % 100 == 1:
            same = ((seen.argmax(-1) == wanted.argmax(-1)).float() * mask).sum() / mask.sum()
            say(f"step {steps}: KL {loss.item():.3f}, same first choice {same.item():.3f}")
    weights = {k: v.to(torch.bfloat16).contiguous() for k, v in student.state_dict().items() if k != "lm_head.weight"}
    out.mkdir(parents=True, exist_ok=True)
    copy_tokenizer(source, out)
    save_file(weights, out / "model.safetensors", {"format": "pt"})
    (out / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": layers}, indent=1))
    say(f"draft of {layers} layers after {steps} steps")


def say(text: str) -> None:
    """One line with the time."""
    print(time.strftime("%H:%M:%S"), text, flush=True)


def main() -> None:
    """Command line; see the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("convert", "widen", "distill"):
        sub = commands.add_parser(name)
        sub.add_argument("source", type=Path)
        sub.add_argument("out", type=Path)
        if name == "widen":
            sub.add_argument("--width", type=int, default=262144, help="262144: 13.6 billion parameters; 98304: 5.2")
        if name == "distill":
            sub.add_argument("--layers", type=int, default=6)
            sub.add_argument("--seconds", type=float, default=120.0, help="of training, after the texts are written")
            sub.add_argument("--tokens", type=int, default=320, help="per text")
            sub.add_argument("--batch", type=int, default=64)
            sub.add_argument("--until", type=Path, help="a file that ends the training early")
    given = vars(parser.parse_args())
    {"convert": convert, "widen": widen, "distill": distill}[given.pop("command")](**given)


if __name__ == "__main__":
    main()
