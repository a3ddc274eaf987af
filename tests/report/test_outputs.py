"""Files for CI and dashboards, and the text for a terminal."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from rich.cells import cell_len

from loadtest.judge.verdict import Check, Scope, Verdict
from loadtest.merge.read import RunData
from loadtest.model import NOT_MEASURED
from loadtest.report import github, junit, machines, summary
from loadtest.report.criteria import by_criterion, by_criterion_and_config, ranked
from loadtest.report.tables import Row, build_rows
from loadtest.report.terminal import PIPED_WIDTH, terminal_text

NASTY = "no\x00 \x1b[31m \ud800 </failure> & \uffff end"


def check(status: str = "FAIL", *, config: str = "ngram-4", load: str = "c8", **changes: Any) -> Check:
    """A TTFT p99 of 700 ms (600 to 900) against 500 ms; the repeats pooled."""
    scope = Scope(config, "ngram", 4, "code", "greedy", load, 8.0, None, None, ("a", "b"))
    facts: dict[str, Any] = {
        "slo": "ttft p99 <= 500ms",
        "metric": "ttft",
        "stat": "p99",
        "unit": "us",
        "direction": "lower",
        "limit": 500_000.0,
        "confidence": 0.95,
        "status": status,
        "reason": f"{status}: p99 700 ms",
        "scope": scope,
        "estimate": 700_000.0,
        "lower": 600_000.0,
        "upper": 900_000.0,
        "n": 1000,
    }
    return Check(**facts | changes)


def verdict_of(*checks: Check, **changes: Any) -> Verdict:
    facts: dict[str, Any] = {
        "run_id": "run",
        "plan_sha256": "ab",
        "tool_version": "0",
        "status": "FAIL",
        "sentence": "FAIL: one fails",
        "simulated": False,
        "synthetic_acceptance": False,
        "checks": checks,
        "cells": (),
    }
    return Verdict(**facts | changes)


def test_junit_counts_and_kinds() -> None:
    """FAIL is a failure, INCONCLUSIVE an error of its own type, nothing is skipped; shown-only checks are left out."""
    shown = check("FAIL", gating=False)
    other = check("INCONCLUSIVE", load="c32")
    root = ET.fromstring(junit.render(verdict_of(check("PASS"), check("FAIL"), other, shown)))
    suites = {s.get("name"): s for s in root}

    assert {k: root.get(k) for k in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4", "failures": "2", "errors": "1", "skipped": "0",
    }  # fmt: skip
    assert list(suites) == [
        "ngram-4 / code / greedy / c8 / all repeats",
        "ngram-4 / code / greedy / c32 / all repeats",
        "verdict",
    ]
    assert [s.get("tests") for s in root] == ["2", "1", "1"]
    assert [e.get("type") for e in root.iter("error")] == ["inconclusive"]
    assert [e.get("type") for e in root.iter("failure")] == ["slo", "verdict"]
    for suite in root:
        assert suite.get("failures") == str(len(suite.findall("testcase/failure")))
        assert suite.get("errors") == str(len(suite.findall("testcase/error")))
        assert suite.get("tests") == str(len(suite.findall("testcase")))


def test_junit_body_has_the_figures() -> None:
    """GitLab drops attributes: estimate, bounds, limit and n are in the text."""
    root = ET.fromstring(junit.render(verdict_of(check())))
    body = root.find("testsuite/testcase/failure")

    assert body is not None
    assert "ttft p99 ≤ 500 ms; estimate 700 ms; bounds 600 ms to 900 ms at 95 %; n 1000" in (body.text or "")


def test_junit_survives_what_xml_cannot_hold() -> None:
    """NUL, escape, a lone surrogate and U+FFFF from a server's log: replaced, the rest kept, the file well-formed."""
    root = ET.fromstring(junit.render(verdict_of(check(reason=NASTY), sentence=NASTY)))
    text = root.findtext("testsuite/testcase/failure") or ""

    assert "no\ufffd \ufffd[31m \ufffd </failure> & \ufffd end" in text


def test_junit_of_an_inconclusive_run_is_never_green(world: tuple[RunData, Verdict]) -> None:
    """Even without a criterion the run as a whole is an error; SIMULATED is in every suite name."""
    root = ET.fromstring(junit.render(verdict_of(status="INCONCLUSIVE")))
    simulated = ET.fromstring((world[0].path / "junit.xml").read_bytes())

    assert (root.get("tests"), root.get("errors")) == ("1", "1")
    assert all("SIMULATED" in (s.get("name") or "") for s in [simulated, *simulated])


def bencher(rows: list[Row], verdict: Verdict) -> Any:
    return json.loads(machines.bmf(machines.figures_of(rows, verdict)))


