"""Streams and answers beside the published cases, which servers and proxies also send: script, and what its row says.

A value `...` means "not null"; `Has("x")` means that the text holds x.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from typing import Any

from tests.cases.exchanges import (
    DONE,
    ROLE,
    STOP,
    TAIL,
    USAGE2,
    A,
    B,
    Script,
    at,
    delta,
    event,
    json_answer,
    script,
    usage,
)


@dataclass(frozen=True)
class Has:
    text: str


OK = {"outcome": "ok", "output_text": "ab", "completion_tokens": 2, "chunks": 2, "error": None}


def ok(**more: Any) -> dict[str, Any]:
    return {**OK, **more}


def bad(outcome: str, words: str = "", **more: Any) -> dict[str, Any]:
    return {"outcome": outcome, "error": Has(words), "completion_tokens": None, "e2e_us": None, "tpot_us": None, **more}


def raw(text: str) -> bytes:
    return f"data: {text}\n\n".encode()


def all_cr(data: bytes) -> bytes:
    return data.replace(b"\n", b"\r")


def pretty(data: bytes) -> bytes:
    """Every event's JSON over many data lines."""
    out = b""
    for block in data.strip(b"\n").split(b"\n\n"):
        text = block.removeprefix(b"data: ").decode()
        lines = json.dumps(json.loads(text), indent=2).splitlines() if text.startswith("{") else [text]
        out += b"".join(f"data: {line}\n".encode() for line in lines) + b"\n"
    return out


def pieces(*parts: bytes) -> bytes:
    """The parts as HTTP chunks."""
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)


def wire(*parts: bytes) -> Script:
    """A whole response as bytes, head included."""
    return at(*parts, framing="raw")


ERROR_OBJECT = {"error": {"message": "boom", "type": "server_error", "code": 500}}
CHOICE1_STOP = event(choices=[*delta(0, "stop"), *delta(1, "stop")])
TOOL = event(choices=delta(tool_calls=[{"index": 0, "id": "t", "function": {"name": "f", "arguments": "{}"}}]))
WHOLE = ROLE + A + B + TAIL
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"
SPEC = {"num_spec_steps": 2, "num_draft_tokens": 8, "num_accepted_draft_tokens": 3, "num_spec_tokens": 4}
NO_BLOCK = {"spec_steps": None, "draft_tokens": None, "accepted_tokens": None, "spec_source": None}
BLOCK = {"spec_steps": 2, "draft_tokens": 8, "accepted_tokens": 3, "spec_source": "response_block"}

