"""The plans for the GPU machine, and the scripts that take them there."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.plan.cells import expand
from loadtest.plan.loader import load_plan
from loadtest.server.sim.process import simulated_server

ROOT = Path(__file__).parents[2]
LAB = ROOT / "tools" / "gpu_lab"


@pytest.mark.parametrize(
    ("name", "configs", "methods"),
    [
        ("vllm-h200-ngram", ["baseline", "ngram-4", "ngram-2", "ngram-8"], {"none", "ngram"}),
        ("vllm-h200-draft", ["baseline", "draft-4", "draft-2", "draft-8"], {"none", "draft_model"}),
        ("vllm-h200", ["baseline", "draft-4", "ngram-4", "draft-8", "ngram-8", "draft-2", "ngram-2"], None),
    ],
)
def test_gamma_4_is_measured_first_and_every_load_is_there(
    name: str, configs: list[str], methods: set[str] | None
) -> None:
    plan = load_plan(ROOT / "plans" / f"{name}.toml")
    assert plan.name == name
    config_list, cells = expand(plan)
    assert list(dict.fromkeys(c.config for c in cells)) == configs
    assert methods is None or {c.method for c in config_list} == methods
    assert {(c.mix, c.load_value) for c in cells} == {
        (m, v) for m in ("code", "chat", "mixed") for v in (1, 8, 32, 128)
    }
    assert len(cells) == 12 * len(configs)
    assert all(str(c.gamma or "baseline") in c.name for c in config_list)


def test_the_two_plans_that_run_at_once_do_not_share_a_port() -> None:
    plans = [load_plan(ROOT / "plans" / f"vllm-h200-{method}.toml") for method in ("ngram", "draft")]
    ports = [{c.launch.port for c in plan.config if c.launch} for plan in plans]
    assert [len(p) for p in ports] == [4, 4]  # servers of one plan may run together too
    assert not ports[0] & ports[1]


def test_a_part_that_was_damaged_on_its_way_is_refused_and_one_that_was_not_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "01"
    folder.mkdir()
    (folder / "part.01").write_bytes(b"abc")
    (folder / "part.01.sha256").write_text(f"{hashlib.sha256(b'abc').hexdigest()}  part.01\n")
    env = {**os.environ, "LAB": str(tmp_path / "lab")}
    receive = [str(LAB / "receive.sh"), str(folder)]
    assert subprocess.run(receive, env=env, capture_output=True, check=True).stdout.startswith(b"1 parts")
    assert (tmp_path / "lab/parts/part.01").read_bytes() == b"abc"
    (folder / "part.01").write_bytes(b"abd")
    assert subprocess.run(receive, env=env, capture_output=True, check=False).returncode != 0
    assert (tmp_path / "lab/parts/part.01").read_bytes() == b"abc"


def together(*args: str | Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(LAB / "together.py"), *map(str, args)]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("left_s", "mixes", "window_s"),
    [
        (600, 3, 15.0),  # the longest that is useful
        (312, 3, 8.0),  # 2 configs of 6 s, 24 cells of 8 + 4.5 s
        (150, 1, 12.8),  # 3 mixes would get 1.4 s each
    ],
)
def test_the_attached_plan_fits_its_windows_into_the_time_left(
    tmp_path: Path, left_s: float, mixes: int, window_s: float
) -> None:
    source, out = ROOT / "plans/vllm-h200-draft.toml", tmp_path / "plans" / "attached.toml"
    (tmp_path / "datasets").symlink_to(ROOT / "datasets")
    out.parent.mkdir()
    done = together("plan", source, out, "--configs", "baseline,draft-4", "--left", str(left_s))
    assert done.returncode == 0, done.stderr
    plan, launched = load_plan(out), load_plan(source)
    assert [c.name for c in plan.config] == ["baseline", "draft-4"]
    assert [c.url for c in plan.config] == ["http://127.0.0.1:8031", "http://127.0.0.1:8032"]
    assert plan.config[1].speculative == launched.config[1].speculative
    assert (plan.target, plan.sampling, plan.slo) == (launched.target, launched.sampling, launched.slo)
    assert [m.name for m in plan.mix] == ["code", "chat", "mixed"][:mixes]
    assert plan.load.measure.duration_s == pytest.approx(window_s, abs=0.1)


def test_the_line_for_the_shell_is_the_one_of_the_plan() -> None:
    line = together("serve", ROOT / "plans/vllm-h200-ngram.toml", "ngram-4").stdout
    assert "VLLM_SERVER_DEV_MODE=1" in line
    assert "--port 8042" in line
    assert "--per-request-spec-decode-metrics detailed" in line
    assert '"method": "ngram"' in line
    assert together("serve", ROOT / "plans/vllm-h200-ngram.toml", "ngram-3").returncode != 0


def test_servers_are_waited_for_and_warmed_up_and_one_that_ended_is_told(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    (tmp_path / "datasets").symlink_to(ROOT / "datasets")
    (tmp_path / "plans").mkdir()
    with simulated_server(speed=20, model="target") as server:
        text = (ROOT / "plans/vllm-h200-draft.toml").read_text().replace("port = 8031", f"port = {server.port}")
        plan = tmp_path / "plans/p.toml"
        plan.write_text(text)
        alone = together("ready", plan, f"baseline={server.process.pid}", "--bursts", "1,4", "--seconds", "30")
        both = together("ready", plan, f"baseline={server.process.pid}", f"draft-4={ended.pid}", "--bursts", "1")
    assert alone.returncode == 0
    assert "0 of 5 requests failed" in alone.stdout
    assert both.returncode != 0
    assert "draft-4: ended" in both.stdout


def test_the_first_part_may_bring_the_state_that_runs(tmp_path: Path) -> None:
    """`repo.tar.xz` beside part 00 goes before the checkout; unpacking waits for the next part meanwhile."""
    folder, lab = tmp_path / "00", tmp_path / "lab"
    (tmp_path / "tree/tools/gpu_lab").mkdir(parents=True)
    unpack = tmp_path / "tree/tools/gpu_lab/unpack.sh"
    unpack.write_text("#!/bin/sh\necho the packed state runs\n")
    unpack.chmod(0o755)
    folder.mkdir()
    (folder / "part.00").write_bytes(b"abc")
    (folder / "stream").write_text("head_bytes=1\nlast=01\n")
    subprocess.run(["tar", "-C", str(tmp_path / "tree"), "-cJf", str(folder / "repo.tar.xz"), "tools"], check=True)
    for name in ("part.00", "repo.tar.xz"):
        digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        (folder / f"{name}.sha256").write_text(f"{digest}  {name}\n")
    subprocess.run([str(LAB / "receive.sh"), str(folder)], env={**os.environ, "LAB": str(lab)}, check=True, timeout=30)
    assert [p.name for p in (lab / "repo").iterdir()] == ["tools"]
    assert (lab / "started").exists()
