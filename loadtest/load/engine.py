"""The streaming client: one epoll set per process, raw reads with kernel receive stamps, nothing parsed on the way.

* One libev watcher stands for all sockets. A burst is read once per `pace_s`, which saves wake-ups; the kernel's
  receive stamps (SO_TIMESTAMPNS) keep the times exact as long as pace plus the longest hub step is shorter than a gap.
* Where there is no epoll or no stamp (other systems), sockets are read at once and the user clock stands in, marked.
* Network failures never raise: they are the `end` of a RawExchange that keeps what had arrived. GreenletExit closes
  the socket (half an answer is never reused), leaves `Connection.partial()` behind and goes on.
"""

from __future__ import annotations

import contextlib
import ssl
import sys
import time
from collections.abc import Callable
from typing import Any

import gevent
from gevent import get_hub
from gevent import socket as gsocket
from gevent.event import Event
from gevent.monkey import get_original

from loadtest.load import http1
from loadtest.load.exchange import End, RawExchange
from loadtest.load.idle import IdleParser, quiet_collector
from loadtest.load.request import Endpoint
from loadtest.load.tls import TlsSocket

__all__ = ["Connection", "IdleParser", "RawExchange", "Reader", "quiet_collector"]

_RawSocket: Any = get_original("socket", "socket")
_IPPROTO_TCP, _TCP_NODELAY, _SOL_SOCKET = gsocket.IPPROTO_TCP, gsocket.TCP_NODELAY, gsocket.SOL_SOCKET
_SO_TIMESTAMPNS = 35  # asm-generic/socket.h; the socket module has no name for it
_EPOLLIN = 1
_READ_BYTES = 16_384  # holds any chunk; 256 KiB would be mapped and unmapped per read (32 us instead of 6)
_ANCILLARY_BYTES = 64  # CMSG_SPACE of a struct timespec is 32
_POLL_EVENTS = 4096
_SWEEP_S = 0.5  # precision of the timeouts, which are tens of seconds
_ODD_END_S = 0.1  # silence after which an end that the quick test does not know is looked at
_STALL_MS = 10.0  # half a usual decode step of 20 ms: two steps of it and chunks merge
_NEW = -3  # response length not known yet


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