STREAMED: dict[str, tuple[Script, dict[str, Any]]] = {
    # usage and its places
    "usage in the finishing chunk": (at(ROLE, A, B, event(choices=delta(finish="stop"), usage=usage(2)) + DONE), ok()),
    "usage in the last token's chunk": (
        at(ROLE, A, event(choices=delta(content="b", finish="stop"), usage=usage(2)) + DONE),
        ok(),
    ),
    "choices missing in the usage chunk": (at(ROLE, A, B, STOP + event(usage=usage(2)) + DONE), ok()),
    "choices null in the usage chunk": (at(ROLE, A, B, STOP + event(choices=None, usage=usage(2)) + DONE), ok()),
    "usage null at the end": (at(ROLE, A, B, STOP + USAGE2 + event(choices=[], usage=None) + DONE), ok()),
    "usage empty at the end": (at(ROLE, A, B, STOP + USAGE2 + event(choices=[], usage={}) + DONE), ok()),
    "usage with null counts at the end": (
        at(ROLE, A, B, STOP + USAGE2 + event(choices=[], usage=usage(None)) + DONE),
        ok(prompt_tokens=4),
    ),
    "usage of zeros at the end": (
        at(ROLE, A, B, STOP + USAGE2 + event(choices=[], usage=usage(0, 0)) + DONE),
        ok(warning=Has("usage_not_monotonic")),
    ),
    "usage as a whole float": (at(ROLE, A, B, STOP + event(choices=[], usage=usage(2.0)) + DONE), ok()),
    "usage as a text": (
        at(ROLE, A, B, STOP + event(choices=[], usage=usage("2")) + DONE),
        ok(completion_tokens=None, tpot_us=None, token_source="none", warning=...),
    ),
    "no usage at all": (at(ROLE, A, B, STOP + DONE), ok(completion_tokens=None, tpot_us=None, warning=Has("no usage"))),
    "running usage that skips chunks": (
        at(
            ROLE,
            event(choices=delta(content="a"), usage=usage(1)),
            event(choices=delta(content="b"), usage=None),
            event(choices=delta(content="c"), usage=usage(7)) + STOP + event(choices=[], usage=usage(7)) + DONE,
        ),
        ok(output_text="abc", completion_tokens=7, chunks=3),
    ),
    # deltas
    "delta null in the finishing chunk": (
        at(ROLE, A, B, event(choices=[{"index": 0, "delta": None, "finish_reason": "stop"}]) + USAGE2 + DONE),
        ok(finish_reason="stop"),
    ),
    "choice without index": (
        at(ROLE, event(choices=[{"delta": {"content": "a"}}]), event(choices=[{"delta": {"content": "b"}}]), TAIL),
        ok(),
    ),
    "text of the completions route": (
        at(event(choices=[{"index": 0, "text": "a"}]), event(choices=[{"index": 0, "text": "b"}]), TAIL),
        ok(),
    ),
    "content as parts": (
        at(ROLE, A, event(choices=delta(content=[{"type": "text", "text": "b"}])), TAIL),
        ok(),
    ),
    "refusal": (at(ROLE, event(choices=delta(refusal="no"))), {"outcome": "truncated"}),
    "refusal, finished": (
        at(ROLE, event(choices=delta(refusal="a")), event(choices=delta(refusal="b")), TAIL),
        ok(),
    ),
    "reasoning_details only": (
        at(
            ROLE,
            event(choices=delta(content="", reasoning_details=[{"type": "reasoning.text", "text": "t"}])),
            event(choices=delta(content="b")),
            TAIL,
        ),
        ok(output_text="b", reasoning_text="t", ttft_visible_us=...),
    ),
    "both spellings of reasoning and its details": (
        at(
            ROLE,
            event(choices=delta(reasoning="t", reasoning_content="t", reasoning_details=[{"text": "t"}])),
            event(choices=delta(content="b")),
            TAIL,
        ),
        ok(output_text="b", reasoning_text="t"),
    ),
    "tool call and content mixed": (at(ROLE, A, TOOL, TAIL), ok(output_text="a")),
    "tool call and content in one delta": (
        at(ROLE, event(choices=delta(content="a", tool_calls=[{"function": {"name": "f"}}])), B, TAIL),
        ok(),
    ),
    "tool call whose arguments are an object": (
        at(ROLE, event(choices=delta(tool_calls=[{"function": {"arguments": {"a": 1}}}])), B, TAIL),
        ok(output_text="b"),
    ),
    "old function_call": (at(ROLE, event(choices=delta(function_call={"name": "f"})), B, TAIL), ok(output_text="b")),
    "empty tool call list": (at(ROLE, event(choices=delta(tool_calls=[])), A, B, TAIL), ok()),
    "two choices interleaved": (
        at(
            ROLE,
            event(choices=delta(0, content="a")) + event(choices=delta(1, content="x")),
            event(choices=delta(1, content="y")) + event(choices=delta(0, content="b")),
            CHOICE1_STOP + event(choices=[], usage=usage(4)) + DONE,
        ),
        ok(completion_tokens=4, chunks=4, tpot_us=None, warning=Has("several_choices")),
    ),
    "second choice never finishes": (
        at(ROLE, A, event(choices=delta(1, content="x")), STOP),
        {"outcome": "truncated", "completion_tokens": None},
    ),
    "first token in the read of the role": (
        at(ROLE + A, B, TAIL, step_ms=700),
        ok(first_chunk_merged=False, coalesced_reads=0),
    ),
    "two tokens in the first read": (at(ROLE, A + B, TAIL), ok(first_chunk_merged=True, coalesced_reads=1)),
    # errors inside a stream
    "error null everywhere": (
        at(
            ROLE,
            event(choices=delta(content="a"), error=None),
            event(choices=delta(content="b"), error=None),
            event(choices=delta(finish="stop"), error=None) + event(choices=[], usage=usage(2), error=None) + DONE,
        ),
        ok(),
    ),
    "error object empty everywhere": (
        at(ROLE, event(choices=delta(content="a"), error={}), event(choices=delta(content="b"), error=""), TAIL),
        ok(),
    ),
    "error as a text": (at(ROLE, A, raw('{"error": "overloaded"}') + DONE), bad("stream_error", "overloaded")),
    "error as an object": (at(ROLE, A, raw(json.dumps(ERROR_OBJECT)) + DONE), bad("stream_error", "boom")),
    "error event with plain text": (
        at(ROLE, A, b"event: error\ndata: upstream gone\n\n"),
        bad("stream_error", "upstream"),
    ),
    "error as object error": (
        at(ROLE, A, raw('{"object": "error", "message": "boom", "code": 400}') + DONE),
        bad("stream_error", "boom"),
    ),
    "detail instead of error": (
        at(ROLE, A, raw('{"detail": "engine dead"}') + DONE),
        bad("stream_error", "engine dead"),
    ),
    "detail as a list": (
        at(raw('{"detail": [{"loc": ["body"], "msg": "field required"}]}')),
        bad("stream_error", "field required"),
    ),
    "message and code alone": (
        at(ROLE, A, raw('{"code": 500, "message": "inner failure"}') + DONE),
        bad("stream_error", "inner failure"),
    ),
    "aborted by the server": (at(ROLE, A, event(choices=delta(finish="abort")) + DONE), bad("stream_error", "abort")),
    "error after whole answer": (
        at(ROLE, A, B, TAIL[: -len(DONE)] + raw('{"error": "late"}')),
        bad("stream_error", "late"),
    ),
    # ends
    "done alone": (at(DONE), bad("empty", "[DONE]")),
    "role alone and done": (at(ROLE, DONE), bad("empty")),
    "nothing at all": (script([]), bad("empty")),
    "keep-alives alone": (at(b": ping\n\n", b": ping\n\n"), bad("empty")),
    "cut inside an event": (at(ROLE, A, B[:40]), bad("truncated", "truncated_stream")),
    "cut by a chunked end": (at(ROLE, A, B, framing="chunked"), bad("truncated")),
    "reset in mid-answer": (at(ROLE, A, end="reset"), bad("connection_error")),
    "reset after the whole answer": (at(ROLE, A, B, TAIL, end="reset"), ok()),
    "silence in mid-answer": (at(ROLE, A, end="timeout"), bad("read_timeout", chunks=1, ttft_us=...)),
    "silence after the whole answer": (at(ROLE, A, B, TAIL, end="timeout"), ok()),
    "silence after the headers": (script([], end="timeout"), bad("read_timeout", ttft_us=None)),
    "keep-alives for ever": (
        script([(500.0 * i, b": ping\n\n") for i in range(1, 13)], end="timeout"),
        bad("total_timeout", ttft_us=None),
    ),
    "garbage after done": (at(ROLE, A, B, TAIL + b"data: bye\n\nx"), ok()),
    "finish, usage and no blank line": (at(ROLE, A, B, STOP + USAGE2.rstrip(b"\n")), ok(warning=Has("no [DONE]"))),
    # writing
    "only CR": (at(*(all_cr(x) for x in (ROLE, A, B, TAIL))), ok()),
    "pretty JSON over data lines": (at(*(pretty(x) for x in (ROLE, A, B, TAIL))), ok()),
    "no content type": (at(ROLE, A, B, TAIL, headers={}), ok()),
    "event stream called JSON": (at(ROLE, A, B, TAIL, headers={"content-type": "application/json"}), ok()),
    "gzip although identity was asked": (
        script([(30, gzip.compress(WHOLE))], headers={"content-type": "text/event-stream", "content-encoding": "gzip"}),
        ok(warning=Has("compressed")),
    ),
    "an encoding that cannot be read": (
        script([(30, b"\x0b\x02\x80abc\x03")], headers={"content-type": "text/event-stream", "content-encoding": "br"}),
        bad("bad_payload", "br"),
    ),
    "lone surrogate and broken UTF-8": (
        at(
            ROLE,
            raw(r'{"choices": [{"index": 0, "delta": {"content": "\ud83d"}}]}'),
            B.replace(b'"b"', b'"\xff"'),
            TAIL,
        ),
        ok(output_text="\ufffd\ufffd"),
    ),
    # blocks in a stream
    "block with the usage": (
        at(ROLE, A, B, STOP + event(choices=[], usage=usage(2), metrics={"speculative_decoding": SPEC}) + DONE),
        ok(**BLOCK),
    ),
    "block on the finishing choice": (
        at(
            ROLE, A, B, event(choices=[{**delta(finish="stop")[0], "speculative_decoding_stats": SPEC}]) + USAGE2 + DONE
        ),
        ok(**BLOCK),
    ),
    "block with the finishing choice": (
        at(ROLE, A, B, event(choices=delta(finish="stop"), metrics={"speculative_decoding": SPEC}) + USAGE2 + DONE),
        ok(**BLOCK),
    ),
    "block null at the end": (
        at(ROLE, A, B, STOP + event(choices=[], usage=usage(2), metrics={"speculative_decoding": None}) + DONE),
        ok(**NO_BLOCK),
    ),
    "metrics null after the block": (
        at(
            ROLE,
            A,
            B,
            event(choices=delta(finish="stop"), metrics={"speculative_decoding": SPEC})
            + event(choices=[], usage=usage(2), metrics=None)
            + DONE,
        ),
        ok(**BLOCK),
    ),
    # more deltas
    "role and first token in one delta": (
        at(event(choices=delta(role="assistant", content="a")), B, TAIL),
        ok(),
    ),
    "empty contents between the tokens": (
        at(ROLE, ROLE + A, event(choices=delta(content="")) + B, TAIL, step_ms=700),
        ok(coalesced_reads=0),
    ),
    "finish reason as an empty text": (
        at(ROLE, event(choices=delta(content="a", finish="")), B, TAIL),
        ok(),
    ),
    "several tokens in the first chunk": (
        at(
            ROLE,
            event(choices=delta(content="a"), usage=usage(3)),
            event(choices=delta(content="b"), usage=usage(5)),
            event(choices=delta(finish="stop"), usage=usage(5)) + event(choices=[], usage=usage(5)) + DONE,
        ),
        ok(completion_tokens=5, chunk_tokens=[3, 2], tpot_basis="first_chunk_known"),
    ),
    "token ids tell the tokens of a chunk": (
        at(
            ROLE,
            event(choices=[{**delta(content="a")[0], "token_ids": [1, 2, 3]}]),
            event(choices=[{**delta(content="b")[0], "token_ids": [4]}]),
            STOP + event(choices=[], usage=usage(4)) + DONE,
        ),
        ok(completion_tokens=4, chunk_tokens=[3, 1], tpot_basis="first_chunk_known"),
    ),
    # HTTP as proxies write it
    "interim responses in front": (
        wire(
            b"HTTP/1.1 100 Continue\r\n\r\n",
            b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n",
            HEAD + pieces(WHOLE) + LAST,
        ),
        ok(),
    ),
    "chunk extensions and trailers": (
        wire(HEAD + b"%x;a=b\r\n%b\r\n" % (len(WHOLE), WHOLE) + b"0;x\r\nx-checksum: 1\r\n\r\n"),
        ok(),
    ),
    "capitals, leading zeros": (
        wire(HEAD.upper() + b"00%X\r\n%b\r\n" % (len(WHOLE), WHOLE) + b"000\r\n\r\n"),
        ok(),
    ),
    "chunks that cut every event": (
        wire(HEAD + pieces(*(WHOLE[i : i + 7] for i in range(0, len(WHOLE), 7))) + LAST),
        ok(),
    ),
    "head and chunk sizes byte by byte": (
        script([(i * 1.0, bytes([b])) for i, b in enumerate(HEAD + pieces(WHOLE) + LAST)], framing="raw"),
        ok(),
    ),
    "HTTP/1.0": (wire(b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + WHOLE), ok()),
    "reason left out": (wire(HEAD.replace(b" OK", b"") + pieces(WHOLE) + LAST), ok()),
    "a second response behind the first": (wire(HEAD + pieces(WHOLE) + LAST + b"HTTP/1.1 500 X\r\n\r\n"), ok()),
    "a length that is never reached": (
        wire(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 9999\r\n\r\n" + ROLE + A),
        bad("truncated"),
    ),
    "a length that is too short": (
        wire(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 20\r\n\r\n" + WHOLE),
        {"outcome": "truncated", "completion_tokens": None},
    ),
    "no HTTP at all": (wire(b"SSH-2.0-OpenSSH_9.6\r\n"), bad("bad_payload")),
    "chunked with a broken size": (wire(HEAD + b"zz\r\n" + WHOLE), bad("bad_payload")),
    # not a stream
    "JSON error with HTTP 200": (json_answer(json.dumps(ERROR_OBJECT)), bad("stream_error", "boom")),
    "object error with HTTP 200": (
        json_answer('{"object": "error", "message": "boom", "code": 500}'),
        bad("stream_error", "boom"),
    ),
    "HTML with HTTP 200": (json_answer("<html>login</html>", "text/html"), bad("bad_payload", "<html>")),
    "HTTP 429": (json_answer('{"error": "slow down"}', status=429), bad("http_error", "slow down", http_status=429)),
    "HTTP 503 with a page": (json_answer("<h1>busy</h1>", "text/html", status=503), bad("http_error", "busy")),
    "HTTP 422 with detail": (json_answer('{"detail": "no model"}', status=422), bad("http_error", "no model")),
    "JSON with event-stream type": (
        json_answer(
            '{"choices": [{"index": 0, "message": {"content": "ab"}, "finish_reason": "stop"}],'
            ' "usage": {"prompt_tokens": 1, "completion_tokens": 2}}',
            "text/event-stream",
        ),
        ok(chunks=None, ttft_us=None, tpot_us=None, e2e_us=..., warning=Has("stream_downgraded")),
    ),
}
