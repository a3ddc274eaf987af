"""HDR histograms: one configuration everywhere, exact merges, batches by numpy, logs that every reader accepts.

Values are microseconds. The hdrhistogram package does encoding and decoding; recording, percentiles, merging and the
log are our own, because its own drop values silently, round ranks (p99 of 160 = 158th value) and cannot write tags.
No gevent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt
from hdrh.histogram import HdrHistogram

LOWEST_US, HIGHEST_US, DIGITS = 1, 3_600_000_000, 3
"""1 us to one hour at three significant digits: 23,552 counters, 188 kB, error of a value at most 0.1 %."""

_RANK_EPSILON = 1e-9  # 99.9 / 100 * 20000 is a little above 19980 in floating point; the exact rank is 19980


def new_histogram() -> Any:
    """An empty histogram of the one configuration."""
    return HdrHistogram(LOWEST_US, HIGHEST_US, DIGITS)


def record(h: Any, values: npt.ArrayLike) -> int:
    """Adds `values` (integers, us) to `h`; -> how many were out of range.

    Nothing is lost: a value above the range is counted at the highest value, a negative one at 0.
    """
    v = np.asarray(values, dtype=np.int64)
    if not v.size:
        return 0
    clamped = np.clip(v, 0, int(h.highest_trackable_value))
    refused = int(np.count_nonzero(clamped != v))
    counts = _counts(h)
    # bit length of each value: exact below 2**53
    bits = np.frexp((clamped | h.sub_bucket_mask).astype(np.float64))[1].astype(np.int64)
    bucket = bits - h.unit_magnitude - (h.sub_bucket_half_count_magnitude + 1)
    sub_bucket = clamped >> (bucket + h.unit_magnitude)
    index = ((bucket + 1) << h.sub_bucket_half_count_magnitude) + (sub_bucket - h.sub_bucket_half_count)
    counts += np.bincount(index, minlength=h.counts_len).astype(np.uint64)
    h.total_count += int(v.size)
    h.min_value = min(h.min_value, int(clamped.min()))
    h.max_value = max(h.max_value, int(clamped.max()))
    return refused


def merge(into: Any, other: Any) -> None:
    """Adds `other` to `into`, exactly. Raises ValueError for another configuration."""
    if into.counts_len != other.counts_len or into.unit_magnitude != other.unit_magnitude:
        raise ValueError(
            f"cannot merge a histogram of {other.counts_len} counters into one of {into.counts_len}: "
            "make both with new_histogram()"
        )
    if not other.total_count:
        return  # the package's own add would set the minimum to 0
    counts = _counts(into)
    counts += _counts(other)
    into.total_count += other.total_count
    into.min_value = min(into.min_value, other.min_value)
    into.max_value = max(into.max_value, other.max_value)


def percentiles(h: Any, ps: Sequence[float]) -> list[int | None]:
    """Value at each percentile (0 to 100) by rank ceil(p/100 * n), at least 1, in us; None for an empty histogram.

    A value is the highest that shares its counter, as every HDR implementation gives it: at most 0.1 % too high.
    """
    cumulative = np.cumsum(_counts(h))
    n = int(cumulative[-1])
    if not n:
        return [None] * len(ps)
    ranks = [max(1, min(n, math.ceil(p / 100 * n - _RANK_EPSILON))) for p in ps]
    at = np.searchsorted(cumulative, np.asarray(ranks, dtype=np.uint64))
    return [int(h.get_highest_equivalent_value(h.get_value_from_index(int(i)))) for i in at]


def _counts(h: Any) -> npt.NDArray[np.uint64]:
    """The counters as an array that shares their memory."""
    counts: npt.NDArray[np.uint64] = np.frombuffer(h.counts, dtype=np.uint64)
    return counts


@dataclass(frozen=True, slots=True)
class HlogEntry:
    """One line of a histogram log."""

    tag: str
    """Letters, digits and punctuation; no comma or white space."""
    start_s: float
    """UNIX seconds."""
    length_s: float
    histogram: Any


def hlog_header(base_s: float) -> str:
    """The head of a log of version 1.3 whose lines count from `base_s` (UNIX seconds)."""
    iso = datetime.fromtimestamp(base_s, UTC).isoformat(timespec="milliseconds")
    return (
        "#[Histogram log format version 1.3]\n"
        f"#[StartTime: {base_s:.3f} (seconds since epoch), {iso}]\n"
        f"#[BaseTime: {base_s:.3f} (seconds since epoch)]\n"
        '"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"\n'
    )


def hlog_line(entry: HlogEntry, base_s: float) -> str:
    """One line: start and length in s, the maximum in ms, the histogram of us. Raises ValueError for a bad tag."""
    tag, h = entry.tag, entry.histogram
    if not tag or "," in tag or any(c.isspace() for c in tag):
        raise ValueError(f"hlog tag {tag!r}: use a name without comma and white space")
    max_ms = h.get_max_value() / 1000 if h.total_count else 0.0
    encoded = h.encode().decode("ascii")
    return f"Tag={tag},{entry.start_s - base_s:.3f},{entry.length_s:.3f},{max_ms:.3f},{encoded}\n"


def write_hlog(target: Path | str | TextIO, entries: Iterable[HlogEntry], *, base_s: float | None = None) -> None:
    """Writes a log. `base_s` (UNIX seconds) defaults to the earliest entry."""
    entries = list(entries)
    base = base_s if base_s is not None else min((e.start_s for e in entries), default=0.0)
    text = hlog_header(base) + "".join(hlog_line(e, base) for e in entries)
    if isinstance(target, str | Path):
        Path(target).write_text(text, encoding="ascii")
    else:
        target.write(text)


def one_interval(histograms: Mapping[str, Any], start_ns: int, end_ns: int) -> list[HlogEntry]:
    """An entry per tag, all of the same interval (UNIX ns)."""
    return [HlogEntry(tag, start_ns / 1e9, (end_ns - start_ns) / 1e9, h) for tag, h in histograms.items()]


def read_hlog(path: Path | str) -> list[HlogEntry]:
    """The entries of a log, start times absolute; no tag = "". Raises ValueError that names the line."""
    base, entries = 0.0, []
    for number, line in enumerate(Path(path).read_text(encoding="ascii").splitlines(), 1):
        if line.startswith("#[BaseTime:"):
            base = float(line.split(":", 1)[1].split()[0])
        if not line or line.startswith(("#", '"')):
            continue
        fields = line.split(",")
        tag = fields.pop(0).removeprefix("Tag=") if line.startswith("Tag=") else ""
        try:
            start, length, _, encoded = fields
            histogram = HdrHistogram.decode(encoded.encode("ascii"))
            entries.append(HlogEntry(tag, base + float(start), float(length), histogram))
        except Exception as error:
            raise ValueError(f"{path}:{number}: no histogram log line ({type(error).__name__}: {error})") from error
    return entries
