"""Memory of a worker and of the master over many requests: `python benchmarks/memory_bench.py [--seconds 240]`.

A whole Locust run with recording against a server that answers with two chunks at once, in one cell that is as long as
`--seconds` says. The server's delay keeps the rate below what worker and master can do together on one core: beyond it
messages queue up at the master, and so does memory. Resident memory of each process is sampled ten times a second and
put beside the number of requests that the server had got by then.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import locust_client
import schedule
from peers import cores
from usage import watch

from loadtest.load.launch import locust_argv, locust_env
from loadtest.model import to_json

STREAMS = 128
RATE = 2500
"""Requests per second asked for: STREAMS over the server's delay."""
FIRST = 10_000
"""Memory is compared from here on: before, caches and buffers fill."""
GOAL = 1_000_000


def measure(seconds: float, rate: float = RATE) -> dict[str, Any]:
    """One run; see the module's text. Memory in MiB."""
    on_server, on_client = cores()
    with tempfile.TemporaryDirectory() as scratch:
        folder, log = Path(scratch), Path(scratch, "truth.log")
        with schedule.server(log, on_server, k=1, n=2, t0=1000 * STREAMS / rate, step=0) as url:
            job = locust_client.job_of(folder, url, STREAMS, 1.0, seconds, 0.002)
            job_file = folder / "job.json"
            job_file.write_text(json.dumps(to_json(job)))
            argv = [*on_client, *locust_argv(job_file, job)]
            with (folder / "locust.log").open("wb") as out:
                process = subprocess.Popen(
                    argv, env=locust_env(job_file), stdout=out, stderr=out, start_new_session=True
                )
                usage = watch(process, seconds + 120)
        if usage.returncode:
            raise SystemExit(f"the Locust run failed:\n{(folder / 'locust.log').read_text()}")
        arrivals = np.array([told.arrival_ns for told in schedule.read_requests(log)], dtype=np.int64)
        (cell,) = (folder / "cells").iterdir()
        done = json.loads((cell / "done.json").read_text())
    rows = sum(worker["rows"] for worker in done["workers"].values())
    if rows != len(arrivals):
        raise SystemExit(f"{rows} rows, {len(arrivals)} requests at the server")
    master, worker = list(usage.processes.values())[:2]
    result: dict[str, Any] = {
        "requests": len(arrivals),
        "requests_per_s": round(len(arrivals) * 1e9 / float(arrivals[-1] - arrivals[0])),
        "seconds": seconds,
        "cpu_us_per_request": round(usage.cpu_s(int(arrivals[0]), int(arrivals[-1])) * 1e6 / len(arrivals), 1),
    }
    for name, samples in (("worker", worker), ("master", master)):
        result |= {f"{name}_{k}": v for k, v in growth(samples, arrivals).items()}
    return result


def growth(samples: Sequence[tuple[int, float, int]], arrivals: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Resident memory at 10,000 requests and at the last one, and the straight line through what lies between."""
    at = np.searchsorted(arrivals, [t for t, _, _ in samples])
    mb = np.array([rss for _, _, rss in samples]) / 2**20
    load = (at >= FIRST) & (at < len(arrivals))
    if load.sum() < 10:
        raise SystemExit(f"only {len(arrivals)} requests were sent; give it more seconds")
    slope, start = np.polyfit(at[load], mb[load], 1)
    return {
        "rss_mb_at_10k": round(float(mb[load][0]), 1),
        "rss_mb_at_end": round(float(mb[load][-1]), 1),
        "rss_mb_per_million": round(float(slope) * 1e6, 1),
        "rss_mb_at_1m_by_line": round(float(start + slope * GOAL), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--rate", type=float, default=RATE, help="requests per second")
    args = parser.parse_args()
    print(json.dumps(measure(args.seconds, args.rate), indent=1))


if __name__ == "__main__":
    main()
