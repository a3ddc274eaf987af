"""Latencies and drafts of one line of the results table, read cell by cell so that memory follows the largest line.

Request latencies are exact, from the rows. Chunk gaps come from the merge's histograms (at most 0.1 % off): forty
gaps a request would be gigabytes, and they are only drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from loadtest.load.hdr import merge, new_histogram, percentiles, read_hlog
from loadtest.merge.acceptance import SpecCounts
from loadtest.merge.read import RunData

Floats = npt.NDArray[np.float64]

QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
PER_REQUEST = ("ttft", "tpot", "e2e")
METRICS = (*PER_REQUEST, "chunk_gap")
CURVE_POINTS = 120
"""Points of a percentile curve at most: finer than a chart 560 pixels wide can show."""

Curve = tuple[list[float], list[float]]
"""Quantiles (0 to 1) and microseconds."""


@dataclass(frozen=True, slots=True)
class Stratum:
    """Drafts of one kind of task, summed over ok requests of the window that carry their own counts."""

    counts: SpecCounts
    n: int
    """Requests behind it."""


@dataclass(frozen=True, slots=True)
class Pooled:
    """One line of the table, its cells pooled."""

    latency: dict[str, dict[str, float | None]]
    """metric -> {p50, p90, p95, p99, p999, n}; microseconds over ok requests of the window."""
    curve: dict[str, Curve]
    strata: dict[str, Stratum] = field(default_factory=dict)


def chunk_gaps(data: RunData) -> dict[str, Any]:
    """cell_id -> histogram of its chunk gaps, from latency.hlog; empty where the run has no such file."""
    file = data.path / "latency.hlog"
    if not file.is_file():
        return {}
    ending = ".chunk_gap"
    return {e.tag.removesuffix(ending): e.histogram for e in read_hlog(file) if e.tag.endswith(ending)}


def pool(data: RunData, cell_ids: Sequence[str], gaps: dict[str, Any]) -> Pooled:
    """Figures of these cells' rows together; percentiles are never averaged."""
    parts: dict[str, list[Floats]] = {m: [] for m in PER_REQUEST}
    sums: dict[str, list[int]] = {}
    for cell_id in cell_ids:
        table = _ok_rows(data, cell_id)
        for metric in PER_REQUEST:
            parts[metric].append(table[f"{metric}_us"].drop_null().to_numpy().astype(np.float64))
        _add_strata(sums, table)
    latency: dict[str, dict[str, float | None]] = {}
    curve: dict[str, Curve] = {}
    for metric, values in parts.items():
        ordered = np.sort(np.concatenate(values)) if values else np.empty(0)
        latency[metric] = {"n": float(len(ordered)), **{quantile_name(q): rank(ordered, q) for q in QUANTILES}}
        curve[metric] = _curve(ordered)
    latency["chunk_gap"], curve["chunk_gap"] = _from_histogram([gaps[c] for c in cell_ids if c in gaps])
    return Pooled(latency, curve, {name: _stratum(s) for name, s in sorted(sums.items())})


def quantile_name(q: float) -> str:
    """0.999 as "p999", as the columns of cells.parquet are named."""
    return "p" + f"{q * 100:g}".replace(".", "")


def rank(ordered: Floats, q: float) -> float | None:
    """Nearest rank, ceil: the definition that the gate uses."""
    n = len(ordered)
    return float(ordered[max(0, int(np.ceil(q * n - 1e-9)) - 1)]) if n else None


def curve_ranks(n: int) -> npt.NDArray[np.int64]:
    """Ranks (from 1) to draw, evenly spaced in log(1 - q): the tail gets as much room as the middle."""
    q = 1 - np.logspace(0, -np.log10(max(n, 2)), CURVE_POINTS - 1)
    ranks = np.ceil(n * q - 1e-9).astype(np.int64).clip(1, n)
    return np.unique(np.append(ranks, n))


def _ok_rows(data: RunData, cell_id: str) -> pa.Table:
    columns = ["phase", "outcome", "stratum", *(f"{m}_us" for m in PER_REQUEST)]
    columns += ["spec_steps", "draft_tokens", "accepted_tokens", "completion_tokens"]
    table = data.cell_requests(cell_id, columns)
    return table.filter(pc.and_(pc.equal(table["phase"], "measure"), pc.equal(table["outcome"], "ok")))


def _curve(ordered: Floats) -> Curve:
    n = len(ordered)
    if n == 0:
        return [], []
    ranks = curve_ranks(n)
    return (ranks / n).tolist(), ordered[ranks - 1].tolist()


def _from_histogram(histograms: Sequence[Any]) -> tuple[dict[str, float | None], Curve]:
    whole = new_histogram()
    for one in histograms:
        merge(whole, one)
    n = int(whole.total_count)
    values = dict(zip(map(quantile_name, QUANTILES), percentiles(whole, [100 * q for q in QUANTILES]), strict=True))
    figures: dict[str, float | None] = {k: None if v is None else float(v) for k, v in values.items()}
    figures["n"] = float(n)
    if not n:
        return figures, ([], [])
    quantiles = curve_ranks(n) / n
    drawn = percentiles(whole, (100 * quantiles).tolist())
    return figures, (quantiles.tolist(), [float(v) for v in drawn if v is not None])


def _add_strata(sums: dict[str, list[int]], table: pa.Table) -> None:
    """Add S, D, A, N and the number of rows of each stratum; a row without its own counts adds nothing."""
    names = ["spec_steps", "draft_tokens", "accepted_tokens", "completion_tokens"]
    known = table.filter(pc.and_(pc.is_valid(table["spec_steps"]), pc.is_valid(table["completion_tokens"])))
    if not known.num_rows:
        return
    grouped = known.group_by("stratum").aggregate([*((n, "sum") for n in names), ("spec_steps", "count")])
    for line in grouped.to_pylist():
        total = sums.setdefault(line["stratum"] or "(no stratum)", [0] * 5)
        for i, name in enumerate([*(f"{n}_sum" for n in names), "spec_steps_count"]):
            total[i] += line[name] or 0


def _stratum(sums: Sequence[int]) -> Stratum:
    return Stratum(SpecCounts(steps=sums[0], drafted=sums[1], accepted=sums[2], completion=sums[3]), sums[4])
