"""One row of a prompt file, in any of the shapes that public data sets use, into a prompt. Pure: no files.

Shapes, tried in this order (a field that is null counts as absent):

| shape | prompt | later turns |
|---|---|---|
| OpenAI batch line | `body.messages` or `body.prompt`, `body.max_tokens` | none |
| `messages` | all up to the last user message, as they stand | none; with `turns` those |
| ShareGPT: `conversations`, `conversation`, `items` | the system turn and the first user turn | the other user turns |
| `prompt` | the text | `turns`, if there |
| MT-Bench, Spec-Bench: `turns` | the first | the others |
| Alpaca, Dolly: `instruction` with `input` or `context` | both, an empty line between | none |
| `question`, `text` (MBPP) | the text | none |

An answer that the file holds is never sent as a prompt.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from loadtest.model import Message, Prompt

ID_FIELDS = ("id", "prompt_id", "question_id", "custom_id", "task_id", "conversation_id", "uid")
CONVERSATION_FIELDS = ("conversations", "conversation", "items")
USER_ROLES = ("user", "human")
ANSWER_ROLES = ("assistant", "gpt", "chatgpt", "model", "bot", "bing", "bard", "claude")
CHAT_ROLES = ("system", "developer", "user", "assistant")
_SURROGATE = re.compile("[\ud800-\udfff]")


class RowError(ValueError):
    """A row that holds no usable prompt; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Row:
    """A prompt with what the reader has to know beside it."""

    prompt: Prompt
    shape: str
    has_own_id: bool
    warnings: tuple[str, ...] = ()


def read_row(value: object, *, field: str | None, stratum: str, shape_so_far: str | None) -> Row:
    """The prompt in `value`. Raises RowError with the reason where there is none."""
    if not isinstance(value, dict):
        raise RowError(f"a row must be an object with fields, not {_kind(value)}")
    warnings: list[str] = []
    row = _without_surrogates(value, warnings)
    shape, (messages, later) = _messages(row, field, shape_so_far)
    if "body" in row and isinstance(row["body"], dict) and row["body"].get("model") is not None:
        warnings.append(f"the row's model {row['body']['model']!r} is not used: the plan's target is")
    if left_out := _left_out(row):
        warnings.append(f"{left_out} content part(s) that are no text (images, audio) are left out")
    own_id = source_id(row)
    content = content_sha256(messages)
    prompt = Prompt(
        prompt_id=own_id if own_id is not None else f"sha-{content[:12]}",
        stratum=_text_field(row, "stratum") or category_of(row) or stratum,
        messages=messages,
        max_tokens=_max_tokens(row),
        later_turns=later,
        unit_tests=_tests(row),
    )
    return Row(prompt, shape, own_id is not None, tuple(warnings))


def content_sha256(messages: tuple[Message, ...]) -> str:
    """Hash of roles and texts: equal for equal prompts, whatever file they stand in."""
    plain = json.dumps([[m.role, m.content] for m in messages], ensure_ascii=False)
    return hashlib.sha256(plain.encode()).hexdigest()


def source_id(row: Mapping[str, Any]) -> str | None:
    """The row's own id as text; None where it has none. Raises RowError for NaN, lists and the like."""
    for key in ID_FIELDS:
        value = row.get(key)
        if value is None or value == "":
            continue
        if isinstance(value, float) and math.isfinite(value) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise RowError(f"{key} = {_cut(value)} is no id: write a text or a whole number")
        return str(value)
    return None


def category_of(row: object) -> str | None:
    """The row's category, where it names one in words."""
    return _text_field(row, "category") if isinstance(row, dict) else None


Parts = tuple[tuple[Message, ...], tuple[str, ...]]


def _messages(row: Mapping[str, Any], field: str | None, shape_so_far: str | None) -> tuple[str, Parts]:
    if field is not None:
        if row.get(field) is None:
            raise RowError(f'no field "{field}"; seen: {", ".join(map(str, row)) or "no field at all"}')
        return "field", _user(row[field], field)
    for shape, key, reader in _READERS:
        if row.get(key) is not None:
            return shape, reader(row, key)
    if shape_so_far == "conversations":
        raise RowError("no conversations")
    if shape_so_far == "turns" or "turns" in row:
        raise RowError("no turns")
    null = [key for _, key, _ in _READERS if key in row]
    if null:
        raise RowError(f"{null[0]} is null")
    raise RowError(
        f"no prompt field (messages, prompt, turns, …); seen: {', '.join(map(str, row)) or 'no field at all'}; "
        "name it with field = …"
    )


