"""The parser: real captures against their own truths, and inputs that fooled other clients."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_kit import T0, chunked, head, of_body, of_case, raw_of

from loadtest.load.exchange import RawExchange
from loadtest.load.parse import PARSED_COLUMNS, RequestFacts, parse_exchange
from loadtest.load.records import RAW_SCHEMA

STREAM, PLAIN = RequestFacts(), RequestFacts(stream=False)
DATA = Path(__file__).parents[1] / "data" / "load"


def payloads(path: Path) -> list[dict[str, Any]]:
    """The JSON payloads of a captured stream, read line by line."""
    return [json.loads(line[6:]) for line in path.read_text().splitlines() if line.startswith("data: {")]


def streamed(path: Path) -> dict[str, Any]:
    """The row of a captured stream whose events came 10 ms apart, an HTTP chunk and a read each."""
    parts = [part + b"\n\n" for part in path.read_bytes().split(b"\n\n") if part.strip()]
    reads = [(0.0, head(extra="transfer-encoding: chunked"))]
    reads += [(10.0 * (i + 1), b"%x\r\n%b\r\n" % (len(p), p)) for i, p in enumerate(parts)]
    return parse_exchange(raw_of([*reads, (10.0 * (len(parts) + 1), b"0\r\n\r\n")]), STREAM)


def sse(*events: Any) -> bytes:
    return b"".join(b"data: %b\n\n" % (e if isinstance(e, bytes) else json.dumps(e).encode()) for e in events)


def delta(content: Any = None, finish: str | None = None, total: int | None = None, **more: Any) -> dict[str, Any]:
    event: dict[str, Any] = {
        "id": "c",
        "choices": [{"index": 0, "delta": {"content": content}, "finish_reason": finish}],
    }
    event["choices"][0].update(more)
    if total is not None:
        event["usage"] = {"prompt_tokens": 4, "completion_tokens": total}
    return event


def final(n: int) -> dict[str, Any]:
    return {"id": "c", "choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": n, "total_tokens": 4 + n}}


def row_of(*events: Any, end: Any = "complete", last: bool = True) -> dict[str, Any]:
    """Each event in an HTTP chunk and a read of its own, 10 ms apart, the first at 10 ms."""
    reads = [(0.0, head(extra="transfer-encoding: chunked"))]
    for i, event in enumerate(events):
        part = event if isinstance(event, bytes) else sse(event)
        reads.append((10.0 * (i + 1), b"%x\r\n%b\r\n" % (len(part), part)))
    if last:
        reads.append((10.0 * (len(events) + 1), b"0\r\n\r\n"))
    return parse_exchange(raw_of(reads, end), STREAM)


DONE = sse(b"[DONE]")


# --- real captures -------------------------------------------------------------------------------------------------


def test_parsed_columns_are_columns_of_the_schema_and_fit_it() -> None:
    assert set(PARSED_COLUMNS) <= set(RAW_SCHEMA.names)
    row = streamed(DATA / "fixtures" / "ngram-chat-continuous.sse")
    assert tuple(row) == PARSED_COLUMNS
    assert pa.RecordBatch.from_pylist([row], _SCHEMA).to_pylist() == [row]


CAPTURES = sorted(p for p in (DATA / "fixtures").glob("*.sse") if "enginedeath" not in p.name)


@pytest.mark.parametrize("path", CAPTURES, ids=lambda p: p.stem)
def test_captured_streams_give_tokens_text_and_block_as_they_say_themselves(path: Path) -> None:
    """Truths inside the capture: token_ids, logprobs, running and final usage, the block's own lists."""
    found = payloads(path)
    choices = [p["choices"][0] for p in found if p["choices"]]
    pieces = [c["text"] if "text" in c else c["delta"].get("content") or "" for c in choices]
    usage = [p["usage"]["completion_tokens"] for p in found if p.get("usage")]
    block = next((p["metrics"].get("speculative_decoding") for p in found if p.get("metrics")), None)

    row = streamed(path)

    assert row["outcome"] == "ok", row["error"]
    assert row["output_text"] == "".join(pieces)
    assert row["chunks"] == sum(1 for p in pieces if p)
    assert row["completion_tokens"] == (usage[-1] if usage else None)
    assert row["finish_reason"] == choices[-1]["finish_reason"]
    assert row["coalesced_reads"] == 0
    listed = [len(c["token_ids"]) for c, p in zip(choices, pieces, strict=True) if p and c.get("token_ids") is not None]
    if listed:
        assert row["chunk_tokens"] == listed
    running = [p["usage"]["completion_tokens"] for p in found if p["choices"] and p.get("usage")]
    if running:
        assert row["chunk_tokens"] is not None
        assert sum(row["chunk_tokens"]) == running[-1]
    if block is None:
        assert row["spec_source"] is row["spec_steps"] is row["draft_tokens"] is None
    else:
        assert row["spec_steps"] == block["num_spec_steps"] == sum(row["acceptance_histogram"])
        assert row["draft_tokens"] == block["num_draft_tokens"]
        assert row["accepted_tokens"] == block["num_accepted_draft_tokens"]
        assert row["acceptance_histogram"] == block["acceptance_histogram"]
        assert row["step_accepted"] == block.get("per_step_accepted")
        assert row["step_drafted"] == block.get("per_step_drafted")
    assert "block_inconsistent" not in (row["warning"] or "")


