"""verdict.json: strict JSON, valid under the published schema, readable again."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path

import jsonschema
import pytest

from loadtest.errors import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_PASS
from loadtest.judge.gate import judge_run
from loadtest.judge.verdict import EXIT_CODES, Verdict
from loadtest.model import Slo, from_json
from tests.judge.runs import cell_facts, request_rows, run_of, simple_run
from tests.judge.test_decision import PAYS_TO_8, sweep

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "verdict.schema.json").read_text(encoding="utf-8"))
SLOS = [
    Slo("ttft", "ttft", "p99", max=500_000.0),
    Slo("rel", "tpot", "median_ratio_to_baseline", max=1.02),
    Slo("lost", "e2e", "p95", max=1e6, where={"mix": "nothing"}),
]


@functools.cache
def verdicts() -> dict[str, Verdict]:
    empty = cell_facts(state="not_measured", window_start_ns=None, window_end_ns=None)
    nothing = request_rows(empty | {"window_start_ns": 0}, 0)
    return {
        "sweep": judge_run(sweep(PAYS_TO_8), SLOS),
        "simulated": judge_run(sweep({1: 0.9}, simulated=True), SLOS),
        "nan": judge_run(simple_run(500, ttft_us=None, tpot_us=[float("nan")] * 500), SLOS),
        "not measured": judge_run(run_of((empty, nothing)), SLOS),
        "no cells": judge_run(run_of(), []),
    }


@pytest.mark.parametrize("name", ["sweep", "simulated", "nan", "not measured", "no cells"])
def test_json_is_strict_and_valid(name: str) -> None:
    verdict = verdicts()[name]
    text = json.dumps(verdict.to_json(), allow_nan=False)
    assert [e.message for e in jsonschema.Draft202012Validator(SCHEMA).iter_errors(json.loads(text))] == []


def test_schema_refuses_what_is_no_verdict() -> None:
    """A schema that accepts anything would prove nothing."""
    validator = jsonschema.Draft202012Validator(SCHEMA)
    validator.check_schema(SCHEMA)
    good = verdicts()["sweep"].to_json()
    for change in ({"status": "MAYBE"}, {"exit_code": 1}, {"checks": [{}]}, {"unknown": 1}):
        assert not validator.is_valid({**good, **change})
    assert not validator.is_valid({k: v for k, v in good.items() if k != "cells"})


def test_round_trip() -> None:
    verdict = verdicts()["sweep"]
    data = json.loads(json.dumps(verdict.to_json(), allow_nan=False))
    assert data.pop("exit_code") == verdict.exit_code
    assert from_json(Verdict, data) == verdict


def test_exit_codes() -> None:
    assert EXIT_CODES == {"PASS": EXIT_PASS, "FAIL": EXIT_FAIL, "INCONCLUSIVE": EXIT_INCONCLUSIVE}
    verdict = verdicts()["no cells"]
    for status, code in (("PASS", 0), ("FAIL", 99), ("INCONCLUSIVE", 98)):
        assert dataclasses.replace(verdict, status=status).exit_code == code  # type: ignore[arg-type]


def test_not_measured_cells_say_so_and_never_pass() -> None:
    verdict = verdicts()["not measured"]
    assert verdict.cells[0].state == "not_measured"
    assert not verdict.cells[0].trusted
    assert verdict.exit_code == 98
    assert all(c.status == "INCONCLUSIVE" for c in verdict.checks)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_values_that_json_has_no_number_for_become_null(bad: float) -> None:
    verdict = verdicts()["sweep"]
    check = dataclasses.replace(verdict.checks[0], estimate=bad, upper=bad)
    written = json.dumps(dataclasses.replace(verdict, checks=(check,)).to_json(), allow_nan=False)
    assert json.loads(written)["checks"][0]["estimate"] is None
