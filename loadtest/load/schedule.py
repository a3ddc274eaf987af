"""When the requests of an open loop are due: a pure function of the cell. No locust, no gevent here.

Arrival number k is due at the same time before or after the window's start, for every config and any number of workers.
The schedule has no end: it goes on while the requests of the window are still being answered.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from itertools import pairwise

from loadtest.errors import LoadError
from loadtest.model import Cell

OPEN_KINDS = ("poisson", "constant", "trace", "ramp")


def schedule_s(cell: Cell, *, warmup: bool, trace: Sequence[float] = ()) -> Iterator[float]:
    """Offsets in seconds, ascending and without end, of the arrivals of the window (or of the warm-up).

    A trace goes round when it is over; a ramp stays at its last rate. Their warm-up is Poisson at the trace's mean rate
    and at the ramp's first one. `trace`: the offsets of a trace, ascending, from 0.
    """
    kind = cell.load_kind
    if kind == "constant":
        return _constant(cell.load_value)
    rng = random.Random(f"{cell.order_seed}-{'warmup' if warmup else 'measure'}")
    if kind == "trace" and not warmup:
        return _round(trace, cell.measure_s or trace[-1])
    if kind == "ramp":
        return _poisson(cell.ramp[0][0], rng) if warmup else _ramp(cell.ramp, rng)
    return _poisson(cell.load_value, rng)


def decode_trace(data: bytes) -> tuple[float, ...]:
    """The offsets of an arrivals file (`Cell.trace_file`), one per line. Raises LoadError."""
    try:
        offsets = tuple(float(line) for line in data.splitlines())
    except ValueError as e:
        raise LoadError(f"the arrivals of the trace cannot be read: {e}") from e
    if not offsets or any(b < a for a, b in pairwise(offsets)):
        raise LoadError("the arrivals of the trace are empty or not in order")
    return offsets


def _constant(rate: float) -> Iterator[float]:
    k = 0
    while True:
        yield k / rate
        k += 1


def _poisson(rate: float, rng: random.Random) -> Iterator[float]:
    t = 0.0
    while True:
        t += rng.expovariate(rate)
        yield t


def _round(trace: Sequence[float], length_s: float) -> Iterator[float]:
    start_s = 0.0
    while True:
        for t in trace:
            if t >= length_s > 0:
                break
            yield start_s + t
        start_s += max(length_s, 1e-3)  # a trace of one moment must not stand still


def _ramp(steps: Sequence[tuple[float, float, float]], rng: random.Random) -> Iterator[float]:
    """Poisson with a rate that changes linearly within each step.

    Exponential steps on the axis of expected arrivals; each step inverts r0 t + (r1 - r0) t^2 / (2 T).
    """
    begin_s = mass = 0.0  # start of the step, and arrivals expected before it
    target = rng.expovariate(1.0)
    for r0, r1, length_s in steps:
        step_mass = (r0 + r1) / 2 * length_s
        while target < mass + step_mass:
            yield begin_s + _inverse(target - mass, r0, (r1 - r0) / length_s)
            target += rng.expovariate(1.0)
        begin_s, mass = begin_s + length_s, mass + step_mass
    last = steps[-1][1] or steps[-1][0]
    while True:
        yield begin_s + (target - mass) / last
        target += rng.expovariate(1.0)


def _inverse(mass: float, rate: float, slope: float) -> float:
    """T with rate t + slope t^2 / 2 = mass, in the form that does not cancel."""
    return 2 * mass / (rate + math.sqrt(max(0.0, rate * rate + 2 * slope * mass)))
