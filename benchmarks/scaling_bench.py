"""One worker process against two: `python benchmarks/scaling_bench.py [--streams 512]`.

Each worker gets `--streams` streams (k = 1). With four free cores (server, worker, worker, master) the two runs are
compared directly: "carried" is the chunk rate at which TTFT and gap p99 stay within 2 % of the server's own times.

With fewer cores server and workers would compete, and a chunk rate would say more about the scheduler than about us.
There all client processes share one core at a load far below its limit and the cost is compared: what a chunk costs
with two workers over what it costs with one, the number of streams per worker being the same. Two workers on cores of
their own could then carry 2 / that ratio times the load, as far as the workers themselves are the limit; `master_share`
is the part of the CPU time that the master, which they share, took of one core.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import locust_client
import schedule
from fidelity import compare
from usage import Usage

STREAMS, STREAMS_SHARED = 512, 96
"""Streams of each worker: on a core of its own (half of what one carries), or with all processes on one core."""
WITHIN = 0.02
NEEDED_CORES = 4


def one_run(workers: int, streams: int, on_server: list[str], on_client: list[str]) -> dict[str, Any]:
    """Cost and fidelity of one run with `streams` streams for each worker."""
    answer_s = 2.45
    with tempfile.TemporaryDirectory() as scratch:
        folder, log = Path(scratch), Path(scratch, "truth.log")
        with schedule.server(log, on_server, k=1, n=120) as url:
            job = locust_client.job_of(
                folder, url, workers * streams, 1.5 * answer_s, 3 * answer_s, 0.002, workers=workers
            )
            client = locust_client.run(job, on_client, timeout_s=120)
        truth = schedule.read_log(log)
    for row in client["rows"]:
        row["measured"] = row["phase"] == "measure"
    begin, end = client["done"]["window_start_ns"], client["done"]["window_end_ns"]
    chunks = sum(begin <= t <= end for told in truth.values() for t in told.sent_ns)
    usage: Usage = client["usage"]
    master, *others = (Usage(samples) for samples in usage.processes.values())
    return {
        **compare(client["rows"], truth, 20),
        "workers": workers,
        "streams": workers * streams,
        "chunks_per_s": round(chunks * 1e9 / (end - begin)),
        "worker_cpu_us_per_chunk": round(sum(u.cpu_s(begin, end) for u in others) * 1e6 / chunks, 2),
        "master_cpu_us_per_chunk": round(master.cpu_s(begin, end) * 1e6 / chunks, 2),
        "master_share": round(master.cpu_s(begin, end) * 1e9 / (end - begin), 3),
    }


def good(row: dict[str, Any]) -> bool:
    keys = ("ttft_p99_ratio", "gap_p99_ratio")
    return row["server_late_pct"] == 0 and all(abs(row[key] - 1) <= WITHIN for key in keys)


def measure(streams: int | None = None) -> dict[str, Any]:
    """Both runs and what they say."""
    cores = sorted(os.sched_getaffinity(0))
    direct = len(cores) >= NEEDED_CORES
    per_worker = streams or (STREAMS if direct else STREAMS_SHARED)
    on_server = ["taskset", "-c", str(cores[0])]
    client_cores = cores[1:NEEDED_CORES] if direct else cores[1:2] or cores
    on_client = ["taskset", "-c", ",".join(map(str, client_cores))]
    one, two = (one_run(workers, per_worker, on_server, on_client) for workers in (1, 2))
    result: dict[str, Any] = {"cores": len(cores), "one_worker": one, "two_workers": two}
    if direct:
        result["ratio"] = round(two["chunks_per_s"] / one["chunks_per_s"], 2) if good(one) and good(two) else None
        result["how"] = "measured: chunk rate with every p99 within 2 %, each worker on a core of its own"
    else:
        result["ratio"] = None
        result["how"] = f"not measurable: {len(cores)} cores for the server, two workers and the master; cost compared"
        costs = [row["worker_cpu_us_per_chunk"] for row in (one, two)]
        result["ratio_by_cost"] = round(2 * costs[0] / costs[1], 2)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--streams", type=int, help="of each worker")
    args = parser.parse_args()
    if subprocess.run(["taskset", "--version"], capture_output=True, check=False).returncode:
        raise SystemExit("taskset (util-linux) is needed to give each process its core")
    print(json.dumps(measure(args.streams), indent=1))


if __name__ == "__main__":
    main()
