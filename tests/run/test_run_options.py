"""Commands around a config, attached servers, and the sequential probe, as whole commands."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import runs_kit as kit

from loadtest.judge.gate import judge_run
from loadtest.merge.merge import merge_run
from loadtest.merge.read import open_run
from loadtest.plan.cells import client_spec, expand
from loadtest.plan.loader import load_plan
from loadtest.run import prepare, write_run
from loadtest.server.sim.process import simulated_server


def shell(text: str) -> list[str]:
    return ["sh", "-c", text]


def test_commands_run_around_a_config_and_one_that_fails_marks_it(tmp_path: Path) -> None:
    """The attached server is simulated, which contradicts a plan that says it is not: no load reaches it."""
    trace = tmp_path / "trace"
    with simulated_server(model="gemma") as server:
        attached = {
            "name": "attached",
            "url": server.url,
            "before": [shell(f"echo before $LOADTEST_CONFIG >> {trace}")],
            "after": [shell(f"echo after >> {trace}"), shell("exit 3")],
        }
        broken = {
            "name": "broken",
            "url": server.url,
            "speculative": kit.NGRAM,
            "before": [shell("echo no such deployment >&2; exit 7"), shell(f"echo never >> {trace}")],
            "after": [shell(f"echo cleaned >> {trace}")],
        }
        slow = {**broken, "name": "slow", "before": [shell("sleep 60")], "after": [], "command_timeout": "300ms"}
        plan = kit.write_plan(tmp_path / "plan", [attached, broken, slow])
        done = kit.run("run", plan, "--out", tmp_path / "out", "--no-gate")
    folder = kit.run_folder(tmp_path / "out")
    assert trace.read_text().split("\n") == ["before attached", "after", "cleaned", ""]
    assert done.returncode == 1
    assert "ended with code 3" in done.stderr, "a failing `after` is told"
    told = kit.failed(folder, "attached")
    assert (told["phase"], told["reason"]) == ("proof", "ConfigContradictionError")
    told = kit.failed(folder, "broken")
    assert (told["phase"], told["reason"]) == ("command", "CommandError")
    assert "ended with code 7" in told["diagnosis"]
    assert "no such deployment" in told["diagnosis"]
    assert "did not end within 0.3 s" in kit.failed(folder, "slow")["diagnosis"]
    states = {r["config"]: r["state_reason"] for r in pq.read_table(folder / "cells.parquet").to_pylist()}
    assert states["broken"].startswith("a command of the config failed: CommandError")
    assert list(folder.glob("cells/*")) == [], "nothing was measured"


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """(run folder, what was printed) of a probe of two configs with six requests each."""
    root = tmp_path_factory.mktemp("probe")
    plan = kit.write_plan(root / "plan", [kit.sim("baseline"), kit.sim("ngram-4", kit.NGRAM)])
    done = kit.run("probe", plan, "--out", root / "out", "--requests", "6")
    assert done.returncode == 0, done.stderr
    return kit.run_folder(root / "out"), done.stdout


def test_the_probe_asks_one_by_one_and_knows_no_first_token(probed: tuple[Path, str]) -> None:
    folder, _ = probed
    run = open_run(folder)
    every = sorted(run.requests().to_pylist(), key=lambda r: r["send_ns"])
    assert all(a["end_ns"] <= b["send_ns"] for a, b in itertools.pairwise(every)), "never two in flight"
    rows = [r for r in every if r["phase"] == "measure"]
    assert {(r["load_kind"], r["load"], r["outcome"]) for r in rows} == {("sequential", "seq1", "ok")}
    assert len(rows) == 12
    assert all(r["ttft_us"] is None and r["tpot_us"] is None and r["max_gap_us"] is None for r in rows)
    assert [r["prompt_id"] for r in rows[:6]] == [r["prompt_id"] for r in rows[6:]], "the same prompts for both"
    spec = [r for r in rows if r["config"] == "ngram-4"]
    assert all(r["spec_steps"] is not None and r["draft_tokens"] == 4 * r["spec_steps"] for r in spec)
    for cell in run.cells.to_pylist():
        assert cell["ttft_p50_us"] is None
        assert cell["residual_generation_tokens"] == 0


def test_the_table_of_the_probe_follows_from_the_rows(probed: tuple[Path, str]) -> None:
    folder, printed = probed
    every = open_run(folder).requests().to_pylist()
    rows = [r for r in every if r["config"] == "ngram-4" and r["phase"] == "measure"]
    s, d, a = (sum(r[k] for r in rows) for k in ("spec_steps", "draft_tokens", "accepted_tokens"))
    mean_s = sum(r["e2e_us"] for r in rows) / 6e6
    rate = sum(r["completion_tokens"] for r in rows) / sum(r["e2e_us"] for r in rows) * 1e6
    (line,) = [words for text in printed.splitlines() if "ngram-4" in (words := text.split())]
    assert line[:6] == ["chat", "chat", "greedy", "ngram-4", "6", "0"]
    assert line[6:8] == [f"{mean_s:.3f}", f"{rate:.1f}"]
    assert line[9:] == [str(s), str(d), str(a), f"{a / d:.3f}" if d else "undefined", f"{1 + a / s:.2f}"]
    assert "SIMULATED: made with the simulated server" in printed
    assert "TTFT, TPOT or serving throughput" in printed
    head = next(text for text in printed.splitlines() if text.startswith("data set"))
    assert not {"TTFT", "TPOT"} & set(head.split()), "no column claims what was not measured"
    page = (folder / "probe.md").read_text().removeprefix("```\n").removesuffix("```\n")
    assert printed.endswith(page + "\n")


def test_answers_of_another_server_contradict_the_cell(probed: tuple[Path, str], tmp_path: Path) -> None:
    """Every response carries the config's name; one that does not came from a server that nobody proved."""
    folder = tmp_path / "run"
    shutil.copytree(probed[0], folder)
    (provenance,) = folder.glob("cells/*-ngram-4-*/provenance.json")
    proven = json.loads(provenance.read_text())
    assert proven["fingerprint"] == "ngram-4"
    provenance.write_text(json.dumps({**proven, "fingerprint": "ngram-8"}))
    merge_run(folder)
    data = open_run(folder)
    told = {r["config"]: r["contradictions"] for r in data.cells.to_pylist()}
    assert told["baseline"] == []
    assert told["ngram-4"] == ["responses carry the fingerprint 'ngram-4', the server's own is 'ngram-8'"]
    cells = {c.config: [r.code for r in c.reasons] for c in judge_run(data, []).cells}
    assert "config_contradiction" in cells["ngram-4"]
    assert "config_contradiction" not in cells["baseline"]


