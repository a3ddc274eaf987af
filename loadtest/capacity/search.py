"""Where to probe next: doubling up from the lowest load, then bisection. Pure; knows no server and no clock.

Loads above a failing one or below a holding one are never probed: more load is taken to be no easier. A probe that
decides nothing stays inside the interval, and both sides of it are narrowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from loadtest.judge.verdict import Status

UNSURE_IN_A_ROW = 3
"""Inconclusive probes one after the other, without a failing one above, that end the doubling: something else is wrong
with the measurement, and a heavier load will not mend it."""
SPARE_PROBES = 2
"""Probes beyond those of a search without any inconclusive one."""


@dataclass(frozen=True, slots=True)
class Range:
    """What is searched. Loads are users (`whole`) or requests per second."""

    start: float
    floor: float
    """Lowest load that is tried where `start` fails."""
    ceiling: float
    """Highest load that is tried."""
    tolerance: float
    """The search ends where the interval is narrower than this share of its lower end (or one user wide)."""
    whole: bool

    def max_probes(self) -> int:
        """Most probes of a search, known before it: the error is shared out over so many."""
        up = math.ceil(math.log2(max(1.0, self.ceiling / self.start)))
        down = math.ceil(math.log2(max(1.0, self.start / self.floor)))
        return 1 + max(up, down) + math.ceil(math.log2(1.0 / self.tolerance)) + SPARE_PROBES

    def is_wide(self, low: float, high: float) -> bool:
        """Whether there is anything worth probing between two loads."""
        if self.whole and high - low <= 1.0:
            return False
        return (high - low) / low > self.tolerance

    def middle(self, low: float, high: float) -> float:
        """The load between two loads that is probed."""
        return float((int(low) + int(high)) // 2) if self.whole else _round(math.sqrt(low * high))

    def higher(self, load: float) -> float:
        """One step of doubling up."""
        return min(self.ceiling, load * 2.0)

    def lower(self, load: float) -> float:
        """One step of halving down."""
        return max(self.floor, float(int(load) // 2) if self.whole else _round(load / 2.0))


@dataclass(frozen=True, slots=True)
class Probe:
    """One load that was tried."""

    load: float
    status: Status


@dataclass(frozen=True, slots=True)
class Interval:
    """The answer: every criterion holds at `holds_at` and one fails at `fails_at`; None: no such load was found."""

    holds_at: float | None
    fails_at: float | None
    unsure: tuple[float, ...]
    """Loads between them that decided nothing."""

    def has(self, capacity: float) -> bool:
        """Whether the interval contains a capacity: the largest load at which all criteria hold."""
        above = self.holds_at is None or self.holds_at <= capacity
        return above and (self.fails_at is None or capacity < self.fails_at)


def interval(probes: Iterable[Probe]) -> Interval:
    """What the probes show so far."""
    probes = list(probes)
    fails = min((p.load for p in probes if p.status == "FAIL"), default=None)
    holds = max((p.load for p in probes if p.status == "PASS" and (fails is None or p.load < fails)), default=None)
    unsure = sorted(
        p.load
        for p in probes
        if p.status == "INCONCLUSIVE" and (holds is None or p.load > holds) and (fails is None or p.load < fails)
    )
    return Interval(holds, fails, tuple(unsure))


def next_load(probes: Sequence[Probe], area: Range) -> float | None:
    """The next load to probe; None: the search is over."""
    if not probes:
        return area.start
    if len(probes) >= area.max_probes():
        return None
    seen = interval(probes)
    if seen.fails_at is None:
        top = max(p.load for p in probes)
        stuck = len(probes) >= UNSURE_IN_A_ROW and all(p.status == "INCONCLUSIVE" for p in probes[-UNSURE_IN_A_ROW:])
        return None if stuck or top >= area.ceiling else area.higher(top)
    gaps: list[tuple[float, float]] = []
    if seen.holds_at is None:
        bottom = min(p.load for p in probes)
        if bottom > area.floor:
            return area.lower(bottom)
    else:
        gaps.append((seen.holds_at, seen.unsure[0] if seen.unsure else seen.fails_at))
    if seen.unsure:
        gaps.append((seen.unsure[-1], seen.fails_at))
    return next((area.middle(*gap) for gap in gaps if area.is_wide(*gap)), None)


def search(probe: Callable[[float], Status], area: Range) -> list[Probe]:
    """All probes of a search, in order. `probe` measures one load and says whether every criterion holds there."""
    probes: list[Probe] = []
    while (load := next_load(probes, area)) is not None:
        probes.append(Probe(load, probe(load)))
    return probes


def in_words(found: Interval, area: Range, unit: str) -> str:
    """The answer in one line."""
    holds, fails = found.holds_at, found.fails_at
    if holds is not None and fails is not None:
        text = f"holds at {holds:g}, fails at {fails:g} {unit}"
    elif holds is not None:
        text = f"holds at {holds:g} {unit}; no load up to that of the last probe was shown to fail"
        if holds >= area.ceiling:
            text = f"holds at {holds:g} {unit}, the highest load that was to be tried"
    elif fails is not None:
        text = f"fails at {fails:g} {unit}; no lower load was shown to hold"
    else:
        text = "no load was shown to hold or to fail"
    if found.unsure:
        loads = ", ".join(f"{load:g}" for load in found.unsure)
        text += f" (inconclusive at {loads})"
    return text


def level(confidence: float, probes: int, checks: int) -> float:
    """Confidence that each criterion needs at each probe so that the whole interval has `confidence`.

    The interval is wrong only if a load that fails was passed or one that holds was failed. Passing needs all criteria
    (at most one of the errors counts); failing needs one, so the error is shared out over `probes` times `checks`.
    """
    return 1.0 - (1.0 - confidence) / (probes * max(1, checks))


def _round(load: float) -> float:
    """Three significant digits: a rate of 5.66, not of 5.656854."""
    return float(f"{load:.3g}")
