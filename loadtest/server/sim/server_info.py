"""What /server_info discloses: the parts of vLLM's config that describe a run, marked as simulated."""

from __future__ import annotations

from typing import Any

from loadtest.server.sim.options import SimOptions
from loadtest.server.sim.parameters import Parameters


def server_info(options: SimOptions, parameters: Parameters) -> dict[str, Any]:
    """The JSON of `/server_info?config_format=json`."""
    return {
        "simulated": True,
        "vllm_config": {
            "speculative_config": speculative_config(options),
            "observability_config": {
                "show_hidden_metrics_for_version": None,
                "per_request_spec_decode_metrics": options.per_request_metrics,
                "custom_histogram_buckets": None,
            },
            "model_config": {
                "model": options.model,
                "served_model_name": options.model,
                "dtype": "simulated",
                "max_model_len": options.max_model_len,
                "quantization": None,
                "revision": None,
                "tokenizer": "simulated",
            },
            "parallel_config": {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "data_parallel_size": 1},
            "cache_config": {
                "enable_prefix_caching": True,
                "block_size": parameters.block_size,
                "num_gpu_blocks": parameters.num_blocks,
            },
            "scheduler_config": {"max_num_seqs": options.max_num_seqs},
        },
        "vllm_env": {},
        "system_env": {},
    }


def speculative_config(options: SimOptions) -> dict[str, Any] | None:
    """The fields of vLLM's SpeculativeConfig as far as it means something here; None for a baseline."""
    if not options.speculative:
        return None
    lookup = {"ngram": (5, 2), "suffix": (None, None)}.get(options.method, (0, 0))
    drafts_itself = options.method in ("ngram", "suffix")
    return {
        "num_speculative_tokens": options.gamma,
        "model": options.method if drafts_itself else f"{options.model}-{options.method}",
        "method": options.method,
        "draft_tensor_parallel_size": None if drafts_itself else 1,
        "prompt_lookup_max": lookup[0],
        "prompt_lookup_min": lookup[1],
        "num_speculative_tokens_per_batch_size": None,
        "suffix_decoding_max_tree_depth": 24,
        "suffix_decoding_max_cached_requests": 10000,
        "suffix_decoding_max_spec_factor": 1.0,
        "suffix_decoding_min_token_prob": 0.1,
        "rejection_sample_method": "standard",
        "synthetic_acceptance_rates": None,
        "synthetic_acceptance_length": None,
        "draft_sample_method": "greedy",
    }
