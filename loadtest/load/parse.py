"""A raw exchange -> the columns of RAW_SCHEMA that come from the response (`PARSED_COLUMNS`). Pure; run in idle time.

An event's time is the stamp of the read that holds its last byte. Outcomes fail closed: `ok` needs a whole answer that
the server itself ended. Only `ok` rows have completion_tokens, tpot, e2e and output_sha256; what arrived of the others
stays in the chunk lists and the text.

Warnings (";"-joined): no [DONE], no finish_reason, no final HTTP chunk, no usage, usage_not_monotonic,
usage_contradicts_text, stream_downgraded (JSON although a stream was asked for), unrequested_stream, several_choices,
block_inconsistent, block_unreadable, compressed, resent, value_out_of_range.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from loadtest.load import block as spec
from loadtest.load import http1, sse
from loadtest.load.answer import ABORTED_REASONS, Answer, error_of, loads, read_json, read_stream, shown
from loadtest.load.block import INT16_MAX, INT32_MAX
from loadtest.load.exchange import RawExchange
from loadtest.load.request import clean
from loadtest.model import Outcome

PARSED_COLUMNS: tuple[str, ...] = (
    *("server_request_id", "server_fingerprint", "response_model"),
    *("intended_ns", "send_ns", "first_byte_ns", "first_token_ns", "last_token_ns", "end_ns"),
    *("clock", "client_lag_us", "reads", "coalesced_reads", "first_chunk_merged", "lateness_us"),
    *("outcome", "http_status", "error", "warning", "finish_reason"),
    *("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "token_source"),
    *("ttft_us", "ttft_visible_us", "tpot_us", "tpot_basis", "e2e_us", "e2e_intended_us", "max_gap_us"),
    *("chunks", "chunk_offset_us", "chunk_tokens"),
    *spec.COLUMNS,
    *("server_ttft_us", "server_queue_us", "server_generation_us"),
    *("output_sha256", "output_text", "reasoning_text", "output_bytes"),
)
_BLANK: dict[str, Any] = {**dict.fromkeys(PARSED_COLUMNS), "token_source": "none"}


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What the parser must know of the request."""

    stream: bool = True
    intended_ns: int | None = None
    """Scheduled start of an open loop (UNIX ns)."""
    keep_text: bool = True
    keep_chunks: bool = True


def parse_exchange(raw: RawExchange, facts: RequestFacts) -> dict[str, Any]:
    """One value for every column of `PARSED_COLUMNS`. Never raises: what cannot be read becomes `bad_payload`."""
    try:
        return _parse(raw, facts)
    except Exception as error:  # a payload that nobody thought of must not lose the request
        row: dict[str, Any] = dict(_BLANK)
        row.update(outcome="bad_payload", error=f"the parser failed: {type(error).__name__}: {shown(str(error))}")
        row.update(send_ns=raw.send_ns, end_ns=raw.end_ns, intended_ns=facts.intended_ns, reads=len(raw.reads))
        row["clock"] = raw.clock()
        return row


def _parse(raw: RawExchange, facts: RequestFacts) -> dict[str, Any]:
    row: dict[str, Any] = dict(_BLANK)
    times = raw.times_ns()
    message = http1.replay(raw.reads)
    whole = message.complete or raw.end == "complete"
    answer, is_json = _read(message, facts)
    outcome, error = _outcome(raw, message, answer, whole, is_json, facts.stream)
    ok = outcome == "ok"

    warnings = list(dict.fromkeys(answer.warnings))
    if ok:
        warnings += _ok_warnings(answer, message, raw, is_json, facts)
    if message.headers.get("content-encoding", "identity") != "identity":
        warnings.append("compressed")
    if raw.resent:
        warnings.append("resent")

    end_ns = times[-1] if whole and times else raw.end_ns
    row.update(
        send_ns=raw.send_ns,
        intended_ns=facts.intended_ns,
        end_ns=end_ns,
        first_byte_ns=times[0] if times else None,
        clock=raw.clock(),
        client_lag_us=raw.lag_us(times),
        reads=len(times),
        outcome=outcome,
        error=clean(error) if error else None,
        http_status=message.status,
        finish_reason=answer.finish.get(0) or next(iter(answer.finish.values()), None),
        server_request_id=answer.meta.get("id"),
        server_fingerprint=answer.meta.get("system_fingerprint"),
        response_model=answer.meta.get("model"),
    )
    if raw.send_ns is not None and facts.intended_ns is not None:
        row["lateness_us"] = _us(raw.send_ns - facts.intended_ns)
    _tokens(row, answer, ok, warnings)
    _times(row, raw, message, answer, times, facts, ok, is_json, warnings)
    columns, problem = spec.read_block(answer.block)
    row.update(columns)
    if problem or spec.exceeds(row):
        warnings.append(problem or "block_inconsistent")
    _server_view(row, answer)
    _output(row, answer, ok, facts)
    row["warning"] = ";".join(warnings) or None
    return row


