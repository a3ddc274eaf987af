"""Kinds of the cases about records, merging and the gate: windows, clocks, failures, figures that are missing."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from loadtest.errors import PlanError
from loadtest.model import Slo
from loadtest.plan.loader import load_slos
from tests.cases import kit
from tests.cases.drivers import acceptance_slo
from tests.cases.kit import BASELINE, NGRAM, T0, Part, Run, row, timed_row

OK = {"ok": True, "ttft_ms": 50, "e2e_ms": 350}
TTFT = Slo("ttft", "ttft", "p99", max=500_000.0)
E2E = Slo("e2e", "e2e", "p50", max=500_000.0)


def run(folder: Path, rows: list[dict[str, Any]], **done: Any) -> Run:
    return kit.run_of(folder, Part(rows, done=done))


def status_of(found: Run, slo: Slo) -> str:
    verdict = found.judge(slo)
    text = json.dumps(verdict.to_json(), allow_nan=False)
    assert "NaN" not in text
    return next(c.status for c in verdict.checks if c.slo == slo.name)


def test_many_good_requests_pass_so_that_the_others_mean_something(tmp_path: Path) -> None:
    found = run(tmp_path, [timed_row(i, OK, send_ns=T0 + i * 9_000_000) for i in range(1000)])
    assert status_of(found, TTFT) == "PASS"
    assert found.judge(TTFT).status == "PASS"


def test_a_window_without_length_gives_no_rate_and_no_pass(tmp_path: Path) -> None:
    found = run(tmp_path, [timed_row(i, OK) for i in range(3)], window_end_ns=T0)
    cell = found.cell
    assert (cell["request_rate"], cell["output_tok_s"], cell["achieved_concurrency"]) == (None, None, None)
    assert cell["e2e_p50_us"] == 350_000
    assert status_of(found, Slo("rate", "request_rate", "rate", min=0.1)) == "INCONCLUSIVE"


def test_one_request_proves_no_percentile(tmp_path: Path) -> None:
    found = run(tmp_path, [timed_row(0, OK)])
    assert found.cell["ttft_p99_us"] == 50_000
    assert status_of(found, TTFT) == "INCONCLUSIVE"


def test_no_request_at_all(tmp_path: Path) -> None:
    found = run(tmp_path, [])
    assert found.cell["sent"] == 0
    assert found.cell["error_rate"] is None
    assert status_of(found, TTFT) == "INCONCLUSIVE"


@pytest.mark.parametrize("outcome", ["censored", "read_timeout", "total_timeout", "truncated", "stream_error", "empty",
                                     "bad_payload", "http_error", "connection_error"])  # fmt: skip
def test_all_failed_in_any_way_fails(tmp_path: Path, outcome: str) -> None:
    """What arrived before the failure is kept, and never stands as a latency."""
    rows = [timed_row(i, {"ok": False}, outcome=outcome, ttft_us=2000, chunks=1) for i in range(40)]
    found = run(tmp_path, rows)
    assert (found.cell["ok"], found.cell["error_rate"], found.cell["ttft_p99_us"]) == (0, 1.0, None)
    assert found.judge(TTFT).status == "FAIL"
    assert status_of(found, E2E) == "FAIL"


def test_requests_that_were_never_sent_count_as_failed(tmp_path: Path) -> None:
    refused = {"send_ns": None, "outcome": "connection_error", "http_status": None, "token_source": "none"}
    cell = run(tmp_path, [row(i) | refused if i % 2 else timed_row(i, OK) for i in range(20)]).cell
    assert (cell["sent"], cell["ok"], cell["failed"]) == (20, 10, 10)


def test_fast_rejects_do_not_enter_the_percentiles(tmp_path: Path) -> None:
    rows = [timed_row(i, OK if i % 10 < 3 else {"ok": False, "status": 503, "e2e_ms": 2}) for i in range(200)]
    found = run(tmp_path, rows)
    assert found.cell["e2e_p50_us"] == 350_000
    verdict = found.judge(E2E)
    assert next(c for c in verdict.checks if c.slo == "e2e").status == "FAIL"
    assert verdict.status == "FAIL"


def test_the_error_budget_holds_without_being_configured(tmp_path: Path) -> None:
    rows = [timed_row(i, OK if i % 10 else {"ok": False, "status": 429, "e2e_ms": 2}) for i in range(400)]
    verdict = run(tmp_path, rows).judge(Slo("p50", "ttft", "p50", max=1e6))
    assert verdict.status == "FAIL"
    assert any(c.implicit and c.status == "FAIL" for c in verdict.checks)


@pytest.mark.parametrize("changes", [
    {"ttft_us": 0, "first_token_ns": T0}, {"ttft_us": -5}, {"e2e_us": 0}, {"e2e_us": -350_000}, {"tpot_us": -1.0},
    {"ttft_us": 400_000},
])  # fmt: skip
def test_times_that_cannot_be_are_no_measurement(tmp_path: Path, changes: dict[str, Any]) -> None:
    """A clock that stepped back, a TTFT of 0, a first token behind the last one."""
    rows = [timed_row(i, OK) | changes for i in range(400)]
    found = run(tmp_path, rows)
    verdict = found.judge(TTFT, E2E)
    assert verdict.status == "INCONCLUSIVE"
    assert "implausible_values" in [r.code for c in verdict.cells for r in c.reasons]


@pytest.mark.parametrize("value", [None, math.nan])
def test_a_figure_that_is_missing_never_passes(tmp_path: Path, value: float | None) -> None:
    rows = [timed_row(i, OK) | {"tpot_us": value} for i in range(400)]
    assert status_of(run(tmp_path, rows), Slo("tpot", "tpot", "p50", max=1e9)) != "PASS"


def test_infinite_values_are_over_every_limit(tmp_path: Path) -> None:
    rows = [timed_row(i, OK) | {"tpot_us": math.inf} for i in range(400)]
    assert status_of(run(tmp_path, rows), Slo("tpot", "tpot", "p50", max=1e9)) != "PASS"


def test_goodput_of_requests_of_one_token_and_of_failed_ones(tmp_path: Path) -> None:
    one = timed_row(0, {"ok": True, "ttft_ms": 50, "e2e_ms": 50, "completion_tokens": 1}, tpot_us=None)
    rows = [one | {"seq": 0, "request_id": "a"}, timed_row(1, OK), timed_row(2, {"ok": False}),
            timed_row(3, {"ok": False}, outcome="censored"), timed_row(4, {**OK, "ttft_ms": 300})]  # fmt: skip
    slo = Slo("goodput", "goodput", "goodput", min=0.5, limits={"ttft": 100_000.0, "tpot": 50_000.0})
    (check,) = [c for c in run(tmp_path, rows).judge(slo).checks if c.slo == "goodput"]
    assert check.estimate == 2 / 5


def test_rows_of_other_phases_do_not_count(tmp_path: Path) -> None:
    slow = {"ok": True, "ttft_ms": 5000, "e2e_ms": 9000}
    rows = [timed_row(0, slow, phase="warmup"), timed_row(1, OK), timed_row(2, slow, phase="drain")]
    cell = run(tmp_path, rows).cell
    assert (cell["sent"], cell["e2e_p999_us"], cell["rows_all_phases"]) == (1, 350_000, 3)


def test_ids_that_stand_twice_are_told(tmp_path: Path) -> None:
    rows = [timed_row(i, OK) | {"request_id": "same"} for i in range(400)]
    found = run(tmp_path, rows)
    assert found.cell["duplicate_request_ids"] == 399
    assert found.judge(TTFT).status == "INCONCLUSIVE"


def test_workers_of_unequal_size_are_merged_by_their_rows(tmp_path: Path) -> None:
    """10 ms from one worker, 1 s from another, 2 s from a third with a single request."""
    rows = [timed_row(i, {"ok": True, "ttft_ms": 5, "e2e_ms": 10}, worker=0, send_ns=T0 + i) for i in range(900)]
    rows += [
        timed_row(900 + i, {"ok": True, "ttft_ms": 5, "e2e_ms": 1000}, worker=1, send_ns=T0 + i) for i in range(99)
    ]
    rows += [timed_row(999, {"ok": True, "ttft_ms": 5, "e2e_ms": 2000}, worker=2)]
    cell = run(tmp_path, rows).cell
    assert [cell[f"e2e_{q}_us"] for q in ("p50", "p90", "p95", "p99", "p999")] == [10_000, 10_000, 1e6, 1e6, 1e6]
    assert cell["workers_reported"] == 3


@pytest.mark.parametrize("missing", [1, 2])
def test_rows_that_did_not_arrive_keep_the_cell_from_passing(tmp_path: Path, missing: int) -> None:
    rows = [timed_row(i, OK) for i in range(400)]
    workers = {"0": {"sent": 400 + missing, "rows": 400 + missing}}
    verdict = run(tmp_path, rows, workers=workers).judge(TTFT)
    assert verdict.status == "INCONCLUSIVE"
    assert "rows_missing" in [r.code for c in verdict.cells for r in c.reasons]


def test_latencies_below_and_above_the_histogram_are_kept_and_counted(tmp_path: Path) -> None:
    values = (0.0, 0.001, 3_600_000.0, 7_200_000.0)
    rows = [timed_row(i, {"ok": True, "ttft_ms": 0.0001, "e2e_ms": ms}) for i, ms in enumerate(values)]
    cell = run(tmp_path, rows).cell
    assert (cell["e2e_n"], cell["hdr_overflow"], cell["e2e_p999_us"]) == (4, 1, 7.2e9)


def test_a_page_that_does_not_move_while_requests_are_served_is_told(tmp_path: Path) -> None:
    """A proxy that keeps an old page of /metrics, or a replica that is not in metrics_urls."""
    rows = [timed_row(i, OK) for i in range(400)]
    found = kit.run_of(tmp_path, Part(rows, scrapes=kit.quiet_scrapes([], speculative=True)))
    reasons = {r.code: r.seen for c in found.judge(TTFT).cells for r in c.reasons}
    assert "no scraped endpoint counted" in reasons["foreign_traffic"]
    assert found.judge(TTFT).status != "PASS"


def test_aborted_requests_explain_what_they_can_and_no_more(tmp_path: Path) -> None:
    """Two cut requests of 64 tokens explain up to 128 of the server's tokens, not 1,000."""
    rows = [timed_row(i, OK, completion_tokens=31) for i in range(4)]
    rows += [timed_row(4 + i, {"ok": False}) for i in range(2)]
    scrapes = kit.quiet_scrapes(rows, speculative=False)
    told = {}
    for extra in (100, 1000):
        more = [
            s | {"value": s["value"] + extra} if s["metric"] == "vllm:generation_tokens_total" and s["value"] else s
            for s in scrapes
        ]
        found = kit.run_of(tmp_path / str(extra), Part(rows, scrapes=more))
        told[extra] = found.cell["unexplained_share"]
    assert told[100] == 0
    assert told[1000] == pytest.approx((1000 - 128) / 1124)


