"""`.hgrm` per cell and metric: the percentile distribution that HdrHistogram's plotters read, in milliseconds.

Written by hand, since the hdrhistogram package does not scale its standard deviation line.
Format: value, percentile, total count, 1/(1-percentile); then the `#[...]` footer.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from loadtest.load.hdr import read_hlog
from loadtest.report.files import write_durably

TICKS_PER_HALF = 5
"""Reporting steps per halving of the distance to 100 %, HdrHistogram's own default."""


def write_all(run_dir: Path) -> list[Path]:
    """Write exports/hgrm/<tag>.hgrm for every histogram of latency.hlog; none where the run has no such file."""
    source = run_dir / "latency.hlog"
    if not source.exists():
        return []
    folder = run_dir / "exports" / "hgrm"
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for entry in read_hlog(source):
        path = folder / f"{entry.tag}.hgrm"
        write_durably(path, render(entry.histogram))
        paths.append(path)
    return paths


def render(histogram: Any) -> bytes:
    """One histogram of microseconds as .hgrm text in milliseconds."""
    pairs = [(i.value_iterated_to, i.count_added_in_this_iter_step) for i in histogram.get_recorded_iterator()]
    total = sum(count for _, count in pairs)
    lines = [f"{'Value':>12} {'Percentile':>14} {'TotalCount':>10} {'1/(1-Percentile)':>14}", ""]
    seen, i = 0, 0
    for q in _quantiles(total):
        while i < len(pairs) and seen < math.ceil(q * total - 1e-9):
            seen += pairs[i][1]
            i += 1
        value = pairs[max(0, i - 1)][0] / 1000 if pairs else 0.0
        inverse = "inf" if q >= 1 else f"{1 / (1 - q):.2f}"
        lines.append(f"{value:12.3f} {q:2.12f} {seen:10d} {inverse:>14}")
    mean = sum(v * c for v, c in pairs) / total if total else 0.0
    sd = math.sqrt(sum(c * (v - mean) ** 2 for v, c in pairs) / total) if total else 0.0
    top = pairs[-1][0] / 1000 if pairs else 0.0
    lines += [
        f"#[Mean    = {mean / 1000:12.3f}, StdDeviation   = {sd / 1000:12.3f}]",
        f"#[Max     = {top:12.3f}, Total count    = {total:12d}]",
        f"#[Buckets = {histogram.bucket_count:12d}, SubBuckets     = {histogram.sub_bucket_count:12d}]",
    ]
    return ("\n".join(lines) + "\n").encode()


def _quantiles(total: int) -> list[float]:
    out, distance = [0.0], 1.0
    while total and distance > 0.5 / total:
        step = distance / 2 / TICKS_PER_HALF
        out += [1 - distance + step * k for k in range(1, TICKS_PER_HALF + 1)]
        distance /= 2
    return [*out, 1.0]