def _read(message: http1.Message, facts: RequestFacts) -> tuple[Answer, bool]:
    """The payload, and whether it is plain JSON."""
    if message.status is None or not 200 <= message.status < 300:
        return Answer(), not facts.stream
    body = message.body
    head = body[:64].removeprefix(b"\xef\xbb\xbf").lstrip()
    if not head:
        return Answer(), not facts.stream
    looks_sse = head.startswith((b"data:", b"event:", b":", b"id:", b"retry:"))
    if looks_sse or (facts.stream and "event-stream" in message.headers.get("content-type", "")):
        if not looks_sse and head[:1] == b"{":
            try:
                return read_json(loads(body)), True
            except ValueError:
                pass
        return read_stream(sse.events(body)), False
    try:
        return read_json(loads(body.removeprefix(b"\xef\xbb\xbf"))), True
    except ValueError:
        answer = Answer(bad=f"body is neither JSON nor an event stream: {shown(body[:400])}")
        return answer, True


def _outcome(
    raw: RawExchange, message: http1.Message, answer: Answer, whole: bool, is_json: bool, stream: bool
) -> tuple[Outcome, str | None]:
    """The outcome and its error text, first cause first."""
    if raw.end == "connect_timeout" or raw.end == "connection_error":
        return raw.end, raw.error or raw.end
    if raw.end == "bad_http" or (message.error and not whole):
        return "bad_payload", f"HTTP: {message.error or raw.error}"
    status = message.status
    if status is not None and not 200 <= status < 300:
        return "http_error", _http_error(status, message.body)
    if answer.error:
        return ("stream_error" if stream else "bad_payload"), answer.error
    if status is None or not (whole or (answer.done and not is_json)):
        return _cut(raw, status)
    if message.error:
        return "bad_payload", message.error
    if not answer.any_event and not answer.bad and not answer.cut:
        return "empty", f"HTTP {status} without an answer in it"
    if answer.bad:
        return "bad_payload", answer.bad
    return _content(answer, is_json)


def _cut(raw: RawExchange, status: int | None) -> tuple[Outcome, str | None]:
    """The answer is not whole: by how it ended."""
    if raw.end == "aborted":
        return "censored", raw.error or raw.end
    if raw.end in ("read_timeout", "total_timeout"):
        return raw.end, raw.error or raw.end
    if raw.end == "reset" or status is None:
        return "connection_error", raw.error or raw.end
    return "truncated", f"truncated_stream: {raw.error or 'the connection was closed in mid-answer'}"


def _content(answer: Answer, is_json: bool) -> tuple[Outcome, str | None]:
    """The outcome of a whole HTTP message: is the answer in it."""
    finished = bool(answer.finish) and answer.finish.keys() >= answer.indexes
    gave_up = ABORTED_REASONS & set(answer.finish.values())
    total = (answer.usage or {}).get("completion_tokens")
    said = bool(answer.ends or answer.content or answer.reasoning or answer.tools)
    if gave_up:
        return "stream_error", f"the server gave the request up: finish_reason {min(gave_up)!r}"
    if not is_json and not finished:
        if not answer.done:
            return "truncated", "truncated_stream: ended without finish_reason and [DONE]"
        if not said:
            return "empty", "[DONE] without a token"
        if answer.usage is None:
            return "truncated", "truncated_stream: [DONE] without finish_reason and usage"
    if not said and not total:
        return "empty", "the answer holds no token"
    return "ok", None


def _ok_warnings(
    answer: Answer, message: http1.Message, raw: RawExchange, is_json: bool, facts: RequestFacts
) -> list[str]:
    out = []
    if facts.stream and is_json:
        out.append("stream_downgraded")
    if not facts.stream and not is_json:
        out.append("unrequested_stream")
    if not is_json and not answer.done:
        out.append("no [DONE]")
    if not answer.finish:
        out.append("no finish_reason")
    if raw.end != "complete" and not message.complete:
        out.append("no final HTTP chunk")
    if answer.usage is None:
        out.append("no usage")
    return out


def _http_error(status: int, body: bytes) -> str:
    try:
        told = error_of(loads(body))
    except ValueError:
        told = None
    told = told or shown(body[:400])
    return f"HTTP {status}: {told}" if told else f"HTTP {status}"