def _batch(row: Mapping[str, Any], _: str) -> Parts:
    body = row["body"]
    if not isinstance(body, dict):
        raise RowError(f"body must be an object, not {_kind(body)}")
    for key, reader in (("messages", _chat), ("prompt", _prompt)):
        if body.get(key) is not None:
            return reader(body, key)
    raise RowError("body has neither messages nor prompt")


def _chat(row: Mapping[str, Any], key: str) -> Parts:
    given = row[key]
    if not isinstance(given, list):
        raise RowError(f"{key} must be a list of messages, not {_kind(given)}")
    roles = []
    for index, item in enumerate(given):
        if not isinstance(item, dict):
            raise RowError(f"{key}[{index}] must be an object with role and content, not {_kind(item)}")
        roles.append(_role(item))
    last = max((i for i, role in enumerate(roles) if role == "user"), default=None)
    messages = []
    for index, role in enumerate(roles[: None if last is None else last + 1]):  # what follows is not sent
        if role not in CHAT_ROLES:
            raise RowError(f"{key}[{index}].role is {_cut(role)}; allowed: {', '.join(CHAT_ROLES)}")
        if last is None:
            continue
        item = given[index]
        text = item.get("content") if item.get("content") is not None else item.get("value")
        messages.append(Message(role, _content(text, f"{key}[{index}].content")))
    if last is None:
        raise RowError("no usable user turn" if roles else "empty")
    if not messages[last].content.strip():
        raise RowError("empty text")
    return tuple(messages), _later(row) if key == "messages" else ()


def _role(item: Mapping[str, Any]) -> Any:
    """The role of a message or turn, under either name, as chat APIs write it; what is not known stays as it is."""
    role = item.get("role") if item.get("role") is not None else item.get("from")
    if not isinstance(role, str):
        return role
    plain = role.strip().lower()
    return "user" if plain in USER_ROLES else "assistant" if plain in ANSWER_ROLES else plain


def _conversation(row: Mapping[str, Any], key: str) -> Parts:
    given = row[key]
    if not isinstance(given, list):
        raise RowError(f"{key} must be a list of turns, not {_kind(given)}")
    if not given:
        raise RowError("empty")
    system: list[Message] = []
    turns: list[str] = []
    for item in given:
        if not isinstance(item, dict):
            raise RowError(f"{key} must hold objects, not {_kind(item)}")
        role, value = _role(item), item.get("value") if item.get("value") is not None else item.get("content")
        text = _content(value, f"{key}.content") if role == "user" and isinstance(value, list) else value
        if not isinstance(text, str):
            continue
        if role == "system" and not turns and text.strip():
            system.append(Message("system", text))
        elif role == "user":
            turns.append(text)
    if not turns:
        raise RowError("no usable user turn")
    if not turns[0].strip():
        raise RowError("empty text")
    return (*system, Message("user", turns[0])), tuple(t for t in turns[1:] if t.strip())


def _prompt(row: Mapping[str, Any], key: str) -> Parts:
    if isinstance(row[key], list) and row[key] and isinstance(row[key][0], dict):  # preference data: a chat
        return _chat(row, key)
    messages, _ = _user(row[key], key)
    later = _later(row)
    # A file with both fields repeats the first turn as its prompt.
    return messages, later[1:] if later and later[0] == messages[0].content else later


def _turns(row: Mapping[str, Any], key: str) -> Parts:
    given = row[key]
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list):
        raise RowError(f"turns must be a list of texts, not {_kind(given)}")
    if not texts:
        raise RowError("empty")
    messages, _ = _user(texts[0], "turns[0]")
    return messages, _texts(texts[1:], key, start=1)


def _instruction(row: Mapping[str, Any], key: str) -> Parts:
    (message,), _ = _user(row[key], key)
    for extra in ("input", "context"):
        text = row.get(extra)
        if text is None or text == "":
            continue
        if not isinstance(text, str):
            raise RowError(f"{extra} must be a text, not {_kind(text)}")
        return (Message("user", f"{message.content}\n\n{text}"),), ()
    return (message,), ()


def _plain(row: Mapping[str, Any], key: str) -> Parts:
    return _user(row[key], key)


