"""One row of cells.parquet from the sums over rows, the scrapes and the files of a cell. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from loadtest.merge import acceptance as acc
from loadtest.merge.quantiles import QUANTILES
from loadtest.merge.rows import LATENCIES, BlockSums, RowSums
from loadtest.merge.server_view import (
    EDGES,
    GENERATION_TOKENS,
    KV_CACHE,
    PREEMPTIONS,
    PREFIX_HITS,
    PREFIX_QUERIES,
    RUNNING,
    WAITING,
    ServerView,
    mean_or_none,
    server_quantiles,
)
from loadtest.server.counters import Deltas
from loadtest.server.spec_counters import SpecDelta, spec_delta

Row = dict[str, Any]


@dataclass(slots=True)
class CellFiles:
    """What a cell folder holds beside rows and scrapes, read by `merge`."""

    done: dict[str, Any] | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    torn: list[str] = field(default_factory=list)
    unclosed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def window(self) -> tuple[int, int] | None:
        """(start, end) of the window in UNIX ns; None for a cell that did not finish."""
        if self.done is None or self.done.get("window_start_ns") is None or self.done.get("window_end_ns") is None:
            return None
        return int(self.done["window_start_ns"]), int(self.done["window_end_ns"])


def latency_columns(rows: RowSums) -> Row:
    """Exact nearest-rank quantiles, counts and means."""
    out: Row = {}
    qs = list(QUANTILES.values())
    for name in (*LATENCIES, "chunk_gap"):
        held = rows.gaps if name == "chunk_gap" else rows.latency[name]
        for label, value in zip(QUANTILES, held.quantiles(qs), strict=True):
            out[f"{name}_{label}_us"] = value
        out[f"{name}_n"] = held.n
    out["mean_e2e_us"] = rows.latency["e2e"].mean
    out["client_lag_p99_us"] = rows.lag.quantiles([0.99])[0]
    out["lateness_p99_us"] = rows.lateness.quantiles([0.99])[0]
    return out


def count_columns(rows: RowSums, files: CellFiles) -> Row:
    """Requests, tokens and rates of the window."""
    c, window = rows.counts, files.window
    seconds = None if window is None else (window[1] - window[0]) / 1e9
    sent, ok, censored = c["sent"], c["ok"], c["censored"]
    failed = sent - ok - censored
    unknown = rows.arrival_rows["unknown"]
    measured_tokens = window is not None and not unknown
    basis = sorted(k for k in ("chunk_stamps", "spread") if rows.arrival_rows[k])
    mean_tokens = acc.ratio(rows.tokens["completion_tokens"], rows.token_rows["completion_tokens"])
    return {
        "window_start_ns": None if window is None else window[0],
        "window_end_ns": None if window is None else window[1],
        "window_s": seconds,
        "sent": sent,
        "ok": ok,
        "failed": failed,
        "censored": censored,
        "dropped": _dropped(rows, files),
        "rows_all_phases": c["rows"],
        **{k: rows.tokens[k] if rows.token_rows[k] else None for k in ("prompt_tokens", "cached_tokens")},
        "completion_tokens": rows.tokens["completion_tokens"] if rows.token_rows["completion_tokens"] else None,
        "tokens_unknown_rows": unknown if window is not None else None,
        "request_rate": acc.ratio(ok, seconds),
        "sent_rate": acc.ratio(sent, seconds),
        "output_tok_s": acc.ratio(rows.arrived, seconds) if measured_tokens else None,
        "output_tok_basis": "+".join(basis) or None if measured_tokens else None,
        "error_rate": acc.ratio(failed + censored, sent),
        "achieved_concurrency": None if seconds is None else acc.ratio(rows.in_flight_ns / 1e9, seconds),
        "mean_output_tokens": mean_tokens,
        "chunks": c["chunks"],
        "coalesced_share": acc.ratio(c["coalesced"], c["window_chunks"]),
        "merged_first_share": acc.ratio(c["first_merged"], c["first_tokens"]),
        "user_clock_share": acc.ratio(c["not_kernel"], sent),
        "duplicate_request_ids": rows.ids.repeats(),
        "response_models": sorted(rows.models),
        "server_fingerprints": sorted(rows.fingerprints),
        "warnings": [f"{name}: {n}" for name, n in sorted(rows.warnings.items())],
    }


def _dropped(rows: RowSums, files: CellFiles) -> int | None:
    if files.done is None:
        return rows.counts["dropped"]
    told = sum(int(w.get("dropped") or 0) for w in files.done.get("workers", {}).values())
    return max(told, rows.counts["dropped"])


def worker_columns(rows: RowSums, files: CellFiles) -> Row:
    """Whether every worker and every row arrived, and how hard the workers worked."""
    out: Row = {"torn_files": files.torn, "unclosed_files": files.unclosed, "notes": files.notes}
    if files.done is None:
        return out
    workers: Mapping[str, Any] = files.done.get("workers") or {}
    missing = extra = 0
    for name, told in workers.items():
        found, found_sent = rows.worker_rows[int(name)], rows.worker_sent[int(name)]
        lack = max(int(told.get("sent") or 0) - found_sent, int(told.get("rows") or 0) - found)
        missing += max(0, lack)
        extra += max(0, -lack)
    stray = sum(n for number, n in rows.worker_rows.items() if str(number) not in workers)
    shares = [s for w in workers.values() for s in w.get("cpu_share") or [] if s is not None]
    return out | {
        "workers_expected": files.done.get("workers_expected"),
        "workers_reported": len(workers),
        "workers_missing": [str(n) for n in files.done.get("workers_missing") or []],
        "worker_rows_missing": missing,
        "worker_rows_extra": extra + stray,
        "event_errors": sum(int(w.get("event_errors") or 0) for w in workers.values()),
        "worker_cpu_max": max(shares, default=None),
    }


def acceptance_columns(rows: RowSums, window: SpecDelta | None, window_deltas: Deltas | None) -> Row:
    """Sums of both sources over the window, and the figures of the better one.

    The responses' own blocks are used where every ok window row carries one: they belong to these requests and to
    nothing else. Otherwise the counters, if both edges were scraped; otherwise the blocks that there are.
    """
    block = rows.window_block
    out = _block_columns(block) if block.rows else {}
    if window is not None:
        out |= {
            "ctr_spec_steps": window.drafts,
            "ctr_draft_tokens": window.draft_tokens,
            "ctr_accepted_tokens": window.accepted,
            "ctr_accepted_per_pos": None if window.accepted_per_pos is None else list(window.accepted_per_pos),
            "ctr_generation_tokens": None
            if window_deltas is None
            else window_deltas.total(GENERATION_TOKENS, window.fits),
            "ctr_schema": window.schema,
            "ctr_emitted_tokens": window.emitted,
            "ctr_engines": window.engines,
            "ctr_notes": list(window.notes),
        }
    counters_known = window is not None and window.draft_tokens is not None and window.accepted is not None
    source = None
    if block.rows and (block.rows >= rows.counts["ok"] or not counters_known):
        source, counts = "response_block", block_counts(block)
    elif counters_known and window is not None:
        source, counts = "counters", counter_counts(window, out["ctr_generation_tokens"])
    out["acceptance_source"] = source
    out["spec_identity_breaches"] = _breaches(rows, window)
    if source is not None:
        figures = acc.figures(counts)
        for name in figures.__slots__:
            value = getattr(figures, name)
            out[name] = list(value) if isinstance(value, tuple) else value
    return out


def _block_columns(block: BlockSums) -> Row:
    return {
        "req_spec_steps": block.steps,
        "req_draft_tokens": block.drafted,
        "req_accepted_tokens": block.accepted,
        "req_completion_tokens": block.completion,
        "req_block_rows": block.rows,
        "req_overrun_tokens": block.overrun if block.overrun_known_rows else None,
        "req_overrun_known_rows": block.overrun_known_rows,
        "req_histogram": [int(h) for h in block.histogram] if block.histogram_rows else None,
    }


def block_counts(block: BlockSums) -> acc.SpecCounts:
    """Counts of the blocks. A histogram that is incomplete or contradicts S or A is left out, never mixed in."""
    hist = [int(h) for h in block.histogram]
    sound = bool(hist) and sum(hist) == block.steps and sum(j * h for j, h in enumerate(hist)) == block.accepted
    return acc.SpecCounts(
        steps=block.steps,
        drafted=block.drafted,
        accepted=block.accepted,
        completion=block.completion,
        per_position=acc.per_position_from_histogram(hist) if sound else None,
        overrun=block.overrun,
    )


def counter_counts(window: SpecDelta, generation: float | None) -> acc.SpecCounts:
    """Counts of the window's counters."""
    return acc.SpecCounts(
        steps=window.drafts,
        drafted=window.draft_tokens,
        accepted=window.accepted,
        completion=generation,
        per_position=window.accepted_per_pos,
    )


