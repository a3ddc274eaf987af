"""The plans in plans/ load, expand and find their prompts."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.plan.cells import expand
from loadtest.plan.datasets import load_dataset
from loadtest.plan.loader import load_plan

ROOT = Path(__file__).parents[2]


def test_prompt_files_read_without_a_skipped_row_and_keep_ids_tests_and_turns() -> None:
    found = {name: load_dataset(ROOT / "datasets" / f"{name}.jsonl") for name in ("code", "chat", "warmup")}
    assert {name: len(d.skipped) for name, d in found.items()} == {"code": 0, "chat": 0, "warmup": 0}
    code = {p.prompt_id: p for p in found["code"].prompts}
    assert code["code-fib-013"].unit_tests
    assert code["code-fib-013"].stratum == "function"
    chat = {p.prompt_id: p for p in found["chat"].prompts}
    assert len(chat["chat-itinerary-065"].later_turns) == 2


@pytest.mark.parametrize(
    ("name", "configs", "cells", "methods"),
    [
        ("vllm-cpu", 5, 40, {"none", "ngram", "suffix", "draft_model", "eagle3"}),
        ("vllm-cpu-full", 9, 144, {"none", "ngram", "suffix", "draft_model", "eagle3"}),
    ],
)
def test_plan_expands_to_the_matrix_that_its_comment_promises(
    name: str, configs: int, cells: int, methods: set[str]
) -> None:
    plan = load_plan(ROOT / "plans" / f"{name}.toml")
    assert plan.name == name
    config_list, cell_list = expand(plan)
    assert (len(config_list), len(cell_list)) == (configs, cells)
    assert {c.method for c in config_list} == methods
    assert sum(c.is_baseline for c in config_list) == 1
    assert {(c.sampling.name, c.sampling.ignore_eos) for c in cell_list} == {("greedy", True), ("sampled", True)}
    gammas = {c.gamma for c in config_list if c.gamma is not None}
    assert gammas == {2, 4}
