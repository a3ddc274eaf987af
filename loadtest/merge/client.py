"""What the workers say of themselves: stalls, connections, clocks, how many of them would be enough. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from loadtest.merge.cells import CellFiles, Row
from loadtest.merge.rows import RowSums

ROOM = 0.6
"""Share of a core that a worker should use at most: at 60 % an M/D/1 queue of reads waits 0.75 of one read on average,
at 90 % 4.5 of them (Pollaczek-Khinchine)."""
STREAMS_PER_WORKER = 1024
"""What one worker was shown to read in time."""
STALLS_LISTED = 1000
"""A worker's list of stalls ends there."""


def client_columns(rows: RowSums, files: CellFiles) -> Row:
    """Facts of the client's own innocence over the window; null where the workers did not tell."""
    workers: Mapping[str, Any] = (files.done or {}).get("workers") or {}
    window = files.window
    if not workers or window is None or window[1] <= window[0]:
        return {}
    told = list(workers.values())
    seconds = (window[1] - window[0]) / 1e9
    stalled = [ms for w in told if (ms := _stalled_ms(w)) is not None]
    thinking = [w["thinking_s"] for w in told if w.get("thinking_s") is not None]
    return {
        "worker_stall_share": max(stalled) / 1e3 / seconds if len(stalled) == len(told) else None,
        "worker_stalls": _sum(told, "stalls"),
        "worker_stall_max_ms": max((s for w in told for s in w.get("stalls_ms") or []), default=0.0),
        "worker_rss_max_mb": max((w["rss_mb"] for w in told if w.get("rss_mb") is not None), default=None),
        "connections_opened": _sum(told, "conns_opened"),
        "requests_resent": _sum(told, "resent"),
        "connect_failures": rows.counts["connect_failures"],
        "clock_skew_ms": _skew(told),
        "window_edge_late_ms": max((w["late_window_ms"] for w in told if "late_window_ms" in w), default=None),
        "thinking_concurrency": sum(thinking) / seconds if len(thinking) == len(told) else None,
        "conversations": _sum(told, "conversations"),
        "conversations_cut": _sum(told, "conversations_cut"),
        "workers_enough": workers_enough(
            [[float(s) for s in w.get("cpu_share") or []] for w in told], rows.in_flight_ns / 1e9 / seconds
        ),
    }


def _stalled_ms(worker: Mapping[str, Any]) -> float | None:
    """Stalls inside the window. Clients that did not add them up yet listed all stalls of the cell: an upper bound."""
    if "stalled_window_ms" in worker:
        told = worker["stalled_window_ms"]
        return None if told is None else float(told)
    stalls, listed = worker.get("stalls"), worker.get("stalls_ms")
    if stalls is None or listed is None or stalls >= STALLS_LISTED:
        return None
    return math.fsum(listed)


def workers_enough(cpu_share: list[list[float]], streams: float) -> int | None:
    """Workers that would each have used at most `ROOM` of a core in the busiest second; None: no CPU share is known."""
    if not any(cpu_share):
        return None
    length = max(len(shares) for shares in cpu_share)
    total = max(math.fsum(shares[i] for shares in cpu_share if i < len(shares)) for i in range(length))
    return max(1, math.ceil(total / ROOM), math.ceil(streams / STREAMS_PER_WORKER))


def _sum(told: list[Any], name: str) -> int | None:
    values = [w.get(name) for w in told]
    return None if None in values else sum(int(v) for v in values)


def _skew(told: list[Any]) -> float | None:
    """The least that a clock is off for certain: how far the interval of its offset lies from 0; worst worker."""
    bounds = [w.get("clock_skew_ms") for w in told]
    if None in bounds:
        return None
    return max(max(0.0, float(low), -float(high)) for low, high in bounds)
