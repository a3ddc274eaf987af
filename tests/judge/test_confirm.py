"""The plan of a confirming run: right config, loads, prompts, requests; valid; nothing overwritten."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from loadtest.errors import InputError
from loadtest.judge.confirm import write_confirm_plan
from loadtest.judge.toml_text import toml_of
from loadtest.merge.read import RunData, open_run
from loadtest.model import Message, Prompt, Slo, to_json
from loadtest.plan.cells import expand
from loadtest.plan.loader import load_plan
from tests.judge.test_decision import sweep
from tests.judge.test_files import write

SLO = Slo("ttft p99 <= 500ms", "ttft", "p99", max=500_000.0)
PLAN: dict[str, Any] = {
    "schema": 1, "name": "night", "seed": 7, "target": {"model": "m"},
    "config": [{"name": "baseline", "sim": {}, "baseline": True}, {"name": "second", "sim": {}},
               {"name": "ngram-4", "sim": {},
                "speculative": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 5}},
               {"name": "eagle3", "sim": {},
                "speculative": {"method": "eagle3", "model": "e", "num_speculative_tokens": 2}}],
    "sweep": {"num_speculative_tokens": [4]},
    "mix": [{"name": "code", "parts": [{"dataset": "code.jsonl"}]},
            {"name": "chat", "parts": [{"dataset": "chat.jsonl"}]}],
    "load": {"concurrency": [1, 8, 32], "measure": "60s", "repeats": 2},
    "sampling": [{"name": "greedy", "temperature": 0.0, "max_tokens": 64}],
    "slo": [{"metric": "ttft", "stat": "p99", "limit": "500ms"},
            {"metric": "draft_acceptance_rate", "min": 0.1, "where": {"config": "ngram*"}}],
}  # fmt: skip


def picked_run(tmp_path: Path, prompts: int = 1000, **changes: Any) -> RunData:
    """ngram-4 pays up to 8 streams; eagle3-4 is better and pays up to 8 as well. 400 of the prompts were sent."""
    run = sweep({1: 1.5, 8: 1.2, 32: 0.7}, configs={"ngram-4": 1.0, "eagle3-4": 1.1}, **changes)
    run.run.update(plan=PLAN)
    folder = tmp_path / "run"
    folder.mkdir()
    opened = write(run, folder)
    (folder / "prompts").mkdir()
    pool = [Prompt(f"p{i}", "edit", (Message("user", f"Task {i}"),), unit_tests="assert f()") for i in range(prompts)]
    warm = [Prompt(f"w{i}", "warm", (Message("user", f"Warm {i}"),)) for i in range(20)]
    for name, items in (("code", pool), ("code.warmup", warm)):
        text = "".join(json.dumps(to_json(p)) + "\n" for p in items)
        (folder / "prompts" / f"{name}.jsonl").write_text(text, encoding="utf-8")
    return open_run(opened.path)


def test_confirms_the_best_on_fresh_prompts(tmp_path: Path) -> None:
    out = tmp_path / "c.toml"
    told = write_confirm_plan(picked_run(tmp_path), [SLO], out)
    plan = load_plan(out)
    assert [c.name for c in plan.config] == ["baseline", "second", "eagle3-4"]
    assert [c.baseline for c in plan.config] == [True, None, None]
    assert [m.name for m in plan.mix] == ["code"]
    assert plan.load.concurrency == [1, 8]
    assert plan.seed != 7
    assert (plan.load.measure.requests, plan.load.repeats) == (1000, 3)
    assert [s.metric for s in plan.slo] == ["ttft"]
    rows = [json.loads(line) for line in (tmp_path / "c.code.0.jsonl").read_text().splitlines()]
    assert {r["id"] for r in rows} == {f"p{i}" for i in range(400, 1000)}
    assert rows[0]["tests"] == "assert f()"
    configs, cells = expand(plan)
    assert len(cells) == 3 * 2 * 3
    assert next(c for c in configs if c.name == "eagle3-4").speculative == {
        "method": "eagle3", "model": "e", "num_speculative_tokens": 4,
    }  # fmt: skip
    text = out.read_text()
    for words in ("eagle3-4, picked after run run", "ahead of ngram-4", "600 prompts that this run did not send",
                  "Left out, since it selects nothing here"):  # fmt: skip
        assert words in text
        assert words in told


def test_prompts_repeat_only_where_none_are_left(tmp_path: Path) -> None:
    out = tmp_path / "c.toml"
    assert "all 420 prompts again, only 20 were not sent" in write_confirm_plan(
        picked_run(tmp_path, prompts=420), [SLO], out
    )
    assert len((tmp_path / "c.code.0.jsonl").read_text().splitlines()) == 420


def test_another_config_can_be_asked_for(tmp_path: Path) -> None:
    write_confirm_plan(picked_run(tmp_path), [SLO], tmp_path / "c.toml", config="ngram-4")
    plan = load_plan(tmp_path / "c.toml")
    assert [c.name for c in plan.config] == ["baseline", "second", "ngram-4"]
    assert len(plan.slo) == 2
    with pytest.raises(InputError, match="it has ngram-4, eagle3-4"):
        write_confirm_plan(open_run(tmp_path / "run"), [SLO], tmp_path / "d.toml", config="ngram")


def test_thin_margins_ask_for_more_requests(tmp_path: Path) -> None:
    """2 of 400 over: about 0.5 %; 19 of 20 windows certify P99 from a few thousand requests on."""
    slow = [900_000 if i in (100, 300) else 50_000 for i in range(400)]
    data = picked_run(tmp_path, rows={"ttft_us": slow})
    write_confirm_plan(data, [Slo("t", "ttft", "p99", max=500_000.0)], tmp_path / "c.toml", config="eagle3-4")
    requests = load_plan(tmp_path / "c.toml").load.measure.requests
    assert requests is not None
    assert 3000 <= requests <= 8000


def test_nothing_is_overwritten_and_nothing_is_left_behind(tmp_path: Path) -> None:
    data = picked_run(tmp_path)
    (tmp_path / "c.code.warmup.jsonl").write_text("mine")
    with pytest.raises(InputError, match=r"c\.code\.warmup\.jsonl exists"):
        write_confirm_plan(data, [SLO], tmp_path / "c.toml")
    assert (tmp_path / "c.code.warmup.jsonl").read_text() == "mine"
    assert not (tmp_path / "c.toml").exists()
    with pytest.raises(InputError, match="is no folder"):
        write_confirm_plan(data, [SLO], tmp_path / "missing" / "c.toml")


def test_a_run_without_a_winner_has_nothing_to_confirm(tmp_path: Path) -> None:
    run = sweep({1: 0.8})
    run.run.update(plan=PLAN)
    data = write(run, tmp_path)
    with pytest.raises(InputError, match="no config may be deployed"):
        write_confirm_plan(data, [SLO], tmp_path / "c.toml")


def test_a_run_without_its_plan_says_so(tmp_path: Path) -> None:
    data = write(sweep({1: 1.5}), tmp_path)
    with pytest.raises(InputError, match="holds no plan"):
        write_confirm_plan(data, [SLO], tmp_path / "c.toml")


def test_toml_reads_back_as_it_was() -> None:
    value: dict[str, Any] = {
        "a": 1, "big": 2**53, "f": 0.1, "tiny": 1e-09, "yes": True, "none": [], "text": 'quote " \\ tab \t é \x7f \x01',
        "table": {"k v": [1, "x", {"y": {}}], "n": {"m": False}}, "list": [{"x": 1}, {"x": 2}],
    }  # fmt: skip
    assert tomllib.loads(toml_of(value)) == value
    assert tomllib.loads(toml_of({"gone": None, "t": {"gone": None}})) == {"t": {}}
    with pytest.raises(ValueError, match="TOML holds no"):
        toml_of({"a": float("nan")})
