"""Claims about a quantile from counted requests: exact, distribution-free, valid for independent requests.

A quantile q of n requests is "at most the limit" with confidence c when so few requests were over the limit that a
server whose true share over the limit is 1 - q would show so few only with probability below 1 - c:
P(Bin(n, 1 - q) <= t) < 1 - c. This is the rule of MLPerf's early stopping. Failed and censored requests are over every
limit, so nothing is ever left out of n. Ranks are 1-based positions in the sorted sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_MAX_REQUESTS = 100_000_000
"""Where the search for a sample size gives up: no load test sends more to one cell."""


def _check(n: int, p: float, confidence: float = 0.5) -> None:
    if n < 0:
        raise ValueError(f"number of requests must be 0 or more, got {n}")
    if not 0.0 < p < 1.0:
        raise ValueError(f"a quantile or share must lie between 0 and 1 (0.99 means P99), got {p}")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must lie between 0 and 1 (0.95 means 95 %), got {confidence}")


def _pmf(t: int, n: int, p: float) -> Floats:
    """P(Bin(n, p) = i) for i = 0..t."""
    i = np.arange(1, t + 1, dtype=np.float64)
    log_choose = np.concatenate(([0.0], np.cumsum(np.log(n - i + 1.0) - np.log(i))))
    k = np.arange(t + 1, dtype=np.float64)
    return np.asarray(np.exp(log_choose + k * math.log(p) + (n - k) * math.log1p(-p)))


def binomial_pmf(n: int, p: float) -> Floats:
    """P(Bin(n, p) = i) for i = 0..n."""
    _check(n, p)
    return _pmf(n, n, p)


def binom_cdf(t: int, n: int, p: float) -> float:
    """P(Bin(n, p) <= t)."""
    if t < 0:
        return 0.0
    if t >= n or p <= 0.0:
        return 1.0
    if p >= 1.0:
        return 0.0
    return min(1.0, float(_pmf(t, n, p).sum()))


def binom_sf(t: int, n: int, p: float) -> float:
    """P(Bin(n, p) >= t)."""
    if 2 * t > n:  # the shorter tail: fewer terms
        return binom_cdf(n - t, n, 1.0 - p)
    return 1.0 - binom_cdf(t - 1, n, p)


def certify(n: int, over: int, q: float, confidence: float) -> bool:
    """Whether `over` of n requests over the limit prove that quantile q is within it, at this confidence."""
    _check(n, q, confidence)
    return n > 0 and binom_cdf(over, n, 1.0 - q) < 1.0 - confidence


def refute(n: int, over: int, q: float, confidence: float) -> bool:
    """Whether `over` of n requests over the limit prove that quantile q is beyond it, at this confidence."""
    _check(n, q, confidence)
    return n > 0 and binom_sf(over, n, 1.0 - q) < 1.0 - confidence


def upper_bound_rank(n: int, q: float, confidence: float) -> int | None:
    """Smallest rank r with P(quantile q <= x(r)) >= confidence; None: n is too small for any claim."""
    _check(n, q, confidence)
    if n == 0:
        return None
    # d of the largest values are discarded; the cumulated binomial gives all d at once.
    reach = min(n - 1, math.ceil(n * (1.0 - q)))  # d never exceeds the mean for confidence >= 0.5
    if confidence < 0.5:
        reach = n - 1
    cumulated = np.cumsum(_pmf(reach, n, 1.0 - q))
    d = int(np.searchsorted(cumulated, 1.0 - confidence, side="right")) - 1
    return None if d < 0 else n - d


def lower_bound_rank(n: int, q: float, confidence: float) -> int | None:
    """Largest rank l with P(x(l) <= quantile q) >= confidence; None: n is too small."""
    _check(n, q, confidence)
    # x(l) <= Q(q) means that at least l of n fall at or below Q(q): by symmetry the upper rank of 1 - q, mirrored.
    mirrored = upper_bound_rank(n, 1.0 - q, confidence)
    return None if mirrored is None else n + 1 - mirrored


def two_sided_ranks(n: int, q: float, confidence: float) -> tuple[int, int] | None:
    """Ranks (l, r) with P(x(l) <= quantile q <= x(r)) >= confidence; None: n is too small for both ends."""
    each = (1.0 + confidence) / 2.0
    low, high = lower_bound_rank(n, q, each), upper_bound_rank(n, q, each)
    return None if low is None or high is None else (low, high)


@lru_cache(maxsize=4096)
def n_needed(over: int, q: float, confidence: float) -> int:
    """Requests needed to certify quantile q when `over` of them were over the limit (P99, 95 %: 299 for 0)."""
    _check(over, q, confidence)
    low = high = over + 1
    while not certify(high, over, q, confidence):
        high *= 2
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if certify(middle, over, q, confidence) else (middle + 1, high)
    return low


def more_needed(n: int, over: int, q: float, confidence: float, tau: float = 1.0) -> int | None:
    """About how many more requests decide the claim if the share over the limit stays as seen.

    The claim may be decided either way: certified when the share seen is below 1 - q, refuted when it is above.
    `tau` stretches the answer where requests come in bursts. None: no number of requests would decide it.
    """
    _check(n, q, confidence)
    share = over / n if n else 0.0
    if share == 1.0 - q:
        return None
    claim = certify if share < 1.0 - q else refute
    low, high = 1, max(n, 16)
    while not claim(high, round(share * high), q, confidence):
        low, high = high, high * 2
        if high > _MAX_REQUESTS:
            return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if claim(middle, round(share * middle), q, confidence) else (middle + 1, high)
    return max(1, math.ceil(low * tau) - n)


def share_bounds(hits: int, n: int, confidence: float) -> tuple[float, float]:
    """One-sided Clopper-Pearson bounds (lower, upper) of a share, each at `confidence`. n = 0 gives (0, 1)."""
    if n == 0:
        return 0.0, 1.0
    _check(n, 0.5, confidence)
    if not 0 <= hits <= n:
        raise ValueError(f"hits must lie between 0 and n = {n}, got {hits}")
    alpha = 1.0 - confidence
    lower = 0.0 if hits == 0 else _solve(lambda p: binom_sf(hits, n, p) < alpha)
    upper = 1.0 if hits == n else _solve(lambda p: binom_cdf(hits, n, p) >= alpha)
    return lower, upper


def _solve(below: Callable[[float], bool]) -> float:
    """The p where `below` turns from true to false."""
    low, high = 0.0, 1.0
    for _ in range(60):  # 2**-60 is beneath the resolution of a double near 1
        middle = (low + high) / 2.0
        low, high = (middle, high) if below(middle) else (low, middle)
    return (low + high) / 2.0


def nearest_rank(sorted_values: Floats, q: float) -> float:
    """Nearest-rank quantile x(ceil(q n)) of an ascending, non-empty array; may be infinite."""
    n = len(sorted_values)
    return float(sorted_values[max(1, math.ceil(round(q * n, 9))) - 1])
