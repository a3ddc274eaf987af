"""CPU time and memory of a process and its children, sampled from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import psutil

SAMPLE_S = 0.1
"""CPU time at an edge is interpolated between samples this far apart."""


@dataclass(slots=True)
class Usage:
    """What a process tree used."""

    samples: list[tuple[int, float, int]] = field(default_factory=list)
    """(UNIX ns, CPU seconds so far, resident bytes) of the whole tree."""
    processes: dict[int, list[tuple[int, float, int]]] = field(default_factory=dict)
    """The same of each process by its id, the one that was started first."""
    returncode: int | None = None

    @property
    def peak_rss_mb(self) -> float:
        """Largest sum of resident memory in MiB; pages shared between the processes count once for each."""
        return max((rss for _, _, rss in self.samples), default=0) / 2**20

    def cpu_s_at(self, t_ns: int) -> float:
        """CPU seconds at a time, between two samples."""
        for (t0, u0, _), (t1, u1, _) in pairwise(self.samples):
            if t0 <= t_ns <= t1:
                return u0 + (u1 - u0) * (t_ns - t0) / (t1 - t0)
        return self.samples[-1][1] if self.samples and t_ns >= self.samples[0][0] else 0.0

    def cpu_s(self, begin_ns: int, end_ns: int) -> float:
        """CPU seconds used between two times."""
        return self.cpu_s_at(end_ns) - self.cpu_s_at(begin_ns)


def tree_usage(pid: int) -> dict[int, tuple[float, int]]:
    """Process id -> CPU seconds (of its ended children too) and resident bytes, of a process and all below it."""
    out = {}
    try:
        parent = psutil.Process(pid)
        processes = [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return out
    for process in processes:
        try:
            times, rss = process.cpu_times(), process.memory_info().rss
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue  # ended between two looks
        out[process.pid] = times.user + times.system + times.children_user + times.children_system, rss
    return out


def watch(process: subprocess.Popen[bytes], timeout_s: float, enough: Callable[[], bool] | None = None) -> Usage:
    """Samples a process (a session leader) until it ends; kills its session after `timeout_s` (returncode -9).

    Where `enough` is given and says so, the session is killed too, with returncode 0: what it goes on with (plots of
    its results, say) is not waited for.
    """
    out, began = Usage(), time.monotonic()
    highest = 0.0
    try:
        while process.poll() is None and time.monotonic() - began < timeout_s:
            each, now = tree_usage(process.pid), time.time_ns()
            for pid, (used, rss) in each.items():
                out.processes.setdefault(pid, []).append((now, used, rss))
            # A child that ended and was not waited for yet must not take time away.
            highest = max(highest, sum(used for used, _ in each.values()))
            out.samples.append((now, highest, sum(rss for _, rss in each.values())))
            if enough is not None and enough():
                out.returncode = 0
                break
            time.sleep(SAMPLE_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if out.returncode is None:
        out.returncode = process.returncode
    return out
