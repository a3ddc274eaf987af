"""Prompt files: JSON Lines, one JSON array, or JSON objects one after the other, told apart by content.

gzip is undone; lines may end in LF, CRLF or CR. Of a field that stands twice in a row nobody knows which is meant.

Nothing here ends in a traceback: a file gives prompts, or a DatasetError that names file and line.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from loadtest.errors import DatasetError
from loadtest.model import Prompt
from loadtest.plan.rows import RowError, category_of, read_row, source_id

_WRAPPERS = frozenset({"data", "rows", "examples", "instances", "prompts", "questions", "samples"})
"""Names under which exports put their rows; anything else is a row of its own."""
_SPACE = re.compile(r"[ \t\r\n]*")
_ESCAPED = re.compile("[\udc80-\udcff]")
"""A byte that is no UTF-8, as `surrogateescape` keeps it. The decoder itself never gives a surrogate."""
_UTF16 = b"\xff\xfe"
_BINARY = {
    _UTF16: "the file is UTF-16 or UTF-32; save it as UTF-8",
    b"\xfe\xff": "the file is UTF-16; save it as UTF-8",
    b"PAR1": "the file is Parquet; export it as JSON Lines",
    b"PK\x03\x04": "the file is a zip archive; unpack it",
    b"\x28\xb5\x2f\xfd": "the file is compressed with zstd; unpack it (or use gzip)",
    b"BZh": "the file is compressed with bzip2; unpack it (or use gzip)",
    b"\xfd7zXZ": "the file is compressed with xz; unpack it (or use gzip)",
}
"""First bytes -> what the file is and what to do."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A row that was left out: where, its own id if it has one, and why."""

    line: int
    record: int
    """Number of the row in the file, from 1: in a JSON array several may share a line."""
    source_id: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Dataset:
    """The prompts of one file, in the file's order, and what became of the other rows."""

    path: Path
    sha256: str
    """Of the file's bytes."""
    prompts: tuple[Prompt, ...]
    lines: tuple[int, ...]
    """Line of each prompt."""
    skipped: tuple[Skipped, ...] = ()
    filtered: int = 0
    """Rows of another category."""
    shapes: dict[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def skip_reasons(self) -> dict[str, int]:
        """How many rows were left out, by reason."""
        return dict(Counter(skip.reason for skip in self.skipped))


def load_dataset(
    path: Path | str,
    *,
    on_error: Literal["fail", "skip"] = "fail",
    field: str | None = None,
    category: str | Iterable[str] | None = None,
    stratum: str | None = None,
    limit: int | None = None,
) -> Dataset:
    """The prompts in `path`; `loadtest.plan.rows` lists the shapes.

    `field` names an unusual prompt field, `category` keeps only rows of these categories, `stratum` overrides the kind
    of task of all rows, `limit` keeps the first rows. A row without a usable prompt is an error, or with
    `on_error="skip"` counted with its reason. Raises DatasetError with file and line; also where nothing is left.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read: {error.strerror or error}") from None
    wanted = {category} if isinstance(category, str) else None if category is None else set(category)
    reader = _Reader(path, on_error == "skip", field, wanted, stratum)
    for line, record, value in _records(path, data):
        if limit is not None and len(reader.prompts) >= limit:
            break
        reader.take(line, record, value)
    return reader.done(hashlib.sha256(data).hexdigest())


class _Reader:
    """Takes rows one by one and keeps what they give."""

    def __init__(self, path: Path, skip: bool, field: str | None, wanted: set[str] | None, stratum: str | None) -> None:
        self.path, self.skip, self.field, self.wanted, self.stratum = path, skip, field, wanted, stratum
        self.prompts: list[Prompt] = []
        self.lines: list[int] = []
        self.skipped: list[Skipped] = []
        self.warnings: list[str] = []
        self.shapes: Counter[str] = Counter()
        self.categories: set[str] = set()
        self.shape: str | None = None
        self.filtered = 0

    def take(self, line: int, record: int, value: Any) -> None:
        """One row: a prompt, a skip, or DatasetError."""
        try:
            if isinstance(value, RowError):
                raise value
            if self.wanted is not None and not self._is_wanted(value):
                self.filtered += 1
                return
            row = read_row(value, field=self.field, stratum=self.path.stem, shape_so_far=self.shape)
        except RowError as error:
            self._refuse(line, record, value, str(error))
            return
        except RecursionError:
            self._refuse(line, record, None, "nested too deeply")
            return
        self.shape = self.shape or row.shape
        self.shapes[row.shape] += 1
        self.warnings += [f"{self.path}: line {line}: {warning}" for warning in row.warnings]
        self.prompts.append(row.prompt if self.stratum is None else replace(row.prompt, stratum=self.stratum))
        self.lines.append(line)

    def done(self, sha256: str) -> Dataset:
        """The data set. DatasetError where nothing is left."""
        if not self.prompts:
            if self.filtered:
                known = ", ".join(sorted(self.categories)) or "none"
                raise DatasetError(
                    f"{self.path}: line 1: no row of category {', '.join(sorted(self.wanted or set()))}; seen: {known}"
                )
            first = f"; line {self.skipped[0].line}: {self.skipped[0].reason}" if self.skipped else ""
            raise DatasetError(f"{self.path}: line 1: no usable prompt in the file{first}")
        first_line: dict[str, int] = {}
        contents: dict[str, set[tuple[Any, ...]]] = {}
        for prompt, line in zip(self.prompts, self.lines, strict=True):
            first_line.setdefault(prompt.prompt_id, line)
            contents.setdefault(prompt.prompt_id, set()).add(prompt.messages)
        for prompt_id, texts in contents.items():
            if len(texts) > 1:
                self.warnings.append(
                    f"{self.path}: line {first_line[prompt_id]}: id {prompt_id!r} stands on rows with different "
                    "prompts; they are told apart by their text's hash"
                )
        return Dataset(
            path=self.path,
            sha256=sha256,
            prompts=tuple(self.prompts),
            lines=tuple(self.lines),
            skipped=tuple(self.skipped),
            filtered=self.filtered,
            shapes=dict(self.shapes),
            warnings=tuple(self.warnings),
        )

    def _is_wanted(self, value: object) -> bool:
        category = category_of(value)
        if category is not None:
            self.categories.add(category)
        return category in (self.wanted or set())

    def _refuse(self, line: int, record: int, value: Any, reason: str) -> None:
        if not self.skip:
            where = f"line {line}" if line == record else f"line {line} (row {record})"
            raise DatasetError(
                f"{self.path}: {where}: {reason}; "
                'correct it, or write on_error = "skip" to leave such rows out, counted'
            )
        try:
            own_id = source_id(value) if isinstance(value, dict) else None
        except RowError:
            own_id = None
        self.skipped.append(Skipped(line, record, own_id, reason))


def _records(path: Path, data: bytes) -> Iterator[tuple[int, int, Any]]:
    """(line, number of the row, value) of every row; the value is a RowError where the row cannot be read."""
    data = _unpacked(path, data)
    text = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    if "\r" in text:  # no JSON holds a bare CR but between its tokens
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    start = _skip_space(text, 0)
    if start == len(text):
        raise DatasetError(f"{path}: line 1: the file is empty")
    if text[start] == "[":
        return _array(path, text, start)
    if text[start] == "{" and (inner := _wrapped(text, start)) >= 0:
        return _array(path, text, inner, wrapped=True)
    if text[start] == "{" and _spans_lines(text, start):
        return _objects(path, text, start)
    return _lines(text)


def _wrapped(text: str, start: int) -> int:
    """Where the rows begin in a file that is one object around a list of rows (`{"data": […]}`); -1 for any other."""
    try:
        value, end = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        return -1
    lists = [k for k, v in value.items() if isinstance(v, list) and v and all(isinstance(i, dict) for i in v)]
    if _skip_space(text, end) < len(text) or len(lists) != 1 or lists[0] not in _WRAPPERS:
        return -1
    match = re.compile(rf'"{lists[0]}"\s*:\s*(?=\[)').search(text, start)
    return match.end() if match else -1


def _unpacked(path: Path, data: bytes) -> bytes:
    """The file's text as bytes; DatasetError for what is no text."""
    if data.startswith(b"\x1f\x8b"):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise DatasetError(f"{path}: line 1: the gzip file is damaged: {error}") from None
    for magic, what in _BINARY.items():
        if data.startswith(magic):
            raise DatasetError(f"{path}: line 1: {what}")
    if b"\0" in data[:4]:
        raise DatasetError(f"{path}: line 1: {_BINARY[_UTF16]}")
    return data


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose repeated fields, where they differ, raise."""
    value = dict(pairs)
    if len(value) < len(pairs):
        for key, one in pairs:
            if value[key] != one:
                raise RowError(f"the field {key!r} stands twice in one object, with different values")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_pairs)


def _spans_lines(text: str, start: int) -> bool:
    """True where the first object is whole only over several lines: pretty-printed, not JSON Lines."""
    try:
        _, end = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        return False
    return "\n" in text[start:end]


def _lines(text: str) -> Iterator[tuple[int, int, Any]]:
    record = 0
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip(" \t\r")
        if line:
            record += 1
            yield number, number, _parsed(line)


def _objects(path: Path, text: str, start: int) -> Iterator[tuple[int, int, Any]]:
    position, line, record, counted = start, 1, 0, 0
    while position < len(text):
        record += 1
        line += text.count("\n", counted, position)
        counted = position
        value, end = _decoded(text, position)
        if end < 0:
            raise DatasetError(f"{path}: line {line} (row {record}): {value}")
        yield line, record, value
        position = _skip_space(text, end)


def _array(path: Path, text: str, start: int, *, wrapped: bool = False) -> Iterator[tuple[int, int, Any]]:
    """The rows of an array; of a `wrapped` one a row may sit under `row` (the viewer of a data hub writes it so)."""
    position, line, record, counted = _skip_space(text, start + 1), 1, 0, 0
    if text[position : position + 1] == "]":
        raise DatasetError(f"{path}: line 1: the array is empty")
    while True:
        record += 1
        line += text.count("\n", counted, position)
        counted = position
        value, end = _decoded(text, position)
        if end < 0:
            # Where one element cannot be parsed, nobody knows where the next one starts.
            raise DatasetError(f"{path}: line {line} (row {record}): {value}")
        if wrapped and isinstance(value, dict) and isinstance(value.get("row"), dict):
            value = value["row"]
        yield line, record, value
        position = _skip_space(text, end)
        mark = text[position : position + 1]
        if mark != ",":
            break
        position = _skip_space(text, position + 1)
    line += text.count("\n", counted, position)
    after = _skip_space(text, position + 1)
    rest = mark == "]" and after < len(text) and not wrapped
    if mark != "]" or rest:
        line += text.count("\n", position, after) if rest else 0
        problem = "more text after the array's end" if rest else "the array is not closed: ',' or ']' expected"
        raise DatasetError(f"{path}: line {line}: {problem}")


def _decoded(text: str, position: int) -> tuple[Any, int]:
    """(value, end) of the JSON value at `position`; (RowError, -1) where it cannot be parsed at all."""
    try:
        value, end = _DECODER.raw_decode(text, position)
    except (ValueError, RecursionError) as error:
        if isinstance(error, RowError):
            value, end = json.JSONDecoder().raw_decode(text, position)  # whole but for the repeated field
            return error, end
        return RowError(_json_problem(error)), -1
    return (RowError("not UTF-8"), end) if _ESCAPED.search(text, position, end) else (value, end)


def _parsed(line: str) -> Any:
    if _ESCAPED.search(line):
        return RowError("not UTF-8")
    try:
        return json.loads(line, object_pairs_hook=_pairs)
    except RowError as error:
        return error
    except (ValueError, RecursionError) as error:
        return RowError(_json_problem(error))


def _json_problem(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"not valid JSON: {error.msg} at column {error.colno}"
    return "not valid JSON: nested too deeply" if isinstance(error, RecursionError) else f"not valid JSON: {error}"


def _skip_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match is not None else position
