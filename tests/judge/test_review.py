"""Mistakes that a stranger looked for: unequal prompts, mixed loads, second baselines, budgets of one stratum."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from loadtest.judge.gate import judge_run
from loadtest.judge.rates import rate_claim
from loadtest.judge.trust import cell_reasons
from loadtest.model import Slo
from tests.judge.runs import MemoryRun, cell_facts, failed, request_rows, run_of, simple_run
from tests.judge.test_decision import PAYS_TO_8, SLO, decided, sweep

MEDIAN = Slo("rel", "e2e", "median_ratio_to_baseline", max=1.05)


def test_a_faster_side_that_reaches_longer_prompts_is_compared_on_common_ones() -> None:
    """Both write 20 tokens for p0-p99; only the candidate gets to the long p100-p199: same lengths all the same."""
    one, two = cell_facts("baseline"), cell_facts("ngram-4")
    base = request_rows(one, 100, completion_tokens=20)
    cand = request_rows(two, 200, completion_tokens=[20] * 100 + [200] * 100)
    verdict = judge_run(run_of((one, base), (two, cand)), [MEDIAN])
    comparison = verdict.comparisons[0]
    assert (comparison.length_ratio, comparison.reasons) == (1.0, ())
    assert verdict.checks[0].status == "PASS"


def test_equal_means_over_other_prompts_do_not_hide_shorter_answers() -> None:
    """On the 100 common prompts the candidate stops at half; its 100 others are long, so both cells have mean 20."""
    one, two = cell_facts("baseline"), cell_facts("ngram-4")
    base = request_rows(one, 100, completion_tokens=20)
    cand = request_rows(two, 200, completion_tokens=[10] * 100 + [30] * 100)
    verdict = judge_run(run_of((one, base), (two, cand)), [MEDIAN])
    assert verdict.comparisons[0].reasons == ("output_length_mismatch",)
    assert verdict.checks[0].status == "INCONCLUSIVE"


def test_passes_over_a_prompt_weigh_once_in_the_length_guard() -> None:
    """The candidate met the long prompt three times: no reason to call its answers longer."""
    one, two = cell_facts("baseline"), cell_facts("ngram-4")
    prompts = [f"p{i}" for i in range(30)]
    base = request_rows(one, 30, prompt_id=prompts, completion_tokens=[300] + [20] * 29)
    cand = request_rows(two, 32, prompt_id=[*prompts, "p0", "p0"], completion_tokens=[300] + [20] * 29 + [300] * 2)
    assert judge_run(run_of((one, base), (two, cand)), [MEDIAN]).comparisons[0].length_ratio == 1.0


def test_an_error_budget_for_one_stratum_does_not_replace_the_implicit_one() -> None:
    """Half of `chat` is rejected; the only criterion looks at `edit`."""
    n = 1000
    strata = ["edit" if i % 2 else "chat" for i in range(n)]
    run = simple_run(n, stratum=strata, **failed(n, range(0, n, 4)))
    verdict = judge_run(run, [Slo("e", "error_rate", "rate", max=0.01, where={"stratum": "edit"})])
    assert next((c.slo, c.status) for c in verdict.checks) == ("e", "PASS")
    assert [c.status for c in verdict.checks if c.implicit] == ["FAIL"]


def test_a_second_config_without_speculation_is_noise_not_a_candidate() -> None:
    """It is judged for information, measures how far two baselines differ, and gets no decision of its own."""
    slow = Slo("ttft", "ttft", "p99", max=60_000.0, where={"config": "*"})
    run = sweep({1: 1.5}, extra_baseline=True)
    verdict = judge_run(run, [slow])
    assert [d.config for d in verdict.decisions] == ["ngram-4"]
    assert {c.scope.config: c.gating for c in verdict.checks if c.scope} == {
        "baseline": False, "baseline-again": False, "ngram-4": True,
    }  # fmt: skip
    assert "two baselines agree on 800 of 800" in verdict.decisions[0].questions[0].evidence


def two_kinds(closed: dict[float, float], poisson: dict[float, float]) -> MemoryRun:
    one, two = sweep(closed), sweep(poisson, kind="poisson")
    return MemoryRun(one.run, pa.concat_tables([one.cells, two.cells]), pa.concat_tables([one.table, two.table]))


def test_loads_of_different_kinds_have_no_common_order() -> None:
    """4 requests per second is neither above nor below 8 streams: each kind has its own highest load."""
    _, decision = decided(two_kinds({1: 1.5, 8: 0.8}, {4: 1.3, 16: 1.2}))
    assert (decision.decision, decision.up_to) == ("DEPLOY UP TO", "c1, poisson16")
    _, decision = decided(two_kinds({1: 1.5, 8: 1.4}, {4: 0.8}))
    assert decision.decision == "DO NOT DEPLOY"
    assert "lowest load, poisson4" in decision.sentence
    _, decision = decided(two_kinds({1: 1.5, 8: 1.4}, {4: 1.4}))
    assert decision.decision == "DEPLOY"


def test_cells_that_were_not_done_say_only_that() -> None:
    facts = cell_facts(state="unfinished", sent=None, workers_reported=None, scrapes_ok=None, torn_files=None)
    assert [r.code for r, _ in cell_reasons({**facts, "rows": 0, "implausible_rows": 0})] == ["cell_not_done"]


def test_sentences_are_short_and_say_things_once() -> None:
    """Two lines of a terminal at most, whatever the reasons are."""
    for change in ({}, {"simulated": True}, {"simulated": True, "worker_cpu_max": 1.0, "coalesced_share": 0.5}):
        for speedups in (PAYS_TO_8, {1: 0.9, 8: 0.8}, {1: 1.0}):
            _, decision = decided(sweep(speedups, **change))
            assert len(decision.sentence) <= 240, decision.sentence
            assert decision.sentence.count(decision.decision) == 1, decision.sentence


def test_simulated_sentence_shows_what_the_figures_say_and_that_it_is_no_verdict() -> None:
    _, decision = decided(sweep(PAYS_TO_8, simulated=True))
    assert "INCONCLUSIVE (SIMULATED: no verdict). The figures alone would say DEPLOY UP TO c8" in decision.sentence


def test_words_of_no_data_read_well() -> None:
    cell = cell_facts()
    reasons = [c.reason for c in judge_run(run_of((cell, request_rows(cell, 0))), [SLO]).checks]
    assert any("failed or cut: not known, no request was sent" in r for r in reasons)
    assert any("P99 not claimable: ttft is not known for any request" in r for r in reasons)


def test_words_of_reasons_stand_once_in_the_record() -> None:
    """Strata of one comparison repeat codes, not texts: the record of a run stays readable."""
    run = sweep({1: 1.2}, worker_cpu_max=1.0)
    names = pa.array([f"task{i % 20}" for i in range(len(run.table))])
    table = run.table.set_column(run.table.schema.get_field_index("stratum"), run.table.schema.field("stratum"), names)
    verdict = judge_run(MemoryRun(run.run, run.cells, table), [SLO])
    assert len(verdict.comparisons) == 21
    assert all(c.reasons == ("client_cpu",) for c in verdict.comparisons)
    text = json.dumps(verdict.to_json())
    cells = json.dumps(verdict.to_json()["cells"])
    assert text.count("A saturated client measures itself.") == cells.count("A saturated client measures itself.") == 4


def test_reasons_of_the_pairing_are_spelt_out_once() -> None:
    run = sweep({1: 1.2}, prefix_cache_hits=None)
    (comparison,) = judge_run(run, [SLO]).comparisons
    assert comparison.reasons == ("prefix_cache_warm",)
    assert "not known on both sides" in comparison.details[0].seen


@pytest.mark.parametrize("speed", [1.0, 1.003])
def test_a_speed_up_within_the_noise_is_not_known_to_pay(speed: float) -> None:
    """Whether the estimate lies below 1 or above it: the interval holds 1."""
    verdict, decision = decided(sweep({1: speed}))
    ratio = verdict.comparisons[0].ratios["output_rate"]
    assert ratio.lower is not None
    assert ratio.upper is not None
    assert ratio.lower < 1.0 < ratio.upper
    assert (ratio.estimate or 0.0) > 1.0 or speed == 1.0
    assert (decision.on_these_figures, decision.questions[2].answer) == ("INCONCLUSIVE", "not known")


@pytest.mark.parametrize("fact", ["simulated", "synthetic_acceptance"])
def test_a_server_that_is_not_known_to_be_real_is_not_real(fact: str) -> None:
    """Null is not "no": whoever cannot say that the server is real has no verdict."""
    facts = {**cell_facts(), "sent": 1, "rows": 1, "ok": 1, "chunks": 1, "implausible_rows": 0,
             "served_without_usage": 0}  # fmt: skip
    assert fact not in {r.code for r, _ in cell_reasons(facts)}
    assert fact in {r.code for r, _ in cell_reasons({**facts, fact: None})}


def test_a_replica_that_nobody_scraped_is_foreign_in_the_other_direction() -> None:
    """The requests got more tokens than the counters saw: the share is negative and just as wrong."""
    verdict = judge_run(simple_run(facts={"unexplained_share": -0.02}), [SLO])
    assert "foreign_traffic" in {r.code for r in verdict.cells[0].reasons}


def test_shares_use_effective_counts_as_well() -> None:
    """30 failures of 6,000 certify "at most 1 %" if they are independent, but not as two outages of 15 each."""
    budget = Slo("e", "error_rate", "rate", max=0.01)
    spread = judge_run(simple_run(6000, **failed(6000, range(0, 6000, 200))), [budget]).checks[0]
    outages = [*range(1000, 1015), *range(4000, 4015)]
    joined = judge_run(simple_run(6000, **failed(6000, outages)), [budget]).checks[0]
    assert (spread.status, spread.n_eff) == ("PASS", 6000)
    assert joined.status == "INCONCLUSIVE"
    assert joined.n_eff is not None
    assert joined.n_eff < 1500
    assert "independent ones" in joined.reason


@pytest.mark.parametrize("fact", ["simulated", "synthetic_acceptance"])
def test_a_simulated_baseline_spoils_the_run(fact: str) -> None:
    """Every check that counts is one of the real candidate and passes; the run is no verdict all the same."""
    one, two = cell_facts("baseline", **{fact: True}), cell_facts("ngram-4")
    texts = [f"{i:015d}" for i in range(1000)]
    slow, fast = (request_rows(c, prompt_sha256=texts, e2e_us=us) for c, us in ((one, 400_000), (two, 300_000)))
    verdict = judge_run(run_of((one, slow), (two, fast)), [SLO])
    assert {c.status for c in verdict.checks if c.gating} == {"PASS"}
    assert (verdict.status, verdict.exit_code) == ("INCONCLUSIVE", 98)
    assert (verdict.decisions[0].decision, verdict.decisions[0].on_these_figures) == ("INCONCLUSIVE", "DEPLOY")


def test_comparisons_that_do_not_count_give_no_crossover() -> None:
    """A saturated client: neither where it pays nor where it loses is known."""
    assert len([c for c in judge_run(sweep(PAYS_TO_8), [SLO]).crossovers if c.stratum is None]) == 1
    assert judge_run(sweep(PAYS_TO_8, worker_cpu_max=1.0), [SLO]).crossovers == ()


def test_a_pool_with_a_repeat_that_has_no_baseline_is_not_compared() -> None:
    """Two repeats of the candidate, one of the baseline: repeat 1 can be compared, repeat 2 and the pool cannot."""
    cells = [cell_facts("baseline"), cell_facts(repeat=1), cell_facts(repeat=2)]
    verdict = judge_run(run_of(*((c, request_rows(c, 300)) for c in cells)), [MEDIAN])
    mine = {c.scope.repeat: (c.status, c.reason) for c in verdict.checks if c.scope and c.slo == "rel"}
    assert {repeat: status for repeat, (status, _) in mine.items()} == {
        1: "PASS", 2: "INCONCLUSIVE", None: "INCONCLUSIVE",
    }  # fmt: skip
    assert mine[None][1].startswith("no_baseline")


def test_repeats_that_differ_widen_the_interval_of_a_rate() -> None:
    """10, 20 and 30 per second, each known to 0.1 %: the mean of 20 is not known to be above 12 (t(2) = 2.92)."""
    claim = rate_claim([10.0, 20.0, 30.0], [0.001] * 3, 12.0, 0.95, "rate")
    assert (claim.status, claim.estimate) == ("INCONCLUSIVE", 20.0)
    assert claim.lower == pytest.approx(20 - 2.92 * 10 / 3**0.5, rel=0.01)
    assert rate_claim([20.0, 20.1, 19.9], [0.001] * 3, 12.0, 0.95, "rate").status == "PASS"
