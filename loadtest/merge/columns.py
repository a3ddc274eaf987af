"""What every column of the Parquet files is: unit, source, meaning. `page()` makes docs/parquet.md of it.

Regenerate with `python -m loadtest.merge.columns > docs/parquet.md`; a test keeps the page current.
"""

from __future__ import annotations

import sys

import pyarrow as pa

from loadtest.merge.schema import CELLS_SCHEMA, REQUESTS_SCHEMA, SERVER_SCHEMA
from loadtest.model import SCHEMA_VERSION

Text = tuple[str, str, str]  # unit, source, meaning

_KEYS: dict[str, Text] = {
    "run_id": ("", "run.json", "the run"),
    "cell_id": ("", "cell.json", "the cell, also its folder: `<nnn>-<config>-<mix>-<sampling>-<load>-r<k>`"),
    "config": ("", "plan", "name of the server config"),
    "method": ("", "plan", "speculative method, `none` for a baseline"),
    "gamma": ("tokens", "plan", "num_speculative_tokens; null for a baseline"),
    "mix": ("", "plan", "prompt mix"),
    "sampling": ("", "plan", "sampling setting"),
    "temperature": ("", "plan", "sampling temperature"),
    "top_p": ("", "plan", "nucleus sampling"),
    "seed": ("", "plan", "sampling seed sent to the server"),
    "load_kind": ("", "plan", "closed, sequential, poisson, constant or trace"),
    "load_value": ("users or 1/s", "plan", "concurrency of closed loops, arrival rate of open loops"),
    "load": ("", "plan", "label of the load, for example `c8`"),
    "repeat": ("", "plan", "number of the repeat, from 1"),
}

REQUESTS: dict[str, Text] = {
    **_KEYS,
    "seq": ("", "client", "number in the cell's prompt order; equal for all configs, so requests can be paired"),
    "worker": ("", "client", "load worker that sent it"),
    "user": ("", "client", "user (connection) of that worker"),
    "phase": ("", "client", "warmup, measure or drain, by send time; the window's rows are `measure`"),
    "request_id": ("", "client", "X-Request-Id, unique in a run"),
    "server_request_id": ("", "response", "`id` of the response"),
    "server_fingerprint": ("", "response", "`system_fingerprint`; our config id where the server lets us set it"),
    "response_model": ("", "response", "`model` of the response"),
    "prompt_id": ("", "prompt file", "the prompt; repeats when the pool is smaller than the cell"),
    "stratum": ("", "prompt file", "kind of task"),
    "turn": ("", "client", "0 = first turn of a conversation"),
    "prompt_sha256": ("", "client", "of the text sent, salt included"),
    "max_tokens": ("tokens", "client", "limit that was sent"),
    "intended_ns": ("ns UNIX", "client", "scheduled start"),
    "send_ns": ("ns UNIX", "client", "request handed to the socket; null: never sent"),
    "first_byte_ns": ("ns UNIX", "client", "first byte of the response"),
    "first_token_ns": ("ns UNIX", "client", "first chunk with a generated token on any channel"),
    "last_token_ns": ("ns UNIX", "client", "last chunk with a token"),
    "end_ns": ("ns UNIX", "client", "stream ended, failed or was cut"),
    "clock": ("", "client", "kernel: socket receive stamps; user: the process's own clock; mixed"),
    "client_lag_us": ("us", "client", "worst read of this request: user time minus kernel stamp"),
    "reads": ("", "client", "reads from the socket"),
    "coalesced_reads": ("", "client", "reads that held more than one chunk with tokens: their stamps are shared"),
    "first_chunk_merged": ("", "client", "the first token shared a read with later ones: TTFT is an upper bound"),
    "lateness_us": ("us", "client", "send minus intended start"),
    "outcome": (
        "",
        "client",
        (
            "ok, http_error, stream_error, truncated, empty, connect_timeout, read_timeout, "
            "total_timeout, connection_error, bad_payload, censored (in flight when the drain ended)"
        ),
    ),
    "http_status": ("", "response", "HTTP status"),
    "error": ("", "client", "what went wrong"),
    "warning": ("", "client", "oddities that did not fail the request, `;`-joined"),
    "finish_reason": ("", "response", "stop, length, …"),
    "prompt_tokens": ("tokens", "response usage", "prompt length"),
    "cached_tokens": ("tokens", "response usage", "prompt tokens from the prefix cache"),
    "completion_tokens": ("tokens", "response usage", "generated tokens (N); never counted from text"),
    "reasoning_tokens": ("tokens", "response usage", "of these, reasoning"),
    "token_source": ("", "client", "usage, per_chunk_usage or none"),
    "ttft_us": ("us", "client", "first_token_ns - send_ns"),
    "ttft_visible_us": ("us", "client", "first visible content (not reasoning) - send"),
    "tpot_us": ("us", "client", "(last - first token) / (N - tokens of the first chunk); null for a single chunk"),
    "tpot_basis": ("", "client", "first_chunk_known or first_chunk_assumed_1"),
    "e2e_us": ("us", "client", "last token - send"),
    "e2e_intended_us": ("us", "client", "last token - scheduled start"),
    "max_gap_us": ("us", "client", "longest gap between two chunks with tokens"),
    "chunks": ("", "client", "chunks that carried tokens"),
    "chunk_offset_us": ("us", "client", "each such chunk, since send_ns"),
    "chunk_tokens": ("tokens", "response usage", "tokens of each chunk; null where not known. A chunk is not a token"),
    "spec_steps": ("steps", "response block", "S: verification steps that had a draft"),
    "draft_tokens": ("tokens", "response block", "D: draft tokens proposed"),
    "accepted_tokens": ("tokens", "response block", "A: draft tokens accepted, without the bonus token"),
    "num_spec_tokens": ("tokens", "response block", "gamma as the server says"),
    "acceptance_histogram": ("steps", "response block", "H_j: steps with exactly j drafts accepted, j = 0..gamma"),
    "step_accepted": ("tokens", "response block", "accepted drafts of each drafted step"),
    "step_drafted": ("tokens", "response block", "draft tokens of each drafted step"),
    "spec_source": ("", "client", "response_block, or null: the response had none"),
    "server_ttft_us": ("us", "response metrics", "server's own time to the first token, from scheduling"),
    "server_queue_us": ("us", "response metrics", "time in the server's queue"),
    "server_generation_us": ("us", "response metrics", "server's own generation time"),
    "output_sha256": ("", "client", "of the output text"),
    "output_text": ("", "response", "generated text, kept unless the plan says no"),
    "reasoning_text": ("", "response", "reasoning channel"),
    "output_bytes": ("bytes", "client", "length of the output text in UTF-8"),
    "running": (
        "requests",
        "scrapes",
        (
            "server's running requests at the last scrape before send, all engines; "
            "null if that is over 5 s old or an engine is missing"
        ),
    ),
    "waiting": ("requests", "scrapes", "server's waiting requests, likewise"),
    "kv_cache_usage": ("share", "scrapes", "KV cache use of the fullest engine, likewise"),
}