_READERS: tuple[tuple[str, str, Callable[[Mapping[str, Any], str], Parts]], ...] = (
    ("batch", "body", _batch),
    ("messages", "messages", _chat),
    *(("conversations", key, _conversation) for key in CONVERSATION_FIELDS),
    ("prompt", "prompt", _prompt),
    ("turns", "turns", _turns),
    ("instruction", "instruction", _instruction),
    ("question", "question", _plain),
    ("text", "text", _plain),
)


def _user(value: object, key: str) -> Parts:
    if not isinstance(value, str):
        raise RowError(f"{key} must be a text, not {_kind(value)}")
    if not value.strip():
        raise RowError("empty text")
    return (Message("user", value),), ()


def _later(row: Mapping[str, Any]) -> tuple[str, ...]:
    """User turns after the first, for rows of our own that have both a prompt and `turns`."""
    given = row.get("turns")
    if given is None:
        return ()
    if not isinstance(given, list):
        raise RowError(f"turns must be a list of texts, not {_kind(given)}")
    return _texts(given, "turns")


def _texts(values: list[Any], key: str, start: int = 0) -> tuple[str, ...]:
    for index, value in enumerate(values, start):
        if not isinstance(value, str):
            raise RowError(f"{key}[{index}] must be a text, not {_kind(value)}")
        if not value.strip():
            raise RowError(f"{key}[{index}] is empty")
    return tuple(values)


def _content(value: object, path: str) -> str:
    """The text of a message; text parts are joined, other parts (images, audio) left out (`_left_out` counts them)."""
    if isinstance(value, list):
        texts = [text for part in value if isinstance(text := _part_text(part), str)]
        if not texts:
            raise RowError(f"{path} holds only parts that are no text; only text prompts can be replayed")
        return "".join(texts)
    if not isinstance(value, str):
        raise RowError(f"{path} must be a text, not {_kind(value)}")
    return value


def _part_text(part: object) -> object:
    if isinstance(part, str):
        return part
    return part.get("text") if isinstance(part, dict) and part.get("type") in ("text", "input_text", None) else None


def _left_out(row: Mapping[str, Any]) -> int:
    """Content parts of the row's messages that are no text."""
    count = 0
    body = row.get("body")
    for holder in (row, body if isinstance(body, dict) else {}):
        for key in ("messages", "prompt", *CONVERSATION_FIELDS):
            items = holder.get(key)
            for item in items if isinstance(items, list) else ():
                parts = (item.get("content") or item.get("value")) if isinstance(item, dict) else None
                if isinstance(parts, list) and _role(item) in ("system", "developer", "user"):
                    count += sum(not isinstance(_part_text(part), str) for part in parts)
    return count


def _max_tokens(row: Mapping[str, Any]) -> int | None:
    body = row.get("body")
    source = body if isinstance(body, dict) else row
    for key in ("max_tokens", "max_completion_tokens"):
        value = source.get(key)
        if value is None:
            continue
        # 2**31 - 1: what the records' column holds.
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
            raise RowError(f"{key} = {_cut(value)} is no whole number of 1 or more")
        return int(value)
    return None


def _tests(row: Mapping[str, Any]) -> str | None:
    """`tests` of our own rows; `test_list` with `test_setup_code` of MBPP."""
    own = row.get("tests")
    if isinstance(own, str) and own.strip():
        return own
    listed = own if isinstance(own, list) else row.get("test_list")
    if own is not None and not isinstance(own, str | list):
        raise RowError(f"tests must be a text or a list of texts, not {_kind(own)}")
    if not isinstance(listed, list) or not listed or not all(isinstance(line, str) for line in listed):
        return None
    setup = row.get("test_setup_code")
    return "\n".join([setup, *listed] if isinstance(setup, str) and setup.strip() else listed)


def _text_field(row: Mapping[str, Any], key: str) -> str | None:
    value = row.get(key)
    return value if isinstance(value, str) and value.strip() else None


def _without_surrogates(value: Any, warnings: list[str]) -> Any:
    """The value with every half of a surrogate pair as U+FFFD: neither HTTP nor Parquet can carry one."""
    if isinstance(value, str):
        if _SURROGATE.search(value) is None:
            return value
        if not warnings:
            warnings.append("half of a surrogate pair replaced by U+FFFD")
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_without_surrogates(item, warnings) for item in value]
    if isinstance(value, dict):
        return {_without_surrogates(k, warnings): _without_surrogates(v, warnings) for k, v in value.items()}
    return value


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), f"the number {_cut(value)}")


def _cut(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
