"""One criterion on one set of rows: quantiles, shares, goodput. Values in start order, in the metric's unit.

Every claim brings a one-sided lower and upper bound at the asked confidence. PASS needs the bound on the bad side to
be inside the limit, FAIL the bound on the good side to be outside; everything else, and every missing figure, is
INCONCLUSIVE. Comparisons are written so that NaN can only lead to INCONCLUSIVE.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from loadtest.judge import orderstats
from loadtest.judge.dependence import Effective, effective, tau
from loadtest.judge.frame import Bools, Floats, Rows
from loadtest.judge.verdict import Status
from loadtest.judge.words import bounds_words, count, figure, percent
from loadtest.plan.metrics import METRICS, Metric


@dataclass(frozen=True, slots=True)
class Claim:
    """What the rows say about one limit; fields as in `verdict.Check`."""

    status: Status
    reason: str
    estimate: float | None = None
    lower: float | None = None
    upper: float | None = None
    n: int = 0
    n_eff: int | None = None
    tau: float | None = None
    over: int | None = None
    more: int | None = None
    more_unit: Literal["requests", "prompts", "repeats"] = "requests"


def decide(lower: float | None, upper: float | None, limit: float, direction: str) -> Status:
    """PASS, FAIL or INCONCLUSIVE from the bounds; None or NaN on the deciding side never passes."""
    good, bad = (upper, lower) if direction == "lower" else (lower, upper)
    sign = 1.0 if direction == "lower" else -1.0
    if good is not None and sign * good <= sign * limit:
        return "PASS"
    if bad is not None and sign * bad > sign * limit:
        return "FAIL"
    return "INCONCLUSIVE"


@dataclass(frozen=True, slots=True)
class Values:
    """A latency of each request that has one. `high` and `low` differ where the truth is only bracketed."""

    high: Floats
    """Failed, censored and unknown: infinite."""
    low: Floats
    """Failed and censored: infinite; unknown, and TTFT of a merged first chunk: 0."""
    served: int
    not_applicable: int
    """Served requests for which the metric is undefined (TPOT of a single token or chunk)."""

    @property
    def bracketed(self) -> int:
        """Requests whose value is not known exactly."""
        return int((self.high != self.low).sum())


def latency_values(rows: Rows, metric: Metric) -> Values:
    """The values of a per-request latency, with the rule for rows that have none."""
    high, low, defined = bracket(rows, metric)
    return Values(high[defined], low[defined], int(rows["ok"].sum()), int((~defined).sum()))


def bracket(rows: Rows, metric: Metric) -> tuple[Floats, Floats, Bools]:
    """(upper bound, lower bound, defined) of a latency of every row; see `Values` for failed and unknown ones.

    Where the first chunk was read together with others, its stamp is only an upper bound of the first token's time:
    TTFT may be anything down to 0, and TPOT anything up to the whole E2E over its tokens.
    """
    value, ok = np.asarray(rows[str(metric.source)], dtype=np.float64), rows["ok"]
    high = np.where(ok, np.where(np.isnan(value), np.inf, value), np.inf)
    low = np.where(ok, np.where(np.isnan(value), 0.0, value), np.inf)
    unsure = ok & rows["merged"]
    if metric.name.startswith("ttft"):
        low = np.where(unsure, 0.0, low)
    if metric.name != "tpot":
        return high, low, np.ones(len(rows), dtype=np.bool_)
    most = rows["e2e_us"] / np.maximum(rows["completion_tokens"] - 1, 1)
    high = np.where(unsure, np.where(np.isnan(most), np.inf, np.maximum(most, high)), high)
    return high, low, ~undefined_tpot(rows)


def undefined_tpot(rows: Rows) -> Bools:
    """Served rows without a time after their first token: one token, or all of them in one chunk."""
    single = (rows["completion_tokens"] <= 1) | (rows["chunks"] <= 1)
    return np.asarray(rows["ok"] & np.isnan(rows["tpot_us"]) & single)


def quantile_claim(values: Values, limit: float, q: float, confidence: float, unit: str, name: str) -> Claim:
    """Whether quantile q is at most `limit`, by order statistics on the effective number of requests."""
    n = len(values.high)
    label = f"P{100 * q:g}"
    if n == 0:
        return Claim("INCONCLUSIVE", f"{label} not claimable: {name} is not known for any request")
    over = int((values.high > limit).sum())
    surely_over = int((values.low > limit).sum())
    size = effective(values.high, limit, q)
    upper, lower = _upper(values.high, size, q, confidence), _lower(values.low, size, q, confidence)
    status = decide(lower, upper, limit, "lower")
    # Copies, because nearest_rank and the bounds need order and the callers' rows stay in start order.
    estimate = orderstats.nearest_rank(np.sort(values.high), q)
    reason, more = _quantile_words(values, status, n, over, size, limit, q, confidence, unit, upper, lower)
    if surely_over == n and values.served == 0:
        reason = f"no data: not one of {count(n, 'request')} was served; " + reason
    return Claim(status, reason, _finite(estimate), _finite(lower), _finite(upper), n, size.n_eff, size.tau, over, more)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _upper(high: Floats, size: Effective, q: float, confidence: float) -> float | None:
    rank = orderstats.upper_bound_rank(size.n_eff, q, confidence)
    if rank is None:
        return None
    allowed = math.floor((size.n_eff - rank) * size.tau + 1e-9)  # d effective requests are d * tau real ones
    k = size.n - allowed - 1
    return float(np.partition(high, k)[k])


def _lower(low: Floats, size: Effective, q: float, confidence: float) -> float | None:
    rank = orderstats.lower_bound_rank(size.n_eff, q, confidence)
    if rank is None:
        return None
    least = math.ceil((size.n_eff - rank + 1) * size.tau - 1e-9)  # so many must be over to refute
    if least > size.n:
        return None
    k = size.n - least
    return float(np.partition(low, k)[k])


def _quantile_words(
    values: Values,
    status: Status,
    n: int,
    over: int,
    size: Effective,
    limit: float,
    q: float,
    confidence: float,
    unit: str,
    upper: float | None,
    lower: float | None,
) -> tuple[str, int | None]:
    label, at = f"P{100 * q:g}", figure(limit, unit)
    failed = int(np.isinf(values.low).sum())
    seen = f"{over} of {count(n, 'request')} over {at}" + (f" ({failed} of them failed or cut)" if failed else "")
    if values.bracketed:
        seen += f", {values.bracketed} known only as an upper bound"
    if size.tau > 1.0:
        seen += f"; bursts make them worth {size.n_eff:,} independent ones"
    if status == "PASS":
        return f"{label} <= {figure(upper, unit)} with {percent(confidence)} confidence; {seen}", None
    if status == "FAIL" and lower is not None and math.isinf(lower):
        return f"{label} is never reached with {percent(confidence)} confidence, limit {at}; {seen}", None
    if status == "FAIL":
        return f"{label} >= {figure(lower, unit)} with {percent(confidence)} confidence, limit {at}; {seen}", None
    least = orderstats.n_needed(0, q, confidence)
    # Work with effective counts, then stretch: bursts do not get shorter in a longer run.
    more = orderstats.more_needed(size.n_eff, size.over_for_pass(over), q, confidence)
    more = None if more is None else math.ceil(more * size.tau)
    if size.n_eff < least:
        more = max(more or 0, math.ceil(least * size.tau) - n)
        head = f"{label} not claimable (n={n}, needs {least} independent requests when none is over)"
    else:
        head = f"{label} lies within the noise of the limit {at}"
    tail = f"about {count(more, 'more request')} would decide it" if more else "no number of requests would decide it"
    return f"{head}; {seen}; {tail}", more


def share_claim(
    bad_high: Bools, bad_low: Bools, limit: float, confidence: float, *, good: bool, what: str, n_unit: str = "request"
) -> Claim:
    """Whether the share of bad requests is at most `limit` (or, with `good`, of good ones at least `limit`).

    Exact Clopper-Pearson bounds on the effective counts. `bad_low` counts only what is bad for certain.
    """
    n = len(bad_high)
    if n == 0:
        return Claim("INCONCLUSIVE", f"{what}: not known, no request was sent")
    over = int(bad_high.sum())
    size = Effective(n, tau(bad_high))
    _, worst = orderstats.share_bounds(size.over_for_pass(over), size.n_eff, confidence)
    best, _ = orderstats.share_bounds(min(size.n_eff, size.over_for_fail(int(bad_low.sum()))), size.n_eff, confidence)
    bad_limit = 1.0 - limit if good else limit
    status = decide(best, worst, bad_limit, "lower")
    share = over / n
    estimate, lower, upper = (1 - share, 1 - worst, 1 - best) if good else (share, best, worst)
    more = None
    tail = ""
    if status == "INCONCLUSIVE":
        more = (
            orderstats.more_needed(size.n_eff, size.over_for_pass(over), 1.0 - bad_limit, confidence)
            if 0 < bad_limit < 1
            else None
        )
        more = None if more is None else math.ceil(more * size.tau)
        tail = (
            f"; about {count(more, f'more {n_unit}')} would decide it"
            if more
            else "; no number of requests would decide it"
        )
    hits = n - over if good else over
    reason = (
        f"{what}: {hits} of {count(n, n_unit)} = {figure(estimate, 'share')}, "
        f"{bounds_words(lower, upper, limit, confidence, 'share', 'higher' if good else 'lower')}{tail}"
    )
    if size.tau > 1.0:
        reason += f"; bursts make them worth {size.n_eff:,} independent ones"
    return Claim(status, reason, estimate, lower, upper, n, size.n_eff, size.tau, over, more)


def error_claim(rows: Rows, limit: float, confidence: float) -> Claim:
    """Share of requests sent that failed or were cut at the end of the drain."""
    bad = ~rows["ok"]
    return share_claim(bad, bad, limit, confidence, good=False, what="failed or cut")


def goodput_claim(rows: Rows, limits: dict[str, float], limit: float, confidence: float) -> Claim:
    """Share of all sent requests that keep every limit; a request without a TPOT is judged on the others."""
    bad_high = ~rows["ok"]
    bad_low = bad_high.copy()
    for name, most in limits.items():
        high, low, defined = bracket(rows, METRICS[name])
        bad_high |= defined & ~(high <= most)
        bad_low |= defined & (low > most)
    asked = " and ".join(f"{k} <= {figure(v, METRICS[k].unit)}" for k, v in limits.items())
    return share_claim(bad_high, bad_low, limit, confidence, good=True, what=f"good ({asked})")
