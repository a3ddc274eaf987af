"""A plan that is as small as a plan can be, and ways to change one thing in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from loadtest.plan.loader import load_plan
from loadtest.plan.schema import Plan

TARGET = '[target]\nmodel = "m"\n'
BASELINE = '[[config]]\nname = "baseline"\nlaunch = {}\n'
NGRAM = '[[config]]\nname = "ngram"\nlaunch = {}\nspeculative = { method = "ngram", num_speculative_tokens = 4 }\n'
MIX = '[[mix]]\nname = "code"\nparts = [{ dataset = "code.jsonl", warmup = "warm.jsonl" }]\n'
LOAD = "[load]\nconcurrency = [1]\nrepeats = 1\n"
SAMPLING = '[[sampling]]\nname = "greedy"\ntemperature = 0.0\nmax_tokens = 16\n'

WritePlan = Callable[..., Path]
MakePlan = Callable[..., Plan]


@pytest.fixture
def write_plan(tmp_path: Path) -> WritePlan:
    """Write a plan from sections; every section may be replaced, `more` is added at the end."""

    def write(
        *,
        top: str = "schema = 1\n",
        target: str = TARGET,
        configs: str = BASELINE + NGRAM,
        mixes: str = MIX,
        load: str = LOAD,
        sampling: str = SAMPLING,
        more: str = "",
    ) -> Path:
        rows = [{"id": f"p{i}", "prompt": f"question {i}"} for i in range(5)]
        (tmp_path / "code.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (tmp_path / "warm.jsonl").write_text('{"prompt": "warm up"}\n')
        path = tmp_path / "plan.toml"
        path.write_text(top + target + configs + mixes + load + sampling + more)
        return path

    return write


@pytest.fixture
def make_plan(write_plan: WritePlan) -> MakePlan:
    """A loaded plan, from the same sections."""
    return lambda **sections: load_plan(write_plan(**sections))
