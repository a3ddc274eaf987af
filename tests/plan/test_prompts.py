"""The prompt files of a run, and the wall between warm-up and measurement."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtest.errors import DatasetError
from loadtest.model import Prompt, from_json
from loadtest.plan.loader import load_plan
from loadtest.plan.order import PromptOrder
from loadtest.plan.prompts import load_mixes, write_prompts
from loadtest.plan.rows import content_sha256
from loadtest.plan.starter import DEMO_PLAN

from .conftest import MIX, MakePlan, WritePlan


def read(path: Path) -> list[Prompt]:
    return [from_json(Prompt, json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def test_files_parts_and_weights(write_plan: WritePlan, tmp_path: Path) -> None:
    (tmp_path / "talk.jsonl").write_text(
        '{"id": "t", "turns": ["one", "two"], "category": "k"}\n{"id": "u", "turns": [3], "category": "k"}\n'
    )
    parts = (
        'parts = [{ dataset = "code.jsonl", weight = 2, warmup = "warm.jsonl", limit = 2 }, '
        '{ dataset = "talk.jsonl", weight = 0.5, on_error = "skip", warmup = "warm.jsonl" }]\n'
    )
    plan = load_plan(write_plan(mixes='[[mix]]\nname = "all"\n' + parts))
    run = tmp_path / "run"
    files, weights = write_prompts(plan, run)
    assert files == {"all": "prompts/all.jsonl", "all.warmup": "prompts/all.warmup.jsonl"}
    assert weights == {"all": (2.0, 0.5)}
    prompts = read(run / files["all"])
    assert [(p.prompt_id, p.part, p.stratum) for p in prompts] == [("p0", 0, "code"), ("p1", 0, "code"), ("t", 1, "k")]
    assert prompts[2].later_turns == ("two",)
    assert [p.messages[0].content for p in read(run / files["all.warmup"])] == ["warm up"]
    told = json.loads((run / "prompts" / "datasets.json").read_text())["all"]
    assert [entry["dataset"] for entry in told] == ["code.jsonl", "talk.jsonl", "warm.jsonl"]
    assert told[1]["skipped"] == {"turns[0] must be a text, not the number 3": 1}
    order = PromptOrder([p.part for p in prompts], weights["all"], 1)
    assert {order.at(seq)[0] for seq in range(5)} == {0, 1, 2}


def test_ids_that_stand_in_two_data_sets_are_told_apart(write_plan: WritePlan, tmp_path: Path) -> None:
    """Rows are paired between configs by prompt id, and many public data sets count from 1."""
    parts = (
        'parts = [{ dataset = "code.jsonl", warmup = "warm.jsonl" }, { dataset = "b.jsonl", warmup = "warm.jsonl" }]'
    )
    (tmp_path / "b.jsonl").write_text('{"id": "p0", "prompt": "another"}\n{"id": "q", "prompt": "x"}\n')
    (mix,) = load_mixes(load_plan(write_plan(mixes='[[mix]]\nname = "m"\n' + parts + "\n")))
    assert [p.prompt_id for p in mix.prompts] == ["part0:p0", "p1", "p2", "p3", "p4", "part1:p0", "q"]


def test_first_turn_only_on_request(write_plan: WritePlan, tmp_path: Path) -> None:
    path = write_plan(mixes=MIX + 'turns = "first"\n')
    (tmp_path / "code.jsonl").write_text('{"turns": ["one", "two"]}')
    assert load_mixes(load_plan(path))[0].prompts[0].later_turns == ()


def test_a_measured_prompt_in_the_warm_up_is_an_error_across_mixes(write_plan: WritePlan, tmp_path: Path) -> None:
    path = write_plan(mixes=MIX + MIX.replace('"code"', '"chat"').replace("code.jsonl", "chat.jsonl"))
    (tmp_path / "chat.jsonl").write_text('{"id": "c", "prompt": "warm up"}')
    run = tmp_path / "run"
    with pytest.raises(DatasetError, match=r'of mix "code" is measured too .*"c" of mix "chat"'):
        write_prompts(load_plan(path), run)
    assert not run.exists()


def test_a_bad_row_stops_before_anything_is_written(make_plan: MakePlan, tmp_path: Path) -> None:
    plan = make_plan()
    (tmp_path / "code.jsonl").write_text('{"prompt": 1}')
    with pytest.raises(DatasetError, match=r"code\.jsonl: line 1"):
        write_prompts(plan, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_bundled_prompts_make_the_demo(tmp_path: Path) -> None:
    files, _ = write_prompts(load_plan(DEMO_PLAN), tmp_path)
    code, chat, warm = (read(tmp_path / files[name]) for name in ("code", "chat", "code.warmup"))
    assert min(len(code), len(chat)) >= 64
    assert warm
    assert any(p.unit_tests for p in code)
    measured = {content_sha256(p.messages) for p in [*code, *chat]}
    assert not measured & {content_sha256(p.messages) for p in warm}
