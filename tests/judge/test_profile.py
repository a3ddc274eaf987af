"""Tail by acceptance decile and drift over the window."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loadtest.judge.gate import judge_run
from loadtest.judge.verdict import Profile
from loadtest.model import Slo
from tests.judge.runs import simple_run

N = 2000


def profile_of(**rows: Any) -> Profile:
    return judge_run(simple_run(N, **rows), [Slo("t", "ttft", "p99", max=500_000.0)]).profiles[0]


def test_deciles_by_hand() -> None:
    """Acceptance 0..40 of 40 in turn: the worst tenth ends at 4 / 40; TPOT falls with acceptance."""
    accepted = np.arange(N) % 41
    profile = profile_of(accepted_tokens=accepted, tpot_us=20_000.0 - 100 * accepted)
    assert [d.n for d in profile.deciles] == [200] * 10
    assert profile.deciles[0].acceptance_low == 0.0
    assert profile.deciles[0].acceptance_high == pytest.approx(4 / 40)
    assert profile.deciles[0].tpot_p50_us == 19_800
    assert profile.deciles[-1].acceptance_high == 1.0


def test_a_tail_made_of_badly_drafted_prompts() -> None:
    accepted = np.arange(N) % 41
    profile = profile_of(accepted_tokens=accepted, tpot_us=20_000.0 - 100 * accepted)
    assert profile.deciles[0].tail_share == 1.0
    assert profile.badly_drafted_tail == "yes"
    assert "100 %" in profile.words


def test_a_tail_that_has_nothing_to_do_with_drafting() -> None:
    rng = np.random.default_rng(1)
    profile = profile_of(
        accepted_tokens=rng.integers(0, 41, N), tpot_us=np.where(np.arange(N) % 50 == 7, 90_000.0, 1e4)
    )
    assert sum(d.tail_share for d in profile.deciles) == pytest.approx(1.0)
    assert profile.badly_drafted_tail in ("no", "not known")
    assert profile.deciles[0].tail_share < 0.3


def test_drift_is_seen_and_noise_is_not() -> None:
    rng = np.random.default_rng(2)
    falling = rng.binomial(40, np.linspace(0.6, 0.4, N))
    assert profile_of(accepted_tokens=falling).drifts == "yes"
    steady = profile_of(accepted_tokens=rng.binomial(40, 0.5, N))
    assert steady.drifts == "no"
    assert [round(s.start_s) for s in steady.slices] == [0, 10, 20, 30, 40, 50]


def test_few_requests_have_no_profile() -> None:
    assert judge_run(simple_run(200), []).profiles == ()
