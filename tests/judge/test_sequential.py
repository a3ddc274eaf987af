"""Deciding early: the level is kept over all looks together, and requests are saved."""

from __future__ import annotations

import numpy as np
import pytest

from loadtest.judge.orderstats import certify, n_needed
from loadtest.judge.sequential import Boundary, boundaries, plan_looks
from loadtest.judge.staged import Series, walk

BUDGET = 3000
LOOKS = plan_looks(BUDGET, 0.99, 0.95)
BOUNDARY = boundaries(LOOKS, 0.99, 0.95)


def simulate(share: float, runs: int, seed: int, boundary: Boundary = BOUNDARY) -> tuple[float, float, float]:
    """(share passed, share failed, mean requests used) of runs with this true share over the limit."""
    rng = np.random.default_rng(seed)
    steps = np.diff((0, *boundary.looks))
    counts = np.cumsum(rng.binomial(steps, share, size=(runs, len(steps))), axis=1)
    state = np.zeros(runs, dtype=int)
    used = np.full(runs, boundary.looks[-1])
    for k, n in enumerate(boundary.looks):
        for sign, hit in (
            (1, counts[:, k] <= boundary.pass_at[k]),
            (-1, counts[:, k] >= (boundary.fail_at[k] or 10**9)),
        ):
            now = hit & (state == 0)
            state[now], used[now] = sign, n
    return float((state == 1).mean()), float((state == -1).mean()), float(used.mean())


def test_one_look_is_the_fixed_design() -> None:
    """With all of alpha at one look of 1,000 the boundary is the published one: at most 4, at least 16."""
    assert boundaries((1000,), 0.99, 0.95) == Boundary((1000,), (4,), (16,))


def test_false_pass_rate_stays_below_the_level() -> None:
    """True share exactly at the limit, the worst case: at most 5 % pass and at most 5 % fail, over all eight looks."""
    passed, failed, _ = simulate(0.01, 40_000, 1)
    slack = 1.645 * np.sqrt(0.05 * 0.95 / 40_000)
    assert passed <= 0.05 + slack
    assert failed <= 0.05 + slack
    assert passed > 0.02  # alpha is spent, not thrown away
    worse, _, _ = simulate(0.012, 40_000, 2)
    assert worse < passed


def test_peeking_at_a_fixed_level_would_not() -> None:
    """The same looks, each at the full level: twice the error and more."""
    naive = Boundary(LOOKS, tuple(max(t for t in range(-1, 60) if t < 0 or certify(n, t, 0.99, 0.95)) for n in LOOKS),
                     (None,) * len(LOOKS))  # fmt: skip
    passed, _, _ = simulate(0.01, 40_000, 3, naive)
    assert passed > 0.10


@pytest.mark.parametrize(("share", "most"), [(0.0, 0.25), (0.002, 0.40), (0.05, 0.15)])
def test_requests_are_saved_where_the_answer_is_clear(share: float, most: float) -> None:
    """None over, 0.2 % over, 5 % over (fails): decided with a fraction of the budget."""
    passed, failed, used = simulate(share, 4000, 4)
    assert max(passed, failed) > 0.98
    assert used <= most * BUDGET


def test_power_at_the_end_is_close_to_the_fixed_design() -> None:
    """At 0.5 % over, the fixed test of 3,000 passes in about 94 %; the sequential one loses a few points at most."""
    passed, _, used = simulate(0.005, 10_000, 5)
    allowed = max(t for t in range(60) if certify(BUDGET, t, 0.99, 0.95))
    fixed = (np.random.default_rng(6).binomial(BUDGET, 0.005, 10_000) <= allowed).mean()
    assert passed > fixed - 0.05
    assert used < 0.85 * BUDGET


def test_bursts_do_not_break_the_level() -> None:
    """Stalls of 8 at the limit's own share: three repeats that must all pass keep it, where one alone does not."""
    rng = np.random.default_rng(7)

    def run(n: int) -> np.ndarray:
        base = np.exp(rng.normal(0, 0.25, n + 8))
        starts = np.flatnonzero(rng.random(n) < 0.03 / 8)
        np.add.at(base, starts[:, None] + np.arange(8), rng.exponential(2.0, len(starts))[:, None])
        return base[:n]

    limit = float(np.quantile(run(1_000_000), 0.99))

    planned = plan_looks(2000, 0.99, 0.95)

    def passes() -> tuple[bool, bool]:
        """(by our looks, by the same looks at the full level with every request counted)."""
        values = run(2000)
        naive = any(certify(n, int((values[:n] > limit).sum()), 0.99, 0.95) for n in planned)
        return walk(Series(values, values, limit, 0.99), 0.95, 2000, last=True).status == "PASS", naive

    both = np.array([[passes() for _ in range(3)] for _ in range(100)])
    each, naive = both[:, :, 0], both[:, :, 1]
    assert each.mean() < 0.32  # 0.22 in 400 simulations
    assert naive.mean() > 0.5
    assert each.all(axis=1).mean() <= 0.05


def test_each_look_is_used_once() -> None:
    values = np.ones(1000)
    values[::50] = 9.0  # 2 % over: undecided at the first look
    planned = plan_looks(1000, 0.99, 0.95)

    def looks(n: int) -> tuple[tuple[int, ...], str | None]:
        seen = walk(Series(values[:n], values[:n], 5.0, 0.99), 0.95, 1000, last=False)
        return seen.looks, seen.status

    assert looks(planned[0] - 1) == ((), None)
    assert looks(planned[0]) == looks(planned[1] - 1) == (planned[:1], None)
    assert looks(planned[1]) == (planned[:2], None)
    assert looks(1000) == (planned[: len(looks(1000)[0])], "FAIL")


def test_budget_that_cannot_certify_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 299"):
        plan_looks(200, 0.99, 0.95)
    with pytest.raises(ValueError, match="rise"):
        boundaries((500, 500), 0.99, 0.95)
    assert LOOKS[0] > n_needed(0, 0.99, 0.95)
    assert LOOKS[-1] == BUDGET
