"""Every trust check: a sound cell passes it, one planted fault is caught by exactly that check, null is not trusted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadtest.judge import reference
from loadtest.judge.comparable import PAIR_CHECKS, pair_reasons
from loadtest.judge.gate import judge_run
from loadtest.judge.trust import CHECKS
from loadtest.judge.verdict import Verdict
from loadtest.model import Slo
from tests.judge.runs import PROVENANCE, cell_facts, request_rows, run_of, simple_run

TTFT = Slo("ttft", "ttft", "p99", max=500_000.0)
DOCS = Path(__file__).parents[2] / "docs"

OPEN = {"kind": "poisson", "load": 4}
FAULTS: dict[str, list[dict[str, Any]]] = {
    "cell_not_done": [{"state": "unfinished"}, {"state": "failed", "state_reason": "out of memory"}, {"state": None}],
    "no_requests": [{"sent": 0}, {"sent": None}],
    "worker_missing": [{"workers_reported": 0}, {"workers_reported": None}, {"workers_expected": None}],
    "rows_missing": [
        {"worker_rows_missing": 3},
        {"worker_rows_missing": None},
        {"sent": 1001},
        {"worker_rows_extra": 2},
    ],
    "torn_file": [{"torn_files": ["worker-0.arrows"]}, {"torn_files": None}],
    "duplicate_request_ids": [{"duplicate_request_ids": 1}, {"duplicate_request_ids": None}],
    "merged_reads": [{"coalesced_share": 0.002}, {"coalesced_share": None}, {"coalesced_share": float("nan")}],
    "merged_first_chunks": [{"merged_first_share": 0.006}, {"merged_first_share": None}],
    "arrivals_dropped": [{**OPEN, "dropped": 1}, {**OPEN, "dropped": None}],
    "late_sends": [{**OPEN, "lateness_p99_us": 30_000.0}, {**OPEN, "lateness_p99_us": None}],
    "client_lag": [{"client_lag_p99_us": 50_000.0}, {"client_lag_p99_us": None}],
    "client_cpu": [{"worker_cpu_max": 0.99}, {"worker_cpu_max": None}],
    "client_stalls": [{"worker_stall_share": 0.2}, {"worker_stall_share": None}],
    "clock_skew": [{"clock_skew_ms": 80.0}, {"clock_skew_ms": None}],
    "clock_step": [{"clock_step_us": 100_000.0}, {"clock_step_us": None}],
    "load_not_reached": [{"achieved_concurrency": 5.0}, {"achieved_concurrency": None}],
    "scrape_gap": [
        {"scrape_max_gap_s": 9.0},
        {"scrapes_ok": 40},
        {"scrapes_expected": None},
        {"scrape_max_gap_s": None},
    ],
    "counter_reset": [{"counter_resets": ["http://x engine=0"]}, {"counter_resets": None}],
    "foreign_traffic": [{"unexplained_share": 0.02}, {"unexplained_share": None}],
    "spec_identity": [{"spec_identity_breaches": ["sum of H is not S"]}, {"spec_identity_breaches": None}],
    "acceptance_residual": [{"residual_accepted_tokens": 200.0, "cell_ctr_accepted_tokens": 10_000.0}],
    "config_contradiction": [{"contradictions": ["gamma"]}, {"contradictions": None}],
    "several_fingerprints": [{"server_fingerprints": ["a", "b"]}],
    "implausible_values": [{"rows": {"ttft_us": 0}}, {"rows": {"e2e_us": 50_000}}, {"rows": {"tpot_us": 0.0}}],
    "no_usage": [{"rows": {"completion_tokens": None}}],
    "hdr_mismatch": [{"hdr_max_rel_error": 0.003}, {"hdr_overflow": 1}, {"hdr_max_rel_error": None}],
    "simulated": [{"simulated": True}],
    "synthetic_acceptance": [{"synthetic_acceptance": True}],
}
"""Faults by the check that must catch them. `rows` changes the request rows instead of the cell."""


def judged(fault: dict[str, Any]) -> Verdict:
    fault = dict(fault)
    rows = fault.pop("rows", {})
    return judge_run(simple_run(facts=fault, **rows), [TTFT])


def test_a_sound_cell_is_trusted_and_passes() -> None:
    """Without this, every test below could pass by refusing everything."""
    for kind in ({}, OPEN):
        verdict = judged(kind)
        assert verdict.cells[0].trusted, verdict.cells[0].reasons
        assert verdict.cells[0].reasons == ()
        assert verdict.status == "PASS"
        assert verdict.exit_code == 0


def test_every_blocking_check_has_a_planted_fault() -> None:
    assert {c.code for c in CHECKS if c.blocking} == set(FAULTS)


@pytest.mark.parametrize(
    ("code", "fault"), [(code, fault) for code, faults in FAULTS.items() for fault in faults], ids=lambda v: str(v)[:60]
)
def test_planted_fault_is_caught(code: str, fault: dict[str, Any]) -> None:
    """Removing a check from the table makes its own faults pass unseen, so each row here fails then."""
    verdict = judged(fault)
    blocking = {r.code for r in verdict.cells[0].reasons if r.blocking}
    assert code in blocking
    assert blocking <= {code, "rows_missing", "no_requests"} | ({"no_usage"} if code == "implausible_values" else set())
    assert not verdict.cells[0].trusted
    assert verdict.status != "PASS"
    assert verdict.exit_code != 0
    reason = next(r for r in verdict.cells[0].reasons if r.code == code)
    assert all((reason.seen, reason.limit, reason.why, reason.do))


@pytest.mark.parametrize(
    ("code", "change"),
    [("user_clock", {"user_clock_share": 1.0, "client_lag_p99_us": None}), ("preemptions", {"preemptions": 4.0})],
)
def test_hints_do_not_block(code: str, change: dict[str, Any]) -> None:
    """User-space stamps only make latencies longer, so a PASS stays safe; both are told."""
    verdict = judged(change)
    assert [r.code for r in verdict.cells[0].reasons] == [code]
    assert verdict.status == "PASS"


@pytest.mark.parametrize(
    "harmless",
    [
        {"coalesced_share": 0.001, "merged_first_share": 0.005},
        {"unexplained_share": 0.01},
        {"hdr_max_rel_error": 0.002},
        {"dropped": None, "lateness_p99_us": None},
        {"residual_accepted_tokens": 50.0, "cell_ctr_accepted_tokens": 10_000.0},
        {"chunks": 0, "coalesced_share": None, "merged_first_share": None},
    ],
    ids=str,
)
def test_limits_are_inclusive_and_facts_are_only_needed_where_they_exist(harmless: dict[str, Any]) -> None:
    assert judged(harmless).status == "PASS"


def pair(base: dict[str, Any], cand: dict[str, Any]) -> list[str]:
    sound = {"prefix_cache_queries": 1000.0, "prefix_cache_hits": 0.0, "mean_output_tokens": 128.0, "temperature": 0.0,
             "provenance_equal": PROVENANCE, "gamma": 4}  # fmt: skip
    return [r.code for r in pair_reasons({**sound, **base}, {**sound, **cand})]


OTHER_GPU = json.dumps({**json.loads(PROVENANCE), "gpus": ["L4"]})


@pytest.mark.parametrize(
    ("code", "base", "cand"),
    [
        ("prefix_cache_warm", {}, {"prefix_cache_hits": 900.0}),
        ("prefix_cache_warm", {"prefix_cache_hits": None}, {}),
        ("output_length_mismatch", {}, {"mean_output_tokens": 43.0}),
        ("output_length_mismatch", {}, {"mean_output_tokens": None}),
        ("provenance_differs", {}, {"provenance_equal": OTHER_GPU}),
        ("provenance_differs", {"provenance_equal": None}, {}),
        ("gamma_differs", {"gamma": 3}, {"gamma": 7}),
    ],
)
def test_pairs_that_may_not_be_compared(code: str, base: dict[str, Any], cand: dict[str, Any]) -> None:
    assert pair({}, {}) == []
    assert pair(base, cand) == [code]


def test_every_pair_check_is_tested_above() -> None:
    assert {c.code for c in PAIR_CHECKS} == {
        "prefix_cache_warm", "output_length_mismatch", "provenance_differs", "gamma_differs",
    }  # fmt: skip


def test_harmless_differences_between_pairs() -> None:
    """Sampled lengths differ by chance, an unused prefix cache has no rate, and an allowed key may differ."""
    assert pair({}, {"mean_output_tokens": 43.0, "temperature": 0.7}) == []
    assert pair({"prefix_cache_queries": 0.0}, {"prefix_cache_queries": 0.0}) == []
    assert pair({}, {"provenance_equal": OTHER_GPU, "allowed_differences": ["gpus"]}) == []
    assert pair({"gamma": None}, {}) == []


def test_a_fault_that_could_cause_a_fail_makes_it_inconclusive() -> None:
    """Slow because the client lagged? Not known. Slow, and the acceptance counts are odd? Slow all the same."""
    slow = {"ttft_us": 300_000}
    strict = Slo("ttft", "ttft", "p99", max=200_000.0)
    statuses = {}
    for name, fault in {
        "none": {},
        "lag": {"client_lag_p99_us": 50_000.0},
        "identity": {"spec_identity_breaches": ["odd"]},
        "simulated": {"simulated": True},
    }.items():
        cell = cell_facts(**fault)
        verdict = judge_run(run_of((cell, request_rows(cell, **slow))), [strict])
        statuses[name] = verdict.checks[0].status
    assert statuses == {"none": "FAIL", "lag": "INCONCLUSIVE", "identity": "FAIL", "simulated": "FAIL"}


@pytest.mark.parametrize(
    ("name", "made"),
    [("inconclusive.md", reference.reasons_page), ("verdict.schema.json", reference.verdict_schema)],
)
def test_generated_docs_are_current(name: str, made: Any) -> None:
    """`python -m loadtest.judge.reference` writes them."""
    assert (DOCS / name).read_text(encoding="utf-8") == made()


def test_slo_page_is_current() -> None:
    page = (DOCS / "slo-file.md").read_text(encoding="utf-8")
    assert reference.with_tables(page) == page


def test_a_busy_client_hears_how_many_workers_would_be_enough() -> None:
    told = [judged({"worker_cpu_max": 0.99, "workers_enough": n}).cells[0].reasons[0].seen for n in (3, 1)]
    assert told[0].endswith("; 3 workers would be enough (1 were not)")
    assert told[1].endswith("look for what else is busy on their hosts")


def test_users_that_pause_between_turns_count_as_load() -> None:
    load = {"achieved_concurrency": 1.0, "thinking_concurrency": 7.0}
    assert judged(load).cells[0].reasons == ()
    assert [r.code for r in judged(load | {"thinking_concurrency": 1.0}).cells[0].reasons] == ["load_not_reached"]