def _breaches(rows: RowSums, window: SpecDelta | None) -> list[str]:
    out = [f"response_block: {what} ({n} rows)" for what, n in sorted(rows.breaches.items()) if n]
    if window is not None and not window.resets:
        out += [f"counters: {what}" for what in acc.identity_breaches(counter_counts(window, None))]
    return out


def reconciliation_columns(rows: RowSums, cell: Deltas | None, spec: SpecDelta | None) -> Row:
    """Counters against requests over the whole cell, idle to idle, all phases."""
    block = rows.cell_block
    told: Row = {
        "cell_req_spec_steps": block.steps if block.rows else None,
        "cell_req_draft_tokens": block.drafted if block.rows else None,
        "cell_req_accepted_tokens": block.accepted if block.rows else None,
        "cell_req_completion_tokens": rows.tokens["cell_completion"] if rows.token_rows["cell_completion"] else None,
        "rows_without_usage": rows.counts["rows"] - rows.counts["dropped"] - rows.token_rows["cell_completion"],
        "explainable_tokens": None if rows.explainable_unbounded else rows.explainable_tokens,
    }
    generation = None if cell is None else cell.total(GENERATION_TOKENS)
    counted: Row = {
        "cell_ctr_spec_steps": None if spec is None else spec.drafts,
        "cell_ctr_draft_tokens": None if spec is None else spec.draft_tokens,
        "cell_ctr_accepted_tokens": None if spec is None else spec.accepted,
        "cell_ctr_generation_tokens": generation,
    }
    out = told | counted
    for name in ("spec_steps", "draft_tokens", "accepted_tokens"):
        out[f"residual_{name}"] = _difference(counted[f"cell_ctr_{name}"], told[f"cell_req_{name}"])
    residual = _difference(generation, rows.tokens["cell_completion"])
    out["residual_generation_tokens"] = residual
    out["unexplained_share"], out["residual_note"] = _explain(rows, residual, generation)
    return out


