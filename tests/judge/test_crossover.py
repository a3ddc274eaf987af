"""The load where speculation stops paying."""

from __future__ import annotations

import math

import numpy as np
import pytest

from loadtest.judge.crossover import LoadPoint, crossing_of


def line(speedups: dict[float, float], spread: float = 0.0) -> list[LoadPoint]:
    rng = np.random.default_rng(1)
    return [
        LoadPoint(load, math.log(s), math.log(s) + spread * rng.standard_normal(2000)) for load, s in speedups.items()
    ]


def test_interpolates_in_log_load() -> None:
    """Speed-up 2 at load 1 and 1/2 at load 16: the log falls from ln 2 to -ln 2, so it passes 0 half-way, at 4."""
    found = crossing_of(line({1: 2.0, 16: 0.5}), 0.95)
    assert found.estimate == pytest.approx(4.0)
    assert (found.pays_up_to, found.loses_from, found.monotone) == (1, 16, True)


def test_bracket_and_interval() -> None:
    found = crossing_of(line({32: 0.8, 1: 1.5, 8: 1.2}, spread=0.05), 0.95)
    assert (found.pays_up_to, found.loses_from) == (8, 32)
    assert found.lower is not None
    assert found.upper is not None
    assert 8 < found.lower < found.estimate < found.upper < 32  # type: ignore[operator]
    assert "pays up to load 8 and loses from load 32" in found.note


def test_interval_that_includes_one_neither_pays_nor_loses() -> None:
    found = crossing_of(line({1: 1.5, 8: 1.01, 32: 0.99}, spread=0.05), 0.95)
    assert (found.pays_up_to, found.loses_from) == (1, None)


def test_always_pays_has_no_crossing() -> None:
    found = crossing_of(line({1: 2.0, 8: 1.5}, spread=0.01), 0.95)
    assert (found.pays_up_to, found.loses_from, found.estimate, found.upper) == (8, None, None, None)
    assert "no load was measured at which it loses" in found.note


def test_never_pays() -> None:
    found = crossing_of(line({1: 0.9, 8: 0.8}, spread=0.01), 0.95)
    assert (found.pays_up_to, found.loses_from, found.estimate) == (None, 1, None)


def test_rising_speedup_is_flagged() -> None:
    """Gains can grow with the batch for long sequences: say that there may be several crossings."""
    found = crossing_of(line({1: 0.8, 8: 1.3}, spread=0.01), 0.95)
    assert not found.monotone
    assert "more than one crossing" in found.note


def test_interval_of_the_crossing_covers() -> None:
    """The log speed-up falls linearly in log load through 0 at load 8; 95 % intervals hold 8 in 92-98 % of runs."""
    rng = np.random.default_rng(2)
    hits = 0
    for _ in range(400):
        points = []
        for load in (1, 4, 16, 64):
            seen = 0.2 * (math.log(8) - math.log(load)) + 0.05 * rng.standard_normal()
            points.append(LoadPoint(load, seen, seen + 0.05 * rng.standard_normal(1000)))
        found = crossing_of(points, 0.95)
        hits += (found.lower or 0.0) <= 8 <= (found.upper or math.inf)
    assert 0.92 <= hits / 400 <= 0.98
