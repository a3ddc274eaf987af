"""Writes run folders as a real run leaves them (Arrow IPC streams, JSON, scrapes), for tests and benchmarks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from loadtest.load.records import RAW_SCHEMA
from loadtest.model import SCHEMA_VERSION, Cell, ConfigSpec, SamplingSpec, to_json
from loadtest.server.scrapes import SCRAPE_OK, SCRAPE_SCHEMA

T0 = 1_700_000_000_000_000_000
SECOND = 1_000_000_000
ENDPOINT = "http://127.0.0.1:8000/metrics"

BASELINE = ConfigSpec(name="baseline", method="none", gamma=None, sim={}, is_baseline=True)
NGRAM = ConfigSpec(name="ngram-4", method="ngram", gamma=4, sim={}, speculative={"method": "ngram"})


def make_cell(index: int = 1, config: ConfigSpec = NGRAM, mix: str = "code", load: float = 8, repeat: int = 1) -> Cell:
    return Cell(
        index=index,
        cell_id=f"{index:03d}-{config.name}-{mix}-greedy-c{load:g}-r{repeat}",
        config=config.name,
        method=config.method,
        gamma=config.gamma,
        mix=mix,
        sampling=SamplingSpec("greedy", 0.0, 64),
        load_kind="closed",
        load_value=load,
        repeat=repeat,
        order_seed=7,
        salt="s",
        warmup_s=1.0,
        measure_s=10.0,
        measure_requests=None,
        drain_s=5.0,
    )


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(to_json(value)))


def make_run(
    run_dir: Path, cells: Iterable[Cell], configs: Iterable[ConfigSpec] = (BASELINE, NGRAM), **more: Any
) -> Path:
    """run.json with these cells; the folders of the cells are made one by one by `make_cell_folder`."""
    facts = {
        "schema": SCHEMA_VERSION,
        "tool_version": "0",
        "run_id": "test-run",
        "plan_sha256": "ab" * 32,
        "configs": list(configs),
        "cells": list(cells),
        "started_ns": T0 - 60 * SECOND,
        "state": "done",
        "simulated": True,
        **more,
    }
    write_json(run_dir / "run.json", facts)
    return run_dir


def row(seq: int = 0, **values: Any) -> dict[str, Any]:
    """One raw row: an ok request of the window, sent `seq` seconds after T0; `values` override."""
    send = values.get("send_ns", T0 + seq * SECOND)
    base: dict[str, Any] = {
        "seq": seq,
        "worker": 0,
        "user": 0,
        "phase": "measure",
        "request_id": f"1-0-{seq}",
        "prompt_id": f"p{seq}",
        "stratum": "edit",
        "turn": 0,
        "prompt_sha256": "00",
        "max_tokens": 64,
        "send_ns": send,
        "clock": "kernel",
        "outcome": "ok",
        "http_status": 200,
        "token_source": "usage",
    }
    return base | values


def done(rows: list[dict[str, Any]] | None = None, *, window_s: float = 10.0, **more: Any) -> dict[str, Any]:
    """done.json that agrees with the rows; the window starts at T0."""
    rows = rows or []
    workers = {
        str(w): {
            "sent": sum(r["worker"] == w and r["send_ns"] is not None for r in rows),
            "rows": sum(r["worker"] == w for r in rows),
            "dropped": 0,
            "event_errors": 0,
            "cpu_share": [0.25, 0.5],
            "rss_mb": 80.0,
            "stalls": 2,
            "stalls_ms": [12.0, 30.0],
            "stalled_window_ms": 42.0,
            "conns_opened": 4,
            "resent": 1,
            "clock_skew_ms": [-0.2, 0.1],
            "late_window_ms": 0.0,
            "thinking_s": 5.0,
            "conversations": 3,
            "conversations_cut": 1,
        }
        for w in sorted({r["worker"] for r in rows} or {0})
    }
    return {
        "schema": SCHEMA_VERSION,
        "window_start_ns": T0,
        "window_end_ns": T0 + int(window_s * SECOND),
        "idle_start_ns": T0 - 5 * SECOND,
        "idle_end_ns": T0 + int(window_s * SECOND) + 5 * SECOND,
        "workers_expected": len(workers),
        "workers": workers,
        "workers_missing": [],
        "hdr_overflow": {},
        "notes": [],
        **more,
    }


def write_stream(path: Path, batches: Iterable[pa.RecordBatch], schema: pa.Schema = RAW_SCHEMA) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def write_rows(cell_dir: Path, rows: list[dict[str, Any]], batch: int = 64) -> None:
    """worker-<n>.arrows of each worker, `batch` rows a batch."""
    for worker in {r["worker"] for r in rows}:
        mine = [r for r in rows if r["worker"] == worker]
        parts = [pa.RecordBatch.from_pylist(mine[i : i + batch], RAW_SCHEMA) for i in range(0, len(mine), batch)]
        write_stream(cell_dir / f"worker-{worker}.arrows", parts)


def make_cell_folder(
    run_dir: Path,
    cell: Cell,
    rows: list[dict[str, Any]],
    *,
    scrapes: list[dict[str, Any]] | None = None,
    done_json: dict[str, Any] | None = None,
    finished: bool = True,
    provenance: dict[str, Any] | None = None,
    config: ConfigSpec = NGRAM,
) -> Path:
    folder = run_dir / "cells" / cell.cell_id
    write_json(folder / "cell.json", {"schema": SCHEMA_VERSION, "cell": cell, "config": config, "simulated": True})
    if provenance is not None:
        write_json(folder / "provenance.json", provenance)
    write_rows(folder, rows)
    if scrapes is not None:
        write_stream(folder / "server.arrows", [pa.RecordBatch.from_pylist(scrapes, SCRAPE_SCHEMA)], SCRAPE_SCHEMA)
    if finished:
        write_json(folder / "done.json", done_json or done(rows))
    return folder


def sample(t_ns: int, metric: str, value: float | None, **more: Any) -> dict[str, Any]:
    """One row of server.arrows."""
    kind = "counter" if metric.endswith("_total") else "histogram" if metric.endswith("_bucket") else "gauge"
    base: dict[str, Any] = {
        "t_ns": t_ns,
        "t_request_ns": t_ns,
        "mono_ns": t_ns - T0,
        "endpoint": ENDPOINT,
        "edge": None,
        "metric": metric,
        "kind": kind,
        "labels": "{}",
        "engine": None if metric == SCRAPE_OK else "0",
        "model": None if metric == SCRAPE_OK else "m",
        "value": value,
    }
    return base | more


EDGE_TIMES = {"idle_start": -5, "window_start": 0, "window_end": 10, "idle_end": 15}


def edge(name: str, values: dict[str, float], **more: Any) -> list[dict[str, Any]]:
    """All samples of one edge scrape of one endpoint, with its scrape_ok row."""
    t = T0 + EDGE_TIMES[name] * SECOND
    rows = [sample(t, SCRAPE_OK, 1.0, edge=name, **{k: v for k, v in more.items() if k == "endpoint"})]
    return rows + [sample(t, metric, value, edge=name, **more) for metric, value in values.items()]


def spec_counters(steps: float, drafted: float, accepted: float, generation: float) -> dict[str, float]:
    return {
        "vllm:spec_decode_num_drafts_total": steps,
        "vllm:spec_decode_num_draft_tokens_total": drafted,
        "vllm:spec_decode_num_accepted_tokens_total": accepted,
        "vllm:generation_tokens_total": generation,
    }


def random_batches(
    n: int, chunks: int = 40, seed: int = 0, batch: int = 64, worker: int = 0
) -> Iterator[pa.RecordBatch]:
    """`n` plausible speculative requests, one each 10 ms, `batch` rows a batch; a million in seconds."""
    rng = np.random.default_rng(seed)
    block = 4096
    for start in range(0, n, block):
        m = min(block, n - start)
        whole = _random_block(rng, start, m, chunks, worker)
        for at in range(0, m, batch):
            yield whole.slice(at, min(batch, m - at))


def _random_block(rng: np.random.Generator, start: int, m: int, chunks: int, worker: int) -> pa.RecordBatch:
    seq = np.arange(start, start + m)
    send = T0 + seq * (SECOND // 100)
    accepted = rng.integers(0, 5, size=(m, chunks - 1))
    tokens = np.concatenate([np.ones((m, 1), np.int64), accepted + 1], axis=1)
    gaps = rng.lognormal(np.log(20_000), 0.3, size=(m, chunks)).astype(np.int64)
    offsets = np.cumsum(gaps, axis=1)
    n_tokens = tokens.sum(axis=1)
    steps = chunks - 1
    hist = np.stack([(accepted == j).sum(axis=1) for j in range(5)], axis=1)
    ttft, e2e = offsets[:, 0], offsets[:, -1]

    def nested(values: np.ndarray[Any, Any], kind: pa.DataType) -> pa.Array:
        at = np.arange(0, values.size + 1, values.shape[1], dtype=np.int32)
        return pa.ListArray.from_arrays(at, pa.array(values.reshape(-1), kind))

    text = "def f(x):\n    return x + 1  # " + "y" * 100
    values: dict[str, Any] = {
        "seq": seq,
        "worker": np.full(m, worker),
        "user": seq % 64,
        "phase": ["measure"] * m,
        "request_id": [f"1-{worker}-{i}" for i in seq],
        "server_request_id": [f"chatcmpl-1-{worker}-{i}" for i in seq],
        "server_fingerprint": ["ngram-4"] * m,
        "response_model": ["m"] * m,
        "prompt_id": [f"code-{i % 64}" for i in seq],
        "stratum": ["edit"] * m,
        "turn": np.zeros(m, np.int16),
        "prompt_sha256": [f"{i % 64:064x}" for i in seq],
        "max_tokens": np.full(m, 256),
        "intended_ns": send,
        "send_ns": send,
        "first_byte_ns": send + ttft * 1000,
        "first_token_ns": send + ttft * 1000,
        "last_token_ns": send + e2e * 1000,
        "end_ns": send + e2e * 1000 + 50_000,
        "clock": ["kernel"] * m,
        "client_lag_us": rng.integers(5, 900, m),
        "reads": np.full(m, chunks),
        "coalesced_reads": np.zeros(m, np.int64),
        "first_chunk_merged": np.zeros(m, bool),
        "lateness_us": rng.integers(1, 99, m),
        "outcome": ["ok"] * m,
        "http_status": np.full(m, 200),
        "finish_reason": ["length"] * m,
        "prompt_tokens": rng.integers(20, 900, m),
        "completion_tokens": n_tokens,
        "token_source": ["per_chunk_usage"] * m,
        "ttft_us": ttft,
        "ttft_visible_us": ttft,
        "tpot_us": (e2e - ttft) / (n_tokens - 1),
        "tpot_basis": ["first_chunk_known"] * m,
        "e2e_us": e2e,
        "e2e_intended_us": e2e,
        "max_gap_us": gaps[:, 1:].max(axis=1),
        "chunks": np.full(m, chunks),
        "chunk_offset_us": nested(offsets, pa.int32()),
        "chunk_tokens": nested(tokens, pa.int16()),
        "spec_steps": np.full(m, steps),
        "draft_tokens": np.full(m, 4 * steps),
        "accepted_tokens": accepted.sum(axis=1),
        "num_spec_tokens": np.full(m, 4),
        "acceptance_histogram": nested(hist, pa.int32()),
        "step_accepted": nested(accepted, pa.int16()),
        "step_drafted": nested(np.full_like(accepted, 4), pa.int16()),
        "spec_source": ["response_block"] * m,
        "output_sha256": [f"{i:064x}" for i in seq],
        "output_text": [text] * m,
        "output_bytes": np.full(m, len(text)),
    }
    columns = [
        pa.nulls(m, f.type) if f.name not in values
        else values[f.name] if isinstance(values[f.name], pa.Array)
        else pa.array(values[f.name], f.type)
        for f in RAW_SCHEMA
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(columns, schema=RAW_SCHEMA)


def make_big_run(run_dir: Path, requests: int, chunks: int = 40, batch: int = 64) -> Path:
    """One finished cell of `requests` random requests in two worker files, scraped at 1 Hz."""
    cell = make_cell()
    make_run(run_dir, [cell])
    folder = run_dir / "cells" / cell.cell_id
    write_json(folder / "cell.json", {"schema": SCHEMA_VERSION, "cell": cell, "config": NGRAM, "simulated": True})
    half = requests // 2
    for worker, n in enumerate((requests - half, half)):
        write_stream(folder / f"worker-{worker}.arrows", random_batches(n, chunks, worker, batch, worker))
    seconds = max(10, requests // 200)
    scrapes = []
    for s in range(min(seconds, 3600)):
        t = T0 + s * SECOND
        scrapes.append(sample(t, SCRAPE_OK, 1.0))
        scrapes += [sample(t, "vllm:num_requests_running", 8.0, engine=e) for e in ("0", "1")]
        scrapes += [sample(t, "vllm:num_requests_waiting", 1.0, engine=e) for e in ("0", "1")]
        scrapes += [sample(t, "vllm:kv_cache_usage_perc", 0.5, engine=e) for e in ("0", "1")]
    write_stream(folder / "server.arrows", [pa.RecordBatch.from_pylist(scrapes, SCRAPE_SCHEMA)], SCRAPE_SCHEMA)
    workers = {str(w): {"sent": n, "rows": n} for w, n in enumerate((requests - half, half))}
    write_json(folder / "done.json", done(window_s=seconds, workers=workers, workers_expected=2))
    return run_dir
