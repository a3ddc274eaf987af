"""Order statistics against published tables and small sums done by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.judge import orderstats as os_

OVER = (0, 1, 2, 3, 4, 5, 10, 20)


@pytest.mark.parametrize(
    ("q", "confidence", "needed"),
    [
        (0.99, 0.90, (230, 388, 531, 667, 798, 926, 1538, 2701)),
        (0.99, 0.95, (299, 473, 628, 773, 913, 1049, 1693, 2902)),
        (0.99, 0.99, (459, 662, 838, 1001, 1157, 1307, 2010, 3304)),
        (0.95, 0.95, (59, 93, 124, 153, 181, 208, 336, 577)),
        (0.999, 0.95, (2995, 4742, 6294, 7752, 9151, 10511, 16959, 29058)),
    ],
)
def test_requests_needed_are_those_of_early_stopping(q: float, confidence: float, needed: tuple[int, ...]) -> None:
    """459 and 662 are MLPerf's own numbers."""
    assert tuple(os_.n_needed(t, q, confidence) for t in OVER) == needed


@pytest.mark.parametrize(
    ("n", "one_sided", "two_sided"),
    [
        (100, None, None),
        (298, None, None),
        (299, 299, None),
        (367, 367, None),
        (368, 368, (360, 368)),
        (500, 499, (490, 500)),
        (1000, 996, (983, 997)),
        (2000, 1988, (1971, 1989)),
        (5000, 4962, (4936, 4964)),
        (10000, 9917, (9880, 9920)),
    ],
)
def test_ranks_of_p99(n: int, one_sided: int | None, two_sided: tuple[int, int] | None) -> None:
    assert os_.upper_bound_rank(n, 0.99, 0.95) == one_sided
    assert os_.two_sided_ranks(n, 0.99, 0.95) == two_sided


@pytest.mark.parametrize(("n", "allowed"), [(300, 0), (1000, 4), (2000, 12), (5000, 38)])
def test_most_requests_over_the_limit_that_still_certify(n: int, allowed: int) -> None:
    assert os_.certify(n, allowed, 0.99, 0.95)
    assert not os_.certify(n, allowed + 1, 0.99, 0.95)


@pytest.mark.parametrize(
    ("n", "share", "chance"),
    [(300, 0.001, 0.74), (300, 0.005, 0.22), (1000, 0.002, 0.95), (1000, 0.005, 0.44), (2000, 0.005, 0.79)],
)
def test_chance_to_certify(n: int, share: float, chance: float) -> None:
    allowed = n - (os_.upper_bound_rank(n, 0.99, 0.95) or n + 1)
    assert os_.binom_cdf(allowed, n, share) == pytest.approx(chance, abs=0.006)


def exact_cdf(t: int, n: int, p: float) -> float:
    return math.fsum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(min(t, n) + 1))


@given(st.integers(1, 60), st.data(), st.floats(0.01, 0.99))
def test_binomial_sums_equal_the_plain_formula(n: int, data: st.DataObject, p: float) -> None:
    t = data.draw(st.integers(-1, n))
    assert os_.binom_cdf(t, n, p) == pytest.approx(exact_cdf(t, n, p), abs=1e-12)
    assert os_.binom_sf(t + 1, n, p) == pytest.approx(1 - exact_cdf(t, n, p), abs=1e-12)


def test_large_n_stays_exact() -> None:
    """The median of Bin(1e6, 0.01) is its mean; neighbours differ by one probability."""
    assert os_.binom_cdf(10_000, 1_000_000, 0.01) == pytest.approx(0.5027, abs=2e-4)
    assert os_.binom_cdf(9_836, 1_000_000, 0.01) < 0.05 < os_.binom_cdf(9_837, 1_000_000, 0.01)


def test_clopper_pearson_by_hand() -> None:
    """0 of n: the upper bound solves (1 - p)^n = 0.05; n of n mirrors it; 1 of 2: p^2 = ... of the textbook."""
    lower, upper = os_.share_bounds(0, 300, 0.95)
    assert lower == 0.0
    assert upper == pytest.approx(1 - 0.05 ** (1 / 300), abs=1e-12)
    lower, upper = os_.share_bounds(10, 10, 0.95)
    assert upper == 1.0
    assert lower == pytest.approx(0.05 ** (1 / 10), abs=1e-12)
    lower, upper = os_.share_bounds(1, 2, 0.95)
    assert lower == pytest.approx(1 - math.sqrt(0.95), abs=1e-12)
    assert upper == pytest.approx(math.sqrt(0.95), abs=1e-12)


def test_refute_is_the_mirror_of_certify() -> None:
    """P(Bin(3, 0.01) >= 3) = 1e-6: three of three over the limit refute P99, one of three does not (2.97 %)."""
    assert os_.refute(3, 3, 0.99, 0.95)
    assert os_.refute(3, 1, 0.99, 0.95)
    assert not os_.refute(6, 1, 0.99, 0.95)


def test_more_needed_counts_to_the_next_certificate() -> None:
    """None of 100 over: 199 more make 299. 1 % over at the limit itself: nothing decides."""
    assert os_.more_needed(100, 0, 0.99, 0.95) == 199
    assert os_.more_needed(100, 1, 0.99, 0.95) is None
    more = os_.more_needed(1000, 5, 0.99, 0.95)
    assert more is not None
    assert os_.certify(1000 + more, round(0.005 * (1000 + more)), 0.99, 0.95)


@pytest.mark.parametrize(("q", "rank"), [(0.5, 5), (0.95, 10), (0.9, 9), (0.99, 10), (0.001, 1)])
def test_nearest_rank_of_ten(q: float, rank: int) -> None:
    assert os_.nearest_rank(np.arange(1.0, 11.0), q) == rank


def test_wrong_arguments_say_what_to_write() -> None:
    """99 for P99 is the usual slip."""
    with pytest.raises(ValueError, match=r"0\.99 means P99"):
        os_.certify(1000, 0, 99, 0.95)
    with pytest.raises(ValueError, match="confidence"):
        os_.upper_bound_rank(1000, 0.99, 95)
    with pytest.raises(ValueError, match="hits"):
        os_.share_bounds(5, 4, 0.95)


def test_upper_bounds_cover_at_their_nominal_rate() -> None:
    """3,000 samples of 500: the true P99 lies at or under x(499) in 95 % or a little more of them, never less."""
    rng = np.random.default_rng(11)
    rank = os_.upper_bound_rank(500, 0.99, 0.95)
    assert rank is not None
    top = np.partition(rng.random((3000, 500)), rank - 1, axis=1)[:, rank - 1]
    exact = 1 - os_.binom_cdf(500 - rank, 500, 0.01)
    assert exact >= 0.95
    assert (top >= 0.99).mean() == pytest.approx(exact, abs=0.012)


def test_two_sided_intervals_cover_at_their_nominal_rate() -> None:
    rng = np.random.default_rng(12)
    ranks = os_.two_sided_ranks(1000, 0.99, 0.95)
    assert ranks is not None
    ordered = np.sort(rng.random((3000, 1000)), axis=1)
    inside = (ordered[:, ranks[0] - 1] <= 0.99) & (ordered[:, ranks[1] - 1] >= 0.99)
    assert 0.945 <= inside.mean() <= 0.985