def _tokens(row: dict[str, Any], answer: Answer, ok: bool, warnings: list[str]) -> None:
    usage = answer.usage
    if usage is None:
        return
    details, prompt = usage.get("completion_tokens_details"), usage.get("prompt_tokens_details")
    found = {
        "prompt_tokens": usage.get("prompt_tokens"),
        "cached_tokens": prompt.get("cached_tokens") if isinstance(prompt, dict) else None,
    }
    if ok:  # of a cut answer the running count is a lower bound, not its length
        found["completion_tokens"] = usage.get("completion_tokens")
        found["reasoning_tokens"] = details.get("reasoning_tokens") if isinstance(details, dict) else None
    for column, value in found.items():
        row[column] = spec.count(value)
        if row[column] is None and value is not None:
            warnings.append("value_out_of_range")
    if row["completion_tokens"] == 0 and (answer.ends or answer.content):
        row["completion_tokens"] = None  # some proxies fill in zeros; the text proves them wrong
        warnings.append("usage_contradicts_text")
    if row["completion_tokens"] is not None:
        row["token_source"] = "usage" if answer.usage_final else "per_chunk_usage"


def _times(
    row: dict[str, Any],
    raw: RawExchange,
    message: http1.Message,
    answer: Answer,
    times: list[int],
    facts: RequestFacts,
    ok: bool,
    is_json: bool,
    warnings: list[str],
) -> None:
    send, intended = raw.send_ns, facts.intended_ns
    if send is None:
        return
    last: int | None = None
    if answer.ends and times:
        reads = message.reads_of(answer.ends)
        at = [times[read] for read in reads]
        first, last = at[0], at[-1]
        row["first_token_ns"], row["last_token_ns"] = first, last
        row["ttft_us"] = _us(first - send)
        if answer.visible_at is not None:
            row["ttft_visible_us"] = _us(at[answer.visible_at] - send)
        row["chunks"] = len(at)
        merged = [a for a, b in pairwise(reads) if a == b]
        row["coalesced_reads"] = len(set(merged))
        row["first_chunk_merged"] = bool(merged) and merged[0] == reads[0]
        if len(at) > 1:
            row["max_gap_us"] = _us(max(b - a for a, b in pairwise(at)))
        if ok:
            _tpot(row, answer, last - first)
        if facts.keep_chunks:
            _chunk_lists(row, answer, [(t - send + 500) // 1000 for t in at], warnings)
    elif not is_json:
        row["chunks"] = row["coalesced_reads"] = 0
    if not ok:
        return
    finish = last if last is not None else row["end_ns"]
    if finish is not None:
        row["e2e_us"] = _us(finish - send)
        if intended is not None:
            row["e2e_intended_us"] = _us(finish - intended)


def _tpot(row: dict[str, Any], answer: Answer, span_ns: int) -> None:
    """(last - first) / (N - tokens of the first chunk); null for a single chunk, a single token or several choices."""
    total = row["completion_tokens"]
    if total is None or len(answer.ends) < 2 or len(answer.indexes) > 1:
        return
    known = answer.tokens[0]
    rest = total - (known or 1)
    if rest > 0:
        row["tpot_us"] = span_ns / 1000 / rest
        row["tpot_basis"] = "first_chunk_known" if known else "first_chunk_assumed_1"


def _chunk_lists(row: dict[str, Any], answer: Answer, offsets: list[int], warnings: list[str]) -> None:
    known = [t for t in answer.tokens if t is not None]
    if max(offsets) > INT32_MAX or min(offsets) < -INT32_MAX or (known and max(known) > INT16_MAX):
        warnings.append("value_out_of_range")
        return
    row["chunk_offset_us"] = offsets
    if len(known) == len(answer.tokens):
        row["chunk_tokens"] = known


def _server_view(row: dict[str, Any], answer: Answer) -> None:
    metrics = answer.metrics or {}
    for column, key in (
        ("server_ttft_us", "time_to_first_token_ms"),
        ("server_queue_us", "queue_time_ms"),
        ("server_generation_us", "generation_time_ms"),
    ):
        value = metrics.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12:
            row[column] = round(value * 1000)


def _output(row: dict[str, Any], answer: Answer, ok: bool, facts: RequestFacts) -> None:
    """Text, and for whole answers its hash: content alone, or content, reasoning and tool calls joined by NULs."""
    if not (answer.any_event or answer.content):
        return
    text, thought = clean("".join(answer.content)), clean("".join(answer.reasoning))
    data = text.encode()
    row["output_bytes"] = len(data)
    if ok:
        if thought or answer.tools:
            data = b"\0".join([data, thought.encode(), *(clean(t).encode() for t in answer.tools)])
        row["output_sha256"] = hashlib.sha256(data).hexdigest()
    if facts.keep_text:
        row["output_text"] = text
        row["reasoning_text"] = thought or None


def _us(nanoseconds: int) -> int:
    return (nanoseconds + 500) // 1000