class Connection:
    """One keep-alive connection to `url`, used by one greenlet, opened when needed."""

    def __init__(self, reader: Reader, url: str | Endpoint, *, connect_timeout_s: float = 10.0) -> None:
        """Raises PlanError for a URL that is none."""
        self.endpoint = Endpoint.parse(url) if isinstance(url, str) else url
        self.connect_timeout_s = connect_timeout_s
        self._reader = reader
        self._socket: Any = None
        self._stop_reading: Callable[[], None] | None = None
        self._raw: RawExchange | None = None  # the exchange in flight
        self._partial: RawExchange | None = None
        self._done = Event()
        self._recvmsg: Any = None
        self._need = _NEW
        self._got = 0
        self._keep_alive = True
        self._total_s: float | None = None
        self._read_s = self._shortest_timeout_s = reader.read_timeout_s
        self._sent_at = self._quiet_since = 0.0
        self._reads_then = self._replayed = 0

    def exchange(
        self, request: bytes, *, total_timeout_s: float | None = None, read_timeout_s: float | None = None
    ) -> RawExchange:
        """Sends `request` and waits for the whole answer. Network failures are the `end`, not exceptions.

        A reused connection that the server had closed before a byte of the answer came is replaced once, and the
        request sent again (`resent`); nothing else is ever sent twice. Timeouts None: no total one, the reader's read
        timeout.
        """
        self._partial = raw = RawExchange()
        self._total_s = total_timeout_s
        self._read_s = self._reader.read_timeout_s if read_timeout_s is None else read_timeout_s
        self._shortest_timeout_s = min(self._read_s, total_timeout_s or self._read_s)
        try:
            reused = self._socket is not None
            self._attempt(raw, request)
            if reused and not raw.reads and raw.end in ("closed", "reset"):
                self.close()
                raw.resent = True
                self._reader.resent += 1
                self._attempt(raw, request)
        except BaseException as error:  # GreenletExit, gevent.Timeout: give up, but keep what arrived
            self._raw = None
            self.close()
            raw.end, raw.error, raw.end_ns = "aborted", f"stopped by {type(error).__name__}", time.time_ns()
            raise
        self._raw = self._partial = None
        if raw.end != "complete" or not self._keep_alive:
            self.close()
        return raw

    def partial(self) -> RawExchange | None:
        """What had arrived of the exchange that an exception ended (end "aborted"); None after a normal one."""
        return self._partial

    def close(self) -> None:
        """Closes the socket; the next exchange opens a new one."""
        if self._stop_reading is not None:
            self._stop_reading()
            self._stop_reading = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _attempt(self, raw: RawExchange, request: bytes) -> None:
        raw.new_connection = self._socket is None
        if self._socket is None and not self._connect(raw):
            return
        self._need, self._got, self._keep_alive, self._reads_then, self._replayed = _NEW, 0, True, 0, 0
        self._done.clear()
        self._raw = raw
        self._sent_at = self._quiet_since = time.monotonic()
        raw.send_ns = raw.send_ns or time.time_ns()  # of a request that is sent again: the first time
        try:
            self._send(request)
        except gevent.Timeout:
            self._broken("read_timeout", "the server did not take the request in time")
        except OSError as error:
            self._reader.pump()  # an early answer (413) may lie there already
            if not self._done.is_set():
                self._broken("reset", f"while sending: {type(error).__name__}: {error}")
        self._done.wait()

    def _connect(self, raw: RawExchange) -> bool:
        address = (self.endpoint.host, self.endpoint.port)
        where = f"{self.endpoint.host}:{self.endpoint.port}"
        try:
            with gevent.Timeout(self.connect_timeout_s, _ConnectTimeoutError):
                sock = _unpatched(gsocket.create_connection(address))
                try:
                    self._socket = TlsSocket(sock, self.endpoint.host) if self.endpoint.scheme == "https" else sock
                except BaseException:
                    sock.close()
                    raise
        except (_ConnectTimeoutError, TimeoutError):
            raw.end, raw.error = "connect_timeout", f"no connection to {where} within {self.connect_timeout_s:g} s"
        except (OSError, ssl.SSLError, UnicodeError) as error:
            raw.end, raw.error = "connection_error", f"{where}: {type(error).__name__}: {error}"
        else:
            self._recvmsg = self._socket.recvmsg
            self._stop_reading = self._reader._add(self, self._socket.fileno())
            return True
        raw.end_ns = time.time_ns()
        return False

    def _send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self._socket.send(view) :]
            except (BlockingIOError, InterruptedError):
                if self._done.is_set():
                    return
                with gevent.Timeout(self._read_s):
                    gsocket.wait_write(self._socket.fileno())

    def _end(self, end: End, error: str | None) -> None:
        """Ends the exchange in flight, once."""
        raw = self._raw
        if raw is not None:
            raw.end, raw.error, raw.end_ns = end, error, time.time_ns()
            self._raw = None
            self._done.set()

    def _broken(self, end: End, error: str | None) -> None:
        """The socket is of no more use: stop reading it (the greenlet closes it)."""
        self._keep_alive = False
        if self._raw is None:
            self.close()
            return
        if self._stop_reading is not None:
            self._stop_reading()
            self._stop_reading = None
        self._end(end, error)

    def _check_end(self) -> None:
        """Is the answer whole? Called when the last read may have been its last."""
        raw = self._raw
        if raw is None:
            return
        if self._need == _NEW:
            try:
                found = http1.framing(b"".join(raw.reads))
            except http1.BadHttpError as error:
                self._broken("bad_http", str(error))
                return
            if found is None:
                return
            self._need, self._keep_alive = found.length, found.keep_alive
            self._got = sum(map(len, raw.reads[:-1]))
        if self._need == http1.CHUNKED:
            state = http1.tail_state(raw.reads)
            if state:
                self._end("complete", None)
            elif state is None:
                self._replay()
        elif self._need >= 0:
            self._got += len(raw.reads[-1])
            if self._got >= self._need:
                self._keep_alive &= self._got == self._need
                self._end("complete", None)

    def _replay(self) -> None:
        """Asks the HTTP parser whether a chunked answer has ended."""
        reads = self._raw.reads if self._raw is not None else []
        self._replayed = len(reads)
        message = http1.replay(reads)
        if message.complete:
            self._keep_alive &= not message.extra
            self._end("complete", None)
        elif message.error:
            self._broken("bad_http", message.error)

    def _check_time(self, now: float) -> None:
        raw = self._raw
        if raw is None:
            return
        if len(raw.reads) != self._reads_then:
            self._reads_then, self._quiet_since = len(raw.reads), now
        quiet_s = now - self._quiet_since
        if self._need == http1.CHUNKED and quiet_s > _ODD_END_S and self._replayed < len(raw.reads):
            self._replay()
        if self._done.is_set():
            return
        if self._total_s is not None and now - self._sent_at > self._total_s:
            self._end("total_timeout", f"not finished after {self._total_s:g} s")
        elif quiet_s > self._read_s:
            self._end("read_timeout", f"nothing arrived for {self._read_s:g} s")


class _ConnectTimeoutError(Exception):
    """Ours, so that no other timeout is mistaken for it."""


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
        sock.setsockopt(_SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    except OSError:
        sock.close()
        return None
    return sock


def _unpatched(connected: Any) -> Any:
    """The plain, non-blocking socket of a connected gevent socket, with receive stamps where there are any."""
    sock = _RawSocket(connected.family, connected.type, connected.proto, fileno=connected.detach())
    sock.setblocking(False)
    sock.setsockopt(_IPPROTO_TCP, _TCP_NODELAY, 1)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            sock.setsockopt(_SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    return sock
