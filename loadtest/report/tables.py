"""Figures of the field's table, one row per config x mix x sampling x load, repeats pooled: sums first, rows together.

Pure functions over a merged run; every renderer (Markdown, HTML, terminal, Bencher) reads these rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from loadtest.merge.read import RunData

QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
METRICS = ("ttft", "tpot", "e2e", "chunk_gap")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. Latencies in microseconds over ok requests of the window; None = not measured."""

    config: str
    method: str
    gamma: int | None
    mix: str
    sampling: str
    load: str
    load_kind: str
    load_value: float
    is_baseline: bool
    simulated: bool
    synthetic: bool
    states: tuple[str, ...]
    """State of each repeat."""
    reason: str
    """Why a cell was not measured."""
    repeats: int
    """Repeats that were measured to their end."""
    sent: int | None = None
    ok: int | None = None
    failed: int | None = None
    """Everything sent that is not ok, censored requests included."""
    window_s: float | None = None
    output_tok_s: float | None = None
    request_rate: float | None = None
    mean_e2e_us: float | None = None
    mean_output_tokens: float | None = None
    steps: float | None = None
    """S, D, A, N: verify steps with drafts, drafts, accepted drafts, completion tokens."""
    drafts: float | None = None
    accepted: float | None = None
    tokens: float | None = None
    acceptance_source: str | None = None
    acceptance_rate: float | None = None
    acceptance_length: float | None = None
    coverage: float | None = None
    survival: tuple[float | None, ...] = ()
    latency: dict[str, dict[str, float | None]] = field(default_factory=dict)
    """metric -> {p50, p90, p95, p99, p999, n}."""
    curve: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)
    """metric -> (quantiles, microseconds) for the percentile plot."""

    @property
    def measured(self) -> bool:
        """Whether at least one repeat was measured to its end."""
        return self.repeats > 0

    @property
    def scheme(self) -> str:
        """`method/gamma` as the field writes it; the baseline has no gamma."""
        return self.method if self.gamma is None else f"{self.method}/{self.gamma}"

    @property
    def key(self) -> tuple[str, str, str, str]:
        """config, mix, sampling, load."""
        return self.config, self.mix, self.sampling, self.load


def build_rows(data: RunData) -> list[Row]:
    """All rows of a run in the plan's order, unmeasured ones included."""
    groups: dict[tuple[str, str, str, str], list[dict[str, Any]]] = {}
    for cell in data.cells.to_pylist():
        groups.setdefault((cell["config"], cell["mix"], cell["sampling"], cell["load"]), []).append(cell)
    values = _latencies(data, {c["cell_id"] for g in groups.values() for c in g if c["state"] == "done"})
    return [_row(cells, values) for cells in groups.values()]


def _row(cells: list[dict[str, Any]], values: dict[str, dict[str, np.ndarray[Any, Any]]]) -> Row:
    first = cells[0]
    done = [c for c in cells if c["state"] == "done"]
    base: dict[str, Any] = {
        "config": first["config"],
        "method": first["method"],
        "gamma": first["gamma"],
        "mix": first["mix"],
        "sampling": first["sampling"],
        "load": first["load"],
        "load_kind": first["load_kind"],
        "load_value": first["load_value"],
        "is_baseline": first["is_baseline"],
        "simulated": any(c["simulated"] for c in cells),
        "synthetic": any(c["synthetic_acceptance"] for c in cells),
        "states": tuple(c["state"] for c in cells),
        "reason": "; ".join(sorted({c["state_reason"] for c in cells if c["state_reason"]})),
        "repeats": len(done),
    }
    if not done:
        return Row(**base)
    window_s = _total(done, "window_s")
    sums = _acceptance_sums(done)
    latency, curve = {}, {}
    for metric in METRICS:
        pooled = np.sort(np.concatenate([values.get(c["cell_id"], {}).get(metric, np.empty(0)) for c in done]))
        latency[metric] = {"n": float(len(pooled)), **{_name(q): _rank(pooled, q) for q in QUANTILES}}
        curve[metric] = _curve(pooled)
    return Row(
        **base,
        sent=_count(done, "sent"),
        ok=_count(done, "ok"),
        failed=_count(done, "failed", "censored"),
        window_s=window_s,
        output_tok_s=_rate(done, "output_tok_s", window_s),
        request_rate=_rate(done, "request_rate", window_s),
        mean_e2e_us=_mean(done, "mean_e2e_us"),
        mean_output_tokens=_mean(done, "mean_output_tokens"),
        **sums,
        latency=latency,
        curve=curve,
    )


