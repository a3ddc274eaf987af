"""What each server was given and gave, side by side, on a small run folder with Parquet of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loadtest.merge.read import RunData
from loadtest.merge.schema import CELLS_SCHEMA, REQUESTS_SCHEMA
from loadtest.model import Cell, ConfigSpec, SamplingSpec, to_json
from loadtest.report.sides import side_by_side

GREEDY = SamplingSpec("greedy", 0.0, 64, seed=3)


def filled(schema: pa.Schema, **values: Any) -> dict[str, Any]:
    """A row with something in every column that must not be null."""
    empty = {pa.types.is_boolean: False, pa.types.is_string: "", pa.types.is_integer: 0, pa.types.is_floating: 0.0}
    row = {f.name: None if f.nullable else next((v for kind, v in empty.items() if kind(f.type)), "") for f in schema}
    return row | values


@pytest.fixture
def world(tmp_path: Path):
    """world(prompt=…, output=…, hits=…) -> the table of a run: two configs, the second with these lengths and hits."""

    def make(prompt: int = 100, output: int = 64, hits: float = 10.0, extra_prompts: int = 0):
        cells, rows = [], []
        for n, name in enumerate(("baseline", "ngram-4")):
            cell_id = f"00{n}-{name}"
            cells.append(
                Cell(n, cell_id, name, "none", None, "m", GREEDY, "closed", 1.0, 1, 1, "s", 0.0, 1.0, None, 1.0)
            )
            given = {"prefix_cache_hits": hits if n else 10.0, "prefix_cache_queries": 100.0, "ok": 3, "state": "done"}
            rows.append(filled(CELLS_SCHEMA, cell_id=cell_id, config=name, **given))
            lengths = [(f"p{i}", prompt if n else 100, output if n else 64) for i in range(3)]
            lengths += [(f"more{i}", 900, 64) for i in range(extra_prompts * n)]
            table = [
                filled(REQUESTS_SCHEMA, cell_id=cell_id, config=name, prompt_id=p, prompt_tokens=a,
                       completion_tokens=b, phase="measure", outcome="ok")
                for p, a, b in lengths
            ]  # fmt: skip
            folder = tmp_path / "requests" / f"config={name}" / "mix=m" / "load=c1"
            folder.mkdir(parents=True)
            pq.write_table(pa.Table.from_pylist(table, REQUESTS_SCHEMA), folder / f"part-{cell_id}.parquet")
            start = tmp_path / "servers" / f"{n:02d}-{name}"
            start.mkdir(parents=True)
            serving = {"tensor_parallel_size": 1 + n}
            told = {"config": name, "model": {"chat_template_sha256": "ab"}, "serving": serving, "draft": {"model": n}}
            (start / "provenance.json").write_text(json.dumps(told | {"caches": {"prefix": "salt"}}))
        configs = [ConfigSpec(c.config, "none", None, launch={}) for c in cells]
        run = {"cells": to_json(cells), "configs": to_json(configs)}
        data = RunData(run=run, cells=pa.Table.from_pylist(rows, CELLS_SCHEMA), path=tmp_path)
        return {f.key: f for f in side_by_side(tmp_path, data).facts}

    return make


def test_equal_workloads_are_shown_and_not_red(world) -> None:
    facts = world(extra_prompts=2)
    sampling = facts["workload.sampling"]
    assert sampling.values == ("greedy: temperature 0, top_p 1, max 64, seed 3",) * 2
    tokens = facts["workload.prompt tokens"]
    assert tokens.values[0] == "mean 100.0, P50 100, P90 100, max 100, n 3"
    assert tokens.values[1].endswith("max 900, n 5")
    assert not tokens.differs, "a faster server comes further in the same order: the prompts in common are equal"
    assert facts["workload.prefix cache hit rate"].values == ("10.0 %", "10.0 %")
    assert not any(f.differs for key, f in facts.items() if key.startswith("workload"))


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"prompt": 120}, "workload.prompt tokens"),
        ({"output": 40}, "workload.output tokens"),
        ({"hits": 60.0}, "workload.prefix cache hit rate"),
    ],
)
def test_other_lengths_for_the_same_prompts_and_a_warm_cache_are_red(world, change: dict, key: str) -> None:
    facts = world(**change)
    assert [k for k, f in facts.items() if f.differs and not f.expected and k.startswith("workload")] == [key]


def test_how_it_is_served_is_red_where_it_differs_and_the_draft_may_differ(world) -> None:
    facts = world()
    assert (facts["serving.tensor_parallel_size"].differs, facts["serving.tensor_parallel_size"].expected) == (
        True,
        False,
    )
    assert facts["draft.model"].expected
    assert not facts["model.chat_template_sha256"].differs
    assert facts["caches.prefix"].values == ("salt", "salt")