def _difference(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def _explain(rows: RowSums, residual: float | None, counted: float | None) -> tuple[float | None, str | None]:
    """Share of the server's tokens that our requests cannot explain, and why in words."""
    if residual is None or counted is None:
        return None, None
    open_rows = rows.token_rows["open_end"]
    if residual == 0:
        return 0.0, "the server's tokens are exactly those of our requests"
    if residual < 0:
        share = -residual / max(counted, 1.0)
        return share, f"our requests report {-residual:g} tokens that no scraped endpoint counted: is one not scraped?"
    if rows.explainable_unbounded:
        return 0.0, f"{residual:g} tokens more at the server; {open_rows} cut or failed requests without max_tokens"
    beyond = max(0.0, residual - rows.explainable_tokens)
    if beyond == 0:
        return 0.0, f"{residual:g} tokens more at the server, within what {open_rows} cut or failed requests allow"
    return beyond / counted, (
        f"{residual:g} tokens more at the server; {open_rows} cut or failed requests explain at most "
        f"{rows.explainable_tokens:g}: foreign traffic?"
    )


def server_columns(
    view: ServerView, files: CellFiles, model: str | None = None
) -> tuple[Row, Deltas | None, SpecDelta | None, Row]:
    """Server figures of the window; (columns, window deltas, window speculation, cell reconciliation inputs).

    `model`: the one name in the responses, None where they name none or several.
    """
    window = view.span("window_start", "window_end")
    whole = view.span("idle_start", "idle_end")
    spec = None if window is None else spec_delta(window, view.edges["window_end"], model)
    cell_spec = None if whole is None else spec_delta(whole, view.edges["idle_end"], model)
    queries, hits = (None if window is None else window.total(m) for m in (PREFIX_QUERIES, PREFIX_HITS))
    out: Row = {
        "prefix_cache_queries": queries,
        "prefix_cache_hits": hits,
        "prefix_cache_hit_rate": acc.ratio(hits, queries),
        "preemptions": None if window is None else window.total(PREEMPTIONS),
        **server_quantiles(window),
        "counter_resets": view.resets(window, whole),
        "edge_errors": view.edge_errors + _absent_edges(view, files),
        "clock_step_us": _clock_step(view, files),
    }
    if files.window is not None and view.endpoints:
        expected, good, silence = view.completeness(*files.window)
        out |= {"scrapes_expected": expected, "scrapes_ok": good, "scrape_max_gap_s": silence}
        at = view.scrape_times(*files.window)
        out["running_mean"] = mean_or_none(view.gauge(RUNNING, at))
        out["waiting_mean"] = mean_or_none(view.gauge(WAITING, at))
        usage = view.gauge(KV_CACHE, at)
        out["kv_cache_usage_max"] = float(np.nanmax(usage)) if not np.isnan(usage).all() else None
    return out, window, spec, {"deltas": whole, "spec": cell_spec}


def _absent_edges(view: ServerView, files: CellFiles) -> list[str]:
    if files.done is None or not view.rows:
        return []
    return [f"{edge}: never scraped" for edge in EDGES if edge not in view.edges]


def _clock_step(view: ServerView, files: CellFiles) -> float | None:
    told = ((files.done or {}).get("clock_offset") or {}).get("max_step_us")
    steps = [float(s) for s in (view.clock_step_us, told) if s is not None]
    return max(steps, default=None)