SERVER: dict[str, Text] = {
    "run_id": ("", "run.json", "the run"),
    "cell_id": ("", "cell.json", "the cell"),
    "t_ns": ("ns UNIX", "scraper", "the answer was complete"),
    "t_request_ns": ("ns UNIX", "scraper", "the scrape was asked for"),
    "mono_ns": ("ns", "scraper", "monotonic clock at t_ns; t_ns - mono_ns moves when the wall clock steps"),
    "endpoint": ("", "scraper", "URL of the page; part of a series' identity"),
    "edge": ("", "scraper", "idle_start, window_start, window_end, idle_end; null for the 1 Hz scrapes"),
    "metric": ("", "server", "sample name; `loadtest:scrape_ok` is ours: 1 or 0 for each scrape"),
    "kind": ("", "server", "counter, gauge, histogram, info or unknown"),
    "labels": ("", "server", "JSON of the labels, sorted, without engine and model_name"),
    "engine": ("", "server", "engine label (data-parallel rank)"),
    "model": ("", "server", "model_name label"),
    "value": ("", "server", "value; null for NaN"),
    "error": ("", "scraper", "why a scrape failed"),
}

_FIGURE = "from the source in acceptance_source"
_CELLS: dict[str, Text] = {
    **_KEYS,
    "is_baseline": ("", "plan", "the config that others are compared with"),
    "simulated": ("", "run.json, provenance", "made from the simulated server: never a real result"),
    "synthetic_acceptance": ("", "provenance", "the server was told how much to accept: never a real result"),
    "state": ("", "merge", "done; unfinished (no done.json); failed (the server did not start); not_measured"),
    "state_reason": ("", "merge", "why, in words"),
    "window_start_ns": ("ns UNIX", "done.json", "start of the window"),
    "window_end_ns": ("ns UNIX", "done.json", "end of the window"),
    "window_s": ("s", "done.json", "length of the window"),
    "sent": ("requests", "rows", "rows of phase measure that were sent; the window's requests"),
    "ok": ("requests", "rows", "of these, outcome ok"),
    "failed": ("requests", "rows", "of these, every outcome but ok and censored"),
    "censored": ("requests", "rows", "of these, still in flight when the drain ended"),
    "dropped": ("requests", "done.json, rows", "open-loop arrivals over the cap, never sent; the whole cell"),
    "rows_all_phases": ("rows", "rows", "all rows: warm-up, window, drain, dropped"),
    "prompt_tokens": ("tokens", "rows", "sum over ok window rows that report it"),
    "cached_tokens": ("tokens", "rows", "sum over ok window rows that report it"),
    "completion_tokens": ("tokens", "rows", "sum over ok window rows that report it"),
    "tokens_unknown_rows": ("rows", "rows", "requests with chunks in the window whose tokens nobody told"),
    "request_rate": ("1/s", "rows", "ok window requests / window_s"),
    "output_tok_s": ("tokens/s", "rows", "tokens that arrived in the window / window_s; null if a row is mute"),
    "error_rate": ("share", "rows", "(failed + censored) / sent; null where nothing was sent"),
    "achieved_concurrency": ("requests", "rows", "time average of requests in flight inside the window (Little)"),
    "sent_rate": ("1/s", "rows", "window requests / window_s"),
    "output_tok_basis": ("", "merge", "chunk_stamps; spread: per-chunk tokens unknown, so evenly from first to last"),
    "mean_e2e_us": ("us", "rows", "mean over ok window rows"),
    "mean_output_tokens": ("tokens", "rows", "mean completion tokens over ok window rows that report them"),
    "chunks": ("", "rows", "chunks with tokens of ok window rows"),
    "req_spec_steps": ("steps", "response blocks", "S of ok window rows that carry a block"),
    "req_draft_tokens": ("tokens", "response blocks", "D of these rows"),
    "req_accepted_tokens": ("tokens", "response blocks", "A of these rows"),
    "req_completion_tokens": ("tokens", "rows", "N of these rows"),
    "req_block_rows": ("rows", "rows", "how many rows these are"),
    "req_overrun_tokens": ("tokens", "rows", "accepted but cut at the end and never delivered, where provable"),
    "req_histogram": ("steps", "response blocks", "sum of the acceptance histograms of these rows"),
    "req_overrun_known_rows": ("rows", "rows", "rows whose chunks and step counts prove the overrun (0 included)"),
    "ctr_spec_steps": ("steps", "counters", "S: growth over the window, each series first, then summed"),
    "ctr_draft_tokens": ("tokens", "counters", "D, likewise"),
    "ctr_accepted_tokens": ("tokens", "counters", "A, likewise"),
    "ctr_accepted_per_pos": ("tokens", "counters", "accepted at position 0, 1, …, likewise"),
    "ctr_generation_tokens": ("tokens", "counters", "N, likewise"),
    "ctr_schema": ("", "counters", "v1, v0 (no drafts, no positions) or absent"),
    "ctr_emitted_tokens": ("tokens", "counters", "v0 only"),
    "ctr_engines": ("", "counters", "(endpoint, engine) pairs with speculation series"),
    "ctr_notes": ("", "counters", "what a reader of these sums must know"),
    "acceptance_source": ("", "merge", "response_block, counters, or null: nothing speculated or nothing told"),
    "draft_acceptance_rate": ("share", _FIGURE, "A / D"),
    "mean_accepted_drafts": ("tokens", _FIGURE, "A / S"),
    "mean_acceptance_length": ("tokens", _FIGURE, "1 + A / S, drafted steps only"),
    "mean_draft_length": ("tokens", _FIGURE, "D / S"),
    "tokens_per_target_step": ("tokens", _FIGURE, "N / (N - A); known overrun taken out of A"),
    "coverage": ("share", _FIGURE, "(S + A) / N; known overrun taken out of A"),
    "wasted_drafts_per_token": ("tokens", _FIGURE, "(D - A) / N"),
    "position_survival": ("share", _FIGURE, "Pr(K >= i), i = 1..gamma"),
    "conditional_acceptance": ("share", _FIGURE, "Pr(K >= i given K >= i - 1); comparable across gamma"),
    "acceptance_histogram": ("steps", _FIGURE, "H_j, j = 0..gamma; null where it contradicts S or A"),
    "cell_ctr_spec_steps": ("steps", "counters", "S: growth from idle to idle, all phases"),
    "cell_ctr_draft_tokens": ("tokens", "counters", "D, likewise"),
    "cell_ctr_accepted_tokens": ("tokens", "counters", "A, likewise"),
    "cell_ctr_generation_tokens": ("tokens", "counters", "N, likewise"),
    "cell_req_spec_steps": ("steps", "response blocks", "S of all rows that carry a block, all phases"),
    "cell_req_draft_tokens": ("tokens", "response blocks", "D, likewise"),
    "cell_req_accepted_tokens": ("tokens", "response blocks", "A, likewise"),
    "cell_req_completion_tokens": ("tokens", "rows", "N of all rows that report it"),
    "residual_draft_tokens": ("tokens", "merge", "counters - requests, whole cell"),
    "residual_accepted_tokens": ("tokens", "merge", "likewise"),
    "residual_spec_steps": ("steps", "merge", "likewise"),
    "residual_generation_tokens": ("tokens", "merge", "likewise"),
    "unexplained_share": ("share", "merge", "|residual generation tokens| beyond explainable_tokens / counters"),
    "rows_without_usage": ("rows", "rows", "sent rows that tell no completion tokens"),
    "explainable_tokens": ("tokens", "rows", "at most generated by failed and censored rows; null: no max_tokens"),
    "residual_note": ("", "merge", "the residual in words"),
    "prefix_cache_queries": ("tokens", "counters", "growth over the window"),
    "prefix_cache_hits": ("tokens", "counters", "growth over the window"),
    "prefix_cache_hit_rate": ("share", "counters", "hits / queries of the window, not of the server's life"),
    "preemptions": ("", "counters", "growth over the window"),
    "running_mean": ("requests", "scrapes", "mean over the window's 1 Hz scrapes, summed over engines"),
    "waiting_mean": ("requests", "scrapes", "likewise"),
    "kv_cache_usage_max": ("share", "scrapes", "highest of any engine in the window"),
    "workers_expected": ("", "done.json", "load workers that should report"),
    "workers_reported": ("", "done.json", "load workers that did"),
    "worker_rows_missing": ("rows", "done.json, rows", "rows that workers say they sent or wrote but the files lack"),
    "torn_files": ("", "merge", "files with a damaged end, and where"),
    "duplicate_request_ids": ("rows", "rows", "rows whose request_id occurred before in the cell"),
    "coalesced_share": ("share", "rows", "merged reads / chunks of window rows"),
    "merged_first_share": ("share", "rows", "merged first chunks / window rows with a first token"),
    "client_lag_p99_us": ("us", "rows", "P99 of client_lag_us over window rows"),
    "lateness_p99_us": ("us", "rows", "P99 of lateness_us over window rows"),
    "user_clock_share": ("share", "rows", "window rows without kernel stamps throughout"),
    "worker_cpu_max": ("cores", "done.json", "highest 1 Hz CPU share of any worker"),
    "worker_stall_share": ("", "done.json", "share of the window in stalls of 10 ms or more, worst worker"),
    "worker_stalls": ("", "done.json", "number of such stalls over the whole cell, all workers"),
    "worker_stall_max_ms": ("ms", "done.json", "longest stall over the whole cell"),
    "worker_rss_max_mb": ("MiB", "done.json", "memory of the largest worker at the end of the cell"),
    "connections_opened": ("", "done.json", "connections opened in the cell, all workers"),
    "requests_resent": ("", "done.json", "requests sent again because the server had closed a kept-alive connection"),
    "connect_failures": ("", "rows", "window rows with outcome connection_error or connect_timeout"),
    "clock_skew_ms": ("ms", "done.json", "certain distance of a clock to the master's, worst worker"),
    "window_edge_late_ms": ("ms", "done.json", "how late a moved edge of the window reached a worker"),
    "thinking_concurrency": ("", "done.json", "users that pause between turns, average over the window"),
    "conversations": ("", "done.json", "conversations begun in the cell"),
    "conversations_cut": ("", "done.json", "of these, ended by a turn that was not ok"),
    "workers_enough": ("", "done.json, rows", "workers that would use at most 0.6 of a core each"),
    "clock_step_us": ("us", "scrapes, done.json", "largest change of wall clock - monotonic clock in the cell"),
    "scrapes_expected": ("", "merge", "whole seconds of the window x endpoints"),
    "scrapes_ok": ("", "scrapes", "good 1 Hz scrapes in the window, all endpoints"),
    "scrape_max_gap_s": ("s", "scrapes", "longest silence of any endpoint in the window"),
    "counter_resets": ("", "counters", "`<endpoint> engine=<n>` that restarted: sums are lower bounds"),
    "spec_identity_breaches": ("", "merge", "speculation counts that contradict themselves"),
    "contradictions": ("", "provenance", "facts of the server that contradict the plan"),
    "hdr_max_rel_error": ("share", "live.hlog, rows", "HDR quantiles (rows and live) against exact ones, worst"),
    "hdr_overflow": ("", "done.json, merge", "latencies above the histograms' range; clamped, never dropped"),
    "worker_rows_extra": ("rows", "done.json, rows", "rows in the files that no worker reports"),
    "workers_missing": ("", "done.json", "workers that were lost"),
    "event_errors": ("", "done.json", "errors inside the workers while recording"),
    "unclosed_files": ("", "merge", "worker files without an end mark (killed writer); nothing lost by that alone"),
    "edge_errors": ("", "scrapes", "scrapes at the four edges that failed: sums over them are null"),
    "response_models": ("", "rows", "distinct `model` fields of the responses"),
    "server_fingerprints": ("", "rows", "distinct fingerprints of the responses"),
    "warnings": ("", "rows", "client warnings and how often"),
    "provenance_equal": ("", "provenance", "JSON {versions, gpus, model, host}: equal between compared configs"),
    "auto_budget": ("requests", "plan", 'most requests of a window with `measure = "auto"`; null for other windows'),
    "auto_stopped": ("", "done.json", "whether the looks ended the window before its budget"),
    "auto_looks": ("", "done.json", "JSON: the looks, boundaries and spent error behind that, per criterion"),
    "notes": ("", "done.json, merge", "notes of the load master and of the merge"),
}  # fmt: skip

