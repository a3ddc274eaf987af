"""Long cells: memory that stays, files that rotate, drift that is seen."""

from __future__ import annotations

import json
import time
from pathlib import Path

import locust_kit as kit
import numpy as np
import psutil
import pyarrow as pa
import pytest

from loadtest.load.drift import Drift, live_text, write_live
from loadtest.load.records import RAW_SCHEMA
from loadtest.merge.read_raw import RawFile, worker_files
from loadtest.model import ClientSpec

MEASURE_S = 5.0
MB = 2**20


def rss_mb(pids: list[int]) -> list[float]:
    return [psutil.Process(p).memory_info().rss / MB for p in pids]


def test_memory_is_flat_without_texts_and_chunks(tmp_path: Path) -> None:
    """A quarter into the window against its end: a thousand requests and more in between leave nothing behind."""
    with kit.scripted_server(tmp_path, "--step-ms", "8", "--tokens", "2") as server:
        client = ClientSpec(workers=1, keep_text=False, keep_chunks=False)
        job = kit.make_job(tmp_path, server.url, [kit.make_cell(load_value=16.0, measure_s=MEASURE_S)], client=client)
        folder = tmp_path / "cells" / job.cells[0].cell_id
        process = kit.start_locust(job)
        try:
            assert kit.until(lambda: any(r["phase"] == "measure" for r in kit.read_rows(folder)), 30), kit.log_of(job)
            began = time.monotonic()
            pids = [process.pid, *(p.pid for p in psutil.Process(process.pid).children())]
            time.sleep(MEASURE_S / 4)
            early, rows_early = rss_mb(pids), len(kit.read_rows(folder))
            assert live_text(folder).endswith("measured")
            time.sleep(max(0.0, began + MEASURE_S - 0.7 - time.monotonic()))
            late = rss_mb(pids)
            assert process.wait(30) == 0, kit.log_of(job)
        finally:
            kit.end_tree(process.pid)
            process.wait()
    rows, done = kit.read_rows(folder), kit.load(folder / "done.json")
    assert len(rows) - rows_early > 500
    assert {r["output_text"] for r in rows} == {r["chunk_offset_us"] for r in rows} == {None}
    waiting = done["workers"]["0"]["parser_most_waiting"]  # a machine without an idle moment: parsed later, bounded
    assert late[1] - early[1] < 6 + waiting * 0.04, (early, late, waiting)
    assert late[0] - early[0] < 6, (early, late)
    assert not (folder / "live.json").exists()
    assert sum(i["n"] for i in done["drift"]) == sum(r["phase"] == "measure" for r in rows)


def test_segments_rotate_and_hold_every_row(tmp_path: Path) -> None:
    from test_worker_parts import run_python

    run_python(
        f"""
import locust
from pathlib import Path
import pyarrow as pa
from loadtest.load.records import RAW_SCHEMA
from loadtest.load.recorder import Recorder
blank = {{"worker": 0, "user": 0, "phase": "measure", "prompt_id": "p", "stratum": "s", "turn": 0,
         "prompt_sha256": "x", "clock": "user", "outcome": "ok", "token_source": "none"}}
recorder = Recorder(Path({str(tmp_path)!r}), segment_bytes=20_000)
for k in range(60):
    rows = [blank | {{"seq": k * 10 + i, "request_id": str(k * 10 + i)}} for i in range(10)]
    recorder.put(0, 10, pa.RecordBatch.from_pylist(rows, schema=RAW_SCHEMA).serialize().to_pybytes())
recorder.finish()
assert recorder.rows == {{0: 600}}
"""
    )
    files = worker_files(tmp_path)
    assert [p.name for _, p in files][:3] == ["worker-0.arrows", "worker-0-1.arrows", "worker-0-2.arrows"]
    assert len(files) > 5
    seqs = []
    for _, path in files:
        raw = RawFile(path, RAW_SCHEMA)
        seqs += pa.Table.from_batches(list(raw.batches()), RAW_SCHEMA).column("seq").to_pylist()
        assert raw.closed
        assert path.stat().st_size < 60_000
    assert seqs == list(range(600))


def test_drift_shows_in_the_status(tmp_path: Path) -> None:
    drift = Drift(window_s=600.0)
    assert drift.interval_s == 10.0
    for second in range(40):
        slower = 1.0 + second / 40
        values = {"ttft": np.full(3, 5e4), "tpot": np.full(3, 2e4 * slower), "e2e": np.full(3, 1e6)}
        counts = {"spec_steps": 10, "draft_tokens": 40, "accepted_tokens": 20 - second // 10}
        drift.add(values, counts, 3, now_s=100.0 + second)
    assert [i["n"] for i in drift.intervals] == [30, 30, 30]
    assert drift.intervals[0]["tpot_p50_us"] == pytest.approx(22_250)
    assert [i["accepted_tokens"] for i in drift.intervals] == [200, 190, 180]
    write_live(tmp_path / "live.json", drift.live(90))
    assert live_text(tmp_path) == (
        "90 measured, tpot p50 32.2 ms (+44.9% since the start), A/D 45.0% (-10.0% since the start)"
    )
    (tmp_path / "live.json").write_text(json.dumps(Drift(60).live(0)))
    assert live_text(tmp_path) == "0 measured"
    assert live_text(tmp_path / "none") == ""
