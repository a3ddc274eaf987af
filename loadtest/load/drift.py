"""What changes while a cell runs: medians and acceptance, interval by interval. No locust, no gevent here."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

INTERVALS = 60
"""Of a window: enough to see a slope or a jump, and each still holds many requests."""
SHORTEST_S = 5.0
KEPT = 1000
"""Of a run by hand, which has no end of its own: its newest intervals and the first."""
LATENCIES = {"ttft": (50,), "tpot": (50,), "e2e": (50, 99)}
COUNTS = ("spec_steps", "draft_tokens", "accepted_tokens")
LIVE_EVERY_S = 2.0
Floats = npt.NDArray[Any]


class Drift:
    """Takes the `ok` rows of the window as they are written; `intervals` has one entry per finished interval.

    An entry is {t_s (end of the interval, from the first row), n, ttft_p50_us, tpot_p50_us, e2e_p50_us, e2e_p99_us,
    spec_steps, draft_tokens, accepted_tokens}; a latency that no row has is null.
    """

    def __init__(self, window_s: float) -> None:
        self.interval_s = max(SHORTEST_S, window_s / INTERVALS)
        self.intervals: list[dict[str, Any]] = []
        self._began: float | None = None
        self._due = 0.0
        self._clear()

    def _clear(self) -> None:
        self._values: dict[str, list[Floats]] = {name: [] for name in LATENCIES}
        self._counts = dict.fromkeys(COUNTS, 0)
        self._n = 0

    def add(self, values: dict[str, Floats], counts: dict[str, int], rows: int, now_s: float | None = None) -> None:
        """The latencies (us) and sums of one batch that was written now."""
        now = time.monotonic() if now_s is None else now_s
        if self._began is None:
            self._began, self._due = now, now + self.interval_s
        if now >= self._due:
            self.close(now)
        for name, part in values.items():
            self._values[name].append(part)
        for name, n in counts.items():
            self._counts[name] += n
        self._n += rows

    def close(self, now_s: float | None = None) -> None:
        """Ends the interval, if anything is in it."""
        now = time.monotonic() if now_s is None else now_s
        if self._n:
            self.intervals.append(self._entry(now - (self._began or now)))
            if len(self.intervals) > KEPT:
                del self.intervals[1]
        self._clear()
        self._due = now + self.interval_s

    def _entry(self, t_s: float) -> dict[str, Any]:
        entry: dict[str, Any] = {"t_s": round(t_s, 1), "n": self._n}
        for name, quantiles in LATENCIES.items():
            parts = self._values[name]
            held = np.concatenate(parts) if parts else np.empty(0)
            for q in quantiles:
                entry[f"{name}_p{q}_us"] = float(np.percentile(held, q)) if held.size else None
        return entry | self._counts

    def live(self, measured: int) -> dict[str, Any]:
        """What `live.json` says now: the first and the newest finished interval."""
        first, newest = (self.intervals[0], self.intervals[-1]) if self.intervals else (None, None)
        return {"t_ns": time.time_ns(), "measured": measured, "first": first, "newest": newest}


def write_live(path: Path, value: dict[str, Any]) -> None:
    """Replaced whole; not synced: it is only looked at while the cell runs."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(value), encoding="ascii")
    temporary.replace(path)


def live_text(folder: Path) -> str:
    """The status of a running cell in words, "" where there is none: requests, median TPOT and acceptance, drift."""
    try:
        live = json.loads((folder / "live.json").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return ""
    parts = [f"{live['measured']} measured"]
    first, newest = live["first"], live["newest"]
    if newest is not None:
        name = "tpot_p50_us" if newest["tpot_p50_us"] is not None else "e2e_p50_us"
        parts.append(f"{name[:-7]} p50 {_ms(newest[name])}{_change(first[name], newest[name])}")
        before, now = _rate(first), _rate(newest)
        if now is not None:
            parts.append(f"A/D {now:.1%}{_change(before, now)}")
    return ", ".join(parts)


def _ms(us: float | None) -> str:
    return "-" if us is None else f"{us / 1000:.1f} ms"


def _change(first: float | None, now: float | None) -> str:
    return f" ({now / first - 1:+.1%} since the start)" if first and now is not None and now != first else ""


def _rate(entry: dict[str, Any]) -> float | None:
    drafted = entry["draft_tokens"]
    return entry["accepted_tokens"] / drafted if drafted else None
