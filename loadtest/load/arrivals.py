"""Open loop: requests start at scheduled times, whatever the server does. Import after locust.

The schedule of a cell is a pure function of its seed: arrival number k happens at the same time before or after the
window's start, and sends prompt number k, for every config and for any number of workers, each of which takes every
n-th arrival. Times are absolute, so nothing drifts; a late start shows as lateness and in `e2e_intended`.
"""

from __future__ import annotations

import ctypes
import logging
import os
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

import gevent
from gevent.event import Event

from loadtest.load.cellrun import CellRun
from loadtest.load.conversation import converse
from loadtest.load.schedule import schedule_s
from loadtest.load.sending import Sender, UserSlot

log = logging.getLogger(__name__)

_TIMER_ABSTIME = 1  # linux/timerfd.h


class Alarm:
    """Waits for points of the monotonic clock: 0.1 ms late at the median, where gevent's own timer is 0.65 ms late."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = -1
        if hasattr(libc, "timerfd_create"):
            self._fd = libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        self._settime: Callable[..., int] | None = libc.timerfd_settime if self._fd >= 0 else None
        self._watcher: Any = gevent.get_hub().loop.io(self._fd, 1) if self._fd >= 0 else None

    def until(self, t_ns: int) -> None:
        """Returns at `t_ns` of the monotonic clock; at once when that is past."""
        left_ns = t_ns - time.monotonic_ns()
        if left_ns <= 0:
            return
        if self._settime is None:
            gevent.sleep(left_ns / 1e9)
            return
        self._settime(self._fd, _TIMER_ABSTIME, struct.pack("qqqq", 0, 0, *divmod(t_ns, 10**9)), None)
        gevent.get_hub().wait(self._watcher)
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Frees the timer."""
        if self._fd >= 0:
            self._watcher.close()
            os.close(self._fd)
            self._fd = -1


class Arrivals:
    """Starts this worker's share of a cell's arrivals; idle connections are kept and used again."""

    def __init__(
        self,
        run: CellRun,
        sender: Sender,
        dropped: Callable[[dict[str, Any]], None],
        *,
        cap: int,
        halt: Event,
        trace: Sequence[float] = (),
    ) -> None:
        """`cap`: requests in flight at this worker above which an arrival is dropped; `halt` ends conversations."""
        self._run, self._sender, self._dropped, self._trace = run, sender, dropped, trace
        self._cap, self._halt = cap, halt
        self._idle: list[UserSlot] = []
        self._greenlet: Any = None
        self.busy = 0
        """Arrivals that were started and are not over yet."""
        self._waiting = 0  # of these, the conversations that pause

    def start(self) -> None:
        """Begins; returns at once."""
        self._greenlet = gevent.spawn(self.drive)

    def drive(self) -> None:
        """Runs until the cell is closed, also after the window; requests in flight go on."""
        run, alarm = self._run, Alarm()
        realtime_ns = time.time_ns() - time.monotonic_ns()  # the schedule is kept on the clock that nobody sets
        try:
            warmup_ns = run.start_ns - int(run.cell.warmup_s * 1e9)
            for warmup, origin_ns in ((True, warmup_ns), (False, run.start_ns)):
                for k, offset_s in enumerate(schedule_s(run.cell, warmup=warmup, trace=self._trace)):
                    due_ns = origin_ns + round(offset_s * 1e9)
                    if warmup and due_ns >= run.start_ns:
                        break
                    if k % run.stride != run.offset:
                        continue
                    alarm.until(due_ns - realtime_ns)
                    if run.over(time.time_ns()):
                        return
                    self._start(k, due_ns, warmup=warmup)
        finally:
            alarm.close()

    def _start(self, k: int, due_ns: int, *, warmup: bool) -> None:
        ticket = self._run.ticket(k, warmup=warmup)
        if self.busy - self._waiting >= self._cap:
            self._dropped(self._sender.drop(self._run, ticket, due_ns, self._cap))
            return
        self.busy += 1
        self._run.flying[ticket.request_id] = due_ns
        gevent.spawn(self._one, ticket, due_ns)

    def _one(self, ticket: Any, due_ns: int) -> None:
        user: UserSlot | None = None
        try:
            user = self._idle.pop() if self._idle else self._sender.enter()
            converse(self._sender, self._run, ticket, user, self._halt, due_ns, self._pausing)
        except Exception:  # a request that could not even be made: no user of Locust's is there to count it
            self._run.user_errors += 1
            log.exception("request %s could not be made", ticket.request_id)
        finally:
            self._run.flying.pop(ticket.request_id, None)  # never begun: nothing else takes it off, the cell would wait
            self.busy -= 1
            if user is not None:
                self._idle.append(user)

    def _pausing(self, begins: bool) -> None:
        self._waiting += 1 if begins else -1

    def close(self) -> None:
        """Closes the idle connections; call when nothing is in flight any more."""
        if self._greenlet is not None:
            self._greenlet.kill()
        while self._idle:
            self._sender.leave(self._idle.pop())
