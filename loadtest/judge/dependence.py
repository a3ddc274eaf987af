"""How many independent requests n dependent ones are worth.

One stall of the server delays many requests at once, so slow requests come in bursts and a binomial over n requests
claims too much. `tau` is the integrated autocorrelation of an indicator in start order, by the method of batch
means: n requests carry the information of n / tau independent ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MIN_BATCHES = 50
"""Batches that a variance of batch means needs: its own relative error is then sqrt(2 / 49), a fifth."""


def tau(indicator: npt.ArrayLike, min_batches: int = MIN_BATCHES) -> float:
    """Integrated autocorrelation (>= 1) of a 0/1 series in start order; 1 where it does not vary.

    Batch lengths double until fewer than `min_batches` batches are left; the maximum is taken, which is the safe side.
    """
    x = np.asarray(indicator, dtype=np.float64)
    n, variance = len(x), float(x.var()) if len(x) else 0.0
    best, length = 1.0, 2
    while variance > 0.0 and n // length >= min_batches:
        means = x[: n // length * length].reshape(-1, length).mean(axis=1)
        best = max(best, length * float(means.var(ddof=1)) / variance)
        length *= 2
    return best


@dataclass(frozen=True, slots=True)
class Effective:
    """Counts as independent requests would give them."""

    n: int
    tau: float

    @property
    def n_eff(self) -> int:
        """Effective sample size, rounded down."""
        return math.floor(self.n / self.tau + 1e-9)

    def over_for_pass(self, over: int) -> int:
        """Effective count over the limit, rounded against a PASS."""
        return min(self.n_eff, math.ceil(over / self.tau - 1e-9))

    def over_for_fail(self, over: int) -> int:
        """Effective count over the limit, rounded against a FAIL."""
        return math.floor(over / self.tau + 1e-9)


def effective(values: npt.NDArray[np.float64], limit: float, q: float) -> Effective:
    """Effective counts for the claim "quantile q of values <= limit"; values in start order, infinite = failed.

    Two indicators are looked at: over the limit, and among the sample's own slowest 1 - q. The second shows bursts of
    the tail even where hardly a burst has crossed the limit yet; in simulations with bursts of 8 at n = 1000 it brings
    false passes from 29 down to 14 % (naive: 31 %), at n = 2000 from 8 down to 5 %.
    """
    n = len(values)
    if n == 0:
        return Effective(0, 1.0)
    rank = min(n - 1, int(q * n))
    own = np.partition(values, rank)[rank]
    return Effective(n, max(tau(values > limit), tau(values >= own)))
