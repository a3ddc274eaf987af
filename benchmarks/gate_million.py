"""Time and memory of the gate for a million requests: `python benchmarks/gate_million.py [folder]`.

Writes a merged run of 10 cells x 100,000 requests (once per folder), judges it with criteria of every kind, chunk gaps
included, and fails above 10 s of CPU or 1.5 GB.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from loadtest.judge.gate import judge_run
from loadtest.merge.read import RunData
from loadtest.merge.schema import CELLS_SCHEMA, REQUESTS_SCHEMA
from loadtest.model import Slo

LOADS, PER_CELL, PROMPTS, CHUNKS = (1, 8, 32, 64, 128), 100_000, 2_000, 16
CPU_LIMIT_S, MEMORY_LIMIT_MB = 10.0, 1500.0
T0 = 1_700_000_000_000_000_000
SLOS = [
    Slo("ttft", "ttft", "p99", max=500_000.0),
    Slo("tpot", "tpot", "p99", max=50_000.0),
    Slo("e2e", "e2e", "p99", max=5e6),
    Slo("gap", "chunk_gap", "p99", max=100_000.0),
    Slo("good", "goodput", "goodput", min=0.9, limits={"ttft": 500_000.0, "tpot": 50_000.0}),
    Slo("ad", "draft_acceptance_rate", "pooled", min=0.3),
    Slo("rate", "output_tok_s", "rate", min=10.0),
    Slo("rel", "tpot", "median_ratio_to_baseline", max=1.05),
    Slo("strata", "ttft", "p95", max=500_000.0, where={"stratum": "*"}),
]


def table(schema: pa.Schema, n: int, values: dict[str, Any]) -> pa.Table:
    """n rows; a value that is no sequence fills its column, a missing one is null, or 0 or "" where it must not be."""
    columns = []
    for f in schema:
        value = values.get(f.name)
        if value is None and not f.nullable:
            value = "" if pa.types.is_string(f.type) else 0
        fills = value is None or isinstance(value, str | int | float | bool)
        columns.append(pa.repeat(pa.scalar(value, f.type), n) if fills else pa.array(value, f.type))
    return pa.Table.from_arrays(columns, schema=schema)


def build(folder: Path) -> None:
    rng = np.random.default_rng(1)
    cells = []
    at = np.arange(PER_CELL)
    for load in LOADS:
        for config in ("baseline", "ngram-4"):
            base = config == "baseline"
            key = {"run_id": "bench", "cell_id": f"{config}-c{load}", "config": config, "gamma": None if base else 4,
                   "method": "none" if base else "ngram", "mix": "code", "sampling": "greedy", "temperature": 0.0,
                   "load_kind": "closed", "load_value": float(load), "load": f"c{load}", "repeat": 1}  # fmt: skip
            sent = T0 + at * 600_000
            hashes = [f"{v:016x}" * 4 for v in rng.integers(0, 2**62, PER_CELL)]
            rows = table(REQUESTS_SCHEMA, PER_CELL, {
                **key, "phase": "measure", "outcome": "ok", "clock": "kernel", "token_source": "usage", "seq": at,
                "request_id": [f"{config}-{load}-{i}" for i in at], "prompt_id": [f"p{i % PROMPTS}" for i in at],
                "stratum": ["code" if i % 2 else "chat" for i in at], "prompt_sha256": hashes, "output_sha256": hashes,
                "send_ns": sent, "first_token_ns": sent + 70_000_000, "last_token_ns": sent + 400_000_000,
                "end_ns": sent + 400_000_000, "ttft_us": rng.integers(50_000, 90_000, PER_CELL),
                "e2e_us": rng.integers(300_000, 500_000, PER_CELL), "tpot_us": rng.normal(10_000, 1_000, PER_CELL),
                "completion_tokens": 31, "chunks": CHUNKS, "first_chunk_merged": False,
                "chunk_offset_us": [list(range(70_000, 70_000 + CHUNKS * 20_000, 20_000))] * PER_CELL,
                **({} if base else {"spec_steps": 10, "draft_tokens": 40}),
                "accepted_tokens": None if base else rng.integers(8, 25, PER_CELL),
            })  # fmt: skip
            place = folder / f"requests/config={config}/mix=code/load=c{load}"
            place.mkdir(parents=True)
            pq.write_table(rows, place / "part-0.parquet", row_group_size=50_000)
            cells.append({
                **dict.fromkeys(CELLS_SCHEMA.names), **key, "is_baseline": base, "simulated": False, "state": "done",
                "synthetic_acceptance": False, "sent": PER_CELL, "ok": PER_CELL, "chunks": CHUNKS * PER_CELL,
                "window_start_ns": T0, "window_end_ns": T0 + 60_000_000_000, "window_s": 60.0,
                "mean_output_tokens": 31.0, "provenance_equal": "{}", "prefix_cache_queries": 0.0,
                "prefix_cache_hits": 0.0,
            })  # fmt: skip
    pq.write_table(pa.Table.from_pylist(cells, schema=CELLS_SCHEMA), folder / "cells.parquet")


def main(folder: Path) -> int:
    if not (folder / "cells.parquet").exists():
        build(folder)
        print(f"built {folder}; judging in a fresh process, so that building does not count")
        import subprocess

        return subprocess.run([sys.executable, __file__, str(folder)], check=False).returncode
    start, cpu = time.perf_counter(), time.process_time()
    data = RunData({"run_id": "bench", "plan_sha256": "0" * 64}, pq.read_table(folder / "cells.parquet"), folder)
    verdict = judge_run(data, SLOS)
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    n = len(LOADS) * 2 * PER_CELL
    print(f"{n:,} requests, {len(verdict.checks)} checks: {wall:.1f} s ({cpu:.1f} s CPU), {memory:.0f} MB")
    return int(cpu > CPU_LIMIT_S or memory > MEMORY_LIMIT_MB)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(main(Path(sys.argv[1])))
    with tempfile.TemporaryDirectory() as temporary:
        sys.exit(main(Path(temporary)))