def test_bencher_takes_bounds_where_a_check_judged_the_same_figure(
    real_world: tuple[RunData, Verdict], rows: dict[str, Row]
) -> None:
    """TTFT p99 of the line is 40 ms: a check of 40 ms lends its bounds, one of another figure does not."""
    same = check(estimate=40_000.0, lower=30_000.0, upper=None)
    row = replace(rows["ngram-4"], simulated=False)
    line = "ngram-4 / code / greedy / c8"

    assert bencher([row], verdict_of(same))[line]["ttft_p99_us"] == {"value": 40_000.0, "lower_value": 30_000.0}
    assert bencher([row], verdict_of(check()))[line]["ttft_p99_us"] == {"value": 40_000.0}


def test_figures_that_only_a_check_has_are_added(rows: dict[str, Row]) -> None:
    """An error rate with its bounds, under the direction that the metric declares."""
    errors = check(metric="error_rate", stat="rate", unit="share", estimate=0.25, lower=0.01, upper=0.75)
    row = replace(rows["ngram-4"], simulated=False)
    figures = machines.figures_of([row], verdict_of(errors))
    small = {e["name"]: e for e in json.loads(machines.smaller_is_better(figures))}
    entry = small["ngram-4 / code / greedy / c8 error_rate"]

    assert entry["range"] == "0.01 to 0.75"
    assert entry["extra"] == "n=1000, range: one-sided bounds at 95 %"
    assert bencher([row], verdict_of(errors))["ngram-4 / code / greedy / c8"]["error_rate"] == {
        "value": 0.25, "lower_value": 0.01, "upper_value": 0.75,
    }  # fmt: skip


def test_a_check_of_one_of_two_repeats_is_not_the_figure_of_the_line(rows: dict[str, Row]) -> None:
    """The line pools two repeats."""
    one = check(metric="error_rate", stat="rate", unit="share", estimate=0.25)
    assert one.scope is not None
    one = replace(one, scope=replace(one.scope, repeat=1))

    assert "error_rate" not in bencher([rows["ngram-4"]], verdict_of(one))["SIMULATED ngram-4 / code / greedy / c8"]


def test_exports_leave_out_what_is_not_measured_or_undefined(world: tuple[RunData, Verdict]) -> None:
    """No zero in place of a missing figure; every name says SIMULATED; each direction in its own file."""
    folder = world[0].path / "exports"
    names = json.loads((folder / "bencher.json").read_text())
    small = json.loads((folder / "benchmark-smaller-is-better.json").read_text())
    big = json.loads((folder / "benchmark-bigger-is-better.json").read_text())

    assert set(names) == {f"SIMULATED {c} / code / greedy / c8" for c in ("baseline", "ngram-4", "suffix-4")}
    assert "draft_acceptance_rate" not in names["SIMULATED suffix-4 / code / greedy / c8"]
    assert names["SIMULATED ngram-4 / code / greedy / c8"]["draft_acceptance_rate"]["value"] == 0.5
    assert all({"name", "unit", "value", "extra"} <= set(e) for e in small + big)
    assert all(e["name"].startswith("SIMULATED ") and e["extra"].endswith("SIMULATED") for e in small + big)
    assert {e["name"].split()[-1] for e in big} == {
        "output_tok_s", "draft_acceptance_rate", "mean_acceptance_length", "coverage",
    }  # fmt: skip
    assert {"ttft_p99_us", "error_rate"} <= {e["name"].split()[-1] for e in small}


def test_step_summary_stays_below_the_limit() -> None:
    """20,000 failing checks with long reasons: the verdict line is there, the size is bounded."""
    many = [check(config=f"c{i}", slo=f"slo {i}", reason="x " * 2000) for i in range(20_000)]
    content = github.step_summary(verdict_of(*many, sentence="y" * 2_000_000))

    assert len(content) < 1024 * 1024
    assert content.startswith(b"## FAIL: run")
    assert "20000 failed, 0 inconclusive, 0 passed checks." in content.decode()


def test_annotations_are_three_at_most_and_one_line_each() -> None:
    """The worst first; commas, colons and line ends cannot break the command."""
    checks = [check("INCONCLUSIVE"), *[check("FAIL", slo="a: b, c", reason="50 %\n::error::x") for _ in range(5)]]
    lines = github.annotation_lines(verdict_of(*checks))

    assert len(lines) == 3
    assert all(line.startswith("::error title=FAIL a%3A b%2C c::ngram-4 / code") for line in lines)
    assert all("\n" not in line and "50 %25 ::error::x" in line for line in lines)


