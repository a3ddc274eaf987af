"""The same verdict from Parquet files as from memory, and fast enough for a CI job."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from loadtest.judge.gate import judge_run
from loadtest.merge.read import RunData, open_run
from loadtest.model import SCHEMA_VERSION, Slo
from tests.judge.runs import MemoryRun
from tests.judge.test_decision import PAYS_TO_8, sweep

SLOS = [
    Slo("ttft", "ttft", "p99", max=500_000.0),
    Slo("rel", "tpot", "median_ratio_to_baseline", max=1.5),
    Slo("ad", "draft_acceptance_rate", "pooled", min=0.3, where={"stratum": "*"}),
]


def write(run: MemoryRun, folder: Path) -> RunData:
    """The run as the merge lays it out, several files and row groups per cell."""
    run_json = {"schema": SCHEMA_VERSION, **run.run}
    (folder / "run.json").write_text(json.dumps(run_json), encoding="utf-8")
    cells = run.cells.replace_schema_metadata({"loadtest.schema": str(SCHEMA_VERSION)})
    pq.write_table(cells, folder / "cells.parquet")
    for cell in run.cells.to_pylist():
        mine = run.table.filter(pa.compute.equal(run.table["cell_id"], cell["cell_id"]))
        place = folder / f"requests/config={cell['config']}/mix={cell['mix']}/load={cell['load']}"
        place.mkdir(parents=True, exist_ok=True)
        half = len(mine) // 2
        for k, part in enumerate((mine.slice(half), mine.slice(0, half))):
            pq.write_table(part, place / f"r{cell['repeat']}-{k}.parquet", row_group_size=50)
    return open_run(folder)


def test_files_and_memory_give_the_same_verdict(tmp_path: Path) -> None:
    """Later requests come first in the files: the judge goes by start order, not by file order."""
    run = sweep(PAYS_TO_8)
    opened = write(run, tmp_path)
    assert judge_run(opened, SLOS).to_json() == judge_run(run, SLOS).to_json()


def test_gate_changes_nothing_in_the_run_folder(tmp_path: Path) -> None:
    opened = write(sweep({1: 1.5}), tmp_path)
    before = sorted((p, p.stat().st_mtime_ns) for p in tmp_path.rglob("*"))
    judge_run(opened, SLOS)
    assert sorted((p, p.stat().st_mtime_ns) for p in tmp_path.rglob("*")) == before
