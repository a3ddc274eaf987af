"""What a server discloses about its own config: `/server_info`, the start-up log, `/metrics`. Pure functions.

Each gives `{key: value}` with the keys of the plan: `speculative` (a dict or None), `model`, `max_model_len`, …
A key is absent where the source says nothing about it; that is not the same as a value of None.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from loadtest.server.counters import Snapshot
from loadtest.server.metrics import VLLM_PREFIX
from loadtest.server.spec_counters import positions_k, spec_families

CONFIG_KEYS = ("model_config", "parallel_config", "cache_config", "observability_config", "scheduler_config")
KEPT = (
    "model",
    "served_model_name",
    "dtype",
    "max_model_len",
    "quantization",
    "revision",
    "tokenizer",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "enable_prefix_caching",
    "block_size",
    "num_gpu_blocks",
    "per_request_spec_decode_metrics",
    "max_num_seqs",
    "max_num_batched_tokens",
    "enforce_eager",
    "gpu_memory_utilization",
    "seed",
    "kv_cache_dtype",
)
"""What two configs must have in common to be compared; the rest of vLLM's config is left out."""
NESTED = ("target_model_config", "target_parallel_config", "draft_model_config", "draft_parallel_config")
LOSSLESS_REJECTION = ("standard", "block", "strict", "probabilistic", "rejection_sampler")
"""Rejection samplers that keep the target's distribution. Any other name is reported as lossy."""

_NON_DEFAULT = re.compile(r"non-default args: (\{.*\})")
_ENGINE = re.compile(r"Initializing a V1 LLM engine \(v(?P<version>[^)]*)\) with config: (?P<config>.*)")
_PAIR = re.compile(r"(?:^|, )(\w+)=('[^']*'|[^,()\[\]{}]+)(?=, |$)")
_SPEC = re.compile(r"speculative_config=(None|SpeculativeConfig\((?P<inner>[^)]*)\))")


def from_server_info(info: Any) -> dict[str, Any]:
    """The disclosed values of `/server_info?config_format=json`; empty for anything else."""
    config = info.get("vllm_config") if isinstance(info, Mapping) else None
    if not isinstance(config, Mapping) or not isinstance(config.get("model_config"), Mapping):
        return {}
    if config["model_config"].get("model") is None:  # a build that lists the keys without their values
        return {}
    found: dict[str, Any] = {}
    for section in CONFIG_KEYS:
        part = config.get(section)
        if isinstance(part, Mapping):
            found.update({k: part[k] for k in KEPT if k in part})
    if "speculative_config" in config:
        spec = config["speculative_config"]
        found["speculative"] = _speculative(spec) if isinstance(spec, Mapping) else None
    return _plain(found)


def _speculative(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The speculative config without the nested copies of other configs; of the draft's, `draft` keeps what counts."""
    kept = {k: v for k, v in spec.items() if k not in NESTED}
    model, parallel = spec.get("draft_model_config"), spec.get("draft_parallel_config")
    if isinstance(model, Mapping) and not str(spec.get("method")).startswith(("ngram", "suffix")):
        draft = {k: model.get(k) for k in ("model", "revision", "dtype", "quantization", "max_model_len")}
        if isinstance(parallel, Mapping):
            draft["tensor_parallel_size"] = parallel.get("tensor_parallel_size")
        kept["draft"] = _plain(draft)
    return kept


def from_log(text: str) -> dict[str, Any]:
    """The disclosed values of a start-up log.

    The engine's own line says what is in effect and wins over "non-default args", which has more keys.
    """
    found: dict[str, Any] = {}
    given = _NON_DEFAULT.search(text)
    args = _literal(given[1]) if given else None
    if isinstance(args, dict):
        found.update({k: args[k] for k in KEPT if k in args})
        found["speculative"] = args.get("speculative_config")
    if engine := _ENGINE.search(text):
        pairs = dict(_PAIR.findall(_without_nested(engine["config"])))
        found["vllm_version"] = engine["version"]
        found.update({k: _literal(v) for k, v in pairs.items() if k in KEPT})
        if "max_seq_len" in pairs:
            found["max_model_len"] = _literal(pairs["max_seq_len"])
        if spec := _SPEC.search(engine["config"]):
            in_effect = None if spec["inner"] is None else _spec_of_engine_line(spec["inner"])
            found["speculative"] = None if in_effect is None else {**(found.get("speculative") or {}), **in_effect}
    return _plain(found)


def from_metrics(snap: Snapshot) -> dict[str, Any]:
    """`spec_families_present`, `k_from_positions`, `python_version`, `engines`; empty without an engine's page."""
    engine_keys = [k for k in snap.values if k.metric.startswith(VLLM_PREFIX)]
    if not engine_keys:
        return {}
    found: dict[str, Any] = {
        "spec_families_present": bool(spec_families(snap)),
        "k_from_positions": positions_k(snap),
        "engines": len({(k.endpoint, k.engine) for k in engine_keys if k.engine is not None}),
        "metrics_models": sorted({k.model for k in engine_keys if k.model is not None}),
    }
    python = next((k.label("version") for k in snap.values if k.metric == "python_info"), None)
    if python:
        found["python_version"] = python
    return found


def is_synthetic(speculative: Any) -> bool:
    """Whether a speculative config fakes its acceptance."""
    if not isinstance(speculative, Mapping):
        return False
    rates = ("synthetic_acceptance_rates", "synthetic_acceptance_length")
    return speculative.get("rejection_sample_method") == "synthetic" or any(
        speculative.get(k) is not None for k in rates
    )


def lossy_modes(speculative: Any) -> list[str]:
    """`key=value` of settings that change the target's output distribution; synthetic acceptance included."""
    if not isinstance(speculative, Mapping):
        return []
    found = []
    for key in ("rejection_sample_method", "acceptance_method", "draft_token_acceptance_method"):
        value = speculative.get(key)
        if value is not None and value not in LOSSLESS_REJECTION:
            found.append(f"{key}={value}")
    found += [
        f"{k}={speculative[k]}" for k in ("posterior_threshold", "posterior_alpha") if speculative.get(k) is not None
    ]
    return found


def _without_nested(text: str) -> str:
    """`a=1, b=B(a=2, c=C(d=3)), e=4` without the values in parentheses, whose keys repeat the outer ones."""
    while (shorter := re.sub(r"\([^()]*\)", "", text)) != text:
        text = shorter
    return text


def _spec_of_engine_line(inner: str) -> dict[str, Any]:
    spec = {k: _literal(v) for k, v in _PAIR.findall(inner)}
    if "num_spec_tokens" in spec:
        spec["num_speculative_tokens"] = spec.pop("num_spec_tokens")
    return {k: v for k, v in spec.items() if v is not None}


def _literal(text: str) -> Any:
    """A Python literal, else the text itself (`torch.bfloat16`, `auto`)."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _plain(found: dict[str, Any]) -> dict[str, Any]:
    """`torch.float32` is what the plan calls `float32`; a list of one served name is that name."""
    if isinstance(found.get("dtype"), str):
        found["dtype"] = found["dtype"].removeprefix("torch.")
    names = found.get("served_model_name")
    if isinstance(names, list) and names:
        found["served_model_name"] = names[0]
    return found
