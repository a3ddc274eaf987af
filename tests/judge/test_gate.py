"""The gate on whole runs: what passes, what fails, and what is never allowed to pass."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from loadtest.errors import PlanError
from loadtest.judge.gate import judge_run
from loadtest.judge.verdict import Check, Verdict, worst
from loadtest.model import Slo
from tests.judge.runs import MemoryRun, cell_facts, failed, request_rows, run_of, simple_run

TTFT = Slo("ttft", "ttft", "p99", max=500_000.0)
SECONDS = 1e6


def slow(n: int, over: int, column: str = "ttft_us", fast: float = 100_000, late: float = 900_000) -> dict[str, Any]:
    """`over` of n requests are late, spread evenly so that they look independent."""
    values = np.full(n, fast)
    values[np.linspace(3, n - 3, over).astype(int)] = late
    return {column: values.astype(int), "e2e_us": np.maximum(400_000, values).astype(int)}


def first(run: MemoryRun, *slos: Slo) -> Check:
    return judge_run(run, slos).checks[0]


@pytest.mark.parametrize(
    ("over", "status"),
    [(0, "PASS"), (4, "PASS"), (5, "INCONCLUSIVE"), (15, "INCONCLUSIVE"), (16, "FAIL"), (17, "FAIL")],
)
def test_p99_of_a_thousand_by_the_published_ranks(over: int, status: str) -> None:
    """At most 4 of 1,000 may be over; 16 or more refute it: P(Bin(1000, 1 %) >= 16) = 4.8 %, >= 15: 8.2 %."""
    check = first(simple_run(1000, **slow(1000, over)), TTFT)
    assert (check.status, check.over, check.n, check.n_eff) == (status, over, 1000, 1000)


def test_bounds_are_the_order_statistics() -> None:
    """Values 1..1000, the large ones spread out: one-sided 95 % ranks 985 and 996; the estimate is x(990)."""
    values = np.arange(1000) * 709 % 1000 + 1
    check = first(simple_run(1000, ttft_us=values, e2e_us=400_000), Slo("x", "ttft", "p99", max=996.0))
    assert (check.estimate, check.upper, check.status) == (990, 996, "PASS")
    assert check.lower == 985
    assert first(simple_run(1000, ttft_us=values), Slo("x", "ttft", "p99", max=995.0)).status == "INCONCLUSIVE"
    assert first(simple_run(1000, ttft_us=values), Slo("x", "ttft", "p99", max=984.0)).status == "FAIL"
    assert first(simple_run(1000, ttft_us=values), Slo("x", "ttft", "p99", max=985.0)).status == "INCONCLUSIVE"


def test_small_n_cannot_claim_p99_and_says_what_it_needs() -> None:
    check = first(simple_run(100), TTFT)
    assert check.status == "INCONCLUSIVE"
    assert "P99 not claimable (n=100, needs 299" in check.reason
    assert check.more == 199
    assert first(simple_run(100), Slo("p95", "ttft", "p95", max=500_000.0)).status == "PASS"


def test_failed_and_censored_requests_are_over_every_limit() -> None:
    """Three failures of 300 that took 2 ms are not fast: with none over, 300 would pass."""
    assert first(simple_run(300), TTFT).status == "PASS"
    for outcome in ("http_error", "censored", "read_timeout", "truncated"):
        check = first(simple_run(300, **failed(300, [5, 150, 290], outcome)), TTFT)
        assert (check.over, check.status) == (3, "INCONCLUSIVE")


def test_merged_first_chunks_spoil_a_pass_but_do_not_fail() -> None:
    """20 of 1,000 stamps say 900 ms, all of them merged reads: the truth may be under 500 ms."""
    late = slow(1000, 20)
    merged = late["ttft_us"] > 500_000
    sure, unsure = simple_run(1000, **late), simple_run(1000, **late, first_chunk_merged=merged)
    assert first(sure, TTFT).status == "FAIL"
    check = first(unsure, TTFT)
    assert check.status == "INCONCLUSIVE"
    assert "20 known only as an upper bound" in check.reason


def test_unknown_latencies_never_pass() -> None:
    """Served requests without a TTFT (nothing streamed) are not evidence of a fast first token."""
    for ttft in (None, [float("nan")] * 1000):
        check = first(simple_run(1000, ttft_us=ttft), TTFT)
        assert check.status == "INCONCLUSIVE"
        assert check.estimate is None


def test_tpot_of_a_single_token_is_left_out() -> None:
    """700 answers of one token have no TPOT; the other 300 are enough."""
    n = 1000
    single = np.arange(n) % 10 < 7
    run = simple_run(n, tpot_us=np.where(single, np.nan, 10_000.0), completion_tokens=np.where(single, 1, 31))
    check = first(run, Slo("tpot", "tpot", "p99", max=50_000.0))
    assert (check.n, check.status) == (300, "PASS")
    none = simple_run(n, tpot_us=None, chunks=1)
    assert first(none, Slo("tpot", "tpot", "p99", max=50_000.0)).status == "INCONCLUSIVE"


def test_bursts_lower_the_effective_sample_size() -> None:
    """Two stalls of 12 requests each in 5,000: naively P99 is certain, but they are worth far fewer."""
    late = np.full(5000, 100_000)
    late[1000:1012] = late[3000:3012] = 900_000
    check = first(simple_run(5000, ttft_us=late, e2e_us=1_000_000), TTFT)
    assert check.tau is not None
    assert check.tau > 5
    assert check.n_eff is not None
    assert check.n_eff < 1000
    assert "bursts" in check.reason


def repeats(run_values: list[dict[str, Any]], n: int = 1000, **facts: Any) -> MemoryRun:
    cells = [cell_facts(repeat=i + 1, **facts) for i in range(len(run_values))]
    return run_of(*((c, request_rows(c, n, **v)) for c, v in zip(cells, run_values, strict=True)))


def test_each_repeat_must_pass_and_the_pool_too() -> None:
    verdict = judge_run(repeats([slow(1000, 1), slow(1000, 30), slow(1000, 1)]), [TTFT])
    mine = [c for c in verdict.checks if c.slo == "ttft"]
    assert [(c.scope.repeat, c.status) for c in mine if c.scope] == [
        (1, "PASS"), (2, "FAIL"), (3, "PASS"), (None, "INCONCLUSIVE"),
    ]  # fmt: skip
    assert mine[-1].n == 3000
    assert verdict.status == "FAIL"


def test_percentiles_are_pooled_never_averaged() -> None:
    """P50 of repeats 1..300, all at 1 and all at 1000: the pool's median is that of the rows together."""
    run = repeats([{"ttft_us": [1] * 300}, {"ttft_us": [1] * 300}, {"ttft_us": [1000] * 300}], n=300)
    pooled = [
        c for c in judge_run(run, [Slo("m", "ttft", "p50", max=2.0)]).checks if c.scope and c.scope.repeat is None
    ]
    assert pooled[0].estimate == 1
    assert pooled[0].status == "PASS"


