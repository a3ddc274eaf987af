"""Speculative methods and their parameters: what each takes, and what is wrong with a value.

Source: `SpeculativeConfig` of vLLM 0.32.0. A method or key that is not listed passes with a warning, because vLLM
knows its own; a value that no version could take is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

KEYS_FROM = "vLLM 0.32.0"
"""The version whose parameters these tables hold."""

NEED_DRAFT = ("draft_model", "eagle", "eagle3")
"""Methods that need a draft checkpoint under `model`."""
NEED_GAMMA = ("ngram", "ngram_gpu", "draft_model", "eagle", "eagle3")
"""Methods whose number of draft tokens must be said. Suffix decoding and MTP have defaults of their own."""
KNOWN_METHODS = (
    "ngram", "ngram_gpu", "suffix", "draft_model", "eagle", "eagle3",
    "medusa", "mlp_speculator", "mtp", "dflash", "dspark",
)  # fmt: skip
SHOWN_METHODS = KNOWN_METHODS[:6]
"""Those that this project names, documents and tests; the others pass through."""

Check = Callable[[object], str | None]


def is_count(value: object) -> bool:
    """True for a whole number of 1 or more (True is none)."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _count(value: object) -> str | None:
    return None if is_count(value) else f"{value!r} is no whole number of 1 or more"


def _count_or_zero(value: object) -> str | None:
    return None if (value == 0 and not isinstance(value, bool)) or is_count(value) else f"{value!r} is no whole number"


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _share(value: object) -> str | None:
    fits = _number(value) and 0 <= value <= 1  # type: ignore[operator]
    return None if fits else f"{value!r} is no share between 0 and 1"


def _positive(value: object) -> str | None:
    fits = _number(value) and value >= 0  # type: ignore[operator]
    return None if fits else f"{value!r} is no number of 0 or more"


def _text(value: object) -> str | None:
    return None if isinstance(value, str) and value else f"{value!r} is no text"


def _flag(value: object) -> str | None:
    return None if isinstance(value, bool) else f"{value!r} is not true or false"


def _shares(value: object) -> str | None:
    fits = isinstance(value, list) and value and all(_share(v) is None for v in value)
    return None if fits else f"{value!r} is no list of shares between 0 and 1, one per draft position"


def _any(_value: object) -> str | None:
    return None


EVERY: dict[str, Check] = {
    "method": _text,
    "model": _text,
    "num_speculative_tokens": _count,
    "num_speculative_tokens_per_batch_size": _any,
    "rejection_sample_method": _text,
    "synthetic_acceptance_rates": _shares,
    "synthetic_acceptance_length": _positive,
    "enable_adaptive_verification": _flag,
    "enforce_eager": _flag,
    "disable_padded_drafter_batch": _flag,
}
"""Keys that any method takes."""
LOOKUP: dict[str, Check] = {"prompt_lookup_min": _count, "prompt_lookup_max": _count}
SUFFIX: dict[str, Check] = {
    "suffix_decoding_max_tree_depth": _count,
    "suffix_decoding_max_cached_requests": _count_or_zero,
    "suffix_decoding_max_spec_factor": _positive,
    "suffix_decoding_min_token_prob": _share,
}
DRAFT: dict[str, Check] = {
    "revision": _text,
    "code_revision": _text,
    "quantization": _text,
    "kv_cache_dtype": _text,
    "max_model_len": _count,
    "draft_tensor_parallel_size": _count,
    "tensor_parallel_size": _count,
    "draft_sample_method": _text,
    "draft_load_config": _any,
    "attention_backend": _text,
    "moe_backend": _text,
    "parallel_drafting": _flag,
    "disable_eagle_block_drop": _flag,
    "use_local_argmax_reduction": _flag,
    "use_heterogeneous_vocab": _flag,
    "index_share_for_mtp_iteration": _flag,
    "dspark_draft_topk": _count,
}
"""Keys of methods with a model that drafts."""


def parameters(method: str) -> dict[str, Check]:
    """The known keys of a method. One that is not listed here gets all: nothing is known about it."""
    if method.startswith("ngram"):
        return EVERY | LOOKUP
    if method == "suffix":
        return EVERY | SUFFIX
    if method in KNOWN_METHODS or method.endswith("mtp"):
        return EVERY | DRAFT
    return EVERY | LOOKUP | SUFFIX | DRAFT


def speculative_problems(speculative: Mapping[str, Any], *, simulated: bool) -> list[str]:
    """What is wrong with a speculative config; keys that are not known here pass."""
    method = speculative.get("method")
    if not isinstance(method, str) or not method:
        seen = "it is missing" if method is None else f"{method!r} seen"
        return [f"method: write the method's name, for example {', '.join(SHOWN_METHODS)}; {seen}"]
    problems = []
    if speculative.get("num_speculative_tokens") is None and method in NEED_GAMMA:
        problems.append(f'num_speculative_tokens is missing; method "{method}" needs it, for example 4')
    for key, check in parameters(method).items():
        if speculative.get(key) is not None and (problem := check(speculative[key])):
            problems.append(f"{key}: {problem}")
    if method in NEED_DRAFT and not simulated and speculative.get("model") is None:
        problems.append(f'model is missing; method "{method}" needs the folder or name of its draft checkpoint')
    low, high = (speculative.get(f"prompt_lookup_{end}") for end in ("min", "max"))
    if is_count(low) and is_count(high) and low > high:  # type: ignore[operator]
        problems.append(f"prompt_lookup_min = {low} is above prompt_lookup_max = {high}")
    return problems


def unknown_parameters(speculative: Mapping[str, Any], version: str = KEYS_FROM) -> list[str]:
    """A sentence for each key that the method is not known to take; `version` names whose list says so."""
    method = str(speculative.get("method"))
    everything = EVERY | LOOKUP | SUFFIX | DRAFT
    found = []
    for key in sorted(set(speculative) - set(parameters(method))):
        if key in everything:
            found.append(
                f'`{key}` is no parameter of method "{method}" in {version}; it is passed on, but may do nothing'
            )
        else:
            found.append(f"`{key}` is not known to {version}; it is passed on as it stands, vLLM will decide")
    return found
