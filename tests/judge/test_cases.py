"""Faults that fooled other tools, with their published inputs; the sources are named in each test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest.judge.claims import Claim, decide
from loadtest.judge.comparable import hit_rate, length_ratio, pair_reasons
from loadtest.judge.gate import judge_run
from loadtest.model import Slo
from loadtest.server.metrics import parse
from tests.judge.runs import PROVENANCE, MemoryRun, cell_facts, request_rows, run_of

DATA = Path(__file__).parents[1] / "data" / "judge"
MS = 1000.0


def case(name: str) -> Path:
    return next(DATA.glob(f"{name}-*"))


def load(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def records(name: str, file: str = "records.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (case(name) / file).read_text(encoding="utf-8").splitlines()]


def run_from(rows: list[dict[str, Any]], config: str = "ngram-4", copies: int = 1) -> tuple[dict[str, Any], Any]:
    """The records as request rows, `copies` times over where a claim needs more of them."""
    rows = rows * copies

    def us(key: str) -> list[int | None]:
        return [None if r.get(key) is None or not r["ok"] else int(r[key] * MS) for r in rows]

    cell = cell_facts(config)
    tokens = [r.get("completion_tokens") or (31 if r["ok"] else None) for r in rows]
    e2e = [None if not r["ok"] else int(r.get("e2e_ms", 1000) * MS) for r in rows]
    columns = {
        "outcome": ["ok" if r["ok"] else "http_error" for r in rows], "ttft_us": us("ttft_ms"), "e2e_us": e2e,
        "tpot_us": us("tpot_ms"), "completion_tokens": tokens, "chunks": [1 if t == 1 else 16 for t in tokens],
    }  # fmt: skip
    return cell, request_rows(cell, len(rows), **columns)


def counters(path: Path) -> dict[str, float]:
    samples = parse(path.read_text(encoding="utf-8"), "text/plain")
    return {s.name: s.value for s in samples}


def test_warm_prefix_cache() -> None:
    """vllm#54227: lifetime ratios hide that 90 % of the candidate's window came from the cache."""
    facts = {}
    for arm in ("baseline", "candidate"):
        before, after = (counters(case("20") / f"{arm}_{edge}.txt") for edge in ("before", "after"))
        queries, hits = (
            after[n] - before[n] for n in ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")
        )
        facts[arm] = {
            "prefix_cache_queries": queries,
            "prefix_cache_hits": hits,
            "provenance_equal": PROVENANCE, "mean_output_tokens": 128.0,
        }  # fmt: skip
    expected = load(case("20") / "expected.json")
    assert hit_rate(facts["baseline"]) == expected["baseline_hit_rate"]
    assert hit_rate(facts["candidate"]) == expected["candidate_hit_rate"]
    assert [r.code for r in pair_reasons(facts["baseline"], facts["candidate"])] == [expected["flag"]]


def test_acceptance_rate_across_different_k() -> None:
    """The rate has k in its denominator: the hint names both."""
    expected = load(case("28") / "expected.json")
    base = {
        "prefix_cache_queries": 0.0,
        "prefix_cache_hits": 0.0,
        "provenance_equal": PROVENANCE,
        "mean_output_tokens": 9.0,
    }
    (reason,) = pair_reasons({**base, "gamma": 3}, {**base, "gamma": 7})
    assert reason.seen == expected["flag"]
    assert not reason.blocking
    assert "mean_acceptance_length" in reason.do


def test_fast_rejects_look_fast() -> None:
    """7 of 10 rejected in 2 ms: failures, not fast requests; the run fails without an error criterion."""
    expected = load(case("50") / "expected.json")
    run = run_of(run_from(records("50")))
    slos = [
        Slo("e2e", "e2e", "p95", max=200 * MS),
        Slo("good", "goodput", "goodput", min=0.95, limits={"e2e": 200 * MS}),
    ]
    verdict = judge_run(run, slos)
    by_name = {c.slo: c for c in verdict.checks}
    budget = next(c for c in verdict.checks if c.implicit)
    assert budget.estimate == expected["error_rate"]
    assert budget.status == "FAIL"
    assert by_name["good"].estimate == pytest.approx(expected["goodput_ratio_e2e_le_200"])
    assert by_name["e2e"].estimate is None  # the 95th of 100 is a failure: there is no such latency
    assert by_name["e2e"].status == "FAIL"
    assert verdict.status.lower() == expected["overall"]


def test_output_length_mismatch() -> None:
    """A candidate that stops at a third of the tokens is not 2.93 times as fast."""
    expected = load(case("55") / "expected.json")
    base, cand = (run_from(records("55", f"{arm}.jsonl"), config, 200) for arm, config in
                  (("baseline", "baseline"), ("candidate", "ngram-4")))  # fmt: skip
    run = run_of(base, cand)
    cells = run.cells.to_pylist()
    assert length_ratio(cells[0], cells[1]) == pytest.approx(expected["length_ratio"], abs=1e-6)
    verdict = judge_run(run, [Slo("rel", "e2e", "median_ratio_to_baseline", max=1.0)])
    assert verdict.checks[0].status == "INCONCLUSIVE"
    assert expected["flag"] in verdict.checks[0].reason
    assert verdict.comparisons[0].reasons == (expected["flag"],)
    assert not verdict.comparisons[0].trusted
    assert verdict.decisions[0].decision != "DEPLOY"