def test_order_of_rows_does_not_matter() -> None:
    """Rows of two workers come interleaved; the judge sorts by start."""
    late = slow(2000, 10)
    run = simple_run(2000, **late)
    shuffled = MemoryRun(run.run, run.cells, run.table.take(np.random.default_rng(1).permutation(2000)))
    assert judge_run(run, [TTFT]).to_json() == judge_run(shuffled, [TTFT]).to_json()


def test_only_the_measured_window_counts() -> None:
    """Slow warm-up and drain rows are not judged."""
    phases = ["warmup"] * 200 + ["measure"] * 600 + ["drain"] * 200
    ttft = [900_000] * 200 + [100_000] * 600 + [900_000] * 200
    check = first(simple_run(1000, phase=phases, ttft_us=ttft, e2e_us=1_000_000), TTFT)
    assert (check.n, check.status) == (600, "PASS")


def test_implicit_error_budget() -> None:
    """Fast rejects fail the run although nobody asked about errors; a criterion of one's own replaces the budget."""
    run = simple_run(1000, **failed(1000, range(0, 1000, 20)))
    median = Slo("m", "ttft", "p50", max=500_000.0)
    verdict = judge_run(run, [median])
    implicit = [c for c in verdict.checks if c.implicit]
    assert [c.status for c in verdict.checks] == ["PASS", "FAIL"]
    assert (implicit[0].over, verdict.status, verdict.exit_code) == (50, "FAIL", 99)
    own = judge_run(run, [median, Slo("e", "error_rate", "rate", max=0.10)])
    assert not any(c.implicit for c in own.checks)
    assert own.status == "PASS"


