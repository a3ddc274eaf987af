"""`provenance.json`: what ran, which source says so, and whether it is what the plan asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from loadtest.errors import ConfigContradictionError, EndpointError
from loadtest.model import SCHEMA_VERSION, ConfigSpec, JsonDict, TargetSpec
from loadtest.server.counters import Snapshot
from loadtest.server.disclosed import from_log, from_metrics, from_server_info, is_synthetic, lossy_modes
from loadtest.server.gpu import gpus
from loadtest.server.host import host_facts
from loadtest.server.launch import is_local
from loadtest.server.metrics import parse_page
from loadtest.server.modelfolder import read_folder
from loadtest.server.probe import Answer, ask
from loadtest.server.proof import Source, asked_for, prove
from loadtest.server.ready import models_of

SIMULATED_HEADER = "x-loadtest-simulated"
NOT_FACTS = (
    "speculative", "served_model_name", "metrics_models", "engines", "num_gpu_blocks",
    "spec_families_present", "k_from_positions",
)  # fmt: skip
"""Told elsewhere, or free to differ between replicas."""
SERVING = (
    "dtype", "quantization", "tokenizer", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
    "enable_prefix_caching", "kv_cache_dtype", "max_num_seqs", "max_num_batched_tokens", "enforce_eager",
    "gpu_memory_utilization", "seed",
)  # fmt: skip
"""How the target is served: must be equal between configs that are compared, as far as a server tells."""
PROBE_TIMEOUT_S = 120.0
"""The first request of a fresh vLLM compiles kernels: up to 20 s were seen on two cores."""


class Server(Protocol):
    """What `ServerProcess` and `AttachedServer` have in common."""

    base_urls: tuple[str, ...]
    metrics_urls: tuple[str, ...]
    model_name: str
    fingerprint: str | None
    started_by_us: bool

    @property
    def headers(self) -> Mapping[str, str]:
        """Sent with every question."""


def collect(
    config: ConfigSpec, target: TargetSpec, server: Server, folder: Path, *, probe: bool | None = None
) -> JsonDict:
    """The provenance of a server that is ready; see docs/architecture.md for its keys.

    `folder` holds server.log where we started it. `probe`: send one request of one token to learn its
    system_fingerprint; None does so for servers that we started. Raises EndpointError when that request fails,
    because a server can be "healthy" with a dead engine. A contradiction is recorded, not raised.
    """
    replicas = [_Replica(base, server.headers) for base in server.base_urls]
    pages = [ask(url, server.headers) for url in server.metrics_urls]
    log = folder / "server.log"
    log_text = log.read_text(errors="replace") if server.started_by_us and log.exists() else ""
    sources = _sources(replicas, server.metrics_urls, pages, log_text)
    answered: Answer | None = None
    if probe if probe is not None else server.started_by_us:
        answered = _probe_request(replicas[0].base, target, server)
        body = answered.json()
        if isinstance(body, Mapping) and body.get("system_fingerprint"):
            sources.append(Source("probe request", {"system_fingerprint": body["system_fingerprint"]}))
    told_simulated = any(r.simulated for r in replicas) or (answered is not None and _is_marked(answered))
    simulated = config.sim is not None or told_simulated
    asked = asked_for(config, target, server.model_name)
    if server.fingerprint is not None:
        asked["system_fingerprint"] = server.fingerprint
    facts = prove(asked, sources, simulated)
    facts |= _other_facts(asked, sources)
    if told_simulated and config.sim is None:
        facts["simulated"] = {"asked": False, "value": True, "source": "the server", "status": "contradicted"}
    merged = _first(sources)
    speculative = merged.get("speculative")
    local = server.started_by_us or all(is_local(b) for b in server.base_urls)
    found_gpus = gpus() if local and not simulated else None
    return {
        "schema": SCHEMA_VERSION,
        "config": config.name,
        "method": config.method,
        "asked": asked,
        "facts": facts,
        "contradictions": sorted(k for k, f in facts.items() if f["status"] == "contradicted"),
        "versions": {
            "vllm": merged.get("vllm_version"),
            "torch": merged.get("torch_version"),
            "cuda": merged.get("cuda_version"),
            "driver": found_gpus[0]["driver"] if found_gpus else None,
            "python": merged.get("python_version"),
        },
        "gpus": found_gpus,
        "host": host_facts(),
        "server_on_this_host": local,
        "model": {
            "id": server.model_name,
            "root": merged.get("model"),
            "max_model_len": merged.get("max_model_len"),
            "revision": merged.get("revision"),
            **_local_model(merged.get("model"), local),
        },
        "serving": {key: merged.get(key) for key in SERVING},
        "draft": _draft(speculative, local),
        "started_by_us": server.started_by_us,
        "base_urls": list(server.base_urls),
        "metrics_urls": list(server.metrics_urls),
        "fingerprint": merged.get("system_fingerprint"),
        "spec_families_present": merged.get("spec_families_present"),
        "k_from_positions": merged.get("k_from_positions"),
        "speculative": speculative,
        "simulated": simulated,
        "synthetic_acceptance": is_synthetic(speculative) or is_synthetic(config.speculative),
        "lossy_modes": sorted({*lossy_modes(speculative), *lossy_modes(config.speculative)}),
        "notes": [f"{url}: {a.seen()}" for url, a in zip(server.metrics_urls, pages, strict=True) if a.status != 200],
    }


def _local_model(model: Any, local: bool) -> JsonDict:
    """Digests of config.json, chat template and token table of a folder here; null for any other model."""
    facts = read_folder(model) if local and isinstance(model, str) else None
    return {
        "architecture_sha256": None if facts is None else facts.config_sha256,
        "chat_template_sha256": None if facts is None else facts.chat_template_sha256,
        "tokenizer_sha256": None if facts is None else facts.tokenizer_sha256,
    }


def _draft(speculative: Any, local: bool) -> JsonDict | None:
    """The draft's own facts, null without a model that drafts."""
    if not isinstance(speculative, Mapping) or not isinstance(speculative.get("draft"), Mapping):
        return None
    told = dict(speculative["draft"])
    return {**told, **_local_model(told.get("model"), local)}