def test_all_failed_latency_is_not_zero() -> None:
    """Every request failed: no latency, and certainly no pass."""
    expected = load(case("61") / "expected.json")
    verdict = judge_run(run_of(run_from(records("61"))), [Slo("p99", "e2e", "p99", max=200 * MS)])
    check = verdict.checks[0]
    assert check.estimate is expected["e2e_p99_ms"]
    assert "no data" in check.reason
    assert next(c for c in verdict.checks if c.implicit).estimate == expected["error_rate"]
    assert verdict.status.lower() == expected["overall"]


@pytest.mark.parametrize("bad", [float("nan"), None])
@pytest.mark.parametrize("direction", ["lower", "higher"])
def test_nan_never_passes_a_comparison(bad: float | None, direction: str) -> None:
    """k6#2540: `not (x > limit)` is true for NaN."""
    assert decide(bad, bad, 500.0, direction) == "INCONCLUSIVE"


def test_nan_in_the_rows_never_passes() -> None:
    summary = load(case("62") / "summary.json")
    assert np.isnan(summary["ttft_p99_ms"])
    cell = cell_facts(draft_acceptance_rate=float("nan"))
    nothing = {"ttft_us": None, "tpot_us": [float("nan")] * 400, "draft_tokens": None, "spec_steps": None,
               "accepted_tokens": None}  # fmt: skip
    slos = [
        Slo("a", "ttft", "p99", max=500 * MS), Slo("b", "tpot", "p50", max=50 * MS),
        Slo("c", "draft_acceptance_rate", "pooled", min=0.5),
    ]  # fmt: skip
    verdict = judge_run(run_of((cell, request_rows(cell, 400, **nothing))), slos)
    assert [c.status for c in verdict.checks[:3]] == ["INCONCLUSIVE"] * 3
    assert verdict.exit_code != 0
    assert "NaN" not in json.dumps(verdict.to_json(), allow_nan=False)


def test_missing_or_disjoint_baseline() -> None:
    """Nothing compared is not "0 regressions"."""
    expected = load(case("64") / "expected.json")
    slo = Slo("rel", "tpot", "median_ratio_to_baseline", max=1.1)
    lone, other = cell_facts(load=16), cell_facts("baseline", load=8)
    for parts in ([(lone, request_rows(lone))], [(other, request_rows(other)), (lone, request_rows(lone))]):
        verdict = judge_run(run_of(*parts), [slo])
        assert (verdict.exit_code != 0) is expected["exit_code_nonzero"]
        assert "no_baseline" in verdict.checks[0].reason
        assert sum(c.pairs for c in verdict.comparisons) == expected["compared"]


def test_implausible_improvement() -> None:
    """TTFT 0 and one token: a candidate that measured nothing is no 100 % improvement."""
    base, cand = load(case("65") / "baseline.json"), load(case("65") / "candidate.json")
    cells = []
    for config, told in (("baseline", base), ("ngram-4", cand)):
        facts = cell_facts(config)
        columns = {"ttft_us": int(told["ttft_p50_ms"] * MS), "completion_tokens": told["completion_tokens_mean"]}
        cells.append((facts, request_rows(facts, 400, **columns)))
    verdict = judge_run(run_of(*cells), [Slo("rel", "ttft", "median_ratio_to_baseline", max=1.1)])
    assert verdict.status != "PASS"
    assert "implausible_values" in {r.code for r in verdict.cells[1].reasons}
    assert "zero TTFT" in next(r.seen for r in verdict.cells[1].reasons if r.code == "implausible_values")


def test_goodput_needs_all_limits_and_counts_all_sent() -> None:
    """2 of 5 are good: the one without a TPOT is judged on its TTFT, the failed one counts in the denominator."""
    expected, config = load(case("67") / "expected.json"), load(case("67") / "config.json")
    limits = {"ttft": config["goodput"]["ttft_ms"] * MS, "tpot": config["goodput"]["tpot_ms"] * MS}
    cell, rows = run_from(records("67"))
    run: MemoryRun = run_of((cell, rows))
    check = judge_run(run, [Slo("g", "goodput", "goodput", min=0.5, limits=limits)]).checks[0]
    assert check.n == expected["sent"]
    assert check.over == expected["sent"] - expected["good"]
    assert check.estimate == pytest.approx(expected["goodput_ratio"])


def test_claim_without_figures_is_inconclusive() -> None:
    """The default of every field of a claim is "no figure", never 0."""
    claim = Claim("INCONCLUSIVE", "nothing")
    assert (claim.estimate, claim.lower, claim.upper, claim.over) == (None, None, None, None)