def test_error_rate_uses_the_exact_bound() -> None:
    """0 of 298 leaves more than 1 % possible, 0 of 299 does not."""
    for n, status in ((298, "INCONCLUSIVE"), (299, "PASS")):
        assert first(simple_run(n), Slo("e", "error_rate", "rate", max=0.01)).status == status


def test_no_criterion_is_inconclusive() -> None:
    verdict = judge_run(simple_run(), [])
    assert (verdict.status, verdict.exit_code) == ("INCONCLUSIVE", 98)
    assert [r.code for r in verdict.reasons] == ["no_slo"]


def test_empty_run_is_inconclusive() -> None:
    verdict = judge_run(run_of(), [TTFT])
    assert verdict.status == "INCONCLUSIVE"
    assert {"no_cells"} <= {r.code for r in verdict.reasons}


def test_criterion_that_selects_nothing_is_inconclusive() -> None:
    for where in ({"mix": "chat"}, {"load": "c9"}, {"stratum": "nothing"}, {"config": "eagle*"}):
        verdict = judge_run(simple_run(), [TTFT, Slo("lost", "ttft", "p99", max=500_000.0, where=where)])
        lost = [c for c in verdict.checks if c.slo == "lost"]
        assert [(c.status, c.scope) for c in lost] == [("INCONCLUSIVE", None)]
        assert verdict.status == "INCONCLUSIVE"


def test_stratum_selector_judges_each_stratum_by_itself() -> None:
    """Half the requests are slow `chat`: together P50 passes at the edge, by stratum chat fails."""
    n = 1000
    chat = np.arange(n) % 2 == 1
    run = simple_run(
        n, stratum=np.where(chat, "chat", "edit").tolist(), ttft_us=np.where(chat, 900_000, 1), e2e_us=SECONDS
    )
    checks = judge_run(run, [Slo("s", "ttft", "p95", max=500_000.0, where={"stratum": "*"})]).checks
    assert {c.scope.stratum: c.status for c in checks if c.scope and not c.implicit} == {"chat": "FAIL", "edit": "PASS"}


def test_baseline_is_shown_but_does_not_gate() -> None:
    base, cand = cell_facts("baseline"), cell_facts()
    run = run_of((base, request_rows(base, **slow(1000, 100))), (cand, request_rows(cand)))
    verdict = judge_run(run, [TTFT])
    assert verdict.status == "PASS"
    assert [(c.gating, c.status) for c in verdict.checks if c.slo == "ttft"] == [(False, "FAIL"), (True, "PASS")]
    named = judge_run(run, [Slo("b", "ttft", "p99", max=500_000.0, where={"config": "baseline"})])
    assert named.status == "FAIL"
    alone = run_of((base, request_rows(base, **slow(1000, 100))))
    assert judge_run(alone, [TTFT]).status == "FAIL"


