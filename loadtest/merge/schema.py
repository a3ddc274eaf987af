"""Parquet schemas of a merged run.

`requests/` has a row per request, `server.parquet` one per scraped sample, `cells.parquet` one per cell.

Schema history: 1 = first. Units and sources of all columns: `columns.py`, printed in docs/parquet.md.
"""

from __future__ import annotations

import pyarrow as pa

from loadtest.load.records import RAW_SCHEMA
from loadtest.server.scrapes import SCRAPE_SCHEMA

CELL_KEY_FIELDS = [
    pa.field("run_id", pa.string(), nullable=False),
    pa.field("cell_id", pa.string(), nullable=False),
    pa.field("config", pa.string(), nullable=False),
    pa.field("method", pa.string(), nullable=False),
    pa.field("gamma", pa.int16()),
    pa.field("mix", pa.string(), nullable=False),
    pa.field("sampling", pa.string(), nullable=False),
    pa.field("temperature", pa.float64()),
    pa.field("top_p", pa.float64()),
    pa.field("seed", pa.int64()),
    pa.field("load_kind", pa.string(), nullable=False),
    pa.field("load_value", pa.float64(), nullable=False),
    pa.field("load", pa.string(), nullable=False),  # Cell.load, e.g. "c8"
    pa.field("repeat", pa.int16(), nullable=False),
]

SERVER_STATE_FIELDS = [  # as-of join: the last scrape at or before send_ns
    pa.field("running", pa.float64()),
    pa.field("waiting", pa.float64()),
    pa.field("kv_cache_usage", pa.float64()),
]

REQUESTS_SCHEMA = pa.schema([*CELL_KEY_FIELDS, *RAW_SCHEMA, *SERVER_STATE_FIELDS])

SERVER_SCHEMA = pa.schema(
    [pa.field("run_id", pa.string(), nullable=False), pa.field("cell_id", pa.string(), nullable=False), *SCRAPE_SCHEMA]
)

_Q = ["p50", "p90", "p95", "p99", "p999"]

