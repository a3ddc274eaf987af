"""How far the client's times are from the server's own: reported over true, at p50 and p99.

    python benchmarks/fidelity.py                       # 64 streams, one and three tokens per chunk
    python benchmarks/fidelity.py --client engine --streams 16 64 256 512 1024 --k 1 3 --runs 3

All streams start together and end together (closed loop on a fixed schedule: the worst case for one thread). The server
runs on the first core, the client on the second. Every row is matched to the server's log by request id.

"server late %" is the share of the server's own gaps above 1.5 steps: the machine was busy with something else, chunks
were sent in bursts (and so read together), and the row says little. Run it on a quiet machine with two free cores.

--client locust (default): a whole Locust run with recording, rows from its files; only rows of the window count, and
CPU is that of all client processes (master and worker) in the window, divided by the chunks sent in it.
--client engine: the streaming client alone in plain greenlets; the first answer of each stream is left out as ramp-up.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import locust_client
import schedule

HERE = Path(__file__).parent
RATIOS = tuple(f"{m}_{p}_ratio" for m in ("ttft", "tpot", "gap") for p in ("p50", "p99"))


def rank(values: list[float], p: float) -> float:
    """Exact percentile: the value of rank ceil(p/100 * n)."""
    ordered = sorted(values)
    return ordered[max(0, -int(-p * len(ordered) // 100) - 1)]


def compare(rows: list[dict[str, Any]], truth: dict[str, schedule.Truth], step_ms: float) -> dict[str, Any]:
    """Ratios and counts of the rows after each stream's first request. Raises SystemExit where rows and log differ."""
    reported: dict[str, list[float]] = {"ttft": [], "tpot": [], "gap": []}
    true: dict[str, list[float]] = {"ttft": [], "tpot": [], "gap": []}
    chunks = merged = merged_first = 0
    errors: list[float] = []
    for row in rows:
        told = truth[row["request_id"]]
        if row["outcome"] != "ok" or row["completion_tokens"] != told.tokens or row["chunks"] != len(told.sent_ns):
            raise SystemExit(f"{row['request_id']}: client {row['outcome']} {row['error']}, server {told.how}")
        if not row["measured"]:
            continue
        offsets, sent = row["chunk_offset_us"], told.sent_ns
        chunks += len(sent)
        merged += row["coalesced_reads"]
        merged_first += bool(row["first_chunk_merged"])
        reported["ttft"].append(row["ttft_us"])
        true["ttft"].append((sent[0] - told.arrival_ns) / 1000)
        errors.append(row["ttft_us"] - true["ttft"][-1])
        reported["gap"] += [b - a for a, b in pairwise(offsets)]
        true["gap"] += [(b - a) / 1000 for a, b in pairwise(sent)]
        if row["tpot_us"] is not None:
            reported["tpot"].append(row["tpot_us"])
            true["tpot"].append((sent[-1] - sent[0]) / 1000 / (told.tokens - row["chunk_tokens"][0]))
    if not errors:
        raise SystemExit(f"none of {len(rows)} rows lies in the window")
    out: dict[str, Any] = {}
    for metric in reported:
        for p in (50, 99):
            out[f"{metric}_p{p}_ratio"] = round(rank(reported[metric], p) / rank(true[metric], p), 4)
    out["server_late_pct"] = round(100 * sum(g > 1.5 * step_ms * 1000 for g in true["gap"]) / len(true["gap"]), 3)
    out["merged_pct"] = round(100 * merged / chunks, 4)
    out["merged_first"], out["requests"] = merged_first, len(reported["ttft"])
    out["first_chunk_error_p99_ms"] = round(rank([abs(e) for e in errors], 99) / 1000, 3)
    return out