def test_chunk_tokens_of_ngram_are_the_accepted_drafts_plus_one() -> None:
    """Chunks of more than one token are exactly the verify steps, in order (the last cut at max_tokens)."""
    row = streamed(DATA / "fixtures" / "ngram-chat-logprobs.sse")

    assert row["chunk_tokens"] == [1, 1, 1, 3, 1, 1, 1, 1, 3, 2, 1, 1, 3, 2, 5, 5]
    assert row["step_accepted"] == [2, 2, 1, 2, 1, 4, 4]
    assert [t for t in row["chunk_tokens"] if t > 1] == [a + 1 for a in row["step_accepted"]]
    assert (row["server_ttft_us"], row["server_queue_us"], row["server_fingerprint"]) == (
        563022,
        55,
        "vllm-0.32.0-a0c3687b",
    )


@pytest.mark.parametrize(
    "name", ["ngram-chat", "suffix-chat", "draft_model-chat", "tiny-eagle3-comp-1tok", "baseline-chat"]
)
def test_captured_plain_answers(name: str) -> None:
    body = (DATA / "fixtures" / f"{name}.json").read_bytes()
    told = json.loads(body)
    block = (told["metrics"] or {}).get("speculative_decoding")

    row = parse_exchange(of_body(body), PLAIN)

    assert (row["outcome"], row["warning"]) == ("ok", None)
    assert row["completion_tokens"] == told["usage"]["completion_tokens"]
    assert row["spec_steps"] == (block["num_spec_steps"] if block else None)
    assert row["accepted_tokens"] == (block["num_accepted_draft_tokens"] if block else None)
    assert row["ttft_us"] is row["tpot_us"] is row["chunks"] is None
    assert row["e2e_us"] == 10_000


def test_two_choices_have_no_block_and_no_tpot() -> None:
    row = parse_exchange(of_body((DATA / "fixtures" / "ngram-chat-n2.json").read_bytes()), PLAIN)

    assert (row["outcome"], row["warning"], row["spec_steps"]) == ("ok", "several_choices", None)
    assert row["completion_tokens"] == 48


@pytest.mark.parametrize("name", ["chat", "comp", "midstream", "trigger"])
def test_engine_death_inside_a_200_stream_is_a_failure(name: str) -> None:
    row = streamed(DATA / "fixtures" / f"enginedeath-{name}.sse")

    if name == "midstream":
        assert row["chunks"] > 0
    assert row["outcome"] == "stream_error"
    assert "EngineCore encountered an issue" in row["error"]
    assert row["completion_tokens"] is row["tpot_us"] is row["e2e_us"] is row["output_sha256"] is None