CELLS_SCHEMA = pa.schema(
    [
        *CELL_KEY_FIELDS,
        pa.field("is_baseline", pa.bool_(), nullable=False),
        pa.field("simulated", pa.bool_(), nullable=False),
        pa.field("synthetic_acceptance", pa.bool_(), nullable=False),
        pa.field(
            "state", pa.string(), nullable=False
        ),  # done | unfinished | failed (server did not start) | not_measured
        pa.field("state_reason", pa.string()),
        # window and counts
        pa.field("window_start_ns", pa.int64()),
        pa.field("window_end_ns", pa.int64()),
        pa.field("window_s", pa.float64()),
        pa.field("sent", pa.int64()),  # rows of phase measure that were sent
        pa.field("ok", pa.int64()),
        pa.field("failed", pa.int64()),  # every outcome but ok and censored
        pa.field("censored", pa.int64()),
        pa.field("dropped", pa.int64()),  # open-loop arrivals over the cap: never sent
        pa.field("rows_all_phases", pa.int64()),
        pa.field("prompt_tokens", pa.int64()),
        pa.field("cached_tokens", pa.int64()),
        pa.field("completion_tokens", pa.int64()),  # sum over ok rows of the window
        pa.field("tokens_unknown_rows", pa.int64()),
        # rates over the window: requests and tokens of window requests / window_s, and tokens that arrived inside it
        pa.field("request_rate", pa.float64()),
        pa.field("output_tok_s", pa.float64()),  # tokens that ARRIVED inside the window / window_s (chunk stamps)
        pa.field("error_rate", pa.float64()),  # (failed + censored) / sent; null where sent = 0
        pa.field("achieved_concurrency", pa.float64()),  # Little: time-average of requests in flight inside the window
        pa.field("sent_rate", pa.float64()),
        pa.field("output_tok_basis", pa.string()),
        # exact nearest-rank quantiles over ok rows of the window, microseconds; n beside them
        *[pa.field(f"{m}_{q}_us", pa.float64()) for m in ("ttft", "tpot", "e2e", "chunk_gap") for q in _Q],
        *[pa.field(f"{m}_n", pa.int64()) for m in ("ttft", "tpot", "e2e", "chunk_gap")],
        pa.field("mean_e2e_us", pa.float64()),
        pa.field("mean_output_tokens", pa.float64()),
        pa.field("chunks", pa.int64()),
        # acceptance from the per-request blocks of window rows (source "response_block"), sums first
        pa.field("req_spec_steps", pa.int64()),
        pa.field("req_draft_tokens", pa.int64()),
        pa.field("req_accepted_tokens", pa.int64()),
        pa.field("req_completion_tokens", pa.int64()),  # N of the rows that carry a block
        pa.field("req_block_rows", pa.int64()),
        pa.field("req_overrun_tokens", pa.int64()),  # known only where per-step counts exist
        pa.field("req_histogram", pa.list_(pa.int64())),
        pa.field("req_overrun_known_rows", pa.int64()),
        # acceptance from counter deltas over [window_start, window_end]: each series first, then summed over engines
        pa.field("ctr_spec_steps", pa.float64()),
        pa.field("ctr_draft_tokens", pa.float64()),
        pa.field("ctr_accepted_tokens", pa.float64()),
        pa.field("ctr_accepted_per_pos", pa.list_(pa.float64())),
        pa.field("ctr_generation_tokens", pa.float64()),
        pa.field("ctr_schema", pa.string()),  # v1 | v0 | absent
        pa.field("ctr_emitted_tokens", pa.float64()),
        pa.field("ctr_engines", pa.int32()),
        pa.field("ctr_notes", pa.list_(pa.string())),
        # figures (null where undefined), computed from the source named in acceptance_source
        pa.field("acceptance_source", pa.string()),  # response_block | counters | null
        pa.field("draft_acceptance_rate", pa.float64()),  # A/D
        pa.field("mean_accepted_drafts", pa.float64()),  # A/S
        pa.field("mean_acceptance_length", pa.float64()),  # 1+A/S
        pa.field("mean_draft_length", pa.float64()),  # D/S
        pa.field("tokens_per_target_step", pa.float64()),  # N/(N-A), overrun taken out where known
        pa.field("coverage", pa.float64()),  # (S+A)/N
        pa.field("wasted_drafts_per_token", pa.float64()),  # (D-A)/N
        pa.field("position_survival", pa.list_(pa.float64())),
        pa.field("conditional_acceptance", pa.list_(pa.float64())),
        pa.field("acceptance_histogram", pa.list_(pa.float64())),
        # reconciliation over the whole cell [idle_start, idle_end], all phases
        pa.field("cell_ctr_spec_steps", pa.float64()),
        pa.field("cell_ctr_draft_tokens", pa.float64()),
        pa.field("cell_ctr_accepted_tokens", pa.float64()),
        pa.field("cell_ctr_generation_tokens", pa.float64()),
        pa.field("cell_req_spec_steps", pa.int64()),
        pa.field("cell_req_draft_tokens", pa.int64()),
        pa.field("cell_req_accepted_tokens", pa.int64()),
        pa.field("cell_req_completion_tokens", pa.int64()),
        pa.field("residual_draft_tokens", pa.float64()),  # counters - requests, over the cell
        pa.field("residual_accepted_tokens", pa.float64()),
        pa.field("residual_spec_steps", pa.float64()),
        pa.field("residual_generation_tokens", pa.float64()),
        pa.field("unexplained_share", pa.float64()),
        pa.field("rows_without_usage", pa.int64()),
        pa.field("explainable_tokens", pa.float64()),
        pa.field("residual_note", pa.string()),
        # server side
        pa.field("prefix_cache_queries", pa.float64()),
        pa.field("prefix_cache_hits", pa.float64()),
        pa.field("prefix_cache_hit_rate", pa.float64()),
        pa.field("preemptions", pa.float64()),
        pa.field("running_mean", pa.float64()),
        pa.field("waiting_mean", pa.float64()),
        pa.field("kv_cache_usage_max", pa.float64()),
        *[
            pa.field(f"server_{m}_{q}_{b}_us", pa.float64())
            for m in ("ttft", "tpot", "e2e")
            for q in ("p95", "p99")
            for b in ("lo", "hi")
        ],
        # trust facts: what the judge's trust checks read
        pa.field("workers_expected", pa.int32()),
        pa.field("workers_reported", pa.int32()),
        pa.field("worker_rows_missing", pa.int64()),  # rows the workers say they sent minus rows in the files
        pa.field("torn_files", pa.list_(pa.string())),
        pa.field("duplicate_request_ids", pa.int64()),
        pa.field("coalesced_share", pa.float64()),  # merged chunks / chunks
        pa.field("merged_first_share", pa.float64()),  # merged first chunks / requests with a first token
        pa.field("client_lag_p99_us", pa.float64()),
        pa.field("lateness_p99_us", pa.float64()),
        pa.field("user_clock_share", pa.float64()),  # rows without kernel stamps
        pa.field("worker_cpu_max", pa.float64()),  # highest 1 Hz share of one core
        pa.field("clock_step_us", pa.float64()),  # largest change of (realtime - monotonic) inside the cell
        pa.field("scrapes_expected", pa.int64()),
        pa.field("scrapes_ok", pa.int64()),
        pa.field("scrape_max_gap_s", pa.float64()),
        pa.field("counter_resets", pa.list_(pa.string())),  # "endpoint engine=0"
        pa.field("spec_identity_breaches", pa.list_(pa.string())),
        pa.field("contradictions", pa.list_(pa.string())),  # provenance fields that contradict the plan
        pa.field("hdr_max_rel_error", pa.float64()),  # live HDR against exact quantiles of the same rows
        pa.field("hdr_overflow", pa.int64()),
        pa.field("worker_rows_extra", pa.int64()),
        pa.field("workers_missing", pa.list_(pa.string())),
        pa.field("event_errors", pa.int64()),
        pa.field("unclosed_files", pa.list_(pa.string())),
        pa.field("edge_errors", pa.list_(pa.string())),
        pa.field("response_models", pa.list_(pa.string())),
        pa.field("server_fingerprints", pa.list_(pa.string())),
        pa.field("warnings", pa.list_(pa.string())),
        pa.field("notes", pa.list_(pa.string())),
        # JSON {versions, gpus, model, host} of provenance.json: equal between compared configs; null = unknown
        pa.field("provenance_equal", pa.string()),
        # measure = "auto": the budget, whether the looks ended the window before it, and what they saw (JSON)
        pa.field("auto_budget", pa.int64()),
        pa.field("auto_stopped", pa.bool_()),
        pa.field("auto_looks", pa.string()),
        # the client's own innocence
        pa.field("worker_stall_share", pa.float64()),  # of the window, worst worker
        pa.field("worker_stalls", pa.int64()),
        pa.field("worker_stall_max_ms", pa.float64()),
        pa.field("worker_rss_max_mb", pa.float64()),
        pa.field("connections_opened", pa.int64()),
        pa.field("requests_resent", pa.int64()),
        pa.field("connect_failures", pa.int64()),  # window rows that got no connection, or lost it
        pa.field("clock_skew_ms", pa.float64()),  # least certain distance to the master's clock, worst worker
        pa.field("window_edge_late_ms", pa.float64()),
        pa.field("thinking_concurrency", pa.float64()),  # users that pause between turns, time average
        pa.field("conversations", pa.int64()),
        pa.field("conversations_cut", pa.int64()),
        pa.field("workers_enough", pa.int32()),
    ]
)
