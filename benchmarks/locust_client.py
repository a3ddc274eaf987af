"""A full Locust run (master, one worker, recording on) against a URL, as `loadtest run` starts it.

Used by fidelity.py, peers.py and the other benchmarks.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
from usage import watch

from loadtest.load.launch import locust_argv, locust_env
from loadtest.model import Cell, ClientSpec, ConfigSpec, LoadJob, SamplingSpec, to_json


def job_of(
    folder: Path, url: str, streams: int, warmup_s: float, measure_s: float, pace_s: float, workers: int = 1
) -> LoadJob:
    """A job of one closed-loop cell; writes its prompt files."""
    files = {}
    for name, n in (("bench", 256), ("bench.warmup", 32)):
        lines = [
            {
                "prompt_id": f"{name}-{i}",
                "stratum": "bench",
                "messages": [{"role": "user", "content": f"Text {i}. " * 40}],
            }
            for i in range(n)
        ]
        files[name] = f"{name}.jsonl"
        (folder / files[name]).write_text("".join(json.dumps(line) + "\n" for line in lines))
    cell = Cell(
        index=0,
        cell_id=f"000-schedule-bench-greedy-c{streams}-r1",
        config="schedule",
        method="none",
        gamma=None,
        mix="bench",
        sampling=SamplingSpec("greedy", 0.0, 4096),
        load_kind="closed",
        load_value=float(streams),
        repeat=1,
        order_seed=1,
        salt="bench",
        warmup_s=warmup_s,
        measure_s=measure_s,
        measure_requests=None,
        drain_s=20.0,
    )
    return LoadJob(
        run_id="bench",
        run_dir=str(folder),
        config=ConfigSpec("schedule", "none", None, urls=(url,)),
        base_urls=(url,),
        model_name="schedule",
        api="chat",
        client=ClientSpec(workers=workers, pace_s=pace_s),
        cells=(cell,),
        prompt_files=files,
        mix_weights={"bench": (1.0,)},
        scraper_socket=None,
        provenance_file=None,
    )


def run(job: LoadJob, start: list[str], timeout_s: float) -> dict[str, Any]:
    """Runs the job to its end; -> rows, done.json, CPU seconds in the window and peak memory of all client processes.

    `start` goes in front of the command line.
    """
    folder = Path(job.run_dir)
    job_file = folder / "job.json"
    job_file.write_text(json.dumps(to_json(job)))
    argv = [*start, *locust_argv(job_file, job)]
    with (folder / "locust.log").open("wb") as out:
        process = subprocess.Popen(argv, env=locust_env(job_file), stdout=out, stderr=out, start_new_session=True)
        usage = watch(process, timeout_s)
    log = (folder / "locust.log").read_text()
    if usage.returncode == -9:
        raise SystemExit(f"the Locust run took more than {timeout_s:g} s:\n{log}")
    cell_folder = folder / "cells" / job.cells[0].cell_id
    if usage.returncode or not (cell_folder / "done.json").exists():
        raise SystemExit(f"the Locust run failed with {usage.returncode}:\n{log}")
    done = json.loads((cell_folder / "done.json").read_text())
    rows: list[dict[str, Any]] = []
    for path in sorted(cell_folder.glob("worker-*.arrows")):
        rows += pa.ipc.open_stream(path.read_bytes()).read_all().to_pylist()
    begin, end = done["window_start_ns"], done["window_end_ns"]
    return {
        "rows": rows,
        "done": done,
        "cpu_s": usage.cpu_s(begin, end),
        "peak_rss_mb": usage.peak_rss_mb,
        "usage": usage,
    }
