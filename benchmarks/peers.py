"""The same work through several load tools: what each reports over what the server knows, and what it costs.

    python benchmarks/peers.py                      # every installed tool, 1 to 256 streams, k = 1 and 3
    python benchmarks/peers.py --tools loadtest aiohttp --streams 16 --k 3

The server (first token after 50 ms, a chunk of k tokens every 20 ms, 120 tokens) runs on the first core, all processes
of the tool on the second. Closed loop: c requests start together, each stream asks again when its answer is complete.

Of each run: what the tool itself reports (its JSON or CSV) divided by the same figure of the server's log, CPU time of
all its processes from the first request to the last over the chunks sent in that time, CPU time before the first
request, and peak memory. "server late %" is the share of the server's own gaps above 1.5 steps: above 0 the machine was
busy with something else and the row is marked as such.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import schedule
from fidelity import rank
from peer_tools import TOOLS, Job, Tool
from usage import Usage, watch

TOKENS, T0_MS, STEP_MS = 120, 50.0, 20.0
STREAMS, TOKENS_PER_CHUNK = (1, 16, 64, 256), (1, 3)
MEASURED_S = 5.0
"""About so long a run sends requests: two answers of 2.4 s in a row, or six of 0.8 s."""
TIMEOUT_S = 90.0
"""Start-up included; the slowest tool needs about 40 s of CPU before its first request."""
PAUSE_NS = 500_000_000
"""A pause of this length with nothing in flight divides a tool's own checks of the server from its load."""
KEYS = ("ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99")


def cores() -> tuple[list[str], list[str]]:
    """What pins server and client to a core each; nothing where there is only one."""
    there = sorted(os.sched_getaffinity(0))
    if len(there) < 2:
        return [], []
    return ["taskset", "-c", str(there[0])], ["taskset", "-c", str(there[1])]


def of_load(requests: Sequence[schedule.Truth]) -> list[schedule.Truth]:
    """The requests of the load itself, in order of arrival: the largest group between two pauses. What stands before
    or after a pause are a tool's own checks of the server.
    """
    groups: list[list[schedule.Truth]] = []
    busy_until = 0
    for told in requests:
        if not groups or told.arrival_ns - busy_until > PAUSE_NS:
            groups.append([])
        groups[-1].append(told)
        busy_until = max(busy_until, told.sent_ns[-1] if told.sent_ns else told.arrival_ns)
    return max(groups, key=lambda group: sum(len(told.sent_ns) for told in group), default=[])


def true_figures(requests: Sequence[schedule.Truth], k: int) -> dict[str, float]:
    """TTFT and TPOT in ms of the finished requests, by the server's log."""
    whole = [told for told in requests if told.how == "ok"]
    ttft = [(told.sent_ns[0] - told.arrival_ns) / 1e6 for told in whole]
    tpot = [(told.sent_ns[-1] - told.sent_ns[0]) / 1e6 / (told.tokens - k) for told in whole]
    return {f"{name}_p{p}": rank(values, p) for name, values in (("ttft", ttft), ("tpot", tpot)) for p in (50, 99)}


def late_pct(requests: Sequence[schedule.Truth]) -> float:
    gaps = [b - a for told in requests for a, b in pairwise(told.sent_ns)]
    return round(100 * sum(gap > 1.5 * STEP_MS * 1e6 for gap in gaps) / max(1, len(gaps)), 3)


