"""The bracketing search against stochastic models of a server whose capacity is known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from loadtest.capacity.search import Interval, Range, in_words, interval, level, next_load, search
from loadtest.judge.sequential import Boundary, boundaries, plan_looks
from loadtest.judge.verdict import Status

Share = Callable[[float], float]
"""True share of requests over the limit at a load."""


def users(start: float = 1.0, ceiling: float = 256.0, tolerance: float = 0.05) -> Range:
    return Range(start, 1.0, ceiling, tolerance, whole=True)


def verdict(rng: np.random.Generator, share: float, boundary: Boundary) -> Status:
    """The sequential verdict of one probe: binomial counts at each look."""
    counts = np.cumsum(rng.binomial(np.diff((0, *boundary.looks)), share))
    for look, over in enumerate(counts):
        if (status := boundary.at(look, int(over))) is not None:
            return status
    return "INCONCLUSIVE"


def simulate(
    share: Share, area: Range, capacity: float, runs: int, confidence: float = 0.95
) -> tuple[float, list[int]]:
    """(share of the runs whose interval contains the capacity, probes of each) of a P95 limit, budget 600 requests."""
    each = level(confidence, area.max_probes(), 1)
    boundary = boundaries(plan_looks(600, 0.95, each), 0.95, each)
    hits, used = 0, []
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        probes = search(lambda load, rng=rng: verdict(rng, share(load), boundary), area)
        hits += interval(probes).has(capacity)
        used.append(len(probes))
    return hits / runs, used


@pytest.mark.parametrize("seats", [1, 3, 8, 37, 100])
def test_interval_contains_the_known_capacity_in_19_of_20_runs(seats: int) -> None:
    """A queue: with a seat for everybody 0.5 % are slow, else who waits is. 300 seeded searches of a P95 limit."""

    def share(load: float) -> float:
        return 0.005 if load <= seats else (load - seats) / load

    capacity = max(c for c in range(1, 257) if share(c) <= 0.05)
    found, used = simulate(share, users(), capacity, 300)

    assert found >= 0.95
    assert max(used) <= users().max_probes()


def test_interval_holds_its_confidence_in_the_worst_case() -> None:
    """Every load above the capacity breaks the limit by a hair: each probe there passes wrongly as often as it may."""
    found, _ = simulate(lambda c: 0.002 if c <= 8 else 0.0501, users(), 8, 600)
    assert found >= 0.95 - 1.645 * np.sqrt(0.05 * 0.95 / 600)


def test_a_fixed_level_per_probe_would_not() -> None:
    """The same search with every probe judged at 95 % is wrong far more often: why the error is shared out."""
    area = users()
    boundary = boundaries((600,), 0.95, 0.95)
    naive = Boundary(boundary.looks, boundary.pass_at, (None,))
    wrong = 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        probes = search(lambda load, rng=rng: verdict(rng, 0.002 if load <= 8 else 0.0501, naive), area)
        wrong += not interval(probes).has(8)
    assert wrong / 400 > 0.07


def test_slowly_rising_share_widens_the_interval_but_keeps_the_capacity() -> None:
    """Near the limit probes decide nothing: the interval gets wider and says so, and still contains the capacity."""
    area = users(tolerance=0.02)
    found, _ = simulate(lambda c: 0.0005 * c, area, 100, 200)  # 5 % at 100 users
    assert found >= 0.95


def answers(known: dict[float, Status], default: Callable[[float], Status]) -> Callable[[float], Status]:
    return lambda load: known.get(load, default(load))


def test_probes_of_a_clear_search() -> None:
    """Doubling to the first failure, then halves, until the ends are neighbours."""
    probes = search(lambda load: "PASS" if load <= 11 else "FAIL", users())
    assert [p.load for p in probes] == [1, 2, 4, 8, 16, 12, 10, 11]
    assert interval(probes) == Interval(11, 12, ())
    assert in_words(interval(probes), users(), "users") == "holds at 11, fails at 12 users"


def test_an_inconclusive_probe_stays_inside_and_both_sides_are_narrowed() -> None:
    probes = search(answers({12.0: "INCONCLUSIVE"}, lambda load: "PASS" if load <= 11 else "FAIL"), users())
    assert [p.load for p in probes] == [1, 2, 4, 8, 16, 12, 10, 11, 14, 13]
    assert interval(probes) == Interval(11, 13, (12,))
    assert "inconclusive at 12" in in_words(interval(probes), users(), "users")


def test_goes_down_where_the_lowest_load_fails() -> None:
    probes = search(lambda load: "PASS" if load <= 3 else "FAIL", users(start=16))
    assert [p.load for p in probes] == [16, 8, 4, 2, 3]
    assert interval(probes) == Interval(3, 4, ())
    nothing = search(lambda _: "FAIL", users(start=4))
    assert [p.load for p in nothing] == [4, 2, 1]
    assert "no lower load" in in_words(interval(nothing), users(), "users")


def test_the_upper_end_is_narrowed_also_where_no_load_was_shown_to_hold() -> None:
    probes = search(answers({1.0: "INCONCLUSIVE", 2.0: "INCONCLUSIVE"}, lambda _: "FAIL"), users())
    assert [p.load for p in probes] == [1, 2, 4, 3]
    assert interval(probes) == Interval(None, 3, (1, 2))


def test_ends_at_the_ceiling() -> None:
    probes = search(lambda _: "PASS", users(ceiling=20))
    assert [p.load for p in probes] == [1, 2, 4, 8, 16, 20]
    assert "highest load that was to be tried" in in_words(interval(probes), users(ceiling=20), "users")


def test_does_not_climb_for_ever_where_nothing_can_be_decided() -> None:
    probes = search(lambda _: "INCONCLUSIVE", users())
    assert [p.load for p in probes] == [1, 2, 4]
    assert in_words(interval(probes), users(), "users") == (
        "no load was shown to hold or to fail (inconclusive at 1, 2, 4)"
    )


def test_rates_are_searched_on_a_log_scale() -> None:
    area = Range(2.0, 0.125, 2048.0, 0.1, whole=False)
    probes = search(lambda load: "PASS" if load <= 5.5 else "FAIL", area)
    found = interval(probes)
    assert found.has(5.5)
    assert found.holds_at is not None
    assert found.fails_at is not None
    assert found.fails_at / found.holds_at <= 1.1
    assert [p.load for p in probes][:4] == [2.0, 4.0, 8.0, 5.66]


def test_no_search_is_longer_than_what_the_error_was_shared_out_over() -> None:
    """Random answers, also contradictory ones: never more probes than `max_probes`, never outside floor and ceiling."""
    rng = np.random.default_rng(5)
    names: tuple[Status, ...] = ("PASS", "FAIL", "INCONCLUSIVE")
    for _ in range(500):
        area = users(start=float(rng.integers(1, 20)), ceiling=300.0)
        probes = search(lambda _: names[int(rng.integers(3))], area)
        assert len(probes) <= area.max_probes()
        assert all(area.floor <= p.load <= area.ceiling for p in probes)
        assert len({p.load for p in probes}) == len(probes)
        assert next_load(probes, area) is None


def test_level_of_one_check() -> None:
    """5 % over 10 probes of 2 checks: 0.25 % each."""
    assert level(0.95, 10, 2) == pytest.approx(0.9975)