def require_no_contradiction(provenance: Mapping[str, Any]) -> None:
    """Raise ConfigContradictionError when the server runs another config than the plan asked for."""
    facts = [(k, provenance["facts"][k]) for k in provenance["contradictions"]]
    if facts:
        told = "; ".join(f"{k}: asked {f['asked']!r}, {f['source']} says {f['value']!r}" for k, f in facts)
        raise ConfigContradictionError(
            f"the server of {provenance['config']} runs another config than the plan asked for: {told}. "
            "Fix the plan or the server; nothing was measured on it"
        )


class _Replica:
    """The answers of one base URL."""

    def __init__(self, base: str, headers: Mapping[str, str]) -> None:
        self.base = base
        self.version = ask(f"{base}/version", headers)
        self.models = ask(f"{base}/v1/models", headers)
        self.info = ask(f"{base}/server_info?config_format=json", headers)

    @property
    def simulated(self) -> bool:
        value = self.version.json()
        return (isinstance(value, Mapping) and value.get("simulated") is True) or _is_marked(self.version, self.models)

    def sources(self) -> list[Source]:
        found = []
        info = self.info.json()
        values = from_server_info(info)
        if values:
            system = info.get("system_env") if isinstance(info.get("system_env"), Mapping) else {}
            names = {"torch_version": "torch_version", "cuda_runtime_version": "cuda_version"}
            values |= {ours: system[theirs] for theirs, ours in names.items() if system.get(theirs)}
            found.append(Source(f"{self.base}/server_info", values))
        version = self.version.json()
        if isinstance(version, Mapping) and version.get("version"):
            found.append(Source(f"{self.base}/version", {"vllm_version": version["version"]}))
        served = models_of(self.models)
        if served:
            cards = {m["id"]: m for m in self.models.json()["data"] if isinstance(m, Mapping) and "id" in m}
            card = cards[served[0]]
            values = {"served_model_name": served}
            values |= {ours: card[k] for k, ours in _CARD.items() if card.get(k) is not None}
            found.append(Source(f"{self.base}/v1/models", values))
        return found


_CARD = {"root": "model", "max_model_len": "max_model_len"}


def _sources(
    replicas: Sequence[_Replica], metrics_urls: Sequence[str], pages: Sequence[Answer], log_text: str
) -> list[Source]:
    """All disclosures, those that know most first."""
    found = [source for replica in replicas for source in replica.sources()]
    if values := from_log(log_text):
        found.append(Source("server.log", values))
    for url, page in zip(metrics_urls, pages, strict=True):
        if page.status == 200:
            snap = Snapshot()
            snap.add_page(url, parse_page(page.body, page.headers.get("content-type")))
            if values := from_metrics(snap):
                found.append(Source(url, values))
    return found


def _other_facts(asked: Mapping[str, Any], sources: Sequence[Source]) -> dict[str, dict[str, Any]]:
    """What the server tells without having been asked; replicas that differ among themselves are a contradiction."""
    facts: dict[str, dict[str, Any]] = {}
    for source in sources:
        for key, value in source.values.items():
            if key in asked or key in NOT_FACTS:
                continue
            known = facts.setdefault(key, {"value": value, "source": source.name, "status": "not_contradicted"})
            if known["value"] != value and known["source"].rpartition("/")[2] == source.name.rpartition("/")[2]:
                known |= {
                    "asked": known["value"],
                    "value": value,
                    "source": f"{source.name} (differs from {known['source']})",
                    "status": "contradicted",
                }
    return facts


def _first(sources: Sequence[Source]) -> dict[str, Any]:
    """Each value by the first source that has it."""
    merged: dict[str, Any] = {}
    for source in sources:
        for key, value in source.values.items():
            merged.setdefault(key, value)
    return merged


def _is_marked(*answers: Answer) -> bool:
    return any(SIMULATED_HEADER in a.headers for a in answers)


def _probe_request(base: str, target: TargetSpec, server: Server) -> Answer:
    body: dict[str, Any] = {"model": server.model_name, "max_tokens": 1, "temperature": 0}
    if target.api == "chat":
        path, body["messages"] = "/v1/chat/completions", [{"role": "user", "content": "Hello"}]
    else:
        path, body["prompt"] = "/v1/completions", "Hello"
    answer = ask(base + path, server.headers, body, PROBE_TIMEOUT_S)
    if answer.json() is None:
        raise EndpointError(
            f"{base} looks healthy but did not answer a request of one token: {answer.seen()}. "
            "The engine may be dead, or the model has no chat template: see server.log"
        )
    return answer
