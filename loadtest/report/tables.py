"""Figures of the field's table, one row per config x mix x sampling x load, repeats pooled: sums first, rows together.

Pure functions over a merged run; every renderer (Markdown, HTML, terminal, Bencher) reads these rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from loadtest.merge.acceptance import SpecCounts, SpecFigures, figures, per_position_from_histogram
from loadtest.merge.read import RunData
from loadtest.report.latencies import Curve, Stratum, chunk_gaps, pool


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
    curve: dict[str, Curve] = field(default_factory=dict)
    """metric -> (quantiles, microseconds) for the percentile plot."""
    strata: dict[str, Stratum] = field(default_factory=dict)
    """By name; empty where the requests carry no draft counts of their own."""

    @property
    def measured(self) -> bool:
        """Whether at least one repeat was measured to its end."""
        return self.repeats > 0

    @property
    def scheme(self) -> str:
        """`method/gamma` as the field writes it; the baseline has no gamma."""
        return self.method if self.gamma is None else f"{self.method}/{self.gamma}"

    @property
    def label(self) -> str:
        """Config and scheme, without saying the same word twice."""
        if self.method == "none" or self.config in (f"{self.method}-{self.gamma}", self.scheme):
            return self.config
        return self.scheme if self.config == self.method else f"{self.config} ({self.scheme})"

    def figures_of(self, stratum: str) -> SpecFigures:
        """A/D, 1+A/S, coverage … of one stratum."""
        return figures(self.strata[stratum].counts)

    @property
    def key(self) -> tuple[str, str, str, str]:
        """config, mix, sampling, load."""
        return self.config, self.mix, self.sampling, self.load


def build_rows(data: RunData) -> list[Row]:
    """All rows of a run in the plan's order, unmeasured ones included."""
    groups: dict[tuple[str, str, str, str], list[dict[str, Any]]] = {}
    for cell in data.cells.to_pylist():
        groups.setdefault((cell["config"], cell["mix"], cell["sampling"], cell["load"]), []).append(cell)
    gaps = chunk_gaps(data)
    return [_row(data, cells, gaps) for cells in groups.values()]


def _row(data: RunData, cells: list[dict[str, Any]], gaps: dict[str, Any]) -> Row:
    first = cells[0]
    done = [c for c in cells if c["state"] == "done"]
    names = ("config", "method", "gamma", "mix", "sampling", "load", "load_kind", "load_value", "is_baseline")
    base: dict[str, Any] = {
        **{name: first[name] for name in names},
        "simulated": any(c["simulated"] for c in cells),
        "synthetic": any(c["synthetic_acceptance"] for c in cells),
        "states": tuple(c["state"] for c in cells),
        "reason": "; ".join(sorted({c["state_reason"] for c in cells if c["state_reason"]})),
        "repeats": len(done),
    }
    if not done:
        return Row(**base)
    window_s = _total(done, "window_s")
    pooled = pool(data, [c["cell_id"] for c in done], gaps)
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
        **_acceptance(done),
        latency=pooled.latency,
        curve=pooled.curve,
        strata=pooled.strata,
    )


def _acceptance(cells: list[dict[str, Any]]) -> dict[str, Any]:
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
    overrun = sum(c["req_overrun_tokens"] or 0 for c in cells) if prefix == "req" else 0
    found = figures(SpecCounts(steps, drafts, accepted, tokens, _per_position(cells, prefix), overrun))
    return {
        "acceptance_source": source,
        "steps": steps,
        "drafts": drafts,
        "accepted": accepted,
        "tokens": tokens,
        "acceptance_rate": found.draft_acceptance_rate,
        "acceptance_length": found.mean_acceptance_length,
        "coverage": found.coverage,
        "survival": found.position_survival or (),
    }


def _per_position(cells: list[dict[str, Any]], prefix: str) -> tuple[float, ...] | None:
    column = "ctr_accepted_per_pos" if prefix == "ctr" else "req_histogram"
    lists = [c[column] for c in cells if c[column]]
    if len(lists) != len(cells):
        return None
    width = max(len(x) for x in lists)
    summed = np.sum([np.pad(np.asarray(x, float), (0, width - len(x))) for x in lists], axis=0).tolist()
    return per_position_from_histogram(summed) if prefix == "req" else tuple(summed)


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
    """Means weighted by the number of ok requests; a cell without an ok request has no mean and no weight."""
    served = [c for c in cells if c["ok"] != 0]
    values, counts = _numbers(served, column), _numbers(served, "ok")
    if not values or counts is None:
        return None
    return sum(v * n for v, n in zip(values, counts, strict=True)) / sum(counts)
