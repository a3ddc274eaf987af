"""Raw exchanges for parser tests: bytes with times, and HTTP framing around them."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable
from typing import Any

from loadtest.load.exchange import End, RawExchange

T0 = 1_795_968_963_000_000_000


def raw_of(reads: Iterable[tuple[float, bytes]], end: End = "complete", **more: Any) -> RawExchange:
    """An exchange sent at T0 whose reads came at (ms, bytes), by the kernel's clock, seen 0.5 ms later."""
    raw = RawExchange(send_ns=T0, end=end, **more)
    for t_ms, data in reads:
        t = T0 + round(t_ms * 1e6)
        raw.reads.append(data)
        raw.stamps.append(struct.pack("@ll", *divmod(t, 10**9)))  # struct timespec, as the kernel gives it
        raw.seen_ns.append(t + 500_000)
    raw.end_ns = raw.seen_ns[-1] if raw.seen_ns else T0
    return raw


def head(status: int = 200, content_type: str = "text/event-stream", extra: str = "connection: close") -> bytes:
    return f"HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\n{extra}\r\n\r\n".encode()


def chunked(*parts: bytes, last: bool = True) -> bytes:
    """The parts as HTTP chunks of one response."""
    body = b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in parts)
    return head(extra="transfer-encoding: chunked") + body + (b"0\r\n\r\n" if last else b"")


def of_case(chunks: dict[str, Any]) -> RawExchange:
    """The exchange that a case's chunks.json describes, close-delimited."""
    ends: dict[str, End] = {"eof": "complete", "timeout": "read_timeout", "reset": "reset"}
    reads = [(float(chunks["headers_ms"]), head(chunks["status"], chunks["headers"]["content-type"]))]
    for chunk in chunks["chunks"]:
        data = chunk["text"].encode() if "text" in chunk else base64.b64decode(chunk["b64"])
        reads.append((float(chunk["t_ms"]), data))
    return raw_of(reads, ends[chunks["end"]])


def of_body(body: bytes, content_type: str = "application/json", status: int = 200, t_ms: float = 10) -> RawExchange:
    """A response with a length, in one read."""
    return raw_of([(t_ms, head(status, content_type, f"content-length: {len(body)}") + body)])
