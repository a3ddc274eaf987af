"""What a process knows of its own innocence: CPU share, loop stalls, clock steps, memory. Import after locust."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

import gevent
import psutil

from loadtest.errors import EXIT_CRASH
from loadtest.load.protocol import MASTER_SILENCE_S

TICK_S = 0.02
"""Fifty looks a second cost below 0.2 % of a core."""
STALL_MS = 10.0
"""A hub that is away for less than this cannot make a stream's step of 20 ms read together with the next one."""
STALLS_KEPT = 1000
"""The list is bounded; `stalls` counts all."""
_NOT_WORKING = {
    psutil.STATUS_ZOMBIE: "dead",
    psutil.STATUS_DEAD: "dead",
    psutil.STATUS_STOPPED: "stopped",
    psutil.STATUS_TRACING_STOP: "stopped",
}
SAMPLES_KEPT = 36_000
"""Ten hours at 1 Hz."""


class SelfProof:
    """Samples this process from `start()` to `stop()`; `facts()` gives the figures since the last `start()`."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._reset()
        self._greenlet = gevent.spawn(self._loop)

    def _reset(self) -> None:
        self.cpu_share: list[float] = []
        self.stalls_ms: list[float] = []
        self.stalls = 0
        self.window = (0, 0)
        """(start, end) in UNIX ns, set by who knows it: stalls inside are added up in `stalled_window_ms`."""
        self.stalled_window_ms = 0.0
        self._offset_ns = _clock_offset_ns()
        self.offset_start_ns = self._offset_ns
        self.max_step_ns = 0
        self._cpu, self._wall = time.process_time(), time.monotonic()
        self._due = self._wall + TICK_S
        self._next_second = self._wall + 1.0

    def start(self) -> None:
        """Forgets what was before: a cell begins."""
        self._reset()

    def facts(self) -> dict[str, Any]:
        """{cpu_share: one value per second (1.0 = a whole core), rss_mb, stalls, stalls_ms, clock}."""
        self._sample()
        return {
            "cpu_share": [round(v, 3) for v in self.cpu_share],
            "rss_mb": round(self._process.memory_info().rss / 2**20, 1),
            "stalls": self.stalls,
            "stalled_window_ms": round(self.stalled_window_ms, 1),
            "stalls_ms": [round(v, 1) for v in self.stalls_ms],
            "clock": self.clock(),
        }

    def clock(self) -> dict[str, Any]:
        """Realtime minus monotonic clock at start and now, and the largest change from one second to the next."""
        return {
            "start_ns": self.offset_start_ns,
            "end_ns": _clock_offset_ns(),
            "max_step_us": round(self.max_step_ns / 1000, 1),
        }

    def _sample(self) -> None:
        cpu, wall = time.process_time(), time.monotonic()
        if wall - self._wall >= 0.2 and len(self.cpu_share) < SAMPLES_KEPT:  # below, the share is mostly noise
            self.cpu_share.append((cpu - self._cpu) / (wall - self._wall))
            self._cpu, self._wall = cpu, wall
        offset = _clock_offset_ns()
        self.max_step_ns = max(self.max_step_ns, abs(offset - self._offset_ns))
        self._offset_ns = offset

    def _loop(self) -> None:
        while True:
            gevent.sleep(TICK_S)
            now = time.monotonic()
            late_ms = (now - self._due) * 1000
            if late_ms > STALL_MS:
                self.stalls += 1
                if len(self.stalls_ms) < STALLS_KEPT:
                    self.stalls_ms.append(late_ms)
                start_ns, end_ns = self.window
                if start_ns <= time.time_ns() < end_ns:
                    self.stalled_window_ms += late_ms
            self._due = now + TICK_S
            if now >= self._next_second:
                self._sample()
                self._next_second = now + 1.0


def _clock_offset_ns() -> int:
    """Realtime minus monotonic, from the tightest of three looks: a preemption in between must not look like a step."""
    best, offset = 1 << 62, 0
    for _ in range(3):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        if after - before < best:
            best, offset = after - before, wall - (before + after) // 2
    return offset


def pid_space() -> str:
    """Names the system and, on Linux, the PID namespace: process ids mean the same only where this is equal.

    Two containers may have one host name, and one host may have two namespaces.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return socket.gethostname()


def process_state(pid: int) -> str | None:
    """Why the process of that id cannot be working: "gone", "dead" or "stopped"; None: it looks alive."""
    try:
        state = psutil.Process(pid).status()
    except psutil.Error:
        return "gone"
    return _NOT_WORKING.get(state)


def watch_master(runner: Any) -> None:
    """Ends this worker when its master, on another host, has been silent for long: no process outlives the run."""

    def watch() -> None:
        # Locust stamps a heartbeat by the wall clock, which somebody may set; here it only says whether one has come.
        # A master that was ending may never have answered: then the time runs from now on.
        heard, since = runner.last_heartbeat_timestamp, time.monotonic()
        while True:
            gevent.sleep(1.0)
            if runner.last_heartbeat_timestamp != heard:
                heard, since = runner.last_heartbeat_timestamp, time.monotonic()
            elif time.monotonic() - since > MASTER_SILENCE_S:
                os.write(2, b"loadtest: the master is silent; this worker ends\n")
                os._exit(EXIT_CRASH)

    gevent.spawn(watch)
