"""The streaming client: one epoll set per process, raw reads with kernel receive stamps, nothing parsed on the way.

* One libev watcher stands for all sockets. A burst is read once per `pace_s`, which saves wake-ups; the kernel's
  receive stamps (SO_TIMESTAMPNS) keep the times exact as long as pace plus the longest hub step is shorter than a gap.
* Where there is no epoll or no stamp (other systems), sockets are read at once and the user clock stands in, marked.
* Network failures never raise: they are the `end` of a RawExchange that keeps what had arrived. GreenletExit closes
  the socket (half an answer is never reused), leaves `Connection.partial()` behind and goes on.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from typing import Any

import gevent
from gevent import get_hub
from gevent import socket as gsocket
from gevent.monkey import get_original

from loadtest.load import http1
from loadtest.load.connection import SO_TIMESTAMPNS, Connection
from loadtest.load.exchange import RawExchange
from loadtest.load.idle import IdleParser, quiet_collector

__all__ = ["Connection", "IdleParser", "RawExchange", "Reader", "quiet_collector"]

_RawSocket: Any = get_original("socket", "socket")
_EPOLLIN = 1
_READ_BYTES = 16_384  # holds any chunk; 256 KiB would be mapped and unmapped per read (32 us instead of 6)
_ANCILLARY_BYTES = 64  # CMSG_SPACE of a struct timespec is 32
_POLL_EVENTS = 4096
_SWEEP_S = 0.5  # precision of the timeouts, which are tens of seconds
_STALL_MS = 10.0  # half a usual decode step of 20 ms: two steps of it and chunks merge


class Reader:
    """Owns every socket of the process. `pump()` may be called at any time and reads whatever is there.

    Counters: `connections_opened`, `resent`, `user_stamps` (reads without a kernel stamp), `stalls_ms`.
    """

    def __init__(self, pace_s: float = 0.002, read_timeout_s: float = 60.0, *, epoll: bool | None = None) -> None:
        """`epoll` None: used where the system has it; False: one watcher per socket, as on other systems."""
        self.read_timeout_s = read_timeout_s
        self.connections_opened = self.resent = self.user_stamps = 0
        self.stalls_ms: list[float] = []
        self._by_fd: dict[int, Connection] = {}
        self._loop = get_hub().loop
        self._epoll = _new_epoll() if epoll in (None, True) else None
        # The first reads after the option is switched on may come without a stamp: keep it on from now.
        self._stamp_keeper = _stamp_keeper()
        self.stamped = self._stamp_keeper is not None
        self.pace_s = pace_s if self.stamped else 0.0
        self._burst = False
        self._last_tick = 0.0
        if self._epoll is not None:
            self._watcher = self._loop.io(self._epoll.fileno(), 1, priority=2)
            self._timer = self._loop.timer(self.pace_s, self.pace_s)
            self._watcher.start(self._ready)
        self._sweeper = gevent.spawn(self._sweep)

    def close(self) -> None:
        """Closes all connections and stops watching."""
        self._sweeper.kill()
        for connection in list(self._by_fd.values()):
            connection._end("aborted", "reader closed")
            connection.close()
        if self._epoll is not None:
            for watcher in (self._watcher, self._timer):
                watcher.stop()
                watcher.close()
            self._epoll.close()
            self._epoll = None
        if self._stamp_keeper is not None:
            self._stamp_keeper.close()

    @property
    def active(self) -> int:
        """Requests in flight."""
        return sum(1 for c in self._by_fd.values() if c._raw is not None)

    def abort_active(self, reason: str = "drain deadline") -> int:
        """Ends every request in flight as "aborted"; their `exchange` returns what had arrived. -> how many."""
        self.pump()
        waiting = [c for c in self._by_fd.values() if c._raw is not None]
        for connection in waiting:
            connection._end("aborted", reason)
        return len(waiting)

    def pump(self) -> int:
        """One poll and one read of every ready socket. Never raises, never parses. -> number of ready sockets."""
        if self._epoll is None:
            return 0
        ready = self._epoll.poll(0, _POLL_EVENTS)
        by_fd, take = self._by_fd, self._take
        for fd, _ in ready:
            connection = by_fd.get(fd)
            if connection is not None:
                take(connection)
        return len(ready)

    def _take(self, connection: Connection) -> None:
        try:
            data, ancillary, _, _ = connection._recvmsg(_READ_BYTES, _ANCILLARY_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            connection._broken("reset", f"{type(error).__name__}: {error}")
            return
        raw = connection._raw
        if raw is None or not data:
            if raw is None:  # closed by the server while idle, or stray bytes: never reuse it
                connection.close()
            elif connection._need == http1.CLOSE:
                connection._broken("complete", None)
            else:
                connection._broken("closed", "closed mid-stream" if raw.reads else "closed before the response")
            return
        raw.reads.append(data)
        if ancillary:
            raw.stamps.append(ancillary[0][2])
        else:
            raw.stamps.append(None)
            self.user_stamps += 1
        raw.seen_ns.append(time.time_ns())
        if connection._need != http1.CHUNKED or data[-4:] == b"\r\n\r\n" or len(data) < 4:
            connection._check_end()

    def _ready(self) -> None:
        if self.pace_s <= 0:
            self.pump()
            return
        self._watcher.stop()  # a burst begins: from now on look once per pace
        self._last_tick = time.monotonic()
        self._timer.start(self._tick)

    def _tick(self) -> None:
        now = time.monotonic()
        late_ms = (now - self._last_tick - self.pace_s) * 1000
        self._last_tick = now
        if late_ms > _STALL_MS and len(self.stalls_ms) < 10_000:  # bounded: the first 10,000 tell enough
            self.stalls_ms.append(round(late_ms, 1))
        if not self.pump():
            self._timer.stop()  # quiet again: wait in the kernel
            self._watcher.start(self._ready)

    def _sweep(self) -> None:
        """All timeouts, and ends that the quick test does not know (long trailers)."""
        while True:
            waiting = [c for c in self._by_fd.values() if c._raw is not None]
            shortest = min([self.read_timeout_s, *(c._shortest_timeout_s for c in waiting)])
            gevent.sleep(min(_SWEEP_S, max(0.01, shortest / 4)))
            self.pump()  # a late hub must not turn into a timeout
            now = time.monotonic()
            for connection in list(self._by_fd.values()):
                connection._check_time(now)

    def _add(self, connection: Connection, fd: int) -> Callable[[], None]:
        """Starts reading; -> what stops it."""
        self._by_fd[fd] = connection
        self.connections_opened += 1
        if self._epoll is not None:
            epoll = self._epoll
            epoll.register(fd, _EPOLLIN)

            def remove() -> None:
                del self._by_fd[fd]
                with contextlib.suppress(OSError, ValueError):
                    epoll.unregister(fd)

            return remove
        watcher = self._loop.io(fd, 1)
        watcher.start(self._take, connection)

        def stop() -> None:
            del self._by_fd[fd]
            watcher.stop()
            watcher.close()

        return stop


def _new_epoll() -> Any:
    try:
        return get_original("select", "epoll")()
    except (AttributeError, KeyError):
        return None


def _stamp_keeper() -> Any:
    """A socket that keeps the kernel's receive stamps switched on; None where there are none."""
    if sys.platform != "linux":
        return None
    sock = _RawSocket(gsocket.AF_INET, gsocket.SOCK_DGRAM)
    try:
        sock.setsockopt(gsocket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:
        sock.close()
        return None
    return sock
