"""One keep-alive connection: opens, sends, waits for the whole answer, and says how it ended. See engine.py."""

from __future__ import annotations

import contextlib
import ssl
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gevent
from gevent import socket as gsocket
from gevent.event import Event
from gevent.monkey import get_original

from loadtest.load import http1
from loadtest.load.exchange import End, RawExchange
from loadtest.load.request import Endpoint
from loadtest.load.tls import TlsSocket

if TYPE_CHECKING:
    from loadtest.load.engine import Reader

_RawSocket: Any = get_original("socket", "socket")
SO_TIMESTAMPNS = 35
"""asm-generic/socket.h; the socket module has no name for it."""
_ODD_END_S = 0.1  # silence after which an end that the quick test does not know is looked at
_NEW = -3  # response length not known yet


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


def _unpatched(connected: Any) -> Any:
    """The plain, non-blocking socket of a connected gevent socket, with receive stamps where there are any."""
    sock = _RawSocket(connected.family, connected.type, connected.proto, fileno=connected.detach())
    sock.setblocking(False)
    sock.setsockopt(gsocket.IPPROTO_TCP, gsocket.TCP_NODELAY, 1)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            sock.setsockopt(gsocket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    return sock
