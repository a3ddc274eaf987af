"""A full Locust run (master, one worker, recording on) against a URL, as `loadtest run` starts it.

Used by fidelity.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from loadtest.load.launch import locust_argv, locust_env
from loadtest.model import Cell, ClientSpec, ConfigSpec, LoadJob, SamplingSpec, to_json

SAMPLE_S = 0.1  # the CPU time at the window's edges is interpolated between samples this far apart


def job_of(folder: Path, url: str, streams: int, warmup_s: float, measure_s: float, pace_s: float) -> LoadJob:
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
        client=ClientSpec(workers=1, pace_s=pace_s),
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
    samples: list[tuple[int, float]] = []
    peak_mb = 0.0
    with (folder / "locust.log").open("wb") as out:
        process = subprocess.Popen(argv, env=locust_env(job_file), stdout=out, stderr=out, start_new_session=True)
        started = time.monotonic()
        try:
            while process.poll() is None:
                if time.monotonic() - started > timeout_s:
                    raise SystemExit(f"the Locust run took more than {timeout_s:g} s; see {folder}/locust.log")
                used, rss = tree_usage(process.pid)
                samples.append((time.time_ns(), used))
                peak_mb = max(peak_mb, rss / 2**20)
                time.sleep(SAMPLE_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    cell_folder = folder / "cells" / job.cells[0].cell_id
    if process.returncode or not (cell_folder / "done.json").exists():
        raise SystemExit(f"the Locust run failed with {process.returncode}:\n{(folder / 'locust.log').read_text()}")
    done = json.loads((cell_folder / "done.json").read_text())
    rows: list[dict[str, Any]] = []
    for path in sorted(cell_folder.glob("worker-*.arrows")):
        rows += pa.ipc.open_stream(path.read_bytes()).read_all().to_pylist()
    begin, end = done["window_start_ns"], done["window_end_ns"]
    return {"rows": rows, "done": done, "cpu_s": at(samples, end) - at(samples, begin), "peak_rss_mb": peak_mb}


def tree_usage(pid: int) -> tuple[float, int]:
    """CPU seconds and resident bytes of a process and its children."""
    used, rss = 0.0, 0
    try:
        parent = psutil.Process(pid)
        for process in [parent, *parent.children(recursive=True)]:
            times = process.cpu_times()
            used += times.user + times.system
            rss += process.memory_info().rss
    except psutil.NoSuchProcess:
        pass  # it ended between two looks
    return used, rss


def at(samples: list[tuple[int, float]], t_ns: int) -> float:
    """The CPU seconds at a time, between two samples."""
    for (t0, u0), (t1, u1) in pairwise(samples):
        if t0 <= t_ns <= t1:
            return u0 + (u1 - u0) * (t_ns - t0) / (t1 - t0)
    return samples[-1][1]
