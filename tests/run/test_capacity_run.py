"""`loadtest capacity` against the simulated server, whose capacity is known: so many seats, then a queue."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from runs_kit import run, run_folder, sim, write_plan

from loadtest.capacity.drive import prepare_capacity
from loadtest.capacity.settings import BUDGET_FACTOR, Asked
from loadtest.errors import PlanError
from loadtest.merge.read import open_run
from loadtest.plan.estimate import auto_requests

SEATS = 2
"""max_num_seqs. Ten steps of 16 ms are an answer; with a user more than seats, half of them wait for another answer."""


def plan(folder: Path, **changes: object) -> Path:
    tables = {
        "load": {"concurrency": [2], "warmup": "300ms", "measure": "auto", "drain": "10s", "repeats": 1},
        "sampling": [{"name": "greedy", "temperature": 0.0, "max_tokens": 10, "ignore_eos": True}],
        "client": {"stream": False},
        "slo": [
            {"metric": "e2e", "stat": "p80", "limit": "208ms"},
            {"metric": "error_rate", "limit": "20%"},
            {"metric": "tpot", "stat": "median_ratio_to_baseline", "limit": 1.1},
        ],
        **changes,
    }
    return write_plan(folder, [sim("base", speed=0.25, max_num_seqs=SEATS)], **tables)


def test_finds_the_seats_of_the_server(tmp_path: Path) -> None:
    """The interval holds the known capacity; probes are cells of an ordinary run on one server start."""
    done = run("capacity", plan(tmp_path), "--out", tmp_path / "out", "--max", "4", "--confidence", "0.9")

    assert done.returncode == 98, done.stderr  # simulated
    folder = run_folder(tmp_path / "out")
    answer = json.loads((folder / "capacity.json").read_text())
    (found,) = answer["configs"]
    tried = {probe["load"]: probe["status"] for probe in found["probes"]}
    # A stall of a busy machine may leave a probe open; no probe may be wrong.
    assert tried[2] in ("PASS", "INCONCLUSIVE"), found
    assert tried[4] in ("FAIL", "INCONCLUSIVE"), found
    assert found["holds_at"] in (None, SEATS)
    assert found["fails_at"] in (None, SEATS + 1, SEATS + 2)
    assert answer["simulated"] is True
    assert "SIMULATED" in done.stdout
    assert "compares with the baseline" in answer["search"]["left_out"][0]
    cells = open_run(folder).cells.to_pylist()
    assert [c["load_value"] for c in cells] == list(tried)
    assert {c["state"] for c in cells} == {"done"}
    assert len(list((folder / "servers").iterdir())) == 1
    assert len(list((folder / "jobs").glob("*.json"))) == len(tried)
    assert (folder / "verdict.json").exists()
    page = (folder / "capacity.html").read_text()
    assert "SIMULATED" in page
    assert "plotly-gz" in page
    assert found["answer"] in page


RELATIVE = [{"metric": "tpot", "stat": "median_ratio_to_baseline", "limit": 1.1}]


@pytest.mark.parametrize(
    ("names", "asked", "tables", "words"),
    [
        ((), Asked(), {"slo": RELATIVE}, "no criterion for a capacity"),
        ((), Asked(), {"slo": []}, "no criterion for a capacity"),
        (("nobody",), Asked(), {}, "the plan has base"),
        ((), Asked(ceiling=1.0), {}, "lowest load 2"),
        ((), Asked(ceiling=4.5), {}, "whole for users"),
        ((), Asked(by="rate"), {}, "load.rate is missing"),
        ((), Asked(tolerance=0.0), {}, "--tolerance 0"),
        ((), Asked(confidence=1.0), {}, "--confidence 1"),
    ],
)
def test_what_cannot_be_searched_is_told_before_anything_is_written(
    tmp_path: Path, names: tuple[str, ...], asked: Asked, tables: dict[str, object], words: str
) -> None:
    with pytest.raises(PlanError, match=re.escape(words)):
        prepare_capacity(plan(tmp_path, **tables), tmp_path / "out", names, asked)
    assert not (tmp_path / "out").exists()


def test_the_level_of_a_probe_is_shared_out(tmp_path: Path) -> None:
    """8 probes at most, two criteria: (1 - 0.9) / 16 for each; the budget bears a dozen requests over the limit."""
    prepared = prepare_capacity(plan(tmp_path), tmp_path / "out", asked=Asked(ceiling=4.0, confidence=0.9))
    settings = prepared.settings
    assert settings.area.max_probes() == 8
    assert {slo.confidence for slo in settings.criteria} == {1.0 - 0.1 / 16}
    assert settings.requests == BUDGET_FACTOR * auto_requests(settings.criteria) > 150
    assert prepared.run.slos() == list(settings.criteria)


def test_the_error_budget_of_the_gate_takes_part(tmp_path: Path) -> None:
    """Without a criterion on errors the gate asks for at most 1 %: the search must be able to show it."""
    only = [{"metric": "e2e", "stat": "p80", "limit": "208ms", "where": {"load": "c2"}}]
    settings = prepare_capacity(plan(tmp_path, slo=only), tmp_path / "out").settings
    assert [slo.metric for slo in settings.criteria] == ["e2e", "error_rate"]
    assert settings.requests > 1000
    assert "`load` selector" in settings.left_out[0]


def test_a_usage_error_is_one_line(tmp_path: Path) -> None:
    done = run("capacity", plan(tmp_path), "--out", tmp_path / "out", "--config", "nobody")
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