_METRIC = {"ttft": "time to first token", "tpot": "time per output token", "e2e": "send to last token",
           "chunk_gap": "gap between chunks with tokens (not per token)"}  # fmt: skip
_SHARE = {"p50": "P50", "p90": "P90", "p95": "P95", "p99": "P99", "p999": "P99.9"}


def cells_text(name: str) -> Text:
    """Unit, source and meaning of a column of cells.parquet. KeyError if it has none."""
    if name in _CELLS:
        return _CELLS[name]
    if name.startswith("server_"):
        _, metric, q, bound, _ = name.split("_")
        edge = "lower" if bound == "lo" else "upper"
        return "us", "server histograms", f"{edge} edge of the bucket with the server's own {_SHARE[q]} {metric}"
    metric, _, rest = name.removesuffix("_us").rpartition("_")
    if rest == "n":
        return "", "rows", f"number of values behind the quantiles: {_METRIC[metric]}"
    return "us", "rows", f"{_SHARE[rest]}, exact nearest rank over ok window rows: {_METRIC[metric]}"


def page() -> str:
    """The whole of docs/parquet.md."""
    parts = [_HEAD.format(version=SCHEMA_VERSION)]
    for title, schema, texts in (
        ("`requests/`: one row per request", REQUESTS_SCHEMA, REQUESTS),
        ("`server.parquet`: one row per scraped sample", SERVER_SCHEMA, SERVER),
        ("`cells.parquet`: one row per cell of the plan", CELLS_SCHEMA, {n: cells_text(n) for n in CELLS_SCHEMA.names}),
    ):
        parts.append(f"## {title}\n\n| column | type | unit | source | meaning |\n|---|---|---|---|---|\n")
        parts += [_line(field, texts[field.name]) for field in schema]
        parts.append("\n")
    return "".join(parts).rstrip("\n") + "\n"


def _line(field: pa.Field, text: Text) -> str:
    kind = str(field.type).replace("element: ", "") + ("" if field.nullable else ", never null")
    unit, source, meaning = text
    return f"| `{field.name}` | {kind} | {unit} | {source} | {meaning} |\n"


_HEAD = """# Columns of the Parquet files

Schema version {version}. Generated from `loadtest/merge/columns.py`; do not edit by hand.

Null means "not measured", never 0. Names carry units: `_ns` are UNIX nanoseconds, `_us` microseconds, `_s` seconds.
The formulas are in [method.md](method.md). `requests/` is partitioned `config=…/mix=…/load=…`; the key columns are in
the files as well. Every file carries in its metadata `loadtest.schema`, `loadtest.tool_version`, `loadtest.run_id`,
`loadtest.plan_sha256`, and each file of `requests/` also `loadtest.provenance_sha256`, the digest of the cell's
`provenance.json`.

"""

if __name__ == "__main__":
    sys.stdout.write(page())
