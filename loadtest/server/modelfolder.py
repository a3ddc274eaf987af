"""What a local model folder tells about itself: vocabulary, context, chat template, weights. Reads files only."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """Facts of one folder; None where a file does not tell."""

    path: Path
    vocab_size: int | None
    draft_vocab_size: int | None
    """EAGLE-3 heads may draft from a part of the vocabulary."""
    hidden_size: int | None
    max_position_embeddings: int | None
    dtype: str | None
    architecture: str | None
    weight_bytes: int
    chat_template_sha256: str | None
    """Of `chat_template.jinja`, else of `chat_template` in `tokenizer_config.json`."""
    config_sha256: str
    tokenizer_sha256: str | None
    """Of the token-to-id table of `tokenizer.json`."""


def is_local(model: str) -> bool:
    """Whether a model is named as a folder, and not as a hub repository (`owner/name`)."""
    return model.startswith(("/", ".", "~")) or Path(model).is_dir()


def read_folder(model: str) -> ModelFolder | None:
    """Facts of a local folder with a `config.json`; None for anything else. Never raises."""
    folder = Path(model).expanduser()
    raw = _bytes(folder / "config.json")
    config = _json(raw)
    if raw is None or config is None:
        return None
    text = config.get("text_config")  # of models that also see or hear
    merged = {**(text if isinstance(text, dict) else {}), **{k: v for k, v in config.items() if v is not None}}
    architectures = merged.get("architectures")
    return ModelFolder(
        path=folder,
        vocab_size=_int(merged.get("vocab_size")),
        draft_vocab_size=_int(merged.get("draft_vocab_size")),
        hidden_size=_int(merged.get("hidden_size")),
        max_position_embeddings=_int(merged.get("max_position_embeddings")),
        dtype=_text(merged.get("dtype")) or _text(merged.get("torch_dtype")),
        architecture=_text(architectures[0]) if isinstance(architectures, list) and architectures else None,
        weight_bytes=sum(f.stat().st_size for pattern in WEIGHTS for f in folder.glob(pattern)),
        chat_template_sha256=chat_template_sha256(folder),
        config_sha256=hashlib.sha256(raw).hexdigest(),
        tokenizer_sha256=_tokenizer_sha256(folder),
    )


def chat_template_sha256(folder: Path) -> str | None:
    """Digest of the chat template of a local folder; None where there is none."""
    template = _bytes(folder / "chat_template.jinja")
    if template is None:
        held = (_json(_bytes(folder / "tokenizer_config.json")) or {}).get("chat_template")
        if held is None:
            return None
        template = (held if isinstance(held, str) else json.dumps(held, sort_keys=True)).encode()
    return hashlib.sha256(template).hexdigest()


def _tokenizer_sha256(folder: Path) -> str | None:
    table = ((_json(_bytes(folder / "tokenizer.json")) or {}).get("model") or {}).get("vocab")
    if not table:
        return None
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _json(raw: bytes | None) -> dict[str, Any] | None:
    try:
        value = json.loads(raw) if raw is not None else None
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: object) -> str | None:
    return value.removeprefix("torch.") if isinstance(value, str) else None