def test_throughput_floor_with_interval() -> None:
    """1,000 requests at random times in 60 s are 16.7/s."""
    sent = cell_facts()["window_start_ns"] + np.sort(np.random.default_rng(1).integers(0, 59_000_000_000, 1000))
    run = simple_run(send_ns=sent, first_token_ns=sent + 100_000_000, last_token_ns=sent + 400_000_000)
    for metric, rate in (("request_rate", 1000 / 60), ("output_tok_s", 31_000 / 60)):
        assert first(run, Slo("r", metric, "rate", min=rate * 0.9)).status == "PASS"
        assert first(run, Slo("r", metric, "rate", min=rate * 1.1)).status == "FAIL"
        check = first(run, Slo("r", metric, "rate", min=rate))
        assert check.status == "INCONCLUSIVE"
        assert check.estimate == pytest.approx(rate)


def test_rejected_requests_are_no_throughput() -> None:
    """An overloaded server that rejects half of its requests serves half."""
    run = simple_run(1000, **failed(1000, range(0, 1000, 2)))
    check = first(run, Slo("r", "request_rate", "rate", min=12.0))
    assert check.estimate == pytest.approx(500 / 60)
    assert check.status == "FAIL"


def test_acceptance_floor_by_prompt() -> None:
    """A/D = 0.4 everywhere but for prompts that differ: the interval is about prompts, not tokens."""
    rng = np.random.default_rng(3)
    accepted = rng.binomial(40, np.clip(rng.normal(0.4, 0.15, 1000), 0, 1))
    run = simple_run(1000, accepted_tokens=accepted)
    rate = accepted.sum() / 40_000
    for limit, status in ((rate - 0.03, "PASS"), (rate + 0.03, "FAIL"), (rate, "INCONCLUSIVE")):
        check = first(run, Slo("a", "draft_acceptance_rate", "pooled", min=float(limit)))
        assert check.status == status
        assert check.estimate == pytest.approx(rate)
    assert first(run, Slo("a", "mean_acceptance_length", "pooled", min=2.0)).status == "PASS"
    assert first(run, Slo("a", "wasted_drafts_per_token", "pooled", max=0.5)).status == "FAIL"


def test_acceptance_does_not_apply_to_a_baseline() -> None:
    base, cand = cell_facts("baseline"), cell_facts()
    run = run_of((base, request_rows(base)), (cand, request_rows(cand)))
    verdict = judge_run(run, [Slo("a", "draft_acceptance_rate", "pooled", min=0.3, where={"method": "*"})])
    assert [c.scope.config for c in verdict.checks if c.scope and c.slo == "a"] == ["ngram-4"]


def test_no_draft_is_not_a_hundred_percent() -> None:
    run = simple_run(1000, spec_steps=0, draft_tokens=0, accepted_tokens=0)
    check = first(run, Slo("a", "draft_acceptance_rate", "pooled", min=0.3))
    assert (check.status, check.estimate) == ("INCONCLUSIVE", None)
    assert "no draft was proposed" in check.reason


def test_acceptance_from_counters_needs_repeats() -> None:
    """Older servers tell no counts per request: three windows with 0.40, 0.41, 0.42 give an interval, one does not."""
    bare = {"spec_steps": None, "draft_tokens": None, "accepted_tokens": None}
    cells = [cell_facts(repeat=i, draft_acceptance_rate=0.39 + i / 100) for i in (1, 2, 3)]
    run = run_of(*((c, request_rows(c, 300, **bare)) for c in cells))
    checks = judge_run(run, [Slo("a", "draft_acceptance_rate", "pooled", min=0.35)]).checks[:4]
    assert [c.status for c in checks] == ["INCONCLUSIVE"] * 3 + ["PASS"]
    assert checks[-1].estimate == pytest.approx(0.41)
    assert (checks[0].more, checks[0].more_unit) == (2, "repeats")


def test_chunk_gaps_are_judged_from_the_offsets() -> None:
    """Three chunks per request 10 ms apart; 2 % of the requests hold one gap of 300 ms: 1 % of the gaps."""
    n = 1000
    offsets = [[100_000, 110_000, 120_000 if i % 50 else 410_000] for i in range(n)]
    run = simple_run(n, chunk_offset_us=offsets)
    check = first(run, Slo("g", "chunk_gap", "p95", max=50_000.0))
    assert (check.n, check.over, check.status, check.estimate) == (2000, 20, "PASS", 10_000)
    assert first(run, Slo("g", "chunk_gap", "p99.9", max=50_000.0)).status == "FAIL"