def test_doctor_of_a_simulated_plan(tmp_path: Path) -> None:
    done = kit.run("doctor", kit.write_plan(tmp_path / "plan", [kit.sim("baseline")]), "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["ok"], told["vllm"]) == (True, [])
    assert {f["check"] for f in told["findings"]} >= {"python", "time stamps", "open files", "disk"}
    taken = {"name": "x", "launch": {"port": 9, "command": [sys.executable, "-c", "raise SystemExit(4)"]}}
    done = kit.run("doctor", kit.write_plan(tmp_path / "other", [taken]))
    assert done.returncode == 2
    assert "is no usable vLLM: ended with code 4" in done.stdout


def test_a_run_obeys_its_plan_alone_wherever_it_is_started(tmp_path: Path) -> None:
    """Settings of somebody's other Locust tests, a relative --out with a blank, a terminal of ASCII: all the same."""
    here = tmp_path / "other project"
    here.mkdir()
    (here / "locust.conf").write_text("run-time = 1s\ntags = none\nexpect-workers = 7\nusers = 3\n")
    plan = kit.write_plan(tmp_path / "plan", [kit.sim("baseline")])
    environ = {**os.environ, "LOCUST_RUN_TIME": "1s", "LOCUST_TAGS": "none", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        kit.command("run", plan, "--out", "out of ü", "--no-gate"),
        cwd=here, env=environ, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    folder = kit.run_folder(here / "out of ü")
    (row,) = open_run(folder).cells.to_pylist()
    assert row["state"] == "done"
    assert row["ok"] > 0
    assert 0.9 < row["window_s"] < 1.1
    told = kit.run("gate", folder, "--on-inconclusive", "warn", env={"PYTHONIOENCODING": "ascii"})
    assert told.returncode == 98, "a simulated run never ends with 0"


@pytest.mark.parametrize("below", ["file", "/proc"])
def test_an_out_folder_that_cannot_be_made_is_told_in_one_line(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("")
    plan = kit.write_plan(tmp_path / "plan", [kit.sim("baseline")])
    done = kit.run("run", plan, "--out", tmp_path / below / "reports")
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert "cannot hold a run folder" in line
    assert "--out" in line


def test_the_seeds_of_run_json_make_the_same_cells_again(tmp_path: Path) -> None:
    """Order, arrivals and salts come from the plan's seed and the run's id alone."""
    plan_file = kit.write_plan(tmp_path / "plan", [kit.sim("baseline")])
    plan = load_plan(plan_file)
    folders = [prepare(plan_file, tmp_path / "out") for _ in range(2)]
    for folder in folders:
        seeds = folder.facts["seeds"]
        assert seeds == {"plan": plan.seed, "salt_nonce": folder.path.name}
        assert expand(plan, run_nonce=seeds["salt_nonce"])[1] == folder.cells()
    first, second = (folder.cells() for folder in folders)
    assert [c.order_seed for c in first] == [c.order_seed for c in second]
    assert not {c.salt for c in first} & {c.salt for c in second}


def test_run_json_comes_last_so_a_folder_that_has_one_can_be_resumed(tmp_path: Path) -> None:
    plan_file = kit.write_plan(tmp_path / "plan", [kit.sim("baseline")])
    plan, folder = load_plan(plan_file), tmp_path / "run"
    (folder / "prompts" / "chat.jsonl").mkdir(parents=True)  # the prompts cannot be written
    with pytest.raises(IsADirectoryError):
        write_run(plan, plan_file, folder, expand(plan), client_spec(plan), [])
    assert not (folder / "run.json").exists()
    (folder / "prompts" / "chat.jsonl").rmdir()
    facts = write_run(plan, plan_file, folder, expand(plan), client_spec(plan), []).facts
    assert facts["prompt_files"].keys() == {"chat", "chat.warmup"}
    assert facts["mix_weights"] == {"chat": [1.0]}


def test_the_key_of_a_started_server_is_the_one_that_requests_carry(tmp_path: Path) -> None:
    """vLLM takes VLLM_API_KEY from the environment; no file of the run holds it."""
    plan = kit.write_plan(tmp_path / "plan", [kit.stub("mine", "ok", kit.free_port())])
    keys = {"VLLM_API_KEY": "sk-of-the-server", "OPENAI_API_KEY": "sk-of-somebody-else"}
    done = kit.run("run", plan, "--out", tmp_path / "out", "--no-gate", env=keys)
    assert done.returncode == 0, done.stderr
    folder = kit.run_folder(tmp_path / "out")
    rows = pq.read_table(next(folder.glob("requests/**/*.parquet")), columns=["http_status"]).to_pylist()
    assert {r["http_status"] for r in rows} == {200}
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert not [path for path in files if b"sk-of-" in path.read_bytes()]


def test_a_place_that_cannot_be_written_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = kit.run("init", "-o", tmp_path / "file" / "plan.toml")
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert "Not a directory" in line
    assert str(tmp_path / "file") in line
