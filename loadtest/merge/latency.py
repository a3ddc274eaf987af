"""HDR histograms of one cell recorded from its rows, their text form, and the cross-check against exact quantiles.

Values are microseconds. Every histogram has the same range and precision so that any two can be added:
1 us to 1 h, 3 significant digits, hence at most 0.1 % off. Values above the range are clamped and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader

from loadtest.merge.quantiles import QUANTILES, nearest_rank
from loadtest.merge.rows import LATENCIES, RowSums

LOWEST_US, HIGHEST_US, DIGITS = 1, 3_600_000_000, 3

IntArray = npt.NDArray[np.int64]


def new_histogram() -> Any:
    """An empty histogram in the range and precision that all of ours share."""
    return HdrHistogram(LOWEST_US, HIGHEST_US, DIGITS)


def record_counts(histogram: Any, values: IntArray, counts: IntArray) -> int:
    """Adds `counts[i]` times `values[i]`; returns how many were above the range and clamped to its top."""
    if not len(values):
        return 0
    top = histogram.highest_trackable_value
    over = int(counts[values > top].sum())
    values = np.clip(values, 0, top)
    cells = np.frombuffer(histogram.counts, dtype=np.uint64)  # a view: writes go through
    bits = np.frexp((values | histogram.sub_bucket_mask).astype(np.float64))[1].astype(np.int64)
    half = histogram.sub_bucket_half_count_magnitude
    bucket = bits - histogram.unit_magnitude - (half + 1)
    index = ((bucket + 1) << half) + ((values >> (bucket + histogram.unit_magnitude)) - histogram.sub_bucket_half_count)
    cells += np.bincount(index, weights=counts, minlength=histogram.counts_len).astype(np.uint64)
    histogram.total_count += int(counts.sum())
    histogram.min_value = min(histogram.min_value, int(values.min()))
    histogram.max_value = max(histogram.max_value, int(values.max()))
    return over


def percentiles(histogram: Any, qs: Iterable[float]) -> list[float | None]:
    """Nearest-rank (ceil) quantiles, as the highest value that is equal within the precision; None when empty."""
    cumulative = np.cumsum(np.frombuffer(histogram.counts, dtype=np.uint64))
    n = int(cumulative[-1])
    if not n:
        return [None for _ in qs]
    index = [int(np.searchsorted(cumulative, nearest_rank(n, q))) for q in qs]
    return [float(histogram.get_highest_equivalent_value(histogram.get_value_from_index(i))) for i in index]


def histograms_of(rows: RowSums) -> tuple[dict[str, Any], int]:
    """Histograms of the cell's latencies and chunk gaps by metric (empty ones left out), and values clamped."""
    out, over = {}, 0
    for name in LATENCIES:
        histogram = new_histogram()
        for part in rows.latency[name].parts():
            values, counts = np.unique(np.rint(part).astype(np.int64), return_counts=True)
            over += record_counts(histogram, values, counts)
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
    for value, name in zip(percentiles(histogram, QUANTILES.values()), QUANTILES, strict=True):
        truth = exact.get(name)
        if value is None or truth is None:
            continue
        error = max(0.0, abs(value - truth) - 0.5) / max(truth, 1.0)
        worst = error if worst is None else max(worst, error)
    return worst


def read_live(path: Path) -> dict[str, Any]:
    """Histograms of the master's live.hlog by tag, intervals added up. Empty where the file is missing or broken."""
    out: dict[str, Any] = {}
    if not path.is_file() or path.stat().st_size == 0:
        return out
    try:
        reader = HistogramLogReader(str(path), new_histogram())
        while (part := reader.get_next_interval_histogram()) is not None:
            if part.total_count:  # adding an empty one would set the minimum to 0
                out.setdefault(part.get_tag(), new_histogram()).add(part)
        reader.close()
    except (ValueError, IndexError, TypeError, OSError, UnicodeDecodeError):
        return {}
    return out


def hlog_header(start_s: float) -> str:
    """Header lines of a histogram log that begins at `start_s` (UNIX seconds)."""
    iso = datetime.fromtimestamp(start_s, UTC).isoformat()
    return (
        "#[Histogram log format version 1.3]\n"
        f"#[StartTime: {start_s:.3f} (seconds since epoch), {iso}]\n"
        f"#[BaseTime: {start_s:.3f} (seconds since epoch)]\n"
        '"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"\n'
    )


def hlog_line(tag: str, histogram: Any, offset_s: float, length_s: float) -> str:
    """One interval. The interval's maximum is in milliseconds, as the format's readers expect of microseconds."""
    payload = histogram.encode().decode()
    return f"Tag={tag},{offset_s:.3f},{length_s:.3f},{histogram.get_max_value() / 1000:.3f},{payload}\n"