def test_step_summary_and_annotations_say_simulated(world: tuple[RunData, Verdict]) -> None:
    """Where they are read, the banner of the page is far away."""
    assert github.step_summary(world[1]).startswith(b"## SIMULATED INCONCLUSIVE")
    assert all("SIMULATED" in line for line in github.annotation_lines(world[1]))


def test_summary_is_bounded() -> None:
    """20,000 checks of 200 configs: 100 lines of criteria, and where the rest is."""
    many = [check(config=f"c{i % 200}", load=f"c{i}", reason="x " * 2000) for i in range(20_000)]
    run = {"run_id": "r", "plan_sha256": "ab", "tool_version": "0"}
    text = summary.render(run, [], verdict_of(*many)).decode()

    assert len(text) < 100_000
    assert "100 more lines in report.html." in text
    assert "All 20000 checks are in verdict.json." in text


def test_worst_comes_first() -> None:
    """By status, then by how far the figure is beyond its limit; a floor counts the other way round."""
    near, far = check(estimate=510_000.0), check(estimate=900_000.0)
    floor = check(direction="higher", limit=0.3, estimate=0.1, unit="share")
    order = ranked([check("PASS"), near, check("INCONCLUSIVE"), far, floor])

    assert [c.status for c in order] == ["FAIL", "FAIL", "FAIL", "INCONCLUSIVE", "PASS"]
    assert order[:3] == [floor, far, near]


def test_groups_count_gating_checks_only() -> None:
    """One per criterion, or per criterion and config with the failing ones first."""
    checks = [check("PASS", config="a"), check("FAIL", config="b"), check("PASS", config="b", gating=False)]
    (whole,) = by_criterion(checks)

    assert [whole.count(s) for s in ("PASS", "FAIL", "INCONCLUSIVE")] == [1, 1, 0]
    assert [(g.config, g.worst.status) for g in by_criterion_and_config(checks)] == [("b", "FAIL"), ("a", "PASS")]


def test_terminal_text_of_a_pipe(world: tuple[RunData, Verdict]) -> None:
    """No colours, no line wider than a CI log, SIMULATED first, the verdict and the path last."""
    text = terminal_text(world[0], world[1], build_rows(world[0]))
    lines = text.splitlines()

    assert lines[0].startswith("SIMULATED")
    assert lines[-1] == f"report: {world[0].path / 'report.html'}"
    assert "\x1b" not in text
    assert "\x00" not in text
    assert all(cell_len(line) <= PIPED_WIDTH for line in lines[:-1])
    assert re.search(r"^INCONCLUSIVE \(exit code 98\): SIMULATED", text, re.MULTILINE)
    assert len(lines) < 40


def test_terminal_table_keeps_its_figures_and_cuts_names(world: tuple[RunData, Verdict]) -> None:
    """A name of 90 letters gives way; the figures of its line stay whole."""
    rows = [replace(r, config="x" * 90) if r.config == "ngram-4" else r for r in build_rows(world[0])]
    text = terminal_text(world[0], world[1], rows)
    (line,) = [x for x in text.splitlines() if "xxx" in x]

    assert "xx…" in line
    assert cell_len(line) <= PIPED_WIDTH
    assert [f in line for f in ("3 / 4", "50.0 %", "3.00", "60.0 %", "200 ms", "1.50", "40.0 ms†", "18.9 ms†")] == [
        True
    ] * 8
    assert [x for x in text.splitlines() if "eagle3-4" in x and NOT_MEASURED in x]


def test_terminal_text_of_a_large_run_stays_short(world: tuple[RunData, Verdict]) -> None:
    """200 lines of results and 200 criteria: what is left out is told, the verdict is still last."""
    rows = [replace(r, config=f"{r.config}{i}") for i in range(50) for r in build_rows(world[0])]
    verdict = replace(world[1], checks=tuple(check(slo=f"slo {i}") for i in range(200)), cells=())
    lines = terminal_text(world[0], verdict, rows).splitlines()

    assert "160 more lines in summary.md" in lines
    assert "160 more in summary.md" in lines
    assert len(lines) < 170
    assert lines[-1].startswith("report: ")


@pytest.mark.parametrize("status", ["PASS", "FAIL", "INCONCLUSIVE"])
def test_a_real_run_never_says_simulated(real_world: tuple[RunData, Verdict], status: str) -> None:
    """The mark must mean something."""
    verdict = replace(real_world[1], status=status, simulated=False)
    text = terminal_text(real_world[0], verdict, build_rows(real_world[0]))
    whole = text + summary.render(real_world[0].run, build_rows(real_world[0]), verdict).decode()
    whole += junit.render(verdict).decode() + github.step_summary(verdict).decode()

    assert "SIMULATED" not in whole
    assert f"{status} (exit code {verdict.exit_code})" in text