# --- inputs that fooled other clients ------------------------------------------------------------------------------

CASES = sorted((DATA / "cases").glob("*/chunks.json"))


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.parent.name)
def test_stream_cases_give_the_answer_computed_by_hand(path: Path) -> None:
    want = json.loads(path.with_name("expected.json").read_text())

    row = parse_exchange(of_case(json.loads(path.read_text())), STREAM)

    def ms(us: float | None) -> float | None:
        return None if us is None else us / 1000

    gaps = row["chunk_offset_us"] or []
    got = {
        "ok": row["outcome"] == "ok",
        "ttft_ms": ms(row["ttft_us"]),
        "ttft_content_ms": ms(row["ttft_visible_us"]),
        "tpot_ms": ms(row["tpot_us"]),
        "e2e_ms": ms(row["e2e_us"]),
        "e2e_last_token_ms": ms(row["e2e_us"]),
        "e2e_stream_end_ms": (row["end_ns"] - T0) / 1e6,
        "itl_chunk_ms": [ms(b - a) for a, b in pairwise(gaps)],
        "itl_max_ms": ms(row["max_gap_us"]),
        "chunks_with_tokens": row["chunks"],
        "text": row["output_text"],
        "content": row["output_text"],
        "reasoning": row["reasoning_text"],
        "warning": row["warning"],
        "flag": row["warning"],
        "error": (row["error"] or "").split(":")[0],
        **{k: row[k] for k in ("completion_tokens", "prompt_tokens", "finish_reason")},
    }
    if path.parent.name == "engine-dead-health-ok":  # its answer counts the requests of a whole run
        assert (row["outcome"], row["ttft_us"]) == ("read_timeout", None)
        return
    compared = want.keys() & got.keys()
    assert len(compared) >= 3
    for key in compared:
        assert got[key] == (pytest.approx(want[key], abs=1e-6) if isinstance(want[key], float) else want[key]), key


def test_known_chunk_sizes_spread_a_gap_over_its_tokens() -> None:
    row = parse_exchange(of_case(json.loads((DATA / "cases/multi-token-chunks-itl/chunks.json").read_text())), STREAM)

    assert (row["chunk_tokens"], row["tpot_basis"]) == ([1, 4, 3], "first_chunk_known")


def test_block_absent_null_or_zero_are_four_different_things() -> None:
    lines = (DATA / "cases/block-absent-null-or-zero/responses.jsonl").read_bytes().splitlines()
    rows = [parse_exchange(of_body(line), PLAIN) for line in lines]

    assert [r["spec_steps"] for r in rows] == [None, None, None, 0]
    assert [r["spec_source"] for r in rows] == [None, None, None, "response_block"]
    assert rows[2]["server_ttft_us"] == 12_500


def test_block_shapes_say_the_same() -> None:
    for line in (DATA / "cases/block-shape-drift/responses.jsonl").read_bytes().splitlines():
        row = parse_exchange(of_body(line), PLAIN)

        assert (row["spec_steps"], row["accepted_tokens"], row["draft_tokens"]) == (10, 12, 30)
        assert (row["acceptance_histogram"], row["warning"]) == ([4, 3, 0, 3], None)


def test_inconsistent_block_keeps_its_counters_and_is_flagged() -> None:
    row = parse_exchange(of_body((DATA / "cases/inconsistent-block/response.json").read_bytes()), PLAIN)

    assert (row["spec_steps"], row["accepted_tokens"], row["warning"]) == (10, 12, "block_inconsistent")


