"""Everything that `make bench` measures: writes results.json and the tables of README.md.

    python benchmarks/bench.py                              # all parts, about half an hour with all tools installed
    python benchmarks/bench.py --parts peers --streams 16 256
    python benchmarks/bench.py --parts merge memory --requests 1000000 --seconds 60
    python benchmarks/bench.py --parts report               # only writes the tables again

Each part replaces its own results when it is finished; the other parts' stay. The load average stands beside each.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import bench_report
import fidelity
import memory_bench
import peers
import scaling_bench
import schedule

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
MERGE_REQUESTS = (1_000_000, 10_000_000)
CHUNKS = 40
RAW_BYTES, SPARE = 1_150, 1.5
"""Raw bytes of a request with 40 chunks (measured), and the factor for what the merge writes beside it."""
MEMORY_S = 240.0
QUIET_LOAD = 0.5
"""Load average for each core above which the machine is called busy before we start anything ourselves."""


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    return {
        "cpu": names[0].split(":", 1)[1].strip() if names else platform.processor(),
        "cores": cores,
        "kernel": ".".join(platform.release().split(".")[:2]),
        "python": platform.python_version(),
        "load_average_before": round(load, 2),
        "busy_before": load > QUIET_LOAD * cores,
        "utc": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
    }


def part_peers(args: argparse.Namespace) -> dict[str, Any]:
    rows, skipped = peers.run_all(args.tools, args.streams, args.k)
    tools: dict[str, Any] = {}
    for row in rows:
        tool = tools.setdefault(row["tool"], {"version": row["version"], "scenarios": {}})
        tool["scenarios"][f"c{row['streams']}-k{row['k']}"] = {
            k: v for k, v in row.items() if k not in ("tool", "version")
        }
    return {"tools": tools, "skipped": skipped}


def part_fidelity(args: argparse.Namespace) -> dict[str, Any]:
    options = fidelity.parser().parse_args([])
    rows = []
    for streams in args.fidelity_streams:
        for k in args.k:
            rows.append(fidelity.median_of([fidelity.one_run(streams, k, options)]))
            print(fidelity.table(rows[-1:]).splitlines()[-1], flush=True)
    return {"rows": rows}


def part_merge(args: argparse.Namespace) -> dict[str, Any]:
    """Each size in a run folder of its own, removed before the next is made."""
    out: dict[str, Any] = {}
    for requests in args.requests:
        name = f"merge_{requests // 1_000_000}m" if requests >= 1_000_000 else f"merge_{requests // 1000}k"
        with tempfile.TemporaryDirectory(dir=args.scratch, prefix="loadtest-bench-") as scratch:
            need, free = requests * RAW_BYTES * SPARE, shutil.disk_usage(scratch).free
            if free < need:
                out[f"{name}_skipped"] = f"{need / 1e9:.0f} GB needed in {args.scratch}, {free / 1e9:.0f} GB free"
                print(out[f"{name}_skipped"], flush=True)
                continue
            argv = [sys.executable, HERE / "merge_bench.py", str(requests), "--chunks", str(CHUNKS), "--keep", scratch]
            told = json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)
        print(f"{name}: {told}", flush=True)
        out |= {f"{name}_s": told["seconds"], f"{name}_cpu_s": told["cpu_s"], f"{name}_mb": told["peak_rss_mb"]}
        out |= {f"{name}_raw_mb": told["raw_mb"], f"{name}_parquet_mb": told["parquet_mb"]}
    return out


def part_memory(args: argparse.Namespace) -> dict[str, Any]:
    return memory_bench.measure(args.seconds, args.rate)


def part_scaling(args: argparse.Namespace) -> dict[str, Any]:  # noqa: ARG001
    return scaling_bench.measure()


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "peers": part_peers,
    "fidelity": part_fidelity,
    "scaling": part_scaling,
    "memory": part_memory,
    "merge": part_merge,
}


def store(results: dict[str, Any], part: str, told: dict[str, Any], host: dict[str, Any]) -> None:
    """Puts a part's results in place: merge figures and tools at the top, the rest under the part's name."""
    results.setdefault("machine", {})[part] = host
    if part == "merge":
        results |= told
    elif part == "peers":
        tools = results.setdefault("tools", {})
        for name, tool in told["tools"].items():
            kept = (
                tools.get(name, {}).get("scenarios", {})
                if tools.get(name, {}).get("version") == tool["version"]
                else {}
            )
            tools[name] = {"version": tool["version"], "scenarios": {**kept, **tool["scenarios"]}}
        results["skipped"] = told["skipped"]
    else:
        results[part] = told
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--parts", nargs="+", choices=[*PARTS, "report"], default=list(PARTS))
    parser.add_argument("--tools", nargs="+", choices=list(peers.TOOLS), default=list(peers.TOOLS))
    parser.add_argument("--streams", type=int, nargs="+", default=list(peers.STREAMS), help="for the tools")
    parser.add_argument("--k", type=int, nargs="+", default=list(peers.TOKENS_PER_CHUNK), help="tokens per chunk")
    parser.add_argument("--fidelity-streams", type=int, nargs="+", default=[16, 64, 256, 512])
    parser.add_argument("--requests", type=int, nargs="+", default=list(MERGE_REQUESTS), help="for the merge")
    parser.add_argument(
        "--scratch", type=Path, default=Path(tempfile.gettempdir()), help="room for 18 GB for the merge"
    )
    parser.add_argument("--seconds", type=float, default=MEMORY_S, help="of the memory run")
    parser.add_argument("--rate", type=float, default=memory_bench.RATE, help="requests per second of the memory run")
    args = parser.parse_args()
    schedule.build()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for part in args.parts:
        if part == "report":
            continue
        host, began = machine(), time.monotonic()
        print(f"== {part}: load average {host['load_average_before']}", flush=True)
        told = PARTS[part](args)
        host |= {"load_average_after": round(os.getloadavg()[0], 2), "seconds": round(time.monotonic() - began)}
        store(results, part, told, host)
        print(f"== {part}: {host['seconds']} s", flush=True)
    bench_report.write(results, HERE / "README.md")


if __name__ == "__main__":
    main()
