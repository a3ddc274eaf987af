"""A criterion in a cell whose window was ended by `measure = "auto"`: looks at the first requests, never a fixed n.

A look takes the first k requests of the cell's prompt order, whatever became of them: slow requests can't drop out of
it, and the same rows give the same decision while the cell runs and when it is judged again. What is in flight counts
as over the limit against a PASS and as within it against a FAIL.

The looks follow from the cell's budget and the criterion alone. A cell that was not ended early gets one last look at
everything, with all of the error that is left.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from loadtest.judge.claims import Claim, bracket
from loadtest.judge.dependence import Effective, effective
from loadtest.judge.frame import Bools, Floats, Rows
from loadtest.judge.sequential import LOOKS, Boundary, boundaries, plan_looks, spent
from loadtest.judge.verdict import Status
from loadtest.judge.words import count, percent
from loadtest.model import Slo
from loadtest.plan.metrics import METRICS, quantile_of

CUTS_PER_LOOK = 4
"""Bursts make n requests worth fewer, so a look is due later than its n; cuts this close lose little by waiting."""


@dataclass(frozen=True, slots=True)
class Series:
    """One value per request in prompt order: the claim is that at most a share 1 - q of them is over the limit."""

    high: Floats
    low: Floats
    limit: float
    q: float


@dataclass(frozen=True, slots=True)
class Staged:
    """What the looks gave."""

    status: Status | None
    """None: no boundary was crossed."""
    n: int
    """Requests at the deciding look, else all."""
    over: int
    n_eff: int
    tau: float
    looks: tuple[int, ...]
    """Effective requests at each look that was taken."""
    pass_at: tuple[int, ...]
    fail_at: tuple[int | None, ...]
    """The boundary at these looks."""
    spent: float
    """Of the allowed error 1 - confidence."""


def suits(slo: Slo) -> bool:
    """Whether the criterion counts requests over a limit, so that looks can decide it."""
    return share_of(slo) is not None


def share_of(slo: Slo) -> float | None:
    """The q of "a share of at least q keeps the limit"; None for criteria that count no requests, or allow none over.

    Of a sample no number shows that *no* request fails: an error budget of 0 is refuted, never certified.
    """
    metric = METRICS[slo.metric]
    q = quantile_of(slo.stat) if metric.per_request else None
    if slo.metric == "error_rate" and slo.max is not None:
        q = 1.0 - slo.max
    if slo.stat == "goodput" and slo.min is not None:
        q = slo.min
    return q if q is not None and 0.0 < q < 1.0 else None


def series_of(rows: Rows, slo: Slo, pending: Bools | None = None, age_us: Floats | None = None) -> Series:
    """The series of a criterion that `suits`, in prompt order.

    pending: rows that are only known to have been sent, at least `age_us` ago.
    """
    q = share_of(slo)
    if q is None:
        raise ValueError(f"criterion {slo.name!r} counts no requests over a limit")
    order = np.argsort(rows["seq"], kind="stable")  # turns of a conversation stay in start order
    high, low, defined, limit = _values(rows, slo)
    if pending is not None and age_us is not None:
        high = np.where(pending, np.inf, high)
        # Only the whole duration is bounded by the age of a request: its first token may have come long ago.
        low = np.where(pending, age_us if slo.metric in ("e2e", "e2e_intended") else 0.0, low)
        defined = defined | pending
    order = order[defined[order]]
    return Series(high[order], low[order], limit, q)


def _values(rows: Rows, slo: Slo) -> tuple[Floats, Floats, Bools, float]:
    everyone = np.ones(len(rows), dtype=np.bool_)
    if slo.metric == "error_rate":
        bad = np.where(rows["ok"], 0.0, np.inf)
        return bad, bad, everyone, 0.0
    if slo.stat != "goodput":
        return *bracket(rows, METRICS[slo.metric]), float(slo.max or 0.0)
    bad_high = ~rows["ok"]
    bad_low = bad_high.copy()
    for name, most in slo.limits.items():
        high, low, defined = bracket(rows, METRICS[name])
        bad_high |= defined & ~(high <= most)
        bad_low |= defined & (low > most)
    return np.where(bad_high, np.inf, 0.0), np.where(bad_low, np.inf, 0.0), everyone, 0.0


@lru_cache(maxsize=256)
def schedule(budget: int, q: float, confidence: float) -> tuple[Boundary | None, tuple[int, ...]]:
    """(boundary, numbers of requests at which the looks are tried); None where the budget allows one look only."""
    try:
        looks = plan_looks(budget, q, confidence)
    except ValueError:
        return None, ()
    between = np.round(np.geomspace(looks[0], budget, CUTS_PER_LOOK * LOOKS)).astype(int)
    return boundaries(looks, q, confidence), tuple(int(n) for n in np.union1d(looks, between))


def walk(series: Series, confidence: float, budget: int, *, last: bool) -> Staged:
    """All looks in order until one decides. last: the cell is over and was not ended early."""
    boundary, cuts = schedule(budget, series.q, confidence)
    used: list[int] = []
    size, over = Effective(0, 1.0), 0
    for n in cuts if boundary is not None else ():
        if n > len(series.high):
            break
        size, over = _count(series, n)
        due = sum(look <= size.n_eff for look in boundary.looks) if boundary is not None else 0
        if boundary is None or due == 0 or (used and due - 1 <= used[-1]):
            continue
        used.append(due - 1)
        if (status := _decide(series, n, size, boundary, due - 1)) is not None:
            return _result(status, n, over, size, boundary, used, confidence, budget)
    size, over = _count(series, len(series.high))
    taken = [boundary.looks[k] for k in used] if boundary is not None else []
    if not last or size.n_eff == 0 or (taken and taken[-1] >= min(size.n_eff, budget)):
        return _result(None, len(series.high), over, size, boundary, used, confidence, budget)
    before = [n for n in (boundary.looks if boundary is not None else ()) if n < min(size.n_eff, budget)]
    final = boundaries((*before, size.n_eff), series.q, confidence, budget)
    status = _decide(series, len(series.high), size, final, len(before))
    return _result(
        status, len(series.high), over, size, final, [*(k for k in used if k < len(before)), len(before)], confidence, 0
    )


def _count(series: Series, n: int) -> tuple[Effective, int]:
    return effective(series.high[:n], series.limit, series.q), int((series.high[:n] > series.limit).sum())


def _decide(series: Series, n: int, size: Effective, boundary: Boundary, look: int) -> Status | None:
    """Effective counts, brought to the size of the look and rounded against either decision."""
    scale = boundary.looks[look] / size.n_eff
    high = math.ceil(size.over_for_pass(int((series.high[:n] > series.limit).sum())) * scale - 1e-9)
    low = math.floor(size.over_for_fail(int((series.low[:n] > series.limit).sum())) * scale + 1e-9)
    if boundary.at(look, high) == "PASS":
        return "PASS"
    return "FAIL" if boundary.at(look, min(low, boundary.looks[look])) == "FAIL" else None


def _result(
    status: Status | None,
    n: int,
    over: int,
    size: Effective,
    boundary: Boundary | None,
    used: Sequence[int],
    confidence: float,
    budget: int,
) -> Staged:
    """A budget of 0 is the last look of all, which spends the whole error."""
    looks = tuple(boundary.looks[k] for k in used) if boundary is not None else ()
    error = 0.0 if not looks else spent(looks[-1], budget, confidence) if budget else 1.0 - confidence
    return Staged(
        status=status,
        n=n,
        over=over,
        n_eff=size.n_eff,
        tau=size.tau,
        looks=looks,
        pass_at=tuple(boundary.pass_at[k] for k in used) if boundary is not None else (),
        fail_at=tuple(boundary.fail_at[k] for k in used) if boundary is not None else (),
        spent=error,
    )


def staged_claim(rows: Rows, slo: Slo, budget: int, stopped: bool, fixed: Claim) -> Claim:
    """The claim of one cell by its looks; `fixed` is what a test of all rows at once would say.

    Figures (estimate, n) are of all rows. Bounds beyond the limit itself are not given: those of `fixed` hold for a
    number of requests that was set beforehand only.
    """
    seen = walk(series_of(rows, slo), slo.confidence, budget, last=not stopped)
    status = seen.status or "INCONCLUSIVE"
    how = f"decided by look {len(seen.looks)}, the first {count(seen.n, 'request')}: {seen.over} over"
    if seen.status is None:
        how = (
            f'not decided by {count(len(seen.looks), "look")} of measure = "auto" (budget {budget:,}, '
            f"{seen.over} of {count(seen.n, 'request')} over)"
        )
    elif seen.status == "PASS" and fixed.status == "FAIL":
        status, how = "INCONCLUSIVE", how + ", but the requests after it contradict: " + fixed.reason
    wide = METRICS[slo.metric].direction == "lower"
    limit = slo.max if wide else slo.min
    side = {"PASS": wide, "FAIL": not wide}.get(status)
    reason = f"{how}; {percent(slo.confidence)} confidence over all looks together"
    if seen.tau > 1.0:
        reason += f"; bursts make them worth {seen.n_eff:,} independent ones"
    return dataclasses.replace(
        fixed,
        status=status,
        reason=reason,
        upper=limit if side is True else None,
        lower=limit if side is False else None,
        n_eff=seen.n_eff,
        tau=seen.tau,
        more=None if seen.status is not None else fixed.more,
    )


def pooled_claim(parts: Sequence[Claim], fixed: Claim) -> Claim:
    """The repeats together, where any of them was measured with looks: what all of them say.

    If the pool breaks the limit, so does at least one repeat, and all pass wrongly at most as often as that one does.
    """
    statuses = {part.status for part in parts}
    status: Status = statuses.pop() if len(statuses) == 1 else "INCONCLUSIVE"
    words = ", ".join(part.status for part in parts)
    first = parts[0]
    keep = status != "INCONCLUSIVE"
    return dataclasses.replace(
        fixed,
        status=status,
        reason=f'repeats with measure = "auto" are judged by their own looks: {words}',
        upper=first.upper if keep else None,
        lower=first.lower if keep else None,
        more=fixed.more if status == "INCONCLUSIVE" else None,
    )