def test_cut_last_step_is_not_inconsistent() -> None:
    """10 tokens for 3 steps with 9 accepted drafts: the last step ran past max_tokens."""
    row = parse_exchange(of_body((DATA / "cases/acceptance-length-definitions/response.json").read_bytes()), PLAIN)

    assert (row["accepted_tokens"], row["spec_steps"], row["completion_tokens"], row["warning"]) == (9, 3, 10, None)


@pytest.mark.parametrize(
    ("block", "warning"),
    [
        ({"num_spec_steps": -1, "num_draft_tokens": 3, "num_accepted_draft_tokens": 1}, "block_unreadable"),
        ({"num_spec_steps": "many"}, "block_unreadable"),
        ({"num_spec_steps": True, "num_draft_tokens": 3, "num_accepted_draft_tokens": 1}, "block_unreadable"),
        ({"num_spec_steps": 2, "num_draft_tokens": 8, "num_accepted_draft_tokens": 9}, "block_inconsistent"),
        (
            {"num_spec_steps": 2, "num_draft_tokens": 8, "num_accepted_draft_tokens": 3, "per_step_accepted": [1, 1]},
            "block_inconsistent",
        ),
        (
            {"num_spec_steps": 2, "num_draft_tokens": 8, "num_accepted_draft_tokens": 3, "acceptance_histogram": "x"},
            "block_inconsistent",
        ),
        ({"num_spec_steps": 10**12, "num_draft_tokens": 1, "num_accepted_draft_tokens": 1}, "block_unreadable"),
        ({"num_spec_steps": 2.0, "num_draft_tokens": 8.0, "num_accepted_draft_tokens": 3.0}, None),
        ({}, "block_unreadable"),
    ],
)
def test_odd_blocks(block: dict[str, Any], warning: str | None) -> None:
    body = {"id": "c", "choices": [{"message": {"content": "x"}}], "usage": {"completion_tokens": 5}}
    row = parse_exchange(of_body(json.dumps({**body, "metrics": {"speculative_decoding": block}}).encode()), PLAIN)

    assert row["outcome"] == "ok"
    assert warning in (row["warning"] or "").split(";") if warning else "block" not in (row["warning"] or "")
    assert (row["spec_steps"] is None) == (warning == "block_unreadable")


def test_error_bodies_with_http_200() -> None:
    cases = json.loads((DATA / "cases/http-200-error-bodies/responses.json").read_text())
    rows = [parse_exchange(of_body(c["body"].encode(), c["ctype"]), PLAIN) for c in cases]

    assert [r["outcome"] == "ok" for r in rows] == [False, False, False, False, False, True]
    assert sum(r["completion_tokens"] or 0 for r in rows) == 1
    assert all(r["error"] for r in rows[:5])


def test_usage_counts_tokens_not_the_text() -> None:
    """Fifteen blanks are one token for a tokenizer, but usage says fifteen were generated."""
    case = json.loads((DATA / "cases/retokenised-text-differs/record.json").read_text())
    n = case["usage"]["completion_tokens"]
    parts = [sse(delta(" ")) for _ in range(n)]
    span = case["t_last_token_ms"] - case["t_first_token_ms"]
    at = [case["t_first_token_ms"] + span * i / (n - 1) for i in range(n)]
    reads = [(1.0, head()), *zip(at, parts, strict=True), (250.0, sse(delta(None, "stop"), final(n)) + DONE)]

    row = parse_exchange(raw_of(reads), STREAM)

    assert (row["output_text"], row["completion_tokens"]) == (case["text"], 15)
    assert row["tpot_us"] == pytest.approx(10_000, abs=1)


# --- outcomes ------------------------------------------------------------------------------------------------------

GOOD = (delta(""), delta("a"), delta("b", "stop"), final(2))


