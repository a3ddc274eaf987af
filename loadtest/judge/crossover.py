"""The load where a config stops paying.

At each measured load stands the paired speed-up of the output rate with its resamples. Between neighbouring loads the
log of the speed-up is interpolated over the log of the load, in every resample, which gives the crossing an interval.
No curve is fitted: with a handful of loads a fit would invent the shape that it then reports.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from loadtest.judge.frame import Floats


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """Speed-up at one load: logs, above 0 pays."""

    load: float
    log_speedup: float
    draws: Floats
    """(resamples,) log speed-ups; the same number at every load."""

    def interval(self, confidence: float) -> tuple[float, float]:
        """Two-sided interval of the log speed-up."""
        tail = (1.0 - confidence) / 2.0
        low, high = np.quantile(self.draws, [tail, 1.0 - tail])
        return float(low), float(high)


@dataclass(frozen=True, slots=True)
class Crossing:
    """Fields as in `verdict.Crossover`."""

    pays_up_to: float | None
    loses_from: float | None
    estimate: float | None
    lower: float | None
    upper: float | None
    monotone: bool
    note: str


def crossing_of(points: Sequence[LoadPoint], confidence: float) -> Crossing:
    """Where the speed-up passes 1 on its way down. `points` may come in any order; at least one."""
    points = sorted(points, key=lambda p: p.load)
    pays_up_to = loses_from = None
    for point in points:
        if point.interval(confidence)[0] <= 0.0:
            break
        pays_up_to = point.load
    for point in points:
        if point.interval(confidence)[1] < 0.0:
            loses_from = point.load
            break
    loads = np.log([p.load for p in points])
    logs = np.array([p.log_speedup for p in points])
    estimate = float(_crossings(loads, logs[None, :])[0])
    spread = _crossings(loads, np.stack([p.draws for p in points], axis=1))
    tail = (1.0 - confidence) / 2.0
    # Nearest rank: interpolating between a finite and an infinite crossing has no meaning.
    lower, upper = (float(v) for v in np.quantile(spread, [tail, 1.0 - tail], method="nearest"))
    falls = [b.interval(confidence)[0] <= a.interval(confidence)[1] for a, b in pairwise(points)]
    monotone = all(falls)
    note = _note(pays_up_to, loses_from, estimate, len(points))
    if not monotone:
        note += "; the speed-up rises with the load somewhere, so there may be more than one crossing"
    return Crossing(pays_up_to, loses_from, _load(estimate), _load(lower), _load(upper), monotone, note)


def _crossings(log_loads: Floats, logs: Floats) -> Floats:
    """Log load of the first fall through 0 in each row; -inf: never paid, +inf: pays at every load."""
    rows, count = logs.shape
    out = np.where(logs[:, 0] <= 0.0, -np.inf, np.inf)
    for i in range(count - 1):
        a, b = logs[:, i], logs[:, i + 1]
        here = np.isinf(out) & (out > 0) & (a > 0.0) & (b <= 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            at = log_loads[i] + (log_loads[i + 1] - log_loads[i]) * a / (a - b)
        out = np.where(here, at, out)
    return np.asarray(out.reshape(rows))


def _load(log_load: float) -> float | None:
    return math.exp(log_load) if math.isfinite(log_load) else None


def _note(pays_up_to: float | None, loses_from: float | None, estimate: float, count: int) -> str:
    if count == 1:
        return "one load only: no crossover can be seen"
    if pays_up_to is None:
        return (
            "does not pay for certain at the lowest load" if loses_from is None else f"loses from load {loses_from:g}"
        )
    if loses_from is not None:
        return f"pays up to load {pays_up_to:g} and loses from load {loses_from:g}"
    if estimate == math.inf:
        return f"pays up to load {pays_up_to:g}; no load was measured at which it loses"
    return f"pays up to load {pays_up_to:g}; above, the interval includes 1"
