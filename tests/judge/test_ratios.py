"""Ratios of sums: by hand, and intervals whose coverage is counted."""

from __future__ import annotations

import math

import numpy as np
import pytest

from loadtest.judge import ratios
from loadtest.judge.frame import load_frame
from loadtest.judge.rates import t_quantile
from tests.judge.runs import cell_facts, request_rows, run_of


def rows_with(n: int, **columns: object):  # type: ignore[no-untyped-def]
    facts = cell_facts()
    return load_frame(run_of((facts, request_rows(facts, n, **columns)))).cell(facts["cell_id"])


def figure(rows, name: str) -> float | None:  # type: ignore[no-untyped-def]
    return ratios.acceptance_interval(rows, name, 0.95, 1).estimate


def test_figures_by_hand() -> None:
    """Two requests: S 10 + 20, D 40 + 60, A 10 + 40, N 30 + 90: sum first, divide last."""
    rows = rows_with(
        2, spec_steps=[10, 20], draft_tokens=[40, 60], accepted_tokens=[10, 40], completion_tokens=[30, 90]
    )
    assert figure(rows, "draft_acceptance_rate") == 50 / 100
    assert figure(rows, "mean_accepted_drafts") == pytest.approx(50 / 30)
    assert figure(rows, "mean_acceptance_length") == pytest.approx(1 + 50 / 30)
    assert figure(rows, "tokens_per_target_step") == pytest.approx(120 / 70)
    assert figure(rows, "coverage") == pytest.approx(80 / 120)
    assert figure(rows, "wasted_drafts_per_token") == pytest.approx(50 / 120)


def test_no_draft_is_undefined_not_one() -> None:
    rows = rows_with(50, spec_steps=[0] * 50, draft_tokens=[0] * 50, accepted_tokens=[0] * 50)
    found = ratios.acceptance_interval(rows, "draft_acceptance_rate", 0.95, 1)
    assert (found.estimate, found.lower, found.upper) == (None, None, None)


def test_few_prompts_have_no_interval() -> None:
    """2,000 requests over 10 prompts are 10 clusters."""
    rows = rows_with(2000, prompt_id=[f"p{i % 10}" for i in range(2000)])
    found = ratios.acceptance_interval(rows, "draft_acceptance_rate", 0.95, 1)
    assert found.estimate == 0.4
    assert found.clusters == 10
    assert found.lower is None


def test_delta_method_agrees_with_the_bootstrap() -> None:
    rng = np.random.default_rng(5)
    den = rng.integers(50, 200, 900).astype(float)
    num = den * rng.beta(4, 6, 900)
    boot = ratios.ratio_interval(num, den, 0.975, 3)
    half = 1.96 * ratios.delta_error(num, den)
    assert boot.estimate is not None
    assert boot.lower == pytest.approx(boot.estimate - half, rel=0.01)
    assert boot.upper == pytest.approx(boot.estimate + half, rel=0.01)
    large = ratios.ratio_interval(np.tile(num, 2), np.tile(den, 2), 0.975, 3)
    assert large.method.startswith("delta")


def test_cluster_intervals_cover_where_a_token_binomial_does_not() -> None:
    """200 requests whose acceptance differs (sd 0.12): 95 % intervals cover 93-97 %, the binomial below 50 %."""
    rng = np.random.default_rng(21)
    boot = delta = binomial = 0
    runs = 600
    for _ in range(runs):
        rate = np.clip(rng.normal(0.4, 0.12, 200), 0.01, 0.99)
        drafted = rng.integers(60, 400, 200).astype(float)
        accepted = rng.binomial(drafted.astype(int), rate).astype(float)
        found = ratios.ratio_interval(accepted, drafted, 0.975, 7)
        assert found.estimate is not None
        assert found.lower is not None
        assert found.upper is not None
        p = found.estimate
        boot += found.lower <= 0.4 <= found.upper
        delta += abs(p - 0.4) <= 1.96 * ratios.delta_error(accepted, drafted)
        binomial += abs(p - 0.4) <= 1.96 * math.sqrt(p * (1 - p) / drafted.sum())
    assert 0.93 <= boot / runs <= 0.97
    assert 0.93 <= delta / runs <= 0.97
    assert binomial / runs < 0.5


def test_same_seed_same_interval() -> None:
    rng = np.random.default_rng(5)
    num, den = rng.random(100), rng.random(100) + 1
    assert ratios.ratio_interval(num, den, 0.95, 9) == ratios.ratio_interval(num, den, 0.95, 9)
    assert ratios.ratio_interval(num, den, 0.95, 9) != ratios.ratio_interval(num, den, 0.95, 10)


@pytest.mark.parametrize(
    ("confidence", "df", "t"),
    [(0.95, 1, 6.314), (0.95, 2, 2.920), (0.95, 3, 2.353), (0.975, 4, 2.776), (0.95, 19, 1.729), (0.99, 10, 2.764)],
)
def test_student_t_against_the_table(confidence: float, df: int, t: float) -> None:
    assert t_quantile(confidence, df) == pytest.approx(t, rel=0.006)
