"""Server-sent events: bytes -> events, each with the position of the byte that completed it. Pure.

Source: WHATWG HTML, section 9.2.6 "Interpreting an event stream". One deviation, on purpose: data that the end of the
stream left without its blank line is given as an event with `terminated` false (a server that forgets the last blank
line after its usage chunk has still said it).
"""

from __future__ import annotations

import re
from typing import NamedTuple

_BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\r|\n")


class Event(NamedTuple):
    """One event. `end` is the offset just past the byte that completed it: its arrival is the event's time."""

    end: int
    name: bytes
    """The `event` field; b"" where there is none."""
    data: bytes
    """The `data` lines joined by LF."""
    terminated: bool


def events(body: bytes) -> list[Event]:
    """All events of an event stream, in order. Comments and empty events are left out."""
    start = len(_BOM) if body.startswith(_BOM) else 0
    if b"\r" not in body:
        return _lf_only(body, start)
    return _any_line_end(body, start)


def _lf_only(body: bytes, start: int) -> list[Event]:
    """The common case: lines end in LF, so events end in LF LF."""
    out: list[Event] = []
    append, new = out.append, tuple.__new__  # half the cost of calling Event for each of thousands a second
    blocks = body[start:].split(b"\n\n")
    last = blocks.pop()
    end = start
    for block in blocks:
        end += len(block) + 2
        if block[:6] == b"data: " and b"\n" not in block:
            append(new(Event, (end, b"", block[6:], True)))
        elif block:
            name, data = _fields(block.split(b"\n"))
            if data is not None:
                append(Event(end, name, data, True))
    if last:
        name, data = _fields(last.split(b"\n"))
        if data is not None:
            append(Event(len(body), name, data, False))
    return out


def _any_line_end(body: bytes, start: int) -> list[Event]:
    """CR, LF and CRLF, mixed. The CR of a CRLF ends the line already: its LF may come in a later read."""
    out: list[Event] = []
    lines: list[bytes] = []
    for match in _LINE_END.finditer(body, start):
        line = body[start : match.start()]
        start = match.end()
        if line:
            lines.append(line)
        elif lines:
            name, data = _fields(lines)
            if data is not None:
                out.append(Event(match.start() + 1, name, data, True))
            lines = []
    if start < len(body):
        lines.append(body[start:])
    name, data = _fields(lines)
    if data is not None:
        out.append(Event(len(body), name, data, False))
    return out


def _fields(lines: list[bytes]) -> tuple[bytes, bytes | None]:
    """The event name and the joined data of one event's lines; data None where there is no data line."""
    name = b""
    data: list[bytes] = []
    for line in lines:
        key, _, value = line.partition(b":")
        value = value.removeprefix(b" ")  # one space only: the rest belongs to the data
        if key == b"data":
            data.append(value)
        elif key == b"event":
            name = value
    return name, b"\n".join(data) if data else None
