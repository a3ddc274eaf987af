"""The `vllm:` metric families that vLLM 0.32 exposes, in its order, with its help texts, labels and bucket edges.

Source: `/metrics` of running 0.32.0 servers (tests/data/sim/ngram-metrics-before.txt); tests compare the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LENGTHS = "lengths"
"""Marks histograms of token counts: edges 1, 2, 5, 10, ... up to max_model_len."""
TTFT_S = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
    640,
    2560,
)
ITL_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
LATENCY_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)


@dataclass(frozen=True, slots=True)
class Family:
    """One family. `name` is without the `vllm:` prefix; `values` are those of `label`, its one own label."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    label: str | None = None
    values: tuple[str, ...] = ()
    buckets: tuple[float, ...] | str = ()
    engine: bool = True
    """False where vLLM leaves out the engine label."""


def length_edges(max_model_len: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50, ... not above `max_model_len` tokens."""
    edges: list[float] = []
    scale = 1
    while scale <= max_model_len:
        edges += [float(m * scale) for m in (1, 2, 5) if m * scale <= max_model_len]
        scale *= 10
    return tuple(edges)


FAMILIES = (
    Family("spec_decode_num_drafts_total", "counter", "Number of spec decoding drafts."),
    Family("spec_decode_num_draft_tokens_total", "counter", "Number of draft tokens."),
    Family("spec_decode_num_accepted_tokens_total", "counter", "Number of accepted tokens."),
    Family(
        "spec_decode_num_accepted_tokens_per_pos_total",
        "counter",
        "Accepted tokens per draft position.",
        label="position",
    ),
    Family(
        "estimated_flops_per_gpu_total",
        "counter",
        "Estimated number of floating point operations per GPU (for Model Flops Utilization calculations).",
    ),
    Family(
        "estimated_read_bytes_per_gpu_total",
        "counter",
        "Estimated number of bytes read from memory per GPU (for Model Flops Utilization calculations).",
    ),
    Family(
        "estimated_write_bytes_per_gpu_total",
        "counter",
        "Estimated number of bytes written to memory per GPU (for Model Flops Utilization calculations).",
    ),
    Family("num_requests_running", "gauge", "Number of requests in model execution batches."),
    Family("num_requests_waiting", "gauge", "Number of requests waiting to be processed."),
    Family(
        "num_requests_waiting_by_reason",
        "gauge",
        "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling "
        "capacity; 'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked "
        "status). Sum of all reasons equals vllm:num_requests_waiting.",
        label="reason",
        values=("capacity", "deferred"),
    ),
    Family(
        "engine_sleep_state",
        "gauge",
        "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; "
        "weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.",
        label="sleep_state",
        values=("awake", "weights_offloaded", "discard_all"),
    ),
    Family("kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage."),
    Family("prefix_cache_queries_total", "counter", "Prefix cache queries, in terms of number of queried tokens."),
    Family("prefix_cache_hits_total", "counter", "Prefix cache hits, in terms of number of cached tokens."),
    Family(
        "external_prefix_cache_queries_total",
        "counter",
        "External prefix cache queries from KV connector cross-instance cache sharing, in terms of "
        "number of queried tokens.",
    ),
    Family(
        "external_prefix_cache_hits_total",
        "counter",
        "External prefix cache hits from KV connector cross-instance cache sharing, in terms of number "
        "of cached tokens.",
    ),
    Family("mm_cache_queries_total", "counter", "Multi-modal cache queries, in terms of number of queried items."),
    Family("mm_cache_hits_total", "counter", "Multi-modal cache hits, in terms of number of cached items."),
    Family("num_preemptions_total", "counter", "Cumulative number of preemption from the engine."),
    Family("prompt_tokens_total", "counter", "Number of prefill tokens processed."),
    Family(
        "prompt_tokens_by_source_total",
        "counter",
        "Number of prompt tokens by source.",
        label="source",
        values=("local_compute", "local_cache_hit", "external_kv_transfer"),
    ),
    Family("prompt_tokens_cached_total", "counter", "Number of cached prompt tokens (local + external)."),
    Family(
        "prompt_tokens_cached_by_source_total",
        "counter",
        "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host "
        "(offloaded to DRAM), disk, p2p (transferred from another vLLM instance) or "
        "external_unspecified. Counted at admission; sums to vllm:prefix_cache_hits + "
        "vllm:external_prefix_cache_hits.",
        label="source",
        values=("device", "host", "p2p", "disk", "external_unspecified"),
    ),
    Family("generation_tokens_total", "counter", "Number of generation tokens processed."),
    Family(
        "request_success_total",
        "counter",
        "Count of successfully processed requests.",
        label="finished_reason",
        values=("stop", "length", "abort", "error", "repetition"),
    ),
    Family(
        "admission_rejections_total",
        "counter",
        "Number of admission attempts rejected by a queue limit, by reason.",
        label="reason",
        values=("max_num_queued_reqs", "max_num_queued_tokens"),
        engine=False,
    ),
    Family("request_prompt_tokens", "histogram", "Number of prefill tokens processed.", buckets=LENGTHS),
    Family("request_generation_tokens", "histogram", "Number of generation tokens processed.", buckets=LENGTHS),
    Family(
        "iteration_tokens_total",
        "histogram",
        "Histogram of number of tokens per engine_step.",
        buckets=(1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0),
    ),
    Family(
        "request_max_num_generation_tokens",
        "histogram",
        "Histogram of maximum number of requested generation tokens.",
        buckets=LENGTHS,
    ),
    Family(
        "request_params_n",
        "histogram",
        "Histogram of the n request parameter.",
        buckets=(1.0, 2.0, 5.0, 10.0, 20.0),
    ),
    Family(
        "request_params_max_tokens",
        "histogram",
        "Histogram of the max_tokens request parameter.",
        buckets=LENGTHS,
    ),
    Family(
        "time_to_first_token_seconds",
        "histogram",
        "Histogram of time to first token in seconds.",
        buckets=TTFT_S,
    ),
    Family("inter_token_latency_seconds", "histogram", "Histogram of inter-token latency in seconds.", buckets=ITL_S),
    Family(
        "request_time_per_output_token_seconds",
        "histogram",
        "Histogram of time_per_output_token_seconds per request.",
        buckets=ITL_S,
    ),
    Family(
        "e2e_request_latency_seconds",
        "histogram",
        "Histogram of e2e request latency in seconds.",
        buckets=LATENCY_S,
    ),
    Family(
        "request_queue_time_seconds",
        "histogram",
        "Histogram of time spent in WAITING phase for request.",
        buckets=LATENCY_S,
    ),
    Family(
        "request_inference_time_seconds",
        "histogram",
        "Histogram of time spent in RUNNING phase for request.",
        buckets=LATENCY_S,
    ),
    Family(
        "request_prefill_time_seconds",
        "histogram",
        "Histogram of time spent in PREFILL phase for request.",
        buckets=LATENCY_S,
    ),
    Family(
        "request_decode_time_seconds",
        "histogram",
        "Histogram of time spent in DECODE phase for request.",
        buckets=LATENCY_S,
    ),
    Family(
        "request_num_preemptions",
        "histogram",
        "Histogram of the number of times a request was preempted.",
        buckets=(1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0),
    ),
    Family(
        "request_prefill_kv_computed_tokens",
        "histogram",
        "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
        buckets=LENGTHS,
    ),
    Family("cache_config_info", "gauge", "Information of the LLMEngine CacheConfig"),
)
