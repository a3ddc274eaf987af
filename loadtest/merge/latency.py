"""HDR histograms of one cell recorded from its rows, and the cross-check of histograms against exact quantiles.

Range, precision and the log's format are those of `load.hdr`: microseconds, 1 us to 1 h, at most 0.1 % off.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loadtest.load.hdr import merge, new_histogram, percentiles, read_hlog, record
from loadtest.merge.quantiles import QUANTILES
from loadtest.merge.rows import LATENCIES, RowSums

IntArray = npt.NDArray[np.int64]
_BEYOND = 2.0**53  # above the range, and exact in both types


def record_counts(histogram: Any, values: IntArray, counts: IntArray) -> int:
    """Adds `counts[i]` times `values[i]`; returns how many were out of range (kept, at the nearest end of the range).

    `record` finds the counter of each distinct value once; millions of equal gaps then cost nothing more.
    """
    if not len(values):
        return 0
    single = new_histogram()
    record(single, values)
    clamped = np.clip(values, 0, int(histogram.highest_trackable_value))
    order = np.argsort(clamped, kind="stable")
    per_counter = np.frombuffer(single.counts, dtype=np.uint64)
    used = np.flatnonzero(per_counter)
    # The values are sorted, so those of one counter stand together: sum their counts run by run.
    starts = np.concatenate([[0], np.cumsum(per_counter[used])[:-1]]).astype(np.int64)
    target = np.frombuffer(histogram.counts, dtype=np.uint64)
    target[used] += np.add.reduceat(counts[order], starts).astype(np.uint64)
    histogram.total_count += int(counts.sum())
    histogram.min_value = min(histogram.min_value, int(clamped.min()))
    histogram.max_value = max(histogram.max_value, int(clamped.max()))
    return int(counts[clamped != values].sum())


def histograms_of(rows: RowSums) -> tuple[dict[str, Any], int]:
    """Histograms of the cell's latencies and chunk gaps by metric (empty ones left out), and values out of range."""
    out: dict[str, Any] = {}
    over = 0
    for name in LATENCIES:
        histogram = new_histogram()
        for part in rows.latency[name].parts():
            whole = np.clip(np.rint(part), -1, _BEYOND)  # an infinite value is out of range too, not a crash
            over += record(histogram, whole.astype(np.int64))
        if histogram.total_count:
            out[name] = histogram
    histogram = new_histogram()
    for values, counts in rows.gaps.value_counts():
        over += record_counts(histogram, values, counts)
    if histogram.total_count:
        out["chunk_gap"] = histogram
    return out, over


def max_relative_error(histogram: Any, exact: Mapping[str, float | None]) -> float | None:
    """Largest relative distance of the histogram's quantiles from exact ones (keys of QUANTILES); None if empty.

    Half a microsecond is allowed for: histograms hold whole microseconds.
    """
    worst = None
    found = percentiles(histogram, [100 * q for q in QUANTILES.values()])
    for value, name in zip(found, QUANTILES, strict=True):
        truth = exact.get(name)
        if value is None or truth is None:
            continue
        error = max(0.0, abs(value - truth) - 0.5) / max(truth, 1.0)
        worst = error if worst is None else max(worst, error)
    return worst


def read_live(path: Path) -> tuple[dict[str, Any], str | None]:
    """Histograms of the master's live.hlog by tag, intervals added up, and what was wrong with the file."""
    out: dict[str, Any] = {}
    if not path.is_file():
        return out, None
    try:
        for entry in read_hlog(path):
            merge(out.setdefault(entry.tag, new_histogram()), entry.histogram)
    except (ValueError, OSError) as error:
        return {}, f"live.hlog cannot be read: {error}"
    return out, None
