"""Builds merged runs for the judge's tests: real tables with the real schemas, numbers chosen by the test."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from loadtest.merge.schema import CELLS_SCHEMA, REQUESTS_SCHEMA

PROVENANCE = json.dumps({"versions": {"vllm": "0.32.0"}, "model": "m", "gpus": ["H200"]}, sort_keys=True)
START_NS = 1_700_000_000_000_000_000
WINDOW_S = 60.0


@dataclass
class MemoryRun:
    """What `open_run` gives, without files."""

    run: dict[str, Any]
    cells: pa.Table
    table: pa.Table

    def requests(self, columns: list[str] | None = None, filter: Any = None) -> pa.Table:  # noqa: A002 - as RunData
        table = self.table if filter is None else self.table.filter(filter)
        return table if columns is None else table.select(columns)


def cell_facts(
    config: str = "ngram-4",
    *,
    load: float = 8,
    repeat: int = 1,
    mix: str = "code",
    kind: str = "closed",
    **changes: Any,
) -> dict[str, Any]:
    """A cell that passes every trust check."""
    baseline = config.startswith("baseline")
    label = f"{'c' if kind == 'closed' else kind}{load:g}"
    facts: dict[str, Any] = {
        "run_id": "run",
        "cell_id": f"{config}-{mix}-greedy-{label}-r{repeat}",
        "config": config,
        "method": "none" if baseline else "ngram",
        "gamma": None if baseline else 4,
        "mix": mix,
        "sampling": "greedy",
        "temperature": 0.0,
        "top_p": 1.0,
        "seed": None,
        "load_kind": kind,
        "load_value": float(load),
        "load": label,
        "repeat": repeat,
        "is_baseline": config == "baseline",  # a plan has one; a second one without speculation shows the noise
        "simulated": False,
        "synthetic_acceptance": False,
        "state": "done",
        "state_reason": None,
        "window_start_ns": START_NS,
        "window_end_ns": START_NS + int(WINDOW_S * 1e9),
        "window_s": WINDOW_S,
        "dropped": 0,
        "workers_expected": 1,
        "workers_reported": 1,
        "worker_rows_missing": 0,
        "torn_files": [],
        "duplicate_request_ids": 0,
        "coalesced_share": 0.0,
        "merged_first_share": 0.0,
        "client_lag_p99_us": 2000.0,
        "lateness_p99_us": 100.0,
        "user_clock_share": 0.0,
        "worker_cpu_max": 0.3,
        "worker_stall_share": 0.0,
        "clock_skew_ms": 0.1,
        "clock_step_us": 3.0,
        "scrapes_expected": 60,
        "scrapes_ok": 60,
        "scrape_max_gap_s": 1.1,
        "counter_resets": [],
        "spec_identity_breaches": [],
        "contradictions": [],
        "hdr_max_rel_error": 0.001,
        "hdr_overflow": 0,
        "unexplained_share": 0.0,
        "prefix_cache_queries": 1000.0,
        "prefix_cache_hits": 0.0,
        "provenance_equal": PROVENANCE,
        "achieved_concurrency": float(load),
        "rows_without_usage": 0,
        "worker_rows_extra": 0,
        "workers_missing": [],
        "event_errors": 0,
        "unclosed_files": [],
        "edge_errors": [],
        "server_fingerprints": [],
        "response_models": [],
        "warnings": [],
        "notes": [],
    }
    return {**facts, **changes}


@functools.cache
def _hashes(n: int) -> list[str]:
    return [hashlib.sha256(f"p{i}".encode()).hexdigest() for i in range(n)]


def request_rows(facts: dict[str, Any], n: int = 1000, **changes: Any) -> pa.Table:
    """n served requests of a cell in start order; any column may be replaced by a value or a sequence."""
    at = np.arange(n)
    start = facts["window_start_ns"] + (at * (WINDOW_S * 1e9 / max(n, 1))).astype(np.int64)
    speculative = facts["method"] != "none"
    rows: dict[str, Any] = {
        **{k: facts[k] for k in REQUESTS_SCHEMA.names if k in facts},
        "seq": at,
        "worker": 0,
        "user": 0,
        "phase": "measure",
        "request_id": [f"{facts['cell_id']}-{i}" for i in at],
        "prompt_id": [f"p{i}" for i in at],
        "stratum": "edit",
        "turn": 0,
        "prompt_sha256": "x",
        "send_ns": start,
        "first_token_ns": start + 100_000_000,
        "last_token_ns": start + 400_000_000,
        "end_ns": start + 400_000_000,
        "clock": "kernel",
        "first_chunk_merged": False,
        "outcome": "ok",
        "http_status": 200,
        "completion_tokens": 31,
        "token_source": "usage",
        "ttft_us": 100_000,
        "tpot_us": 10_000.0,
        "e2e_us": 400_000,
        "e2e_intended_us": 400_000,
        "chunks": 16,
        "output_sha256": _hashes(n),
        "spec_steps": 10 if speculative else None,
        "draft_tokens": 40 if speculative else None,
        "accepted_tokens": 16 if speculative else None,
    }
    rows.update(changes)
    arrays = []
    for name, kind in zip(REQUESTS_SCHEMA.names, REQUESTS_SCHEMA.types, strict=True):
        value = rows.get(name)
        if value is None or isinstance(value, str | int | float | bool):
            arrays.append(pa.repeat(pa.scalar(value, type=kind), n))
        else:
            arrays.append(pa.array(value, type=kind, from_pandas=True))
    return pa.Table.from_arrays(arrays, schema=REQUESTS_SCHEMA)


def failed(n: int, bad: Sequence[int] | np.ndarray, outcome: str = "http_error") -> dict[str, Any]:
    """Column changes that make the requests at the indices `bad` fail after 2 ms."""
    mask = np.zeros(n, dtype=bool)
    mask[np.asarray(bad, dtype=int)] = True
    ok = {"ttft_us": 100_000.0, "tpot_us": 10_000.0, "e2e_us": 400_000.0, "completion_tokens": 31.0}
    changes: dict[str, Any] = {k: np.where(mask, np.nan, v) for k, v in ok.items()}
    changes["outcome"] = np.where(mask, outcome, "ok").tolist()
    for name, value in (("ttft_us", "int64"), ("e2e_us", "int64"), ("completion_tokens", "int32")):
        changes[name] = pa.array(changes[name], from_pandas=True).cast(value)
    return changes


def run_of(*parts: tuple[dict[str, Any], pa.Table], **run: Any) -> MemoryRun:
    """A run of cells with their rows; counts of the cells come from the rows unless the test set them."""
    cells = []
    for facts, rows in parts:
        measured = [p == "measure" for p in rows["phase"].to_pylist()]
        outcomes = [o for o, m in zip(rows["outcome"].to_pylist(), measured, strict=True) if m]
        tokens = [t for t in rows["completion_tokens"].to_pylist() if t is not None]
        ok = outcomes.count("ok")
        counts = {
            "sent": len(outcomes),
            "ok": ok,
            "censored": outcomes.count("censored"),
            "failed": len(outcomes) - ok - outcomes.count("censored"),
            "chunks": 16 * ok,
            "completion_tokens": sum(tokens),
            "mean_output_tokens": sum(tokens) / len(tokens) if tokens else None,
            "output_tok_s": sum(tokens) / WINDOW_S,
            "request_rate": len(outcomes) / WINDOW_S,
        }
        cells.append({**dict.fromkeys(CELLS_SCHEMA.names), **counts, **facts})
    names = set(CELLS_SCHEMA.names)
    table = pa.Table.from_pylist([{k: v for k, v in c.items() if k in names} for c in cells], schema=CELLS_SCHEMA)
    rows = pa.concat_tables([r for _, r in parts]) if parts else REQUESTS_SCHEMA.empty_table()
    return MemoryRun({"run_id": "run", "plan_sha256": "ab" * 32, **run}, table, rows)


def simple_run(
    n: int = 1000, *, config: str = "ngram-4", facts: dict[str, Any] | None = None, **rows: Any
) -> MemoryRun:
    """A run of one cell."""
    cell = cell_facts(config, **(facts or {}))
    return run_of((cell, request_rows(cell, n, **rows)))
