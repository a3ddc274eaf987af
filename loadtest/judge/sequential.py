"""Deciding a quantile early without peeking: group-sequential boundaries with alpha spending, exact for the binomial.

Looking again and again at a fixed level passes wrongly far more often than the level says. Here the allowed error
1 - confidence is spent over looks that were planned ahead, so that all looks together keep it. The probability to stop
at each look is computed exactly (no normal approximation) at the worst case, a share over the limit of exactly 1 - q.
The two boundaries are computed without each other ("non-binding"), so ignoring a stop never breaks the other side.

Bursts: looks wait for effective requests (`staged.walk`), but bursts that have not happened yet cannot be seen. In
simulations at the limit's own share with bursts of 8, one cell passes wrongly in 26 % of the cases with a budget of
1,000, 22 % with 2,000, 16 % with 4,000 and 8 % with 10,000 (peeking at eight looks without any correction: in two
thirds and more). The rule that each of three repeats must pass brings the whole below the level: 2 % at 1,000.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadtest.judge.orderstats import binomial_pmf, n_needed
from loadtest.judge.verdict import Status

LOOKS = 8
"""Looks planned by default: more save little and cost power at the end."""
POWER = 2.0
"""Exponent of the spending function alpha * (n / budget) ** POWER (Kim and DeMets): 1 spends evenly and early, 3 keeps
nearly all for the end; 2 saves most where the true share is far from the limit and loses little where it is near."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """When to stop. All three are equally long."""

    looks: tuple[int, ...]
    """Effective requests at each look, rising; the last is the budget."""
    pass_at: tuple[int, ...]
    """PASS with at most so many over the limit; -1: no pass at this look."""
    fail_at: tuple[int | None, ...]
    """FAIL with at least so many over the limit; None: no fail at this look."""

    def at(self, look: int, over: int) -> Status | None:
        """The decision at look number `look` (0-based) with `over` effective requests over the limit, or None."""
        if over <= self.pass_at[look]:
            return "PASS"
        fail = self.fail_at[look]
        return "FAIL" if fail is not None and over >= fail else None


def plan_looks(budget: int, q: float, confidence: float, count: int = LOOKS) -> tuple[int, ...]:
    """Look times from the first that could pass to the budget, evenly spaced on the log scale.

    budget: effective requests at most. Raises ValueError where the budget is too small for any claim.
    """
    first = n_needed(0, q, confidence)
    if budget < first:
        raise ValueError(f"a budget of {budget} requests cannot certify P{100 * q:g}: it needs at least {first}")
    # An early look has only a part of alpha to spend, so the first useful one lies beyond `first`.
    start = min(budget, math.ceil(first * 1.25))
    looks = np.unique(np.round(np.geomspace(start, budget, count)).astype(int))
    return tuple(int(n) for n in looks)


def spent(n: int, budget: int, confidence: float) -> float:
    """Error allowed up to a look at n effective requests, of the whole 1 - confidence."""
    share: float = min(1.0, n / budget) ** POWER
    return (1.0 - confidence) * share


def boundaries(looks: Sequence[int], q: float, confidence: float, budget: int | None = None) -> Boundary:
    """Exact boundaries for these looks; the chance of a wrong PASS, and of a wrong FAIL, is at most 1 - confidence.

    budget: where it is not the last look (a cell that ended short of it); the last look spends all that is left.
    """
    if not looks or any(b <= a for a, b in zip((0, *looks), looks, strict=False)):
        raise ValueError(f"looks must rise and be positive, got {tuple(looks)}")
    alpha = 1.0 - confidence
    spend = [*(spent(n, budget or looks[-1], confidence) for n in looks[:-1]), alpha]
    return Boundary(tuple(looks), _pass_side(looks, 1.0 - q, spend), _fail_side(looks, 1.0 - q, spend))


def _pass_side(looks: Sequence[int], share: float, spend: Sequence[float]) -> tuple[int, ...]:
    alive = np.ones(1)  # chance of each count over the limit among the runs that have not passed
    spent, before, out = 0.0, 0, []
    for n, allowed in zip(looks, spend, strict=True):
        alive = np.convolve(alive, binomial_pmf(n - before, share))
        cumulated = np.cumsum(alive)
        most = int(np.searchsorted(cumulated, allowed - spent, side="right")) - 1
        if most >= 0:
            spent += float(cumulated[most])
            alive[: most + 1] = 0.0
        out.append(most)
        before = n
    return tuple(out)


def _fail_side(looks: Sequence[int], share: float, spend: Sequence[float]) -> tuple[int | None, ...]:
    alive = np.ones(1)
    spent, before = 0.0, 0
    out: list[int | None] = []
    for n, allowed in zip(looks, spend, strict=True):
        alive = np.convolve(alive, binomial_pmf(n - before, share))
        tail = np.cumsum(alive[::-1])  # tail[k]: chance of at least len - 1 - k
        few = int(np.searchsorted(tail, allowed - spent, side="right")) - 1
        least = len(alive) - 1 - few if few >= 0 else None
        if least is not None and least > n:
            least = None
        if least is not None:
            spent += float(tail[few])
            alive[least:] = 0.0
        out.append(least)
        before = n
    return tuple(out)