@pytest.mark.parametrize("slo", [
    Slo("ratio", "tpot", "median_ratio_to_baseline", max=1.02),
    Slo("ratio", "request_rate", "median_ratio_to_baseline", min=1.0),
])  # fmt: skip
def test_nothing_to_compare_with_is_no_pass(tmp_path: Path, slo: Slo) -> None:
    """No baseline, one at another load, one that failed altogether, one with other prompts."""
    rows = [timed_row(i, OK) for i in range(40)]
    others = [r | {"prompt_id": f"other-{r['seq']}"} for r in rows]
    lost = [timed_row(i, {"ok": False}) for i in range(40)]
    for name, base in (
        ("none", []),
        ("load", [Part(rows, BASELINE, load=16)]),
        ("failed", [Part(lost, BASELINE)]),
        ("empty", [Part([], BASELINE)]),
        ("prompts", [Part(others, BASELINE)]) if slo.metric == "tpot" else ("empty2", [Part([], BASELINE)]),
    ):
        found = kit.run_of(tmp_path / name, *base, Part(rows, NGRAM))
        verdict = found.judge(slo)
        assert verdict.status != "PASS", name
        assert verdict.exit_code != 0
        assert [c.status for c in verdict.checks if c.slo == "ratio"] == ["INCONCLUSIVE"], name


