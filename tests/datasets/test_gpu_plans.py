"""The plans for the GPU machine, and the scripts that take them there."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from loadtest.plan.cells import expand
from loadtest.plan.loader import load_plan

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
    assert len(ports[0]) == len(ports[1]) == 1
    assert ports[0] != ports[1]


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
