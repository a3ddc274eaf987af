"""HTTP/1.1 responses from raw reads: where one ends (for the engine), and its body with read numbers (for the parser).

No gevent here. Source: RFC 9112 section 6 (message body length), section 7 (chunked coding).
"""

from __future__ import annotations

import re
import zlib
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httptools

CHUNKED, CLOSE = -1, -2
MAX_HEAD_BYTES = 65_536
"""A response head above this is refused: uvicorn, nginx and Envoy all stop at 8 to 64 KiB."""

_HEAD = re.compile(rb"HTTP/1\.([01]) (\d{3})")
# A last chunk, with any chunk extension and trailers, at the end of what was read.
_LAST_CHUNK = re.compile(rb"(?:\A|\n)0+[ \t]*(?:;[^\r\n]*)?\r\n(?:[^\r\n]+\r\n)*\r\n\Z")
_DONE_TAIL = b"data: [DONE]\n\n\r\n0\r\n\r\n"
TAIL_BYTES = 1024
"""How much of the end is searched for a last chunk; longer trailers are found by the engine's sweep."""


@dataclass(frozen=True, slots=True)
class Framing:
    """How a response ends. `length` = bytes of head and body together, or CHUNKED, or CLOSE."""

    length: int
    keep_alive: bool
    head_bytes: int


class BadHttpError(ValueError):
    """The bytes are no HTTP/1.1 response."""


def framing(data: bytes) -> Framing | None:
    """How the response that starts `data` ends; None while its head is incomplete. Raises BadHttpError."""
    start = 0
    while True:
        if len(data) > start + 8 and not data.startswith(b"HTTP/1.", start):
            raise BadHttpError(f"not an HTTP/1.1 response: it starts with {data[start : start + 40]!r}")
        end = data.find(b"\r\n\r\n", start)
        if end < 0:
            if len(data) - start > MAX_HEAD_BYTES:
                raise BadHttpError(f"response head is longer than {MAX_HEAD_BYTES} bytes")
            return None
        match = _HEAD.match(data, start)
        if match is None:
            raise BadHttpError(f"bad status line {data[start : start + 40]!r}")
        status = int(match[2])
        if not 100 <= status < 200:
            break
        start = end + 4  # an interim response (100, 103): the real one follows
    headers = _headers(data[start:end])
    connection = headers.get(b"connection", b"").lower()
    keep_alive = b"close" not in connection if match[1] == b"1" else b"keep-alive" in connection
    body = end + 4
    if status in (204, 304):
        return Framing(body, keep_alive, body)
    if b"chunked" in headers.get(b"transfer-encoding", b"").lower():
        return Framing(CHUNKED, keep_alive, body)
    length = headers.get(b"content-length")
    if length is None:
        return Framing(CLOSE, False, body)
    if not length.isdigit():
        raise BadHttpError(f"content-length {length[:40]!r} is not a number")
    return Framing(body + int(length), keep_alive, body)


def _headers(head: bytes) -> dict[bytes, bytes]:
    pairs = (line.partition(b":") for line in head.split(b"\r\n")[1:])
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def tail_state(reads: Sequence[bytes]) -> bool | None:
    """Do chunked `reads` end in a last chunk? True = surely, None = it looks so (replay to be sure), False = no."""
    tail = reads[-1]
    if len(tail) < TAIL_BYTES:
        size, first = 0, len(reads)
        while first and size < TAIL_BYTES:
            first -= 1
            size += len(reads[first])
        tail = b"".join(reads[first:])
    if tail.endswith(_DONE_TAIL):
        return True
    return None if _LAST_CHUNK.search(tail, max(0, len(tail) - TAIL_BYTES)) else False


@dataclass(slots=True)
class Message:
    """A response put together from its reads. `reads_of` says which read completed what."""

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    """Lower-case names; the last of equal names wins."""
    body: bytes = b""
    complete: bool = False
    """By HTTP framing; a close-delimited body is never complete here (the engine knows that it was closed)."""
    error: str | None = None
    extra: bool = False
    """Bytes follow the whole message: the connection must not be used again."""
    _ends: list[int] = field(default_factory=list)

    def reads_of(self, ends: Sequence[int]) -> list[int]:
        """For each offset of rising `ends`: the number of the read that held body byte `end - 1`."""
        own, last, at = self._ends, len(self._ends) - 1, 0
        out = []
        for end in ends:
            at = bisect_left(own, end, at)
            out.append(min(at, last))
        return out


class _Sink:
    """Callbacks of httptools."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.headers: dict[str, str] = {}
        self.complete = False
        self.head_done = False
        self.parser: Any = None
        self.status: int | None = None

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.complete:  # what follows a whole message is another one, which nobody asked for
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self.complete:
            return
        self.status = self.parser.get_status_code()
        self.head_done = not 100 <= self.status < 200

    def on_body(self, body: bytes) -> None:
        if not self.complete:
            self.parts.append(body)

    def on_message_complete(self) -> None:
        if self.head_done:
            self.complete = True
        else:
            self.headers.clear()  # an interim response ended; forget its headers


def replay(reads: Sequence[bytes]) -> Message:
    """Feeds the reads to an HTTP parser again. Never raises: what is wrong stands in `error`, the rest is kept."""
    sink = _Sink()
    sink.parser = httptools.HttpResponseParser(sink)
    feed = sink.parser.feed_data
    message = Message()
    counts: list[int] = []
    try:
        for data in reads:
            feed(data)
            counts.append(len(sink.parts))
            if sink.complete:
                message.extra = len(counts) < len(reads)
                break
    except httptools.HttpParserError as error:
        counts.append(len(sink.parts))
        message.extra = sink.complete
        if not sink.complete:
            message.error = str(error) or type(error).__name__
    sink.parser = None  # the two hold each other, and the collector is off while requests are measured
    parts = sink.parts
    encoding = sink.headers.get("content-encoding", "identity").lower()
    if encoding in ("gzip", "deflate", "x-gzip"):
        parts, problem = _inflate(parts)
        message.error = message.error or problem
    elif encoding not in ("", "identity"):
        message.error = message.error or f"content-encoding {encoding!r} although identity was asked for; switch it off"
    ends, total, done = [], 0, 0
    for count in counts:
        for part in parts[done:count]:
            total += len(part)
        done = count
        ends.append(total)
    message.status, message.headers, message.complete = sink.status, sink.headers, sink.complete
    message.body, message._ends = b"".join(parts), ends
    return message


def _inflate(parts: list[bytes]) -> tuple[list[bytes], str | None]:
    """Decodes a body that was compressed although identity was asked for, part by part so that read numbers stay."""
    decoder = zlib.decompressobj(47)  # 47 = zlib or gzip header, detected
    out = []
    for part in parts:
        try:
            out.append(decoder.decompress(part))
        except zlib.error as error:
            return [*out, *[b""] * (len(parts) - len(out))], f"content-encoding: {error}"
    return out, None