def test_a_criterion_that_selects_nothing_is_no_pass(tmp_path: Path) -> None:
    slo = Slo("nothing", "ttft", "p99", max=1e9, where={"config": "nobody"})
    assert run(tmp_path, [timed_row(i, OK) for i in range(400)]).judge(slo).status == "INCONCLUSIVE"


def test_acceptance_from_requests_without_drafts_is_undefined(tmp_path: Path) -> None:
    rows = [
        timed_row(i, OK, spec_steps=0, draft_tokens=0, accepted_tokens=0, spec_source="response_block")
        for i in range(40)
    ]
    found = run(tmp_path, rows)
    cell = found.cell
    assert (cell["req_draft_tokens"], cell["draft_acceptance_rate"], cell["mean_acceptance_length"]) == (0, None, None)
    assert status_of(found, acceptance_slo()) == "INCONCLUSIVE"


def test_a_block_that_counts_other_requests_too_passes_no_gate(tmp_path: Path) -> None:
    """The engine's running totals in every answer: 31 tokens cannot hold 500 accepted drafts."""
    spec = {"spec_steps": 200, "draft_tokens": 800, "accepted_tokens": 500, "num_spec_tokens": 4}
    found = run(tmp_path, [timed_row(i, OK, spec_source="response_block", **spec) for i in range(40)])
    assert any("several requests" in b and "40 rows" in b for b in found.cell["spec_identity_breaches"])
    assert status_of(found, acceptance_slo()) == "INCONCLUSIVE"


