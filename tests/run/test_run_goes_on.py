"""A whole `loadtest run` over servers that behave badly: each is diagnosed, its cell is marked, the run goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import runs_kit as kit

SYNTHETIC = {**kit.NGRAM, "rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.0}
BAD = ("oom", "hangs", "lies", "mute", "dies")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder; its command's result is in `result.json` beside it."""
    root = tmp_path_factory.mktemp("run")
    port = kit.free_port()
    pids = {name: str(root / f"{name}.pids") for name in (*BAD, "synthetic")}
    configs = [
        kit.sim("baseline"),
        kit.stub("oom", "oom", port, env={"PIDS": pids["oom"], "CHILD": "1"}),
        kit.stub("hangs", "hang", port, env={"PIDS": pids["hangs"], "CHILD": "1"}),
        kit.stub("lies", "other_config", port, env={"PIDS": pids["lies"], "IGNORE_TERM": "1"}),
        kit.stub("mute", "dies_at_first", port, env={"PIDS": pids["mute"]}),
        kit.stub("dies", "dies_under_load", port, env={"PIDS": pids["dies"], "CHILD": "1"}),
        kit.stub("synthetic", "ok", port, SYNTHETIC, env={"PIDS": pids["synthetic"]}),
        kit.sim("ngram-4", kit.NGRAM),
    ]
    done = kit.run("run", kit.write_plan(root / "plan", configs), "--out", root / "out")
    told = {"code": done.returncode, "stdout": done.stdout, "stderr": done.stderr, "pids": pids}
    (root / "result.json").write_text(json.dumps(told))
    return kit.run_folder(root / "out")


def result(folder: Path) -> dict:
    return json.loads((folder.parents[1] / "result.json").read_text())


def cells(folder: Path) -> dict[str, dict]:
    return {row["config"]: row for row in pq.read_table(folder / "cells.parquet").to_pylist()}


def test_the_good_configs_are_measured_before_and_after_the_bad_ones(folder: Path) -> None:
    states = {config: row["state"] for config, row in cells(folder).items()}
    assert states == {
        "baseline": "done", "oom": "failed", "hangs": "failed", "lies": "failed", "mute": "failed",
        "dies": "unfinished", "synthetic": "done", "ngram-4": "done",
    }, result(folder)["stderr"]  # fmt: skip
    assert json.loads((folder / "run.json").read_text())["state"] == "incomplete"
    assert cells(folder)["ngram-4"]["ok"] > 0
    assert result(folder)["code"] in (98, 99), "simulated and synthetic servers never pass"


@pytest.mark.parametrize(
    ("config", "phase", "reason", "words"),
    [
        ("oom", "start", "out_of_memory", "CUDA out of memory. Tried to allocate 224.00 MiB"),
        ("hangs", "start", "hang", "the server was not ready after"),
        ("lies", "proof", "ConfigContradictionError", "num_speculative_tokens: asked 4"),
        ("mute", "proof", "engine_dead", "the engine died while it served"),
        ("dies", "measure", "engine_dead", "the engine died while it served"),
    ],
)
def test_each_failure_is_diagnosed_where_it_happened(
    folder: Path, config: str, phase: str, reason: str, words: str
) -> None:
    told = kit.failed(folder, config)
    assert (told["phase"], told["reason"]) == (phase, reason)
    assert words in told["diagnosis"]
    assert reason in cells(folder)[config]["state_reason"]
    assert f"-{config}: " in result(folder)["stderr"], "the person at the screen hears of it"


def test_nothing_is_left_of_any_server_and_the_port_is_free(folder: Path) -> None:
    import psutil

    pids = [pid for file in result(folder)["pids"].values() for pid in json.loads(Path(file).read_text())]
    assert len(pids) == len(BAD) + 1 + 3
    processes = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    assert kit.gone(processes, 5.0) == []


def test_a_contradicted_server_gets_no_load_and_says_which_field(folder: Path) -> None:
    assert not list(folder.glob("cells/*-lies-*"))
    (file,) = folder.glob("servers/??-lies/provenance.json")
    assert json.loads(file.read_text())["contradictions"] == ["speculative.num_speculative_tokens"]


def test_synthetic_acceptance_is_measured_stamped_and_never_passes(folder: Path) -> None:
    assert cells(folder)["synthetic"]["synthetic_acceptance"] is True
    verdict = json.loads((folder / "verdict.json").read_text())
    assert verdict["synthetic_acceptance"] is True
    assert "SYNTHETIC ACCEPTANCE" in verdict["sentence"]
    own = [c for c in verdict["checks"] if c["scope"] and c["scope"]["config"] == "synthetic"]
    assert own
    assert not any(c["status"] == "PASS" for c in own)
    (told,) = [c for c in verdict["cells"] if c["config"] == "synthetic"]
    assert "synthetic_acceptance" in [r["code"] for r in told["reasons"]]
