"""Figures for other programs: Bencher BMF and the two github-action-benchmark files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from loadtest.report.tables import Row

SMALLER = (("ttft", "p50"), ("ttft", "p99"), ("tpot", "p50"), ("tpot", "p99"), ("e2e", "p50"), ("e2e", "p99"))


def bmf(rows: Sequence[Row]) -> bytes:
    """Bencher Metric Format: {benchmark: {measure: {value}}}; unmeasured cells are left out, never zero."""
    out: dict[str, dict[str, dict[str, float]]] = {}
    for row in rows:
        measures = {name: {"value": value} for name, value, _unit, _n in (*_small(row), *_big(row))}
        if measures:
            out[_name(row)] = measures
    return _dump(out)


def smaller_is_better(rows: Sequence[Row]) -> bytes:
    """github-action-benchmark `customSmallerIsBetter`: latencies."""
    return _dump([_entry(row, item) for row in rows for item in _small(row)])


def bigger_is_better(rows: Sequence[Row]) -> bytes:
    """github-action-benchmark `customBiggerIsBetter`: rates and acceptance."""
    return _dump([_entry(row, item) for row in rows for item in _big(row)])


Item = tuple[str, float, str, int]


def _small(row: Row) -> Iterator[Item]:
    for metric, q in SMALLER:
        figures = row.latency.get(metric, {})
        value = figures.get(q)
        if value is not None:
            yield f"{metric}_{q}_us", value, "us", int(figures["n"] or 0)


def _big(row: Row) -> Iterator[Item]:
    for name, value, unit in (
        ("output_tok_s", row.output_tok_s, "tok/s"),
        ("draft_acceptance_rate", row.acceptance_rate, "A/D"),
        ("mean_acceptance_length", row.acceptance_length, "1+A/S"),
    ):
        if value is not None:
            yield name, value, unit, row.ok or 0


def _entry(row: Row, item: Item) -> dict[str, Any]:
    name, value, unit, n = item
    simulated = ", SIMULATED" if row.simulated else ""
    return {"name": f"{_name(row)} {name}", "unit": unit, "value": value, "extra": f"n={n}, point estimate{simulated}"}


def _name(row: Row) -> str:
    return ("SIMULATED " if row.simulated else "") + " / ".join((row.config, row.mix, row.sampling, row.load))


def _dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False).encode()
