"""The payload of an answer -> what it says: tokens per chunk, text, usage, finish reason, errors. Pure; knows no times.

A chunk carries tokens where it has text on any channel (content, reasoning, tool call, refusal). A role-only or empty
chunk does not; the one exception is a finishing chunk whose running usage or token_ids say that a token without text
(end of sequence) came with it. Tokens of a chunk: growth of the running usage, else token_ids, else logprobs entries.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from loadtest.load.block import count, find_block
from loadtest.load.request import clean
from loadtest.load.sse import Event

ABORTED_REASONS = frozenset({"abort", "error"})
"""Finish reasons by which vLLM says that it gave the request up."""
_REASONING = ("reasoning_content", "reasoning", "reasoning_details")
_SHOWN = 200  # characters of a foreign text in an error: enough to recognise it, short enough for a table


@dataclass(slots=True)
class Answer:
    """What an answer says. Lists run over the chunks that carry tokens."""

    ends: list[int] = field(default_factory=list)
    """Offset in the body just past each token-carrying event."""
    tokens: list[int | None] = field(default_factory=list)
    """Tokens of each; None = not told."""
    visible_at: int | None = None
    """Index of the first chunk with something else than reasoning."""
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    tools: list[str] = field(default_factory=list)
    """Names and argument pieces of tool calls, in order."""
    finish: dict[int, str] = field(default_factory=dict)
    """Choice index -> finish reason."""
    indexes: set[int] = field(default_factory=set)
    usage: dict[str, Any] | None = None
    usage_final: bool = False
    """The usage came without choices, after the last token."""
    meta: dict[str, str | None] = field(default_factory=dict)
    """id, model, system_fingerprint."""
    metrics: dict[str, Any] | None = None
    block: Any = None
    done: bool = False
    error: str | None = None
    """An error that the server reported inside the answer."""
    bad: str | None = None
    """Why the payload cannot be read."""
    cut: bool = False
    """The last event ends in the middle."""
    any_event: bool = False
    warnings: list[str] = field(default_factory=list)


def loads(data: bytes) -> Any:
    """JSON as lenient as a server may be wrong: NaN, lone surrogates and broken UTF-8 pass. Raises ValueError."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return json.loads(data.decode("utf-8", "replace"))


def shown(data: bytes | str) -> str:
    """The beginning of a foreign text for an error message."""
    text = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
    text = " ".join(clean(text).split())
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def error_of(value: Any) -> str | None:
    """The error that a JSON answer reports, in words; None where it reports none (`"error": null` or "" is none).

    Also without an `error`: `object` = "error", a `detail` (FastAPI), or a `message` with a code and no choices.
    """
    if not isinstance(value, dict):
        return None
    error = value.get("error")
    if not error:
        told = value.get("detail") or (value.get("message") if value.keys() & {"code", "status", "type"} else None)
        if value.get("object") != "error" and (not told or "choices" in value):
            return None
        error = value
    if isinstance(error, dict):
        words = [str(error[k]) for k in ("type", "code") if error.get(k) is not None]
        message = error.get("message") or error.get("detail") or json.dumps(error, default=str)
        return shown(f"{' '.join(words)}: {message}" if words else str(message))
    return shown(str(error)) or "error"


def read_stream(events: Sequence[Event]) -> Answer:
    """Reads the events of a stream."""
    answer = Answer()
    stream = _Stream(answer)
    for end, name, data, terminated in events:
        text = data.strip()
        if text == b"[DONE]":
            answer.done = answer.any_event = True
            continue
        if not text:
            continue
        answer.any_event = True
        try:
            event = loads(text)
        except ValueError:
            if answer.done:
                continue  # what follows the end belongs to nobody
            if name == b"error":
                answer.error = answer.error or shown(data)
            elif not terminated:
                answer.cut = True
            else:
                answer.bad = answer.bad or f"event is no JSON: {shown(data)}"
            continue
        if not isinstance(event, dict):
            answer.bad = answer.bad or f"event is no JSON object: {shown(data)}"
        elif "error" in event or name == b"error" or "choices" not in event or event.get("object") == "error":
            problem = error_of(event) or (shown(data) if name == b"error" else None)
            if problem:
                answer.error = answer.error or problem
            else:
                stream.take(end, event)
        elif not stream.take_plain(end, event):
            stream.take(end, event)
    if len(answer.indexes) > 1:  # the running usage is each choice's own: chunks cannot be told apart
        answer.warnings.append("several_choices")
        answer.tokens = [None] * len(answer.ends)
    return answer


