"""Paired ratios by hand, their coverage, and what pairing gains."""

from __future__ import annotations

import math

import numpy as np
import pytest

from loadtest.judge import paired
from loadtest.judge.frame import Rows, load_frame
from loadtest.judge.paired import Pairs
from tests.judge.runs import cell_facts, failed, request_rows, run_of


def two_cells(base: dict[str, object], cand: dict[str, object], n: int) -> tuple[Rows, Rows]:
    one, two = cell_facts("baseline"), cell_facts("ngram-4")
    frame = load_frame(run_of((one, request_rows(one, n, **base)), (two, request_rows(two, n, **cand))))
    return frame.cell(one["cell_id"]), frame.cell(two["cell_id"])


def test_pairs_by_prompt_whatever_the_order() -> None:
    """p0 100 -> 200, p1 300 -> 150: log ratios ln 2 and -ln 2, geometric mean 1."""
    base, cand = two_cells(
        {"prompt_id": ["p0", "p1"], "e2e_us": [100, 300]}, {"prompt_id": ["p1", "p0"], "e2e_us": [150, 200]}, 2
    )
    found = paired.pair(base, cand, "e2e")
    assert sorted(found.logs) == pytest.approx([-math.log(2), math.log(2)])
    assert paired.paired_ratio("e2e", [found], 0.95, 1).estimate == pytest.approx(1.0)


def test_passes_over_a_prompt_are_averaged_in_logs() -> None:
    """Baseline sees p0 at 100 and 400 (log mean 200), the candidate at 100 and 100: ratio 0.5, one pair."""
    base, cand = two_cells({"prompt_id": "p0", "e2e_us": [100, 400]}, {"prompt_id": "p0", "e2e_us": [100, 100]}, 2)
    found = paired.pair(base, cand, "e2e")
    assert np.exp(found.logs) == pytest.approx([0.5])


def test_turns_of_a_conversation_pair_with_the_same_turn() -> None:
    base, cand = two_cells(
        {"prompt_id": "p0", "turn": [0, 1], "e2e_us": [100, 1000]},
        {"prompt_id": "p0", "turn": [1, 0], "e2e_us": [1000, 100]},
        2,
    )
    assert paired.pair(base, cand, "e2e").logs == pytest.approx([0.0, 0.0])


def test_failed_and_zero_values_do_not_pair_and_are_counted() -> None:
    base, cand = two_cells({"ttft_us": 50}, {**failed(30, [0, 1]), "ttft_us": [50] * 29 + [0]}, 30)
    found = paired.pair(base, cand, "ttft")
    assert len(found.logs) == 27
    assert found.unpaired == 3


def test_output_rate_counts_tokens_not_time_alone() -> None:
    """Half the tokens in half the time is no speed-up."""
    base, cand = two_cells(
        {"e2e_us": 400_000, "completion_tokens": 100}, {"e2e_us": 200_000, "completion_tokens": 50}, 30
    )
    assert paired.paired_ratio("output_rate", [paired.pair(base, cand, "output_rate")], 0.95, 1).estimate == 1.0


def test_few_pairs_have_no_interval() -> None:
    base, cand = two_cells({}, {}, 19)
    found = paired.paired_ratio("e2e", [paired.pair(base, cand, "e2e")], 0.95, 1)
    assert found.estimate == 1.0
    assert found.lower is None


def pairs_of(logs: np.ndarray) -> Pairs:
    return Pairs(np.arange(len(logs)), logs, 0)


def test_one_repeat_covers_at_its_nominal_rate() -> None:
    rng = np.random.default_rng(31)
    hits = 0
    for _ in range(500):
        found = paired.paired_ratio("e2e", [pairs_of(rng.normal(0.1, 0.3, 60))], 0.95, 5)
        assert found.lower is not None
        assert found.upper is not None
        hits += found.lower <= math.exp(0.1) <= found.upper
    assert 0.92 <= hits / 500 <= 0.975


@pytest.mark.parametrize(("prompts", "repeats"), [(100, 3), (100, 5), (1500, 3)])
def test_prompts_that_all_repeats_share_are_not_counted_again(prompts: int, repeats: int) -> None:
    """Prompts differ in what they gain (sd 0.2), the same in each repeat: 95 % intervals must still cover."""
    rng = np.random.default_rng(34)
    hits = 0
    for _ in range(200):
        gain = 0.1 + rng.normal(0, 0.2, prompts)
        runs = [pairs_of(gain + rng.normal(0, 0.1, prompts)) for _ in range(repeats)]
        found = paired.paired_ratio("e2e", runs, 0.95, 5)
        assert found.lower is not None
        assert found.upper is not None
        hits += found.lower <= math.exp(0.1) <= found.upper
    assert 0.91 <= hits / 200 <= 0.99


def test_repeats_with_different_prompts_are_paired_by_prompt() -> None:
    """Half of the prompts are in both repeats; the draws are those of prompts, not of positions."""
    rng = np.random.default_rng(35)
    one = Pairs(np.arange(0, 200), rng.normal(0.1, 0.2, 200), 0)
    two = Pairs(np.arange(100, 300), rng.normal(0.1, 0.2, 200), 0)
    found = paired.paired_ratio("e2e", [one, two], 0.95, 5)
    assert found.estimate == pytest.approx(math.exp((one.logs.mean() + two.logs.mean()) / 2))
    assert found.lower is not None
    assert found.upper is not None
    assert found.lower < found.estimate < found.upper


def test_repeats_that_differ_widen_the_interval() -> None:
    """Three servers at 1.0, 1.2 and 1.4: the interval must span them although each is known to 1 %."""
    rng = np.random.default_rng(32)
    repeats = [pairs_of(math.log(level) + rng.normal(0, 0.05, 300)) for level in (1.0, 1.2, 1.4)]
    found = paired.paired_ratio("e2e", repeats, 0.95, 5)
    assert found.lower is not None
    assert found.upper is not None
    assert found.lower < 1.05
    assert found.upper > 1.33


def test_pairing_narrows_the_interval_when_prompts_differ() -> None:
    """Prompt effects of sd 0.5 and noise of 0.1: unpaired, the interval would be over three times as wide."""
    rng = np.random.default_rng(33)
    effect = rng.normal(0, 0.5, 400)
    base, cand = (effect + shift + rng.normal(0, 0.1, 400) for shift in (0.0, -0.2))
    found = paired.paired_ratio("e2e", [pairs_of(cand - base)], 0.95, 5)
    assert found.lower is not None
    assert found.upper is not None
    unpaired = 2 * 1.96 * math.sqrt(base.var() / 400 + cand.var() / 400)
    assert math.log(found.upper / found.lower) * 3 < unpaired


def test_median_bounds_are_order_statistics() -> None:
    """Of 20 logs 1..20 the one-sided 95 % ranks of the median are 6 and 15 (P(Bin(20, 1/2) <= 5) = 2.07 %)."""
    estimate, lower, upper, n = paired.median_ratio([pairs_of(np.arange(1.0, 21.0))], 0.95)
    assert n == 20
    assert estimate == pytest.approx(math.exp(10.5))
    assert lower == pytest.approx(math.exp(6))
    assert upper == pytest.approx(math.exp(15))
