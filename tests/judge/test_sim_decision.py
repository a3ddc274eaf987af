"""Whole simulated runs, in model time, from raw files through merge to the decision."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.judge.gate import judge_run
from loadtest.judge.verdict import Verdict
from loadtest.model import Slo
from tests.judge.sim_runs import simulated_run

LOADS = (1, 8, 32)
SLOS = [
    Slo("ttft p95 <= 500ms", "ttft", "p95", max=500_000.0),
    Slo("errors <= 5%", "error_rate", "rate", max=0.05),
]


def judged(run_dir: Path, method: str, stratum: str) -> Verdict:
    data = simulated_run(run_dir, method, 4, stratum, LOADS)  # type: ignore[arg-type]
    verdict = judge_run(data, SLOS)
    assert {r.code for c in verdict.cells for r in c.reasons if r.blocking} == {"simulated"}
    return verdict


def test_a_draft_model_pays_at_one_and_eight_streams_and_loses_at_32(tmp_path: Path) -> None:
    """docs/simulator.md: 1.98, 1.18 and 0.54 times the baseline's throughput on code."""
    verdict = judged(tmp_path, "draft_model", "code")
    (decision,) = verdict.decisions
    assert (decision.decision, decision.up_to) == ("INCONCLUSIVE", None)
    assert (decision.on_these_figures, decision.on_these_figures_up_to) == ("DEPLOY UP TO", "c8")
    assert "SIMULATED: no verdict" in decision.sentence
    assert "at c32 it is slower than the baseline (output rate 0." in decision.sentence
    assert {q.key: q.answer for q in decision.questions} == {
        "output": "yes", "candidates": "yes", "pays": "yes", "slo": "yes",
    }  # fmt: skip
    speed = {c.load: c.ratios["output_rate"] for c in verdict.comparisons if c.stratum is None}
    for load, told in zip(("c1", "c8", "c32"), (1.98, 1.18, 0.54), strict=True):
        assert speed[load].estimate == pytest.approx(told, rel=0.12)
    (crossover,) = [c for c in verdict.crossovers if c.stratum is None]
    assert (crossover.pays_up_to, crossover.loses_from) == (8, 32)
    assert crossover.lower is not None
    assert crossover.upper is not None
    assert 8 < crossover.lower <= crossover.upper < 32
    assert verdict.exit_code == 98


def test_n_gram_on_chat_always_loses(tmp_path: Path) -> None:
    """docs/simulator.md: 0.89, 0.82 and 0.68 times the baseline: the host's lookup costs more than it finds."""
    verdict = judged(tmp_path, "ngram", "chat")
    (decision,) = verdict.decisions
    assert (decision.decision, decision.on_these_figures) == ("DO NOT DEPLOY", "DO NOT DEPLOY")
    assert "already at the lowest load, c1, it is slower than the baseline (output rate 0." in decision.sentence
    answers = {q.key: q.answer for q in decision.questions}
    assert (answers["output"], answers["pays"], answers["slo"]) == ("yes", "no", "yes")
    (crossover,) = [c for c in verdict.crossovers if c.stratum is None]
    assert (crossover.pays_up_to, crossover.loses_from) == (None, 1)