class _Stream:
    """Takes the events of one stream in."""

    __slots__ = ("answer", "counted", "textless", "usage_runs")

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.counted = 0  # running completion_tokens up to the last token-carrying chunk
        self.textless = 0  # listed tokens of chunks without text (half a character) since then
        self.usage_runs = False  # the chunk before with a choice had a usage: it is a running one

    def take_plain(self, end: int, event: dict[str, Any]) -> bool:
        """The usual chunk after the first: one chat choice with content and nothing else. -> whether it was one."""
        choices = event.get("choices")
        if type(choices) is not list or len(choices) != 1 or "metrics" in event or "system_fingerprint" in event:
            return False
        choice = choices[0]
        delta = choice.get("delta") if type(choice) is dict else None
        if type(delta) is not dict or len(delta) != 1 or choice.get("finish_reason") or choice.get("index") != 0:
            return False
        content = delta.get("content")
        answer = self.answer
        if type(content) is not str or not content or not answer.indexes:
            return False
        answer.content.append(content)
        self._token_chunk(end, True, self._total(event), choice)
        return True

    def take(self, end: int, event: dict[str, Any]) -> None:
        """Any event."""
        answer = self.answer
        choices = event.get("choices") or []
        total = self._total(event)
        if not isinstance(choices, list):
            answer.bad = answer.bad or "an event has choices that are no list"
            return
        # Without include_usage the fingerprint rides on the last content chunk.
        if not choices or not answer.meta.get("id") or "system_fingerprint" in event or "metrics" in event:
            _read_meta(answer, event)
        for choice in choices:
            if not isinstance(choice, dict):
                answer.bad = answer.bad or "an event has a choice that is no JSON object"
                continue
            if choice.get("finish_reason") and (block := find_block(event)) is not None:
                answer.block = block  # some servers hang it on the choice that finishes
            has_text, visible = _read_choice(answer, choice)
            if has_text or (choice.get("finish_reason") and self._closing(total, choice)):
                self._token_chunk(end, visible, total if len(choices) == 1 else None, choice)
            else:
                self.textless += _listed(choice) or 0
        if choices:
            self.usage_runs = total is not None

    def _total(self, event: dict[str, Any]) -> int | None:
        """Keeps the usage of an event; -> its completion_tokens."""
        usage, answer = event.get("usage"), self.answer
        if not isinstance(usage, dict):
            return None
        total = count(usage.get("completion_tokens"))
        before = count((answer.usage or {}).get("completion_tokens")) or 0
        if total is not None and total < before and len(answer.indexes) < 2:
            answer.warnings.append("usage_not_monotonic")
        if before and not usage.get("completion_tokens"):  # empty, or begun again at 0: it takes nothing back
            return None
        answer.usage, answer.usage_final = usage, not event.get("choices")
        return total

    def _closing(self, total: int | None, choice: dict[str, Any]) -> bool:
        """Whether a finishing chunk without text carries a token all the same."""
        return bool(_listed(choice)) or (self.usage_runs and total is not None and total > self.counted)

    def _token_chunk(self, end: int, visible: bool, total: int | None, choice: dict[str, Any]) -> None:
        answer = self.answer
        if visible and answer.visible_at is None:
            answer.visible_at = len(answer.ends)
        answer.ends.append(end)
        if total is None:
            listed = _listed(choice)
            answer.tokens.append(None if listed is None else listed + self.textless)
            self.textless = 0
            return
        if total < self.counted:
            answer.warnings.append("usage_not_monotonic")
            answer.tokens.append(None)
        else:
            answer.tokens.append(total - self.counted)
        self.counted = total
        self.usage_runs = True


