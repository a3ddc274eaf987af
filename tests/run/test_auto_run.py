"""`loadtest run` with `measure = "auto"` on a simulated server: a clear cell ends early, an uncertain one does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from runs_kit import run, run_folder, sim, write_plan

from loadtest.merge.read import open_run

SAMPLING = [{"name": "greedy", "temperature": 0.0, "max_tokens": 60, "ignore_eos": True}]
NO_ERRORS = {"metric": "error_rate", "limit": "2%"}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run, two mixes. Half of the prompts ask for 2 tokens and half for 60, so a limit between them on the median
    is kept by exactly half: no number of requests decides that."""
    tmp_path = tmp_path_factory.mktemp("auto")
    prompts = [{"id": f"p{i}", "prompt": f"Question {i}.", "max_tokens": 60 if i % 2 else 2} for i in range(40)]
    (tmp_path / "half.jsonl").write_text("".join(json.dumps(p) + "\n" for p in prompts))
    mixes = [{"name": name, "parts": [{"dataset": "half.jsonl"}]} for name in ("clear", "torn")]
    plan = write_plan(
        tmp_path,
        [sim("base", speed=2.0)],
        measure="auto",
        mix=mixes,
        load={"concurrency": [8], "warmup": "300ms", "measure": "auto", "drain": "10s", "repeats": 1},
        sampling=SAMPLING,
        client={"stream": False},
        slo=[
            {"metric": "e2e", "stat": "p90", "limit": "5s", "where": {"mix": "clear"}},
            {"metric": "e2e", "stat": "p50", "limit": "75ms", "where": {"mix": "torn"}},
            NO_ERRORS,
        ],
    )
    done = run("run", plan, "--out", tmp_path / "out")
    assert done.returncode == 98, done.stderr
    return run_folder(tmp_path / "out")


def cell(folder: Path, mix: str) -> dict[str, Any]:
    return next(c for c in open_run(folder).cells.to_pylist() if c["mix"] == mix)


def test_a_clear_cell_ends_early(measured: Path) -> None:
    """The window ended by the looks, before the budget; what they saw is in done.json and cells.parquet."""
    clear = cell(measured, "clear")
    done = json.loads((measured / "cells" / clear["cell_id"] / "done.json").read_text())

    assert clear["auto_stopped"] is True
    assert clear["sent"] < clear["auto_budget"] == done["auto"]["budget"]
    looks = json.loads(clear["auto_looks"])
    assert looks == done["auto"]["stop"]["criteria"]
    assert {found["status"] for found in looks} == {"PASS"}
    assert all(0 < found["spent_error"] < 0.05 and len(found["looks"]) == len(found["pass_at"]) for found in looks)


def test_an_uncertain_cell_takes_its_budget(measured: Path) -> None:
    torn = cell(measured, "torn")
    assert torn["auto_stopped"] is False
    assert torn["auto_looks"] is None
    assert torn["sent"] >= torn["auto_budget"]


def test_the_gate_judges_by_the_looks(measured: Path) -> None:
    """Early PASS with the look that decided, no bound but the limit; the torn one is not decided."""
    checks = {
        (c["scope"]["mix"], c["metric"]): c for c in json.loads((measured / "verdict.json").read_text())["checks"]
    }
    clear, torn = checks["clear", "e2e"], checks["torn", "e2e"]

    assert "decided by look" in clear["reason"]
    assert "PASS" in (clear["on_these_figures"], clear["reason"].partition("otherwise ")[2][:4])
    assert clear["upper"] == 5e6
    assert clear["lower"] is None
    assert torn["status"] == "INCONCLUSIVE"
    assert 'measure = "auto"' in torn["reason"]


def test_other_criteria_at_the_gate_are_judged_by_looks_as_well(measured: Path) -> None:
    """A limit that nobody thought of while measuring: the cell ended for other reasons, so no fixed-n test."""
    slo = measured.parent / "slo.toml"
    slo.write_text('[[slo]]\nmetric = "e2e"\nstat = "p95"\nlimit = "4s"\nwhere = { mix = "clear" }\n')
    done = run("gate", measured, "--slo", slo, "--json")
    check = next(c for c in json.loads(done.stdout)["checks"] if c["metric"] == "e2e")
    assert "look" in check["reason"]
