"""Bursts: how many independent requests n are worth, and what the correction does to false passes."""

from __future__ import annotations

import numpy as np
import pytest

from loadtest.judge import orderstats
from loadtest.judge.claims import Values, quantile_claim
from loadtest.judge.dependence import Effective, effective, tau


def bursts(rng: np.random.Generator, n: int, length: int, share: float) -> np.ndarray:
    """Indicator of slow requests: stalls start at random, each slows the next `length` requests."""
    slow = np.zeros(n + length, dtype=bool)
    for start in np.flatnonzero(rng.random(n) < share / length):
        slow[start : start + length] = True
    return slow[:n]


def latencies(rng: np.random.Generator, n: int, length: int) -> np.ndarray:
    """Log-normal latencies; a stall adds the same exponential delay to the next `length` requests."""
    base = np.exp(rng.normal(0, 0.25, n + length))
    starts = np.flatnonzero(rng.random(n) < 0.03 / length)
    delay = rng.exponential(2.0, len(starts))
    np.add.at(base, starts[:, None] + np.arange(length), delay[:, None])
    return base[:n]


def test_tau_of_independent_requests_is_about_one() -> None:
    rng = np.random.default_rng(1)
    taus = [tau(rng.random(10_000) < 0.01) for _ in range(20)]
    assert 1.0 <= np.median(taus) < 1.25


def test_tau_of_bursts_of_eight_is_about_eight() -> None:
    rng = np.random.default_rng(2)
    taus = [tau(bursts(rng, 10_000, 8, 0.02)) for _ in range(20)]
    assert 6.0 < np.median(taus) < 11.0


def test_tau_of_a_constant_is_one() -> None:
    assert tau(np.zeros(1000)) == 1.0
    assert tau(np.ones(1000)) == 1.0
    assert tau([]) == 1.0


def test_alternating_blocks_by_hand() -> None:
    """200 values in pairs 1,1,0,0: variance 1/4; means of pairs are 0 or 1 with variance 100/99/4; tau = 2 * 100/99."""
    x = np.tile([1, 1, 0, 0], 50)
    assert tau(x) == pytest.approx(2 * 100 / 99)


def test_effective_counts_round_to_the_safe_side() -> None:
    """n = 1000, tau = 3: 333 independent requests; 4 over count as 2 against a PASS and as 1 against a FAIL."""
    size = Effective(1000, 3.0)
    assert (size.n_eff, size.over_for_pass(4), size.over_for_fail(4)) == (333, 2, 1)
    assert (size.over_for_pass(0), size.over_for_fail(0)) == (0, 0)


def test_bursts_below_the_limit_are_seen() -> None:
    """No request is over the limit, yet the sample's own tail comes in bursts: n is worth less."""
    values = latencies(np.random.default_rng(3), 4000, 16)
    assert effective(values, 1e9, 0.99).tau > 4.0


def false_passes(length: int, n: int, runs: int, limit: float, seed: int) -> tuple[float, float]:
    """(naive, corrected) share of runs that certify P99 <= limit."""
    rng = np.random.default_rng(seed)
    naive = corrected = 0
    for _ in range(runs):
        values = latencies(rng, n, length)
        naive += orderstats.certify(n, int((values > limit).sum()), 0.99, 0.95)
        claim = quantile_claim(Values(values, values, n, 0), limit, 0.99, 0.95, "us", "x")
        corrected += claim.status == "PASS"
    return naive / runs, corrected / runs


@pytest.mark.parametrize("length", [1, 8])
def test_false_passes_stay_at_the_level_once_n_eff_is_used(length: int) -> None:
    """The limit is the 98.99 % quantile, so P99 is over it and every PASS is false; the level is 5 %."""
    limit = float(np.quantile(latencies(np.random.default_rng(4), 1_000_000, length), 0.9899))
    naive, corrected = false_passes(length, 2500, 500, limit, 5)
    assert corrected <= 0.05 + 1.645 * np.sqrt(0.05 * 0.95 / 500)
    if length == 8:
        assert naive > 0.2


def test_independent_good_runs_still_pass() -> None:
    """The correction must not eat the power: 0.2 % over the limit at n = 2000 passes nearly always."""
    limit = float(np.quantile(latencies(np.random.default_rng(6), 1_000_000, 1), 0.998))
    _, corrected = false_passes(1, 2000, 300, limit, 7)
    assert corrected > 0.95
