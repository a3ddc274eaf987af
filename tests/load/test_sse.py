"""Server-sent events: the WHATWG rules, and that splits change nothing."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_kit import chunked, raw_of

from loadtest.load.parse import RequestFacts, parse_exchange
from loadtest.load.sse import Event, events


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"data: a\n\n", [(b"", b"a")]),
        (b"data:a\n\ndata:  b\n\n", [(b"", b"a"), (b"", b" b")]),
        (b"data: a\ndata: b\n\n", [(b"", b"a\nb")]),
        (b"\xef\xbb\xbfdata: a\n\n", [(b"", b"a")]),
        (b": ping\n\ndata: a\n\n: ping\n\n", [(b"", b"a")]),
        (b"event: error\ndata: x\n\n", [(b"error", b"x")]),
        (b"id: 1\nretry: 5\ndata: x\n\n", [(b"", b"x")]),
        (b"id: 1\n\n", []),
        (b"\n\n\n\ndata: a\n\n\n\ndata: b\n\n", [(b"", b"a"), (b"", b"b")]),
        (b"data: a\r\n\r\ndata: b\r\rdata: c\n\n", [(b"", b"a"), (b"", b"b"), (b"", b"c")]),
        (b"data: a\r\n\ndata: b\n\r\n", [(b"", b"a"), (b"", b"b")]),
        (b"data\n\n", [(b"", b"")]),
        (b"data: a: b\n\n", [(b"", b"a: b")]),
        (b"database: x\n\n", []),
        (b"", []),
        (b"\r\n\r\n", []),
    ],
)
def test_events_follow_the_standard(body: bytes, expected: list[tuple[bytes, bytes]]) -> None:
    assert [(e.name, e.data) for e in events(body)] == expected


def test_an_event_ends_with_the_carriage_return_of_its_blank_line() -> None:
    """The LF of the last CRLF may come a read later; the event was whole before."""
    body = b"data: a\r\n\r\ndata: b\r\n\r\n"

    assert [body[: e.end] for e in events(body)] == [b"data: a\r\n\r", b"data: a\r\n\r\ndata: b\r\n\r"]


@pytest.mark.parametrize("body", [b"data: a\n\ndata: b", b"data: a\n\ndata: b\n", b"data: a\r\n\r\ndata: b\r\n"])
def test_the_last_event_is_kept_without_its_blank_line(body: bytes) -> None:
    assert events(body)[-1] == Event(len(body), b"", b"b", False)


_TEXT = st.text(alphabet='ab 中😀é\\"/{}:', max_size=6)
_LINE_END = st.sampled_from(["\n", "\r", "\r\n"])


@st.composite
def _streams(draw: st.DrawFn) -> tuple[str, str]:
    """A stream of an answer in one of many notations, and its text."""
    texts = draw(st.lists(_TEXT, min_size=1, max_size=5))
    out = []
    for i, text in enumerate(texts):
        eol = draw(_LINE_END)
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": "stop" if i == len(texts) - 1 else None}
        usage = {"prompt_tokens": 3, "completion_tokens": i + 1}
        payload = json.dumps({"id": "x", "choices": [choice], "usage": usage}, ensure_ascii=draw(st.booleans()))
        at = payload.index('"choices"')
        if draw(st.booleans()):
            out.append(f"data: {payload[:at]}{eol}data: {payload[at:]}{eol}{eol}")
        else:
            out.append(f"data:{draw(st.sampled_from(['', ' ']))}{payload}{eol}{eol}")
        if draw(st.booleans()):
            out.append(f": ping{eol}{eol}")
    return "".join(out) + "data: [DONE]\n\n", "".join(texts)


@settings(max_examples=1000, deadline=None)
@given(_streams(), st.data())
def test_a_stream_parses_the_same_under_every_split(stream: tuple[str, str], data: st.DataObject) -> None:
    """Splits of the body into HTTP chunks and of the bytes into reads change neither events nor row (times aside)."""
    body = stream[0].encode()
    cut = sorted(data.draw(st.lists(st.integers(1, len(body)), max_size=6)))
    parts = [p for a, b in zip([0, *cut], [*cut, len(body)], strict=True) if (p := body[a:b])]
    wire = chunked(*parts)
    at = sorted(data.draw(st.lists(st.integers(1, len(wire)), max_size=8)))
    reads = [p for a, b in zip([0, *at], [*at, len(wire)], strict=True) if (p := wire[a:b])]

    whole = parse_exchange(raw_of([(0.0, chunked(body))]), RequestFacts())
    split = parse_exchange(raw_of([(0.0, r) for r in reads]), RequestFacts())

    of_splits = {"reads", "coalesced_reads", "first_chunk_merged"}
    assert {k: v for k, v in split.items() if k not in of_splits} == {
        k: v for k, v in whole.items() if k not in of_splits
    }
    assert (whole["outcome"], whole["output_text"]) == (("ok" if stream[1] else whole["outcome"]), stream[1])