def read_json(value: Any) -> Answer:
    """Reads a non-streaming answer."""
    answer = Answer()
    answer.error = error_of(value)
    choices = value.get("choices") if isinstance(value, dict) else None
    if answer.error:
        return answer
    if not isinstance(choices, list) or not choices or not all(isinstance(c, dict) for c in choices):
        answer.bad = f"answer has no choices: {shown(json.dumps(value, default=str))}"
        return answer
    answer.any_event = answer.done = True
    usage = value.get("usage")
    if isinstance(usage, dict):
        answer.usage, answer.usage_final = usage, True
    _read_meta(answer, value)
    for choice in choices:
        _read_choice(answer, choice)
        if not isinstance(choice.get("message"), dict) and not isinstance(choice.get("text"), str):
            answer.bad = answer.bad or "answer has a choice without a message or text"
    if len(answer.indexes) > 1:
        answer.warnings.append("several_choices")
    return answer


def _read_meta(answer: Answer, event: dict[str, Any]) -> None:
    for key in ("id", "model", "system_fingerprint"):
        value = event.get(key)
        if isinstance(value, str) and value:
            answer.meta[key] = clean(value)
    metrics = event.get("metrics")
    if isinstance(metrics, dict):
        answer.metrics = metrics
    block = find_block(event)
    if block is not None:
        answer.block = block


def _read_choice(answer: Answer, choice: dict[str, Any]) -> tuple[bool, bool]:
    """Takes one choice in. -> (has text, some of it is not reasoning)."""
    index = choice.get("index") or 0
    if not isinstance(index, int):
        index = 0
    answer.indexes.add(index)
    reason = choice.get("finish_reason")
    if isinstance(reason, str) and reason:
        answer.finish[index] = reason
    delta = choice.get("delta") or choice.get("message")
    visible = thinking = False
    if isinstance(delta, dict):
        content = _text(delta.get("content")) or _text(delta.get("refusal"))
        # Some versions send the same reasoning under both names.
        thought = next(filter(None, (_text(delta.get(key)) for key in _REASONING)), "")
        if thought:
            thinking = True
            if index == 0:
                answer.reasoning.append(thought)
        if delta.get("tool_calls") or delta.get("function_call"):
            pieces = _tool_pieces(delta)
            visible = bool(pieces)
            if index == 0:
                answer.tools += pieces
    else:
        content = _text(choice.get("text"))
    if content:
        visible = True
        if index == 0:
            answer.content.append(content)
    return visible or thinking, visible


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):  # content parts
        return "".join(p["text"] for p in value if isinstance(p, dict) and isinstance(p.get("text"), str))
    return ""


def _tool_pieces(delta: dict[str, Any]) -> list[str]:
    calls = delta.get("tool_calls")
    functions = [c.get("function") for c in calls if isinstance(c, dict)] if isinstance(calls, list) else []
    functions.append(delta.get("function_call"))
    pieces = []
    for function in functions:
        if isinstance(function, dict):
            for value in (function.get("name"), function.get("arguments")):
                text = orjson.dumps(value).decode() if isinstance(value, dict) else value
                pieces += [text] if isinstance(text, str) and text else []
    return pieces


def _listed(choice: dict[str, Any]) -> int | None:
    """Tokens that a choice lists one by one: token_ids, else logprobs."""
    ids = choice.get("token_ids")
    if isinstance(ids, list):
        return len(ids)
    logprobs = choice.get("logprobs")
    if isinstance(logprobs, dict):
        entries = logprobs.get("content") or logprobs.get("tokens")
        if isinstance(entries, list):
            return len(entries)
    return None