@pytest.mark.parametrize(
    ("events", "end", "last", "outcome", "note"),
    [
        ((*GOOD, DONE), "complete", True, "ok", None),
        (GOOD, "complete", True, "ok", "no [DONE]"),
        ((*GOOD, DONE), "closed", False, "ok", "no final HTTP chunk"),
        (GOOD, "closed", False, "truncated", "truncated_stream"),
        ((delta("a"), delta("b"), final(2), DONE), "complete", True, "ok", "no finish_reason"),
        ((delta("a"), delta("b"), DONE), "complete", True, "truncated", "truncated_stream"),
        ((delta("a"), delta("b", "stop"), DONE), "complete", True, "ok", "no usage"),
        ((delta("a"), b'data: {"choices": [{"del'), "complete", True, "truncated", "truncated_stream"),
        ((final(0), DONE), "complete", True, "empty", "without a token"),
        ((DONE,), "complete", True, "empty", "without a token"),
        ((), "complete", True, "empty", "HTTP 200"),
        ((delta("", "stop", 1), final(1), DONE), "complete", True, "ok", None),
        ((delta("a"), {"error": {"message": "boom", "code": 500}}, DONE), "complete", True, "stream_error", "boom"),
        ((delta("a"), b"event: error\ndata: out of memory\n\n"), "complete", True, "stream_error", "out of memory"),
        ((delta("a"), b'event: error\ndata: {"message":"oom"}\n\n'), "complete", True, "stream_error", "oom"),
        ((delta("a"), {"error": "plain words"}, DONE), "complete", True, "stream_error", "plain words"),
        ((delta("a"), {**delta("b", "stop"), "error": None}, DONE), "complete", True, "ok", "no usage"),
        ((delta("a"), {**delta("b", "stop"), "error": ""}, DONE), "complete", True, "ok", "no usage"),
        ((delta("a"), delta("b", "abort"), final(2), DONE), "complete", True, "stream_error", "abort"),
        ((delta("a"), b"data: {broken}\n\n", delta("b", "stop"), DONE), "complete", True, "bad_payload", "no JSON"),
        ((delta("a"), b"data: 7\n\n", delta("b", "stop"), DONE), "complete", True, "bad_payload", "no JSON object"),
        ((delta("a"),), "read_timeout", False, "read_timeout", None),
        ((delta("a"),), "total_timeout", False, "total_timeout", None),
        ((delta("a"),), "reset", False, "connection_error", "reset"),
        ((delta("a"),), "aborted", False, "censored", None),
        ((delta("a"), {"error": {"message": "boom"}}), "closed", False, "stream_error", "boom"),
    ],
)
def test_outcomes_of_streams(events: Any, end: Any, last: bool, outcome: str, note: str | None) -> None:
    row = row_of(*events, end=end, last=last)

    assert row["outcome"] == outcome, row
    if note:
        assert note in f"{row['warning']} {row['error']}"
    if outcome == "ok":
        assert row["error"] is None
    else:
        assert row["completion_tokens"] is row["tpot_us"] is row["e2e_us"] is None
        if end == "complete":
            assert row["error"]


@pytest.mark.parametrize("end", ["closed", "reset", "read_timeout", "total_timeout", "connect_timeout", "aborted"])
def test_ends_without_a_byte(end: Any) -> None:
    row = parse_exchange(
        RawExchange(send_ns=None if end == "connect_timeout" else T0, end=end, error="e", end_ns=T0), STREAM
    )

    expected = {"closed": "connection_error", "reset": "connection_error", "aborted": "censored"}
    assert row["outcome"] == expected.get(end, end)
    assert row["ttft_us"] is row["first_byte_ns"] is row["client_lag_us"] is row["chunk_offset_us"] is None
    assert (row["clock"], row["reads"]) == ("user", 0)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (
            b'{"error":{"message":"bad prompt","type":"BadRequestError","code":400}}',
            400,
            "BadRequestError 400: bad prompt",
        ),
        (b'{"object":"error","message":"too long","code":400}', 400, "400: too long"),
        (b'{"detail":"Not Found"}', 404, "Not Found"),
        (b"<html>busy</html>", 503, "busy"),
        (b"", 429, "HTTP 429"),
        (b"moved", 307, "HTTP 307"),
    ],
)
def test_http_errors_say_what_the_server_said(body: bytes, status: int, words: str) -> None:
    row = parse_exchange(of_body(body, status=status), STREAM)

    assert (row["outcome"], row["http_status"]) == ("http_error", status)
    assert words in row["error"]


