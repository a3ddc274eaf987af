"""What the reader kept of one request and its answer: raw bytes and time stamps, nothing parsed. No gevent here."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Literal

End = Literal[
    "complete",  # the HTTP message is whole (close-delimited bodies included)
    "closed",  # the server closed before the message was whole; no bytes at all: before the response
    "reset",  # the connection broke, while sending or receiving
    "read_timeout",  # nothing arrived for read_timeout_s
    "total_timeout",  # not finished total_timeout_s after the send
    "connect_timeout",
    "connection_error",  # refused, unreachable, unknown host, TLS failure: never sent
    "bad_http",  # the bytes are no HTTP/1.1 response
    "aborted",  # given up by the client: user stopped, drain deadline
]

# struct timespec as SO_TIMESTAMPNS delivers it: two native longs (seconds, nanoseconds).
_TIMESPEC = struct.Struct("@ll")


@dataclass(slots=True)
class RawExchange:
    """One request as the client saw it. `reads`, `stamps` and `seen_ns` run in parallel, one entry per read."""

    send_ns: int | None = None
    """UNIX ns just before the first byte was handed to the kernel; None: never sent (no connection)."""
    reads: list[bytes] = field(default_factory=list)
    stamps: list[bytes | None] = field(default_factory=list)
    """Kernel receive stamp of each read (raw struct timespec); None: the kernel gave none, `seen_ns` stands in."""
    seen_ns: list[int] = field(default_factory=list)
    """User clock right after each read (UNIX ns)."""
    end: End = "aborted"
    end_ns: int | None = None
    """User clock when the end was noticed (UNIX ns); a complete answer ends with its last read."""
    error: str | None = None
    """What the system or the HTTP layer said, in words."""
    new_connection: bool = True
    resent: bool = False
    """The reused connection had been closed by the server before a byte of the answer came; sent again on a new one."""

    def times_ns(self) -> list[int]:
        """Best arrival time of each read: its kernel stamp, else the user clock (UNIX ns)."""
        unpack, size = _TIMESPEC.unpack, _TIMESPEC.size
        out = []
        for stamp, seen in zip(self.stamps, self.seen_ns, strict=True):
            if stamp is not None and len(stamp) == size:
                seconds, nanoseconds = unpack(stamp)
                out.append(seconds * 1_000_000_000 + nanoseconds)
            else:
                out.append(seen)
        return out

    def clock(self) -> Literal["kernel", "user", "mixed"]:
        """Which clock the read times come from; "user" also when nothing was read."""
        user = self.stamps.count(None)
        if user == len(self.stamps):
            return "user"
        return "mixed" if user else "kernel"

    def lag_us(self, times_ns: list[int]) -> int | None:
        """Worst read: user clock minus kernel stamp in us; None without kernel stamps."""
        lags = [
            seen - t for seen, t, stamp in zip(self.seen_ns, times_ns, self.stamps, strict=True) if stamp is not None
        ]
        return max(lags) // 1000 if lags else None