def test_failed_requests_count_in_the_gaps() -> None:
    n = 1000
    run = simple_run(n, chunk_offset_us=[[0, 10_000, 20_000]] * n, **failed(n, range(0, n, 10)))
    check = first(run, Slo("g", "chunk_gap", "p95", max=50_000.0))
    assert (check.n, check.over, check.status) == (2000, 200, "FAIL")


def two_arms(cand_rows: dict[str, Any], n: int = 400, **cand_facts: Any) -> MemoryRun:
    base, cand = cell_facts("baseline"), cell_facts(**cand_facts)
    return run_of((base, request_rows(base, n)), (cand, request_rows(cand, n, **cand_rows)))


@pytest.mark.parametrize(("ratio", "status"), [(0.9, "PASS"), (1.02, "PASS"), (1.1, "FAIL")])
def test_relative_limit(ratio: float, status: str) -> None:
    check = first(two_arms({"tpot_us": 10_000 * ratio}), Slo("rel", "tpot", "median_ratio_to_baseline", max=1.02))
    assert check.scope is not None
    assert (check.scope.config, check.status, check.unit) == ("ngram-4", status, "times")
    assert check.estimate == pytest.approx(ratio)


def test_relative_throughput() -> None:
    slo = Slo("rel", "output_tok_s", "median_ratio_to_baseline", min=0.95)
    assert first(two_arms({}), slo).status == "PASS"
    assert first(two_arms({"completion_tokens": 30}), slo).status == "PASS"
    check = first(two_arms({}, output_tok_s=31 * 400 / 60 / 2), slo)
    assert (check.status, check.estimate) == ("FAIL", pytest.approx(0.5))


@pytest.mark.parametrize(
    "cand", [{"load": 16}, {"repeat": 2}, {"mix": "chat"}], ids=["other load", "other repeat", "other mix"]
)
def test_disjoint_baseline_never_passes(cand: dict[str, Any]) -> None:
    verdict = judge_run(two_arms({}, **cand), [Slo("rel", "tpot", "median_ratio_to_baseline", max=1.02)])
    check = verdict.checks[0]
    assert check.status == "INCONCLUSIVE"
    assert "no_baseline" in check.reason
    assert verdict.exit_code == 98


def test_untrusted_baseline_blocks_the_comparison() -> None:
    base, cand = cell_facts("baseline", clock_step_us=1e6), cell_facts()
    run = run_of((base, request_rows(base)), (cand, request_rows(cand)))
    check = first(run, Slo("rel", "tpot", "median_ratio_to_baseline", max=1.02))
    assert check.status == "INCONCLUSIVE"
    assert "baseline cell" in check.reason


def test_simulated_or_synthetic_never_passes_and_fail_stays() -> None:
    for fault in ("simulated", "synthetic_acceptance"):
        good = judge_run(simple_run(facts={fault: True}), [TTFT])
        assert (good.status, good.exit_code) == ("INCONCLUSIVE", 98)
        assert good.checks[0].on_these_figures == "PASS"
        bad = judge_run(simple_run(facts={fault: True}, **slow(1000, 100)), [TTFT])
        assert (bad.status, bad.exit_code) == ("FAIL", 99)
    assert judge_run(simple_run(facts={"simulated": True}), [TTFT]).sentence.startswith("SIMULATED")


@pytest.mark.parametrize("bad", [math.nan, math.inf, None])
def test_limit_that_is_no_number_is_refused(bad: float | None) -> None:
    with pytest.raises(PlanError, match="needs a finite `max`"):
        judge_run(simple_run(), [Slo("x", "ttft", "p99", max=bad)])


