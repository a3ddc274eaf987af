"""Deploy, up to which load, or not: whole runs of baseline and candidate at three loads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from loadtest.judge.decision import LoadResult, _range
from loadtest.judge.gate import judge_run
from loadtest.judge.verdict import Decision, RatioEstimate, Verdict
from loadtest.model import Slo
from tests.judge.runs import MemoryRun, cell_facts, request_rows, run_of

SLO = Slo("ttft", "ttft", "p99", max=500_000.0)
PAYS_TO_8 = {1: 1.5, 8: 1.2, 32: 0.8}
N = 400


def sweep(
    speedups: Mapping[float, float],
    *,
    configs: Mapping[str, float] | None = None,
    ttft: Mapping[float, int] | None = None,
    rows: Mapping[str, Any] | None = None,
    extra_baseline: bool = False,
    **facts: Any,
) -> MemoryRun:
    """Baseline and candidates; speed-up of the output rate by load, times a factor per config."""
    rng = np.random.default_rng(3)
    parts = []
    for load, speedup in speedups.items():
        for repeat in (1, 2):
            effect = np.exp(rng.normal(0, 0.3, N))
            arms = {"baseline": 1.0, **{name: speedup * k for name, k in (configs or {"ngram-4": 1.0}).items()}}
            if extra_baseline:
                arms["baseline-again"] = 1.0
            for name, faster in arms.items():
                e2e = 400_000 * effect / faster * np.exp(rng.normal(0, 0.05, N))
                cell = cell_facts(name, load=load, repeat=repeat, **facts)
                columns: dict[str, Any] = {
                    "e2e_us": e2e.astype(int),
                    "tpot_us": e2e / 40,
                    "ttft_us": (ttft or {}).get(load, 50_000) if name != "baseline" else 50_000,
                    "prompt_sha256": [f"{load:g}-{repeat}-{i}" for i in range(N)],
                }
                if not name.startswith("baseline"):
                    columns.update(rows or {})
                parts.append((cell, request_rows(cell, N, **columns)))
    return run_of(*parts)


def decided(run: MemoryRun, *slos: Slo) -> tuple[Verdict, Decision]:
    verdict = judge_run(run, slos or (SLO,))
    return verdict, next(d for d in verdict.decisions if d.config == "ngram-4")


def answers(decision: Decision) -> dict[str, str]:
    return {q.key: q.answer for q in decision.questions}


def test_pays_at_one_and_eight_and_loses_at_32() -> None:
    verdict, decision = decided(sweep(PAYS_TO_8))
    assert (decision.decision, decision.up_to) == ("DEPLOY UP TO", "c8")
    assert "at c32 it is slower than the baseline (output rate 0.80x" in decision.sentence
    assert answers(decision) == {"output": "yes", "candidates": "yes", "pays": "yes", "slo": "yes"}
    crossover = next(c for c in verdict.crossovers if c.stratum is None)
    assert (crossover.pays_up_to, crossover.loses_from) == (8, 32)
    assert crossover.lower is not None
    assert crossover.upper is not None
    assert 8 < crossover.lower <= crossover.upper < 32


def test_always_loses() -> None:
    _, decision = decided(sweep({1: 0.9, 8: 0.8, 32: 0.7}))
    assert decision.decision == "DO NOT DEPLOY"
    assert answers(decision)["pays"] == "no"
    assert "already at the lowest load" in decision.sentence


def test_pays_everywhere() -> None:
    _, decision = decided(sweep({1: 1.5, 8: 1.3, 32: 1.2}))
    assert (decision.decision, decision.up_to) == ("DEPLOY", None)
    assert "up to c32" in decision.sentence


def test_simulated_run_never_deploys_but_shows_what_the_figures_say() -> None:
    verdict, decision = decided(sweep(PAYS_TO_8, simulated=True))
    assert (decision.decision, decision.up_to) == ("INCONCLUSIVE", None)
    assert (decision.on_these_figures, decision.on_these_figures_up_to) == ("DEPLOY UP TO", "c8")
    assert "SIMULATED" in decision.sentence
    assert verdict.exit_code == 98
    _, losing = decided(sweep({1: 0.9, 8: 0.8}, simulated=True))
    assert losing.decision == "DO NOT DEPLOY"


def test_synthetic_acceptance_never_deploys() -> None:
    _, decision = decided(sweep({1: 1.5}, synthetic_acceptance=True))
    assert decision.decision == "INCONCLUSIVE"
    assert "SYNTHETIC ACCEPTANCE" in decision.sentence


def test_a_broken_slo_at_high_load_bounds_the_deployment() -> None:
    _, decision = decided(sweep({1: 1.5, 8: 1.3, 32: 1.2}, ttft={32: 70_000}), Slo("t", "ttft", "p99", max=60_000.0))
    assert (decision.decision, decision.up_to) == ("DEPLOY UP TO", "c8")
    assert "at c32 it breaks an SLO" in decision.sentence
    assert answers(decision)["slo"] == "no"


def test_without_criteria_nothing_is_deployed() -> None:
    verdict = judge_run(sweep({1: 1.5}), [])
    assert verdict.decisions[0].decision == "INCONCLUSIVE"
    assert answers(verdict.decisions[0])["slo"] == "not known"


def test_an_untrusted_load_ends_the_range() -> None:
    run = sweep({1: 1.5, 8: 1.3}, worker_cpu_max=1.0)
    _, decision = decided(run)
    assert decision.decision == "INCONCLUSIVE"
    assert answers(decision)["pays"] == "not known"


def test_wrong_output_is_not_deployed_however_fast() -> None:
    """Two baselines agree always, the candidate on half of its prompts."""
    wrong = [f"{i % 2}" * 64 for i in range(N)]
    _, decision = decided(sweep({1: 2.0}, extra_baseline=True, rows={"output_sha256": wrong}))
    assert answers(decision)["output"] == "no"
    assert decision.decision == "DO NOT DEPLOY"


def test_output_that_is_not_known_is_not_deployed() -> None:
    wrong = [f"{i % 2}" * 64 for i in range(N)]
    _, decision = decided(sweep({1: 2.0}, rows={"output_sha256": wrong}))
    assert answers(decision)["output"] == "not known"
    assert decision.decision == "INCONCLUSIVE"
    assert "whether its output is right is not known" in decision.sentence


def test_sampled_cells_take_the_answer_of_the_greedy_ones() -> None:
    greedy, sampled = sweep({1: 1.5}), sweep({1: 1.5}, sampling="sampled", temperature=0.7)
    ids = pa.array([f"{c}-sampled" for c in sampled.cells["cell_id"].to_pylist()])
    cells = sampled.cells.set_column(
        sampled.cells.schema.get_field_index("cell_id"), sampled.cells.schema.field("cell_id"), ids
    )
    row_ids = pa.array([f"{c}-sampled" for c in sampled.table["cell_id"].to_pylist()])
    index = sampled.table.schema.get_field_index("cell_id")
    rows = sampled.table.set_column(index, sampled.table.schema.field(index), row_ids)
    both = MemoryRun(greedy.run, pa.concat_tables([greedy.cells, cells]), pa.concat_tables([greedy.table, rows]))
    decisions = {d.sampling: d for d in judge_run(both, [SLO]).decisions}
    assert decisions["sampled"].decision == "DEPLOY"
    assert "checked at temperature 0" in decisions["sampled"].questions[0].evidence
    alone = judge_run(sampled, [SLO]).decisions[0]
    assert alone.decision == "INCONCLUSIVE"


def test_picking_the_best_of_several_asks_for_a_fresh_run() -> None:
    run = sweep({1: 1.5}, configs={"ngram-4": 1.0, "eagle3-4": 1.1})
    verdict, decision = decided(run)
    assert "confirm it on a fresh run" in decision.sentence
    _, single = decided(sweep({1: 1.5}))
    assert "fresh run" not in single.sentence
    assert len(verdict.decisions) == 2


def test_no_drafts_worth_verifying() -> None:
    """1.02 tokens per target step cannot pay for anything."""
    rows = {"spec_steps": 2, "draft_tokens": 8, "accepted_tokens": 1, "completion_tokens": 51}
    _, decision = decided(sweep({1: 0.9}, rows=rows))
    assert answers(decision)["candidates"] == "no"


def test_strata_are_compared_by_themselves() -> None:
    """Edits gain, stories lose: the strata say so although the mean gains."""
    stratum = ["edit" if i % 2 else "story" for i in range(N)]
    run = sweep({1: 1.0}, rows={})
    table = run.table
    names = pa.array(stratum * (len(table) // N))
    table = table.set_column(table.schema.get_field_index("stratum"), table.schema.field("stratum"), names)
    is_candidate = np.array([c != "baseline" for c in table["config"].to_pylist()])
    factor = np.where(is_candidate & (np.array(names.to_pylist()) == "edit"), 0.5, np.where(is_candidate, 1.25, 1.0))
    e2e = pa.array((table["e2e_us"].to_numpy() * factor).astype(int))
    table = table.set_column(table.schema.get_field_index("e2e_us"), table.schema.field("e2e_us"), e2e)
    verdict = judge_run(MemoryRun(run.run, run.cells, table), [SLO])
    speed = {c.stratum: c.ratios["output_rate"].estimate for c in verdict.comparisons}
    assert speed["edit"] == pytest.approx(2.0, rel=0.03)
    assert speed["story"] == pytest.approx(0.8, rel=0.03)


def test_an_open_lowest_load_does_not_hide_that_every_higher_one_is_certainly_bad() -> None:
    """A config seen to lose from 8 users on read as plain INCONCLUSIVE, which invites a deployment at 8."""
    ratio = RatioEstimate("output_rate", 0.7, 0.67, 0.74, 0.95, 79, "bootstrap over prompts")
    unclear = replace(ratio, estimate=0.92, lower=0.82, upper=1.03)
    loads = [
        LoadResult("c1", "closed", "not known", "yes", unclear),
        LoadResult("c8", "closed", "no", "yes", ratio),
        LoadResult("c32", "closed", "no", "no", ratio, broken=("tpot p99 <= 40ms",)),
    ]

    kind, _, why = _range(loads, "yes")

    assert kind == "INCONCLUSIVE"
    assert "from c8 on it must not run: it is slower than the baseline (output rate 0.70x [0.67, 0.74])" in why
    assert "must not run" not in _range([*loads, LoadResult("c64", "closed", "yes", "yes", ratio)], "yes")[2]
