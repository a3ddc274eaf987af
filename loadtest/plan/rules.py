"""Rules of single tables that types alone cannot say. Each gives the problem in words, with the value seen."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from loadtest.plan.methods import is_count, speculative_problems

OWN_FLAGS = {
    "--model": "target.model",
    "--served-model-name": "target.served_model_name",
    "--max-model-len": "target.max_model_len",
    "--dtype": "target.dtype",
    "--host": "launch.host",
    "--port": "launch.port",
    "--speculative-config": "config.speculative",
    "--spec-method": "config.speculative",
    "-sc": "config.speculative",
    "--per-request-spec-decode-metrics": "launch.per_request_spec_metrics",
    "--enable-per-request-metrics": "launch.per_request_metrics",
    "--enable-prompt-tokens-details": "launch.prompt_tokens_details",
    "--fingerprint-mode": "launch.fingerprint",
    "--fingerprint-value": "launch.fingerprint",
}
"""`vllm serve` flags that the command line sets itself: given twice, the one that wins would be a guess."""

OWN_BODY_KEYS = (
    "model",
    "messages",
    "prompt",
    "stream",
    "stream_options",
    "temperature",
    "top_p",
    "max_tokens",
    "seed",
    "ignore_eos",
    "n",
)
"""Request keys that the client sets. `n` stays 1: per-request speculation counts exist only for n = 1."""

SECRET_FLAGS = {"--api-key": "VLLM_API_KEY", "--hf-token": "HF_TOKEN"}
"""Flag -> the variable by which vLLM takes the same secret."""
_SECRET = re.compile(r"(^|_)(TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(_|$)", re.IGNORECASE)


def check_args(args: list[str]) -> list[str]:
    """Refuse flags that have a key of their own, and secrets."""
    for arg in args:
        flag = arg.partition("=")[0]
        if flag.startswith("--"):
            flag = flag.replace("_", "-")  # as vLLM's own parser does
        if flag in SECRET_FLAGS:
            raise ValueError(
                f"{flag} would be stored with the run; set {SECRET_FLAGS[flag]} in the environment instead"
            )
        if flag in OWN_FLAGS:
            raise ValueError(f"{flag} is set by the command line itself; use {OWN_FLAGS[flag]}")
    return args


def check_env(env: dict[str, str]) -> dict[str, str]:
    """Refuse variables that look like secrets: the plan is stored with the run."""
    for name in env:
        if _SECRET.search(name):
            raise ValueError(
                f"{name} looks like a secret and would be stored with the run; export it instead, servers inherit it"
            )
    return env


def check_extra_body(body: dict[str, Any]) -> dict[str, Any]:
    """Refuse request keys that the client sets itself."""
    for key in body:
        if key in OWN_BODY_KEYS:
            raise ValueError(f'"{key}" is set by the client itself and cannot be overridden here')
    return body


def check_finite(value: Any) -> Any:
    """Refuse nan and inf, which TOML can write and JSON cannot, anywhere in a free table."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} cannot be sent as JSON; write a finite number")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        check_finite(inner)
    return value


def check_sweep(sweep: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Each key needs one or more different values; gamma whole numbers of 1 or more."""
    for key, values in sweep.items():
        if key == "method":
            raise ValueError("method cannot be swept; write one [[config]] per method")
        if not values or len({repr(v) for v in values}) != len(values):
            raise ValueError(f"{key} = {values!r}: write one or more different values")
        if key == "num_speculative_tokens" and any(not is_count(v) for v in values):
            raise ValueError(f"{key} = {values!r}: write whole numbers of 1 or more")
    return sweep


def config_problems(
    *,
    launch: bool,
    url: str | None,
    urls: Sequence[str],
    metrics_urls: Sequence[str],
    sim: bool,
    speculative: Mapping[str, Any] | None,
    baseline: bool | None,
) -> list[str]:
    """Everything that is wrong with one `[[config]]` beyond its types."""
    problems = []
    given = [k for k, v in (("launch", launch), ("url", url is not None), ("urls", bool(urls)), ("sim", sim)) if v]
    if len(given) != 1:
        seen = " and ".join(given) or "none"
        problems.append(f"write exactly one of launch, url, urls, sim; seen: {seen}")
    if metrics_urls and url is None and not urls:
        problems.append("metrics_urls: only with url or urls")
    for key, values in (("url", [url] if url is not None else []), ("urls", urls), ("metrics_urls", metrics_urls)):
        problems += [f"{key}: {problem}" for value in values if (problem := url_problem(value))]
    if baseline and speculative is not None:
        problems.append("baseline = true: a baseline has no `speculative`")
    if speculative is not None:
        problems += [f"speculative.{p}" for p in speculative_problems(speculative, simulated=sim)]
    return problems


def url_problem(url: str) -> str | None:
    """What is wrong with a base URL, or None."""
    try:
        split = urlsplit(url)
        host, _ = split.hostname, split.port
    except ValueError as error:
        return f'"{url}" is no URL: {error}'
    if split.scheme not in ("http", "https") or not host:
        return f'"{url}" is no URL; write for example "http://127.0.0.1:8000"'
    if split.username or split.password:
        return "a URL must not hold a user or password: it is stored with the run; use client.headers_env"
    if split.query or split.fragment:
        return f'"{url}" must not have a query or fragment'
    return None
