"""Seconds and peak memory of one merge: `python benchmarks/merge_bench.py [requests …] [--chunks 40]`.

The raw files are made first, in another process; batches are of 64 rows, as the load workers send them.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


def measure(run_dir: Path) -> dict[str, float]:
    """Merges in this process, which has done nothing else."""
    from loadtest.merge.merge import merge_run

    import_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    began, cpu = time.monotonic(), time.process_time()
    summary = merge_run(run_dir)
    return {
        "rows": summary.rows,
        "seconds": round(time.monotonic() - began, 2),
        "cpu_s": round(time.process_time() - cpu, 2),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "rss_after_import_mb": round(import_mb, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("requests", nargs="*", type=int, default=[100_000, 1_000_000])
    parser.add_argument("--chunks", type=int, default=40)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--keep", type=Path, help="folder for the runs; kept and used again")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        sys.stdout.write(json.dumps(measure(args.measure)) + "\n")
        return
    from tests.merge.make_run import make_big_run

    with tempfile.TemporaryDirectory() as scratch:
        for n in args.requests:
            run_dir = (args.keep or Path(scratch)) / f"run-{n}-{args.chunks}-{args.batch}"
            if not run_dir.exists():
                make_big_run(run_dir, n, args.chunks, args.batch)
            raw = sum(f.stat().st_size for f in run_dir.glob("cells/*/worker-*.arrows"))
            command = [sys.executable, __file__, "--measure", str(run_dir)]
            told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout)
            merged = sum(f.stat().st_size for f in run_dir.glob("requests/**/*.parquet"))
            told |= {"raw_mb": round(raw / 1e6, 1), "parquet_mb": round(merged / 1e6, 1)}
            sys.stdout.write(json.dumps(told) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