def test_no_content_is_empty() -> None:
    row = parse_exchange(raw_of([(1.0, b"HTTP/1.1 204 No Content\r\n\r\n")]), STREAM)

    assert (row["outcome"], row["http_status"]) == ("empty", 204)


def test_interim_response_is_skipped() -> None:
    body = sse(*GOOD) + DONE
    row = parse_exchange(raw_of([(1.0, b"HTTP/1.1 100 Continue\r\nx-a: b\r\n\r\n"), (2.0, chunked(body))]), STREAM)

    assert (row["outcome"], row["http_status"], row["output_text"]) == ("ok", 200, "ab")


def test_garbage_instead_of_http() -> None:
    row = parse_exchange(raw_of([(1.0, b"SSH-2.0-OpenSSH_9.6\r\n\r\n")], "bad_http", error="not HTTP"), STREAM)

    assert row["outcome"] == "bad_payload"


def test_compressed_answer_is_read_all_the_same() -> None:
    body = gzip.compress(sse(*GOOD) + DONE)
    extra = f"content-encoding: gzip\r\ncontent-length: {len(body)}"
    row = parse_exchange(raw_of([(1.0, head(extra=extra) + body[:30]), (2.0, body[30:])]), STREAM)

    assert (row["outcome"], row["warning"], row["output_text"]) == ("ok", "compressed", "ab")


def test_unrequested_stream_is_read_as_one() -> None:
    row = parse_exchange(raw_of([(1.0, chunked(sse(*GOOD) + DONE))]), PLAIN)

    assert (row["outcome"], row["warning"], row["completion_tokens"]) == ("ok", "unrequested_stream", 2)


# --- tokens and times ----------------------------------------------------------------------------------------------


def test_merged_reads_are_counted_and_a_merged_first_chunk_is_told() -> None:
    reads = [
        (0.0, head()),
        (10.0, sse(delta("a"), delta("b"))),
        (20.0, sse(delta("c"))),
        (30.0, sse(delta("d"), delta("e", "stop"), final(5)) + DONE),
    ]

    row = parse_exchange(raw_of(reads), STREAM)

    assert (row["coalesced_reads"], row["first_chunk_merged"], row["chunks"]) == (2, True, 5)
    assert row["chunk_offset_us"] == [10_000, 10_000, 20_000, 30_000, 30_000]


def test_role_chunk_in_the_read_of_the_first_token_merges_nothing() -> None:
    row = parse_exchange(raw_of([(0.0, head()), (10.0, sse(delta(""), delta("a", "stop"), final(1)) + DONE)]), STREAM)

    assert (row["coalesced_reads"], row["first_chunk_merged"], row["chunks"]) == (0, False, 1)


def test_usage_on_the_finishing_chunk_alone_is_no_token() -> None:
    """Other servers put the total there: it must not look like a chunk of all tokens."""
    row = row_of(delta("a"), delta("b"), delta(None, "stop", 2), DONE)

    assert (row["chunks"], row["chunk_tokens"], row["completion_tokens"]) == (2, None, 2)
    assert (row["token_source"], row["tpot_us"]) == ("per_chunk_usage", 10_000)


def test_end_of_sequence_token_counts_where_the_running_usage_shows_it() -> None:
    """The last step gave a token without text: leaving its time out would make TPOT too low."""
    row = row_of(delta("", None, 0), delta("a", None, 1), delta("b", None, 2), delta("", "stop", 3), final(3), DONE)

    assert (row["chunk_tokens"], row["tpot_us"]) == ([1, 1, 1], 10_000)


