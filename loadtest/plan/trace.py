"""Arrival times from a file: what `[load] trace` replays."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from loadtest.errors import DatasetError
from loadtest.plan.load_table import Trace

UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
FIELDS = ("timestamp", "time", "ts", "arrival", "arrived_at")
"""Names of the field with the time, in any case: Azure's LLM traces say TIMESTAMP, Mooncake's timestamp (ms)."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """A trace as it is replayed: `offsets_s` from its start, ascending, all below `length_s`."""

    offsets_s: tuple[float, ...]
    length_s: float

    @property
    def rate(self) -> float:
        """Mean arrivals per second."""
        return len(self.offsets_s) / self.length_s


def read_trace(path: Path, trace: Trace) -> Arrivals:
    """The arrivals of a file, at the plan's speed. Raises DatasetError that names line and value.

    The length is the last arrival and one mean gap behind it, or what `for` says, if that is shorter.
    """
    times = [time for _, time in _times(path, UNITS[trace.unit])]
    if len(times) < 2:
        raise DatasetError(f"{path}: a trace needs two arrivals or more, this one has {len(times)}")
    offsets = [(t - times[0]) / trace.speed for t in times]
    length_s = offsets[-1] * len(offsets) / (len(offsets) - 1)
    if length_s <= 0:
        raise DatasetError(f"{path}: all {len(times)} arrivals have the same time; a rate cannot be made of it")
    if trace.for_ is not None and trace.for_ < length_s:
        length_s = trace.for_
        offsets = [t for t in offsets if t < length_s]
    return Arrivals(tuple(offsets), length_s)


def _times(path: Path, unit_s: float) -> Iterator[tuple[int, float]]:
    before = -math.inf
    for number, value in _values(path):
        time = _time(value, unit_s)
        if time is None:
            raise DatasetError(f"{path}, line {number}: {value!r} is no time; write a number or a date (ISO 8601)")
        if time < before:
            raise DatasetError(f"{path}, line {number}: {value!r} is before the line above; sort the file by time")
        before = time
        yield number, time


def _values(path: Path) -> Iterator[tuple[int, Any]]:
    """(line number, what stands there for the time) of every line that is not empty."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeError) as e:
        raise DatasetError(f"{path} cannot be read: {e}") from e
    column: int | None = None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if line.lstrip().startswith("{"):
            yield number, _field(path, number, line)
            continue
        cells = [c.strip() for c in next(csv.reader([line]))]
        if column is None:
            names = [c.lower() for c in cells]
            column = next((names.index(f) for f in FIELDS if f in names), -1)
            if column >= 0:
                continue  # the header
            column = 0
        if column >= len(cells):
            raise DatasetError(f"{path}, line {number}: {len(cells)} columns, but the time is in column {column + 1}")
        yield number, cells[column]


def _field(path: Path, number: int, line: str) -> Any:
    try:
        row = {str(k).lower(): v for k, v in json.loads(line).items()}
    except ValueError as e:
        raise DatasetError(f"{path}, line {number}: no JSON: {e}") from e
    found = next((row[f] for f in FIELDS if f in row), None)
    if found is None:
        raise DatasetError(f"{path}, line {number}: none of {', '.join(FIELDS)} among the fields {sorted(row)}")
    return found


def _time(value: Any, unit_s: float) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        seconds = float(value) * unit_s
    except (TypeError, ValueError):
        try:
            # Seven digits of a second (Azure's traces) are one more than a datetime holds.
            text = str(value)
            head, dot, rest = text.partition(".")
            digits = len(rest) - len(rest.lstrip("0123456789"))
            moment = datetime.fromisoformat(f"{head}.{rest[: min(digits, 6)]}{rest[digits:]}" if dot else text)
        except ValueError:
            return None
        seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return seconds if math.isfinite(seconds) else None