def rounds_of(streams: int, k: int) -> int:
    """Requests that each stream sends one after the other; a single stream sends four at least."""
    answer_s = (T0_MS + STEP_MS * (-(-TOKENS // k) - 1)) / 1000
    return max(4 if streams == 1 else 2, round(MEASURED_S / answer_s))


def measure(tool: Tool, streams: int, k: int, keep: Path | None = None) -> dict[str, Any]:
    """One run. Raises RuntimeError where the tool failed or what it wrote cannot be read."""
    on_server, on_client = cores()
    with tempfile.TemporaryDirectory() as scratch:
        folder, log = keep or Path(scratch), Path(scratch, "truth.log")
        with schedule.server(log, on_server, k=k, n=TOKENS, t0=T0_MS, step=STEP_MS) as url:
            job = Job(url, streams, rounds_of(streams, k), k, TOKENS, folder, (T0_MS + STEP_MS * TOKENS / k) / 1000)
            usage, output = start(tool, job, on_client)
        if usage.returncode:
            raise RuntimeError(f"exit code {usage.returncode}: {last_words(output)}")
        requests = of_load(schedule.read_requests(log))
        if not any(told.how == "ok" for told in requests):
            raise RuntimeError(f"no request of {len(requests)} was answered whole: {last_words(output)}")
        try:
            reported = tool.parse(job)
        except (OSError, KeyError, IndexError, TypeError, ValueError) as e:
            raise RuntimeError(f"its results cannot be read: {e!r}; {last_words(output)}") from e
    row = {"tool": tool.name, "version": tool.version(), "streams": streams, "k": k}
    return {**row, **judge(requests, usage, reported, k)}


def start(tool: Tool, job: Job, prefix: list[str]) -> tuple[Usage, str]:
    """Runs the tool to its end; -> what it used and what it printed."""
    printed = job.folder / "output.txt"
    with printed.open("wb") as out:
        process = subprocess.Popen(
            [*prefix, *tool.command(job)],
            env={**os.environ, **tool.environment(job)},
            cwd=job.folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        enough = None if tool.enough is None else partial(tool.enough, job)
        usage = watch(process, TIMEOUT_S, enough)
    return usage, printed.read_text(errors="replace")


def last_words(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return " | ".join(lines[-3:])[-400:] or "it printed nothing"


def judge(requests: list[schedule.Truth], usage: Usage, reported: dict[str, float | None], k: int) -> dict[str, Any]:
    """The row: ratios, costs and how busy the machine was."""
    true = true_figures(requests, k)
    sent = [t for told in requests for t in told.sent_ns]
    begin, end = requests[0].arrival_ns, max(sent)
    ratios = {f"{key}_ratio": _ratio(reported.get(key), true[key]) for key in KEYS}
    late = late_pct(requests)
    return {
        **ratios,
        "cpu_us_per_chunk": round(usage.cpu_s(begin, end) * 1e6 / len(sent), 1),
        "startup_cpu_s": round(usage.cpu_s_at(begin), 2),
        "whole_run_cpu_s": round(usage.samples[-1][1], 2),
        "chunks_per_s": round(len(sent) * 1e9 / (end - begin)),
        "peak_rss_mb": round(usage.peak_rss_mb, 1),
        "requests": len(requests),
        "connections": len({told.connection for told in requests}),
        "reported_ms": {key: _rounded(reported.get(key)) for key in KEYS},
        "true_ms": {key: _rounded(true[key]) for key in KEYS},
        "server_late_pct": late,
        "machine_busy": late > 0,
        "load_average": round(os.getloadavg()[0], 2),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _ratio(reported: float | None, true: float) -> float | None:
    return None if reported is None else round(reported / true, 4)


def run_all(
    names: Sequence[str], streams: Sequence[int], ks: Sequence[int], keep: Path | None = None
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Rows of every tool that is there, and name -> reason of those that are not or that failed."""
    rows: list[dict[str, Any]] = []
    skipped: dict[str, str] = {}
    for name in names:
        tool = TOOLS[name]
        if why := tool.missing():
            skipped[name] = why
            print(f"{name}: skipped, {why}", flush=True)
            continue
        for k in ks:
            for c in streams:
                try:
                    row = measure(tool, c, k, keep)
                except RuntimeError as e:
                    skipped[f"{name}, {c} streams, k={k}"] = str(e)
                    print(f"{name}, {c} streams, k={k}: {e}", flush=True)
                    continue
                rows.append(row)
                print(line_of(row), flush=True)
    return rows, skipped


def line_of(row: dict[str, Any]) -> str:
    cells = " ".join(f"{key} x{row[f'{key}_ratio']}" for key in KEYS)
    busy = f", machine busy (late {row['server_late_pct']} %)" if row["machine_busy"] else ""
    return (
        f"{row['tool']}, {row['streams']} streams, k={row['k']}: {cells}, {row['cpu_us_per_chunk']} us/chunk, "
        f"{row['chunks_per_s']} chunks/s, {row['startup_cpu_s']} s start-up, {row['peak_rss_mb']:.0f} MiB{busy}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--tools", nargs="+", choices=list(TOOLS), default=list(TOOLS))
    parser.add_argument("--streams", type=int, nargs="+", default=list(STREAMS))
    parser.add_argument("--k", type=int, nargs="+", default=list(TOKENS_PER_CHUNK), help="tokens per chunk")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path, help="an empty folder for what the tool writes and prints; for one run")
    args = parser.parse_args()
    rows, skipped = run_all(args.tools, args.streams, args.k, args.keep)
    if args.json:
        args.json.write_text(json.dumps({"rows": rows, "skipped": skipped}, indent=1) + "\n")


if __name__ == "__main__":
    main()
