"""`.hgrm` per cell and metric: the percentile distribution that HdrHistogram's plotters read, in milliseconds.

The iteration is that of the Java reference (five steps per halving of the distance to 100 %). Written by hand: the
hdrhistogram package walks its counters in Python (seconds per run) and does not scale its standard deviation.
Format: value, percentile, total count, 1/(1-percentile), the last line without the fourth; then a `#[...]` footer.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loadtest.load.hdr import read_hlog

TICKS_PER_HALF = 5
"""Reporting steps per halving of the distance to 100 %, HdrHistogram's own default."""

Ints = npt.NDArray[np.int64]


def write_all(run_dir: Path) -> list[Path]:
    """Write exports/hgrm/<cell>.<metric>.hgrm for every histogram of latency.hlog; none where there is no such file.

    Replaced whole one by one, without fsync: a thousand small files that can be made again at any time.
    """
    source = run_dir / "latency.hlog"
    if not source.exists():
        return []
    folder = run_dir / "exports" / "hgrm"
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for entry in read_hlog(source):
        path = folder / f"{entry.tag}.hgrm"
        temporary = path.with_suffix(".tmp")
        temporary.write_bytes(render(entry.histogram))
        os.replace(temporary, path)  # noqa: PTH105 - the atomic one, by name
        paths.append(path)
    return paths


def render(histogram: Any) -> bytes:
    """One histogram of microseconds as .hgrm text in milliseconds."""
    highest, middle, counts = _recorded(histogram)
    seen = np.cumsum(counts)
    total = int(seen[-1]) if len(seen) else 0
    lines = [f"{'Value':>12} {'Percentile':>14} {'TotalCount':>10} {'1/(1-Percentile)':>14}", ""]
    if total:
        reached = 100.0 * seen / total
        levels = _levels(float(reached[-2]) if len(reached) > 1 else -1.0)
        at = np.minimum(np.searchsorted(reached, levels), len(seen) - 1)
        for level, i in zip(levels, at, strict=True):
            line = f"{highest[i] / 1000:12.3f} {level / 100:2.12f} {seen[i]:10d}"
            lines.append(line if level == 100 else f"{line} {1 / (1 - level / 100):14.2f}")
    mean = float((middle * counts).sum() / total) if total else 0.0
    deviation = math.sqrt(float((counts * (middle - mean) ** 2).sum()) / total) if total else 0.0
    top = float(highest[-1]) if total else 0.0
    lines += [
        f"#[Mean    = {mean / 1000:12.3f}, StdDeviation   = {deviation / 1000:12.3f}]",
        f"#[Max     = {top / 1000:12.3f}, Total count    = {total:12d}]",
        f"#[Buckets = {histogram.bucket_count:12d}, SubBuckets     = {histogram.sub_bucket_count:12d}]",
    ]
    return ("\n".join(lines) + "\n").encode()


def _levels(before_last: float) -> list[float]:
    """Percentiles to report, given the share (0 to 100) of all values below the highest one; ends with 100."""
    out, level = [0.0], 0.0
    while level <= before_last:
        halvings = int(math.log2(100.0 / (100.0 - level))) + 1
        level += 100.0 / (TICKS_PER_HALF * 2**halvings)
        out.append(level)
    return [*out, 100.0]


def _recorded(histogram: Any) -> tuple[Ints, Ints, Ints]:
    """Of every counter that is not 0: the highest value it stands for, the middle one, its count."""
    counts = np.frombuffer(histogram.counts, dtype=np.uint64)
    index = np.flatnonzero(counts).astype(np.int64)
    half = histogram.sub_bucket_half_count
    bucket = (index >> histogram.sub_bucket_half_count_magnitude) - 1
    within = (index & (half - 1)) + half
    within[bucket < 0] -= half
    shift = np.maximum(bucket, 0) + histogram.unit_magnitude
    lowest = within << shift
    size = np.int64(1) << shift
    return lowest + size - 1, lowest + (size >> 1), counts[index].astype(np.int64)
