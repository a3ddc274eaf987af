"""Figures for other programs: Bencher BMF and the two github-action-benchmark files.

A figure of the table stands alone; where a check of the verdict judged the very same figure, its one-sided bounds go
with it. Checks whose figure no table has (error rate, goodput, paired ratios) are added with their own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from loadtest.judge.verdict import Check, Verdict
from loadtest.report.tables import Row

LATENCIES = (("ttft", "p50"), ("ttft", "p99"), ("tpot", "p50"), ("tpot", "p99"), ("e2e", "p50"), ("e2e", "p99"))
PLAIN_STATS = ("pooled", "rate", "goodput")
"""Stats that go without saying; the others become part of the measure's name."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of one line of the table."""

    line: str
    measure: str
    value: float
    unit: str
    n: int
    direction: Literal["lower", "higher"]
    simulated: bool
    lower: float | None = None
    upper: float | None = None
    confidence: float | None = None


def figures_of(rows: Sequence[Row], verdict: Verdict) -> list[Figure]:
    """Every finite figure of measured lines; what is not measured or undefined is left out, never zero."""
    checks: dict[tuple[str, str, str, str], list[Check]] = {}
    for c in verdict.checks:
        if c.scope is not None and c.scope.stratum is None and c.estimate is not None and math.isfinite(c.estimate):
            checks.setdefault((c.scope.config, c.scope.mix, c.scope.sampling, c.scope.load), []).append(c)
    out: list[Figure] = []
    for row in rows:
        found = {f.measure: f for f in _of_table(row)}
        for check in checks.get(row.key, []):
            # A check of one repeat is the line's figure only where there is one repeat.
            if check.scope is not None and (check.scope.repeat is None or len(row.states) == 1):
                _join(found, check, row)
        out += found.values()
    return out


def bmf(figures: Iterable[Figure]) -> bytes:
    """Bencher Metric Format: {benchmark: {measure: {value, lower_value, upper_value}}}, bounds where known."""
    out: dict[str, dict[str, dict[str, float]]] = {}
    for f in figures:
        entry = {"value": f.value, "lower_value": f.lower, "upper_value": f.upper}
        out.setdefault(f.line, {})[f.measure] = {k: v for k, v in entry.items() if v is not None}
    return _dump(out)


def smaller_is_better(figures: Iterable[Figure]) -> bytes:
    """github-action-benchmark `customSmallerIsBetter`: latencies, errors, ratios of latencies."""
    return _dump([_entry(f) for f in figures if f.direction == "lower"])


def bigger_is_better(figures: Iterable[Figure]) -> bytes:
    """github-action-benchmark `customBiggerIsBetter`: rates, acceptance, goodput."""
    return _dump([_entry(f) for f in figures if f.direction == "higher"])


def _of_table(row: Row) -> list[Figure]:
    line = ("SIMULATED " if row.simulated else "") + " / ".join(row.key)
    out = []
    for metric, q in LATENCIES:
        found = row.latency.get(metric, {})
        value = found.get(q)
        if value is not None:
            n = int(found["n"] or 0)
            out.append(Figure(line, f"{metric}_{q}_us", value, "us", n, "lower", row.simulated))
    for name, big, unit in (
        ("output_tok_s", row.output_tok_s, "tok/s"),
        ("draft_acceptance_rate", row.acceptance_rate, "A/D"),
        ("mean_acceptance_length", row.acceptance_length, "1+A/S"),
        ("coverage", row.coverage, "(S+A)/N"),
    ):
        if big is not None:
            out.append(Figure(line, name, big, unit, row.ok or 0, "higher", row.simulated))
    return out


def _join(found: dict[str, Figure], check: Check, row: Row) -> None:
    """Add the bounds of a check to the same figure, or the check's own figure where the table has none."""
    if check.estimate is None:
        return
    name = check.metric if check.stat in PLAIN_STATS else f"{check.metric}_{check.stat.replace('.', '')}"
    if check.stat == "goodput":
        name = check.slo  # several goodputs differ only by their limits
    name += "_us" if check.unit == "us" else ""
    bounds = {"lower": check.lower, "upper": check.upper, "confidence": check.confidence}
    same = found.get(name)
    if same is None:
        line = ("SIMULATED " if row.simulated else "") + " / ".join(row.key)
        own = Figure(line, name, check.estimate, check.unit, check.n, check.direction, row.simulated)
        found[name] = replace(own, **bounds)  # type: ignore[arg-type]
    elif math.isclose(same.value, check.estimate, rel_tol=1e-9):
        # Failures count as infinitely slow in a check: only where the two agree are they one figure.
        found[name] = replace(same, **bounds)  # type: ignore[arg-type]


def _entry(f: Figure) -> dict[str, Any]:
    out: dict[str, Any] = {"name": f"{f.line} {f.measure}", "unit": f.unit, "value": f.value}
    known = [v for v in (f.lower, f.upper) if v is not None]
    note = "point estimate"
    if known and f.confidence is not None:
        low, high = ("none" if v is None else f"{v:.6g}" for v in (f.lower, f.upper))
        out["range"] = f"{low} to {high}"
        note = f"range: one-sided bounds at {f.confidence * 100:g} %"
    out["extra"] = f"n={f.n}, {note}" + (", SIMULATED" if f.simulated else "")
    return out


def _dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False).encode()