def one_run(streams: int, k: int, args: argparse.Namespace) -> dict[str, Any]:
    answer_s = (args.t0_ms + args.step_ms * -(-args.tokens // k)) / 1000
    cores = sorted(os.sched_getaffinity(0))
    first, second = ([["taskset", "-c", str(c)] for c in cores[:2]]) if len(cores) > 1 else ([], [])
    nice = ["nice", "-n", str(args.nice)] if args.nice else []
    run = run_locust if args.client == "locust" else run_engine
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "truth.log")
        with schedule.server(log, [*nice, *first], k=k, n=args.tokens, t0=args.t0_ms, step=args.step_ms) as url:
            client = run(Path(folder), url, streams, [*nice, *second], answer_s, args)
        truth = schedule.read_log(log)
    rows = client["rows"]
    if args.keep:
        args.keep.write_text(json.dumps({"rows": rows, "done": client.get("done")}))
    if {r["request_id"] for r in rows} != set(truth) or len(rows) != len(truth):
        raise SystemExit(f"{len(rows)} rows, {len(truth)} requests at the server")
    result = compare(rows, truth, args.step_ms)
    window = [r for r in rows if r["measured"]]
    begin, end = client["span_ns"]
    # CPU is of a span of time, so its chunks are those that were sent in it, whatever request they belong to.
    chunks = sum(begin <= t <= end for told in truth.values() for t in told.sent_ns)
    result.update(
        streams=streams,
        k=k,
        chunks_per_s=round(chunks * 1e9 / (end - begin)),
        cpu_us_per_chunk=round(client["cpu_s"] * 1e6 / chunks, 1),
        peak_rss_mb=round(client["peak_rss_mb"], 1),
        connections=max(t.connection for t in truth.values()),
        longest_stall_ms=max(client["stalls_ms"], default=0.0),
        lag_max_ms=round(max(r["client_lag_us"] or 0 for r in window) / 1000, 1),
    )
    return result


def run_engine(
    folder: Path, url: str, streams: int, start: list[str], answer_s: float, args: argparse.Namespace
) -> dict[str, Any]:
    out = folder / "rows.json"
    argv = [sys.executable, str(HERE / "engine_client.py"), url, str(streams), str(args.requests), str(out)]
    argv.append(str(args.pace_s))
    subprocess.run([*start, *argv], check=True, timeout=60 + 10 * args.requests * answer_s)
    client: dict[str, Any] = json.loads(out.read_text())
    for row in client["rows"]:
        row["measured"] = row["turn"] > 0
    client["span_ns"] = min(r["send_ns"] for r in client["rows"]), max(r["end_ns"] for r in client["rows"])
    return client


def run_locust(
    folder: Path, url: str, streams: int, start: list[str], answer_s: float, args: argparse.Namespace
) -> dict[str, Any]:
    job = locust_client.job_of(folder, url, streams, 1.5 * answer_s, args.requests * answer_s, args.pace_s)
    client = locust_client.run(job, start, timeout_s=120)
    for row in client["rows"]:
        row["measured"] = row["phase"] == "measure"
    client["span_ns"] = client["done"]["window_start_ns"], client["done"]["window_end_ns"]
    workers = client["done"]["workers"].values()
    client["stalls_ms"] = [ms for w in workers for ms in w["stalls_ms"]]
    return client


def median_of(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of the numbers; the worst of the merged counts."""
    out: dict[str, Any] = {}
    for key in runs[0]:
        values = [r[key] for r in runs]
        out[key] = max(values) if key.startswith(("merged", "server_late")) else statistics.median(values)
    out["runs"] = len(runs)
    return out


COLUMNS = (
    ("streams", "streams"),
    ("k", "k"),
    ("runs", "runs"),
    ("chunks/s", "chunks_per_s"),
    ("TTFT p50 x", "ttft_p50_ratio"),
    ("TTFT p99 x", "ttft_p99_ratio"),
    ("gap p50 x", "gap_p50_ratio"),
    ("gap p99 x", "gap_p99_ratio"),
    ("TPOT p99 x", "tpot_p99_ratio"),
    ("server late %", "server_late_pct"),
    ("merged %", "merged_pct"),
    ("merged first", "merged_first"),
    ("CPU us/chunk", "cpu_us_per_chunk"),
    ("RSS MiB", "peak_rss_mb"),
    ("connections", "connections"),
)


def table(results: list[dict[str, Any]]) -> str:
    lines = ["| " + " | ".join(title for title, _ in COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(f"{r[key]:g}" for _, key in COLUMNS) + " |" for r in results]
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--client", choices=["locust", "engine"], default="locust")
    parser.add_argument("--streams", type=int, nargs="+", default=[64])
    parser.add_argument("--k", type=int, nargs="+", default=[1, 3], help="tokens per chunk")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--requests", type=int, default=4, help="answers per stream in the window")
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--t0-ms", type=float, default=50)
    parser.add_argument("--step-ms", type=float, default=20)
    parser.add_argument("--pace-s", type=float, default=0.002)
    parser.add_argument(
        "--nice", type=int, default=0, help="of server and client; below 0 where others use the machine"
    )
    parser.add_argument("--keep", type=Path, help="keep the rows of the last run as JSON there")
    parser.add_argument("--json", type=Path, help="also write the results there")
    parser.add_argument("--limit-pct", type=float, help="exit 1 where a TTFT or gap ratio is further from 1 than this")
    return parser


def main() -> None:
    args = parser().parse_args()
    results = [
        median_of([one_run(streams, k, args) for _ in range(args.runs)]) for streams in args.streams for k in args.k
    ]
    print(table(results))
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    if args.limit_pct is not None:
        bad = [
            f"{r['streams']} streams, k={r['k']}: {key} {r[key]}"
            for r in results
            for key in RATIOS
            if abs(r[key] - 1) * 100 > args.limit_pct
        ]
        bad += [
            f"{r['streams']} streams: {r['connections']} connections"
            for r in results
            if r["connections"] > r["streams"]
        ]
        if bad:
            raise SystemExit("outside the limit:\n" + "\n".join(bad))


if __name__ == "__main__":
    main()