def test_block_sums_are_pooled_not_averaged(tmp_path: Path) -> None:
    """2 of 4 and 96 of 100: 98/104, not the mean of 50 % and 96 %."""
    spec = [
        {"spec_steps": 1, "draft_tokens": 4, "accepted_tokens": 2},
        {"spec_steps": 25, "draft_tokens": 100, "accepted_tokens": 96},
    ]
    rows = [timed_row(i, OK, spec_source="response_block", **s) for i, s in enumerate(spec)]
    cell = run(tmp_path, rows).cell
    assert cell["draft_acceptance_rate"] == pytest.approx(98 / 104)
    assert cell["mean_acceptance_length"] == pytest.approx(1 + 98 / 26)


BAD_SLOS = {
    "NaN": 'metric = "ttft"\nstat = "p99"\nlimit = nan',
    "NaN as a text": 'metric = "ttft"\nstat = "p99"\nlimit = "NaN"',
    "infinite": 'metric = "error_rate"\nlimit = inf',
    "true": 'metric = "error_rate"\nlimit = true',
    "negative": 'metric = "ttft"\nstat = "p99"\nlimit = "-5ms"',
    "no unit": 'metric = "ttft"\nstat = "p99"\nlimit = 500',
    "another unit": 'metric = "ttft"\nstat = "p99"\nlimit = "500 tokens"',
    "a share above 1": 'metric = "draft_acceptance_rate"\nmin = 30',
    "percent of a length": 'metric = "mean_acceptance_length"\nmin = "30%"',
    "the wrong side": 'metric = "draft_acceptance_rate"\nmax = 0.5',
    "both sides": 'metric = "ttft"\nstat = "p99"\nlimit = "1s"\nmax = "2s"',
    "no limit": 'metric = "ttft"\nstat = "p99"',
    "no stat": 'metric = "ttft"\nlimit = "1s"',
    "p100": 'metric = "ttft"\nstat = "p100"\nlimit = "1s"',
    "mean": 'metric = "tpot"\nstat = "mean"\nlimit = "50ms"',
    "no such metric": 'metric = "latency"\nstat = "p99"\nlimit = "1s"',
    "no such key": 'metric = "ttft"\nstat = "p99"\nlimit = "1s"\nop = "<="',
    "confidence 1": 'metric = "ttft"\nstat = "p99"\nlimit = "1s"\nconfidence = 1.0',
    "confidence NaN": 'metric = "ttft"\nstat = "p99"\nlimit = "1s"\nconfidence = nan',
    "goodput without limits": 'metric = "goodput"\nmin = 0.9',
    "NaN in goodput": 'metric = "goodput"\nmin = 0.9\nlimits = { ttft = nan }',
    "no such selector": 'metric = "ttft"\nstat = "p99"\nlimit = "1s"\nwhere = { model = "m" }',
}


@pytest.mark.parametrize("name", BAD_SLOS)
def test_a_limit_that_cannot_hold_is_refused_before_anything_runs(tmp_path: Path, name: str) -> None:
    file = tmp_path / "slo.toml"
    file.write_text(f"schema = 1\n[[slo]]\n{BAD_SLOS[name]}\n")
    with pytest.raises(PlanError, match=r"slo\.toml"):
        load_slos(file)


def test_a_file_without_criteria_is_refused_or_passes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "slo.toml"
    file.write_text("schema = 1\n")
    try:
        slos = load_slos(file)
    except PlanError:
        return
    assert run(tmp_path / "r", [timed_row(0, OK)]).judge(*slos).status != "PASS"


def test_a_limit_without_a_finite_bound_is_refused_by_the_gate_too(tmp_path: Path) -> None:
    found = run(tmp_path, [row(0)])
    for bad in (Slo("x", "ttft", "p99"), Slo("x", "ttft", "p99", max=math.nan), Slo("x", "ttft", "p99", min=1.0)):
        with pytest.raises(PlanError, match="finite"):
            found.judge(bad)


@pytest.mark.parametrize("every", [1, 2])
def test_refused_connections_fail_the_gate(tmp_path: Path, every: int) -> None:
    """A server that is gone: nothing was sent, and that is a failure, not a lost row."""
    refused = {"send_ns": None, "outcome": "connection_error", "http_status": None, "token_source": "none"}
    rows = [row(i, end_ns=T0 + i) | refused if i % every == 0 else timed_row(i, OK) for i in range(200)]
    verdict = run(tmp_path, rows).judge(TTFT)
    assert "rows_missing" not in [r.code for c in verdict.cells for r in c.reasons]
    assert [c.status for c in verdict.checks if c.metric == "error_rate"] == ["FAIL"]
    assert verdict.status == "FAIL"