def _acceptance_sums(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """S, D, A, N summed over repeats from one source; the ratios from the sums. Mixed sources give no figure."""
    sources = {c["acceptance_source"] for c in cells}
    source = sources.pop() if len(sources) == 1 else None
    prefix = {"response_block": "req", "counters": "ctr"}.get(source or "")
    if prefix is None:
        return {"acceptance_source": None}
    steps, drafts, accepted = (
        _total(cells, f"{prefix}_{name}") for name in ("spec_steps", "draft_tokens", "accepted_tokens")
    )
    tokens = _total(cells, "req_completion_tokens" if prefix == "req" else "ctr_generation_tokens")
    return {
        "acceptance_source": source,
        "steps": steps,
        "drafts": drafts,
        "accepted": accepted,
        "tokens": tokens,
        "acceptance_rate": accepted / drafts if accepted is not None and drafts else None,
        "acceptance_length": 1 + accepted / steps if accepted is not None and steps else None,
        "coverage": (steps + accepted) / tokens if None not in (steps, accepted) and tokens else None,  # type: ignore[operator]
        "survival": _survival(cells, prefix, steps),
    }


def _survival(cells: list[dict[str, Any]], prefix: str, steps: float | None) -> tuple[float | None, ...]:
    if not steps:
        return ()
    column = "ctr_accepted_per_pos" if prefix == "ctr" else "req_histogram"
    lists = [c[column] for c in cells if c[column]]
    if len(lists) != len(cells):
        return ()
    width = max(len(x) for x in lists)
    summed = np.sum([np.pad(np.asarray(x, float), (0, width - len(x))) for x in lists], axis=0)
    if prefix == "req":
        # Histogram H_j to "at least j accepted", j = 1..gamma.
        summed = summed[::-1].cumsum()[::-1][1:]
    return tuple(float(x) / steps for x in summed)


def _latencies(data: RunData, cell_ids: set[str]) -> dict[str, dict[str, np.ndarray[Any, Any]]]:
    """Per cell and metric: the values of ok requests of the window."""
    columns = ["cell_id", "phase", "outcome", "ttft_us", "tpot_us", "e2e_us", "chunk_offset_us"]
    table = data.requests(columns, None)
    keep = (np.asarray(table["phase"]) == "measure") & (np.asarray(table["outcome"]) == "ok")
    table = table.filter(keep)
    ids = np.asarray(table["cell_id"])
    out: dict[str, dict[str, np.ndarray[Any, Any]]] = {}
    for cell_id in cell_ids:
        part = table.filter(ids == cell_id)
        values: dict[str, np.ndarray[Any, Any]] = {}
        for metric in ("ttft", "tpot", "e2e"):
            column = part[f"{metric}_us"].drop_null().to_numpy()
            values[metric] = np.asarray(column, float)
        values["chunk_gap"] = _gaps(part["chunk_offset_us"].combine_chunks())
        out[cell_id] = values
    return out


def _gaps(offsets: Any) -> np.ndarray[Any, Any]:
    """Gaps between the token-carrying chunks of each request, over all requests."""
    offsets = offsets.drop_null()
    flat = np.asarray(offsets.flatten(), float)
    if len(flat) < 2:
        return np.empty(0)
    parents = np.repeat(np.arange(len(offsets)), np.asarray(offsets.value_lengths()))
    gaps: np.ndarray[Any, Any] = np.diff(flat)[parents[1:] == parents[:-1]]
    return gaps


def _name(q: float) -> str:
    return "p" + f"{q * 100:g}".replace(".", "")


def _rank(ordered: np.ndarray[Any, Any], q: float) -> float | None:
    """Nearest rank, ceil: the definition that the gate uses."""
    n = len(ordered)
    return float(ordered[max(0, int(np.ceil(q * n - 1e-9)) - 1)]) if n else None


def _curve(ordered: np.ndarray[Any, Any], points: int = 120) -> tuple[list[float], list[float]]:
    n = len(ordered)
    if n == 0:
        return [], []
    # Evenly spaced in log(1 - q), as HdrHistogram plots are: the tail gets as much room as the middle.
    ranks = np.unique(np.ceil(n * (1 - np.logspace(0, -np.log10(max(n, 2)), points)) - 1e-9).astype(int).clip(1, n))
    ranks = np.unique(np.append(ranks, n))
    return (ranks / n).tolist(), ordered[ranks - 1].tolist()


def _numbers(cells: Iterable[dict[str, Any]], *columns: str) -> list[float] | None:
    values = [c[k] for c in cells for k in columns]
    return None if any(v is None for v in values) else [float(v) for v in values]


def _total(cells: list[dict[str, Any]], *columns: str) -> float | None:
    values = _numbers(cells, *columns)
    return None if values is None else sum(values)


def _count(cells: list[dict[str, Any]], *columns: str) -> int | None:
    total = _total(cells, *columns)
    return None if total is None else int(total)


def _rate(cells: list[dict[str, Any]], column: str, window_s: float | None) -> float | None:
    """Rates weighted by their windows: what was counted over all windows, by the time of all windows."""
    values, windows = _numbers(cells, column), _numbers(cells, "window_s")
    if values is None or windows is None or not window_s:
        return None
    return sum(v * w for v, w in zip(values, windows, strict=True)) / window_s


def _mean(cells: list[dict[str, Any]], column: str) -> float | None:
    """Means weighted by the number of ok requests."""
    values, counts = _numbers(cells, column), _numbers(cells, "ok")
    if values is None or counts is None or not sum(counts):
        return None
    return sum(v * n for v, n in zip(values, counts, strict=True)) / sum(counts)