def test_limit_on_the_wrong_side_is_refused() -> None:
    """A floor under a latency would pass whatever is slow."""
    with pytest.raises(PlanError, match="better when lower"):
        judge_run(simple_run(), [Slo("x", "ttft", "p99", min=500.0)])
    with pytest.raises(PlanError, match="better when higher"):
        judge_run(simple_run(), [Slo("x", "request_rate", "rate", max=500.0)])


def test_same_input_same_verdict() -> None:
    run = two_arms({"tpot_us": 9_000})
    slos = [TTFT, Slo("rel", "tpot", "median_ratio_to_baseline", max=1.02)]
    one, two = (json.dumps(judge_run(run, slos).to_json(), allow_nan=False) for _ in range(2))
    assert one == two


def test_worst_of_statuses() -> None:
    assert worst(["PASS", "FAIL", "INCONCLUSIVE"]) == "FAIL"
    assert worst(["PASS", "INCONCLUSIVE"]) == "INCONCLUSIVE"
    assert worst(["PASS"]) == "PASS"
    assert worst([]) == "INCONCLUSIVE"


def test_sentence_names_the_first_breach() -> None:
    verdict: Verdict = judge_run(simple_run(1000, **slow(1000, 50)), [TTFT])
    assert "ttft in ngram-4-code-greedy-c8-r1" in verdict.sentence
    assert "50 of 1,000 requests over 500 ms" in verdict.sentence


def test_refused_connections_have_no_send_time_but_count() -> None:
    """20 of 1,000 connections were refused: they fail; arrivals over the cap were never sent and are no requests."""
    n = 1000
    refused = np.arange(n) % 50 == 7
    sent = np.where(refused, np.nan, cell_facts()["window_start_ns"] + np.arange(n) * 1e7)
    columns = {
        "send_ns": pa.array(sent, from_pandas=True).cast("int64"),
        "intended_ns": cell_facts()["window_start_ns"],
    }
    outcomes = np.where(refused, "connection_error", "ok").tolist()
    run = simple_run(n, outcome=outcomes, error=np.where(refused, "refused", "").tolist(), **columns)
    budget = judge_run(run, [TTFT]).checks[-1]
    assert (budget.n, budget.over) == (1000, 20)
    dropped = simple_run(n, outcome=outcomes, error=np.where(refused, "dropped: 512 in flight", "").tolist(), **columns)
    check = first(dropped, TTFT)
    assert (check.n, check.over) == (980, 0)


def test_merged_first_chunk_bounds_tpot_from_above() -> None:
    """All stamps of a request in one read say TPOT 0; its E2E of 400 ms over 30 tokens says at most 13.3 ms."""
    merged = np.arange(1000) % 2 == 0
    run = simple_run(1000, tpot_us=np.where(merged, 0.0, 10_000.0), first_chunk_merged=merged)
    assert judge_run(run, [TTFT]).cells[0].reasons == ()
    assert first(run, Slo("t", "tpot", "p99", max=14_000.0)).status == "PASS"
    assert first(run, Slo("t", "tpot", "p99", max=13_000.0)).status == "INCONCLUSIVE"
    good = Slo("g", "goodput", "goodput", min=0.9, limits={"tpot": 13_000.0})
    assert first(run, good).status == "INCONCLUSIVE"


def test_acceptance_of_a_part_of_the_requests_is_not_that_of_all() -> None:
    """5 % of the served requests carry no counts: they may be the badly drafted ones."""
    known = np.arange(1000) % 20 != 0
    counts = {
        k: np.where(known, v, np.nan) for k, v in (("spec_steps", 10), ("draft_tokens", 40), ("accepted_tokens", 16))
    }
    check = first(simple_run(1000, **counts), Slo("a", "draft_acceptance_rate", "pooled", min=0.3))
    assert (check.status, check.estimate) == ("INCONCLUSIVE", 0.4)
    assert "only 950 of 1,000 served requests carry acceptance counts" in check.reason