def test_tokens_of_an_empty_chunk_belong_to_the_next_text() -> None:
    """Half a character makes no text: its token comes out with the next chunk."""
    row = row_of(delta("", None, 0), delta("a", None, 1), delta("", None, 2), delta("é", "stop", 3), final(3), DONE)

    assert (row["chunk_tokens"], row["chunks"]) == ([1, 2], 2)


def test_listed_tokens_of_an_empty_chunk_belong_to_the_next_text_too() -> None:
    row = row_of(delta("a", token_ids=[1]), delta("", token_ids=[2]), delta("é", "stop", token_ids=[3]), final(3), DONE)

    assert (row["chunk_tokens"], row["chunks"]) == ([1, 2], 2)


def test_usage_of_zero_with_a_text_is_no_measurement() -> None:
    row = row_of(delta("a"), delta("b", "stop"), final(0), DONE)

    assert (row["outcome"], row["completion_tokens"], row["token_source"]) == ("ok", None, "none")
    assert (row["warning"], row["tpot_us"]) == ("usage_contradicts_text", None)


def test_running_usage_that_falls_is_flagged() -> None:
    row = row_of(delta("a", None, 3), delta("b", "stop", 2), final(5), DONE)

    assert (row["chunk_tokens"], row["warning"]) == (None, "usage_not_monotonic")


def test_values_that_no_column_holds_are_left_out() -> None:
    row = row_of(delta("a", None, 10**9), delta("b", "stop", 10**12), final(10**12), DONE)

    assert (row["completion_tokens"], row["chunk_tokens"]) == (None, None)
    assert "value_out_of_range" in row["warning"]


def test_tool_call_with_nothing_in_it_is_no_token() -> None:
    empty = {"tool_calls": [{"index": 0, "function": {"arguments": ""}}]}
    row = row_of(
        {"choices": [{"delta": empty}]},
        {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]}}]},
        {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]},
        final(4),
        DONE,
    )

    assert (row["outcome"], row["chunks"], row["ttft_us"]) == ("ok", 1, 20_000)


def test_hash_covers_every_channel() -> None:
    """Two answers that differ in a tool call only are not the same output."""

    def call(argument: str) -> dict[str, Any]:
        function = {"name": "f", "arguments": argument}
        return {"choices": [{"delta": {"tool_calls": [{"function": function}]}, "finish_reason": "tool_calls"}]}

    one, two = (row_of(call(a), final(4), DONE)["output_sha256"] for a in ("1", "2"))

    assert one != two


def test_lone_surrogate_and_broken_utf8_become_replacement_characters() -> None:
    row = row_of(
        delta("a"),
        b'data: {"choices":[{"delta":{"content":"\\ud83d"}}]}\n\n',
        b'data: {"choices":[{"delta":{"content":"\xff"},"finish_reason":"stop"}]}\n\n',
        DONE,
    )

    assert (row["outcome"], row["output_text"]) == ("ok", "a��")


def test_user_clock_is_marked_and_lag_is_of_kernel_reads_only() -> None:
    raw = raw_of([(0.0, head()), (10.0, sse(delta("a"), delta("b", "stop"), final(2)) + DONE)])
    assert (raw.clock(), parse_exchange(raw, STREAM)["client_lag_us"]) == ("kernel", 500)
    raw.stamps[0] = None
    assert parse_exchange(raw, STREAM)["clock"] == "mixed"
    raw.stamps[1] = None
    row = parse_exchange(raw, STREAM)
    assert (row["clock"], row["client_lag_us"], row["ttft_us"]) == ("user", None, 10_500)


def test_latency_from_the_intended_start() -> None:
    row = parse_exchange(raw_of([(0.0, head()), (10.0, sse(*GOOD) + DONE)]), RequestFacts(intended_ns=T0 - 7_000_000))

    assert (row["lateness_us"], row["e2e_us"], row["e2e_intended_us"]) == (7_000, 10_000, 17_000)


