"""The answers that the replay server plays: those of the cases, and variants of each that must read the same."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import Any

from tests.cases.kit import DATA, folder_of, read

Script = dict[str, Any]
Parts = list[tuple[float, bytes]]

STREAMS = sorted(p.parent.name.partition("-")[0] for p in DATA.glob("*/chunks.json"))
"""Numbers of the cases with a stream, in order."""


def parts_of(chunks: dict[str, Any]) -> Parts:
    return [
        (float(c["t_ms"]), c["text"].encode() if "text" in c else base64.b64decode(c["b64"])) for c in chunks["chunks"]
    ]


def script(parts: Parts, **more: Any) -> Script:
    base = {"status": 200, "headers": {"content-type": "text/event-stream"}, "headers_ms": 5, "end": "eof"}
    chunks = [{"t_ms": t, "b64": base64.b64encode(data).decode()} for t, data in parts]
    return {**base, "chunks": chunks, **more}


def case(number: str) -> Script:
    """The case as it stands: close-delimited, with its own times and end."""
    chunks = read(number, "chunks.json")
    facts = {k: chunks[k] for k in ("status", "headers", "headers_ms", "end")}
    return script(parts_of(chunks), **facts)


def changed(number: str, change: Callable[[Parts], Parts], **more: Any) -> Script:
    chunks = read(number, "chunks.json")
    facts = {k: chunks[k] for k in ("status", "headers", "headers_ms", "end")}
    return script(change(parts_of(chunks)), **{**facts, **more})


def json_answer(body: bytes | str, content_type: str = "application/json", **more: Any) -> Script:
    data = body.encode() if isinstance(body, str) else body
    facts = {"headers": {"content-type": content_type}, "headers_ms": 0, "framing": "length", **more}
    return script([(1.0, data)], **facts)


# -- changes under which a stream must say the same


def _rest(parts: Parts, change: Callable[[bytes], bytes]) -> Parts:
    return [(t, change(data)) for t, data in parts]


def one_byte_early(parts: Parts) -> Parts:
    """The last byte of each piece comes with the next piece's time: every event is cut before its end."""
    out, held = [], b""
    for t, data in parts:
        whole = held + data
        out.append((t, whole[:-1]))
        held = whole[-1:]
    return [*out, (parts[-1][0] + 1, held)]


def crlf(parts: Parts) -> Parts:
    """CRLF everywhere, with the CR and the LF of an event's end in different pieces."""
    out: Parts = []
    for t, data in parts:
        text = re.sub(rb"\r\n|\r|\n", b"\r\n", data)
        if text.endswith(b"\r\n"):
            out += [(t, text[:-1]), (t + 0.5, b"\n")]
        else:
            out.append((t, text))
    return out


def no_space(parts: Parts) -> Parts:
    return _rest(parts, lambda data: data.replace(b"data: ", b"data:"))


def keep_alives(parts: Parts) -> Parts:
    """Comments, empty events, ids and retry fields between the events; a BOM in front."""
    noise = b": keep-alive\n\nid: 7\nretry: 10\n\n"
    at_end = [(t, data + noise if data.endswith(b"\n\n") else data) for t, data in parts]
    return [(parts[0][0], b"\xef\xbb\xbf" + noise + at_end[0][1]), *at_end[1:]]


def named(parts: Parts) -> Parts:
    return _rest(parts, lambda data: data.replace(b"data: {", b"event: message\ndata: {"))


CHANGES: dict[str, tuple[Callable[[Parts], Parts], dict[str, Any]]] = {
    "chunked": (lambda parts: parts, {"framing": "chunked"}),
    "length": (lambda parts: parts, {"framing": "length"}),
    "one_byte_early": (one_byte_early, {"framing": "chunked"}),
    "crlf": (crlf, {}),
    "no_space": (no_space, {}),
    "keep_alives": (keep_alives, {"framing": "chunked"}),
    "named": (named, {}),
}
"""Transport and writing of a stream that may not change what it says."""

PLAIN_SSE = [n for n in STREAMS if n not in ("34", "38", "40", "46", "52", "37")]
"""Cases whose pieces are whole events with LF; the others are about their own pieces."""
STRETCH = 20.0


def stretched(parts: Parts) -> Parts:
    """The early part slower, so that a difference of 3 ms in the case becomes 60 ms."""
    return [(t * STRETCH if t <= 140 else t + 140 * (STRETCH - 1), data) for t, data in parts]


# -- events written here


def event(**fields: Any) -> bytes:
    return (
        b"data: "
        + json.dumps({"id": "c-1", "object": "chat.completion.chunk", "model": "m", **fields}).encode()
        + b"\n\n"
    )


def delta(index: int = 0, finish: str | None = None, **fields: Any) -> list[dict[str, Any]]:
    return [{"index": index, "delta": fields, "finish_reason": finish}]


def usage(completion: Any, prompt: int = 4) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": completion}


ROLE = event(choices=delta(role="assistant", content=""))
A, B = event(choices=delta(content="a")), event(choices=delta(content="b"))
STOP, USAGE2 = event(choices=delta(finish="stop")), event(choices=[], usage=usage(2))
DONE = b"data: [DONE]\n\n"
TAIL = STOP + USAGE2 + DONE


def at(*data: bytes, step_ms: float = 20, **more: Any) -> Script:
    """Pieces at 30, 100, 120, 140 … ms; a longer step where a stall of the client must not merge two of them."""
    return script([((30, 100)[i] if i < 2 else 100 + step_ms * (i - 1), d) for i, d in enumerate(data)], **more)


def retokenised() -> Script:
    """Case 49 as the stream that its record came from: 15 blanks, first at 100 ms, last at 240 ms."""
    record = read("49", "record.json")
    first, last = record["t_first_token_ms"], record["t_last_token_ms"]
    n = len(record["text"])
    step = (last - first) / (n - 1)
    pieces = [(first + i * step, event(choices=delta(content=c))) for i, c in enumerate(record["text"])]
    end = STOP + event(choices=[], usage=usage(record["usage"]["completion_tokens"])) + DONE
    return script([(20, ROLE), *pieces, (last + 1, end)])


def plain_answers() -> dict[str, Script]:
    """Non-streaming answers of the cases, by `<case>/<row>`."""
    out: dict[str, Script] = {}
    for number in ("22", "23"):
        lines = (folder_of(number) / "responses.jsonl").read_text().splitlines()
        out |= {f"{number}/{i}": json_answer(line) for i, line in enumerate(filter(None, lines))}
    for number in ("10", "25", "26"):
        out[f"{number}/0"] = json_answer((folder_of(number) / "response.json").read_text())
    for i, answer in enumerate(read("53", "responses.json")):
        out[f"53/{i}"] = json_answer(answer["body"], answer["ctype"])
    return out
