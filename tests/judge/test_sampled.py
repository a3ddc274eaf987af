"""Sampled outputs: lengths and finish reasons, permuted within prompts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loadtest.judge.gate import judge_run
from loadtest.judge.lossless import OutputCheck
from loadtest.judge.sampled import SampledOutputs, permutation_p
from loadtest.model import Slo
from tests.judge.runs import MemoryRun, cell_facts, request_rows, run_of

PROMPTS, PASSES = 40, 5


def sampled_run(longer: float = 1.0, stops: float = 0.5, seed: int = 0, **facts: Any) -> MemoryRun:
    """Each prompt has its own length (10 to 1,000 tokens) and 20 % of noise; the candidate's `longer` times that."""
    rng = np.random.default_rng(seed)
    n = PROMPTS * PASSES
    own = np.tile(np.geomspace(10, 1000, PROMPTS), PASSES)
    parts = []
    for config, factor, share in (("baseline", 1.0, 0.5), ("ngram-4", longer, stops)):
        cell = cell_facts(config, sampling="sampled", temperature=0.8, **facts)
        lengths = np.maximum(2, own * factor * np.exp(rng.normal(0, 0.2, n))).astype(int)
        reasons = np.where(rng.random(n) < share, "stop", "length").tolist()
        names = [f"p{i % PROMPTS}" for i in range(n)]
        parts.append((cell, request_rows(cell, n, prompt_id=names, completion_tokens=lengths, finish_reason=reasons)))
    return run_of(*parts)


def check(run: MemoryRun) -> OutputCheck:
    base, cand = run.cells.to_pylist()
    return SampledOutputs(run, [base, cand]).check([(base, cand)])


def test_equal_distributions_show_nothing() -> None:
    found = check(sampled_run())
    assert found.answer == "not known"
    assert "first tokens and whole sequences were not compared" in found.evidence


@pytest.mark.parametrize("change", [{"longer": 1.2}, {"stops": 0.8}], ids=str)
def test_other_lengths_or_finish_reasons_are_a_no(change: dict[str, float]) -> None:
    """20 % longer is far less than prompts differ, and is seen all the same: the comparison is within prompts."""
    assert check(sampled_run(**change)).answer == "no"


def test_false_alarms_are_rare() -> None:
    """Two p-values at 1 % together: of 60 runs without any difference at most 3 (99.7 %) may be called wrong."""
    assert sum(check(sampled_run(seed=seed)).answer == "no" for seed in range(60)) <= 3


def test_p_by_hand() -> None:
    """25 pairs, side 1 always higher: each adds 1/2 with variance 1/4, so z = 12.5 / 2.5 = 5 and p = 5.7e-7."""
    values, group, side = np.tile([0.0, 1.0], 25), np.repeat(np.arange(25), 2), np.tile([0, 1], 25)
    assert permutation_p(values, group, side) == pytest.approx(5.733e-7, rel=1e-3)
    assert permutation_p(values, group, np.tile([0, 1, 1, 0], 13)[:50]) > 0.8
    assert permutation_p(np.ones(50), group, side) == 1.0


def test_p_agrees_with_shuffling() -> None:
    """Unequal groups, ties and all: 4,000 shuffles within the groups give the same p to within their own noise."""
    rng = np.random.default_rng(5)
    group = np.sort(rng.integers(0, 30, 200))
    side, values = (rng.random(200) < 0.4).astype(int), np.round(rng.normal(0, 1, 200), 1)
    values += 0.25 * side
    index = np.unique(group, return_inverse=True)[1]
    centred = values - (np.bincount(index, values) / np.bincount(index))[index]
    shuffled = [side[np.lexsort((rng.random(200), group))] for _ in range(4000)]
    share = np.mean([abs(centred @ s) >= abs(centred @ side) - 1e-9 for s in shuffled])
    assert permutation_p(values, group, side) == pytest.approx(share, abs=0.03)


def test_prompts_that_only_one_side_answered_do_not_count() -> None:
    """The candidate alone answers 100 short prompts; on the common ones nothing differs."""
    run = sampled_run()
    extra = cell_facts("ngram-4", sampling="sampled", temperature=0.8)
    rows = request_rows(
        extra, 100, prompt_id=[f"x{i}" for i in range(100)], completion_tokens=3, finish_reason="stop",
        request_id=[f"x{i}" for i in range(100)],
    )  # fmt: skip
    import pyarrow as pa

    assert check(MemoryRun(run.run, run.cells, pa.concat_tables([run.table, rows]))).answer == "not known"


def test_few_prompts_say_so() -> None:
    cells = [cell_facts(c, temperature=0.8) for c in ("baseline", "ngram-4")]
    run = run_of(*((c, request_rows(c, 19, finish_reason="stop")) for c in cells))
    assert "19 prompts were sampled by both sides, 20 are needed" in check(run).evidence


def test_the_decision_uses_it() -> None:
    """A sampled config whose answers are 20 % longer is not deployed, greedy equality or not."""
    verdict = judge_run(sampled_run(longer=1.2), [Slo("ttft", "ttft", "p95", max=500_000.0)])
    (decision,) = verdict.decisions
    assert decision.questions[0].answer == "no"
    assert decision.decision == "DO NOT DEPLOY"
    same = judge_run(sampled_run(), [Slo("ttft", "ttft", "p95", max=500_000.0)]).decisions[0]
    assert same.questions[0].answer == "not known"
    assert "add a sampling with temperature 0" in same.questions[0].evidence