def test_text_and_chunks_can_be_left_out() -> None:
    row = parse_exchange(raw_of([(1.0, chunked(sse(*GOOD) + DONE))]), RequestFacts(keep_text=False, keep_chunks=False))

    assert row["output_text"] is row["chunk_offset_us"] is row["chunk_tokens"] is None
    assert (row["output_bytes"], row["chunks"], len(row["output_sha256"])) == (2, 2, 64)


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"null",
        b'"x"',
        b"7",
        b'{"choices":[]}',
        b'{"choices":[null]}',
        b'{"choices":[{}]}',
        b'{"choices":[{"message":null}]}',
        b'{"choices":{}}',
        b"{",
        b"\x00",
    ],
)
def test_any_json_is_an_outcome(body: bytes) -> None:
    for facts in (STREAM, PLAIN):
        row = parse_exchange(of_body(body), facts)
        assert row["outcome"] in ("bad_payload", "empty")
        assert row["error"]
        assert "parser failed" not in row["error"]


@pytest.mark.parametrize(
    "event",
    [
        {"choices": None},
        {"choices": [{"delta": None}]},
        {"choices": [{"delta": {"content": 7, "tool_calls": "x", "reasoning": []}}]},
        {"choices": [{"index": "a", "delta": {"content": [{"type": "text", "text": "x"}]}}]},
        {"choices": [], "usage": []},
        {"choices": [], "usage": {"completion_tokens": "2"}},
        {"choices": [], "metrics": [], "system_fingerprint": 3},
        {"choices": [{"delta": {"content": "x"}, "logprobs": {"content": None}, "token_ids": None}]},
        {"choices": {}},
    ],
)
def test_odd_events_do_not_break_a_stream(event: Any) -> None:
    row = row_of(delta("a"), event, delta("b", "stop"), DONE)

    assert row["outcome"] == "ok"
    assert row["output_text"] in ("ab", "axb")


# --- anything a server may send ------------------------------------------------------------------------------------

_WORDS = """id model choices usage metrics error object delta message text content reasoning tool_calls function name
    arguments finish_reason index logprobs token_ids completion_tokens prompt_tokens prompt_tokens_details cached_tokens
    system_fingerprint speculative_decoding num_spec_steps num_draft_tokens num_accepted_draft_tokens num_spec_tokens
    acceptance_histogram per_step_accepted per_step_drafted time_to_first_token_ms"""
_KEYS = st.sampled_from(_WORDS.split())
_LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=4),
    st.sampled_from(["stop", "a", ""]),
)
_JSON = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=6), max_leaves=25
)
_SCHEMA = pa.schema([RAW_SCHEMA.field(name) for name in PARSED_COLUMNS])


@settings(max_examples=1000, deadline=None)
@given(
    st.lists(st.one_of(_JSON, st.binary(max_size=12)), max_size=4),
    st.sampled_from(["complete", "closed", "aborted"]),
    st.booleans(),
)
def test_any_payload_becomes_a_row_that_can_be_stored(payloads: list[Any], end: Any, done: bool) -> None:
    """Never an exception, never a value that its column cannot hold: both would lose requests in mid-run."""
    parts = [sse(p) if isinstance(p, bytes) else b"data: %b\n\n" % json.dumps(p).encode() for p in payloads]
    rows = [row_of(*parts, *([DONE] if done else []), end=end, last=end == "complete")]
    rows += [parse_exchange(of_body(p if isinstance(p, bytes) else json.dumps(p).encode()), PLAIN) for p in payloads]

    assert not [r["error"] for r in rows if "parser failed" in (r["error"] or "")]
    assert pa.RecordBatch.from_pylist(rows, _SCHEMA).num_rows == len(rows)
    for row in rows:
        assert (row["outcome"] == "ok") == (row["error"] is None)
