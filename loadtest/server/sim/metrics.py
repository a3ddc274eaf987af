"""Counters, gauges and histograms of the simulated engine, and the /metrics page made from them.

Written by hand, not with prometheus_client's metric objects: one observation per stream and step must stay below a
microsecond.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Mapping

from prometheus_client import REGISTRY, generate_latest

from loadtest.server.sim.families import FAMILIES, LENGTHS, Family, length_edges

_CACHE_CONFIG = {
    "_block_size_resolved": "True",
    "cache_dtype": "auto",
    "cache_hit_alignment_tokens": "None",
    "enable_mamba_shared_prefix_checkpoint": "False",
    "enable_prefix_caching": "True",
    "engine": "0",
    "gpu_memory_utilization": "0.92",
    "hash_block_size": "None",
    "is_attention_free": "False",
    "kv_cache_dtype_skip_layers": "[]",
    "kv_cache_layout": "None",
    "kv_cache_memory_bytes": "1073741824",
    "kv_offloading_backend": "native",
    "kv_offloading_size": "None",
    "kv_sharing_fast_prefill": "False",
    "mamba_block_size": "None",
    "mamba_cache_dtype": "auto",
    "mamba_cache_mode": "none",
    "mamba_page_size_padded": "None",
    "mamba_ssm_cache_dtype": "auto",
    "num_cpu_blocks": "None",
    "num_gpu_blocks_override": "None",
    "prefix_cache_retention_interval": "0",
    "prefix_caching_hash_algo": "sha256",
    "prefix_match_unit": "None",
    "replayssm_buffer_len": "16",
    "skip_page_size_padded": "None",
    "sliding_window": "None",
    "swa_bounded_replay": "True",
    "use_kda_recoverssm": "False",
    "use_replayssm": "False",
    "user_specified_block_size": "False",
}


class Histogram:
    """Fixed-edge histogram; `observe` puts a value into the first bucket whose edge is not below it."""

    __slots__ = ("counts", "edges", "total")

    def __init__(self, edges: tuple[float, ...]) -> None:
        self.edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Counts one sample."""
        self.counts[bisect_left(self.edges, value)] += 1
        self.total += value


class Metrics:
    """Values of every family: counters and gauges as `values[name][label value or ""]`, and `histograms[name]`."""

    def __init__(
        self, *, model_name: str, max_model_len: int, positions: int, block_size: int, num_blocks: int
    ) -> None:
        self._model = _escape(model_name)
        self._families = [
            f for f in FAMILIES if (positions or not f.name.startswith("spec_decode")) and f.name != "cache_config_info"
        ]
        self._positions = tuple(str(i) for i in range(positions))
        self.values: dict[str, dict[str, float]] = {}
        self.histograms: dict[str, Histogram] = {}
        for family in self._families:
            if family.kind == "histogram":
                edges = length_edges(max_model_len) if family.buckets == LENGTHS else family.buckets
                self.histograms[family.name] = Histogram(tuple(float(e) for e in edges))
            else:
                self.values[family.name] = dict.fromkeys(self._label_values(family), 0.0)
        self.values["engine_sleep_state"]["awake"] = 1.0
        config = _CACHE_CONFIG | {
            "block_size": str(block_size),
            "effective_attention_block_size": str(block_size),
            "kv_cache_max_concurrency": str(num_blocks * block_size / max_model_len),
            "kv_cache_size_tokens": str(num_blocks * block_size),
            "num_gpu_blocks": str(num_blocks),
        }
        self._cache_config = ",".join(f'{k}="{v}"' for k, v in sorted(config.items()))
        self._created = time.time()

    def _label_values(self, family: Family) -> tuple[str, ...]:
        return self._positions if family.label == "position" else family.values or ("",)

    def add(self, name: str, amount: float, label: str = "") -> None:
        """Adds to a counter or gauge. KeyError for a family or label value that vLLM does not have."""
        self.values[name][label] += amount

    def set(self, gauges: Mapping[str, float]) -> None:
        """Sets gauges without a further label."""
        for name, value in gauges.items():
            self.values[name][""] = value

    def observe(self, name: str, value: float) -> None:
        """Adds one sample to a histogram."""
        self.histograms[name].observe(value)

    def page(self) -> bytes:
        """The whole page in the Prometheus text format, process metrics first, as vLLM has them."""
        lines: list[str] = []
        for family in self._families:
            self._expose(family, lines)
        info = next(f for f in FAMILIES if f.name == "cache_config_info")
        lines += [*_header(info.name, "gauge", info.help), f"vllm:cache_config_info{{{self._cache_config}}} 1.0"]
        return generate_latest(REGISTRY) + "\n".join(lines).encode() + b"\n"

    def _expose(self, family: Family, lines: list[str]) -> None:
        name = family.name
        lines += _header(name, family.kind, family.help)
        if family.kind == "histogram":
            cumulative = 0
            histogram = self.histograms[name]
            for edge, count in zip((*histogram.edges, None), histogram.counts, strict=True):
                cumulative += count
                le = "+Inf" if edge is None else repr(edge)
                lines.append(f'vllm:{name}_bucket{{engine="0",le="{le}",model_name="{self._model}"}} {cumulative}.0')
            own = f'{{engine="0",model_name="{self._model}"}}'
            lines += [f"vllm:{name}_count{own} {cumulative}.0", f"vllm:{name}_sum{own} {histogram.total!r}"]
            labels = {"": own}
        else:
            labels = {value: self._labels(family, value) for value in self.values[name]}
            lines += [f"vllm:{name}{labels[value]} {number!r}" for value, number in self.values[name].items()]
        if family.kind != "gauge":
            created = (name.removesuffix("_total") if family.kind == "counter" else name) + "_created"
            lines += _header(created, "gauge", family.help)
            lines += [f"vllm:{created}{text} {self._created!r}" for text in labels.values()]

    def _labels(self, family: Family, value: str) -> str:
        pairs = {"model_name": self._model}
        if family.engine:
            pairs["engine"] = "0"
        if family.label is not None:
            pairs[family.label] = value
        return "{" + ",".join(f'{k}="{v}"' for k, v in sorted(pairs.items())) + "}"


def _header(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP vllm:{name} {text}", f"# TYPE vllm:{name} {kind}"]


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
