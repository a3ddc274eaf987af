"""Kinds of the cases about data sets: other line ends, encodings, containers, shapes and damage."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from loadtest.errors import DatasetError
from loadtest.plan.datasets import Dataset, load_dataset

LINES = '{"prompt": "a"}\n{"prompt": "né"}\n'


def loaded(folder: Path, data: bytes | str, name: str = "data.jsonl", **options: Any) -> Dataset:
    path = folder / name
    path.write_bytes(data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data)
    return load_dataset(path, **options)


def texts(dataset: Dataset) -> list[str]:
    return [p.messages[-1].content for p in dataset.prompts]


FILES: dict[str, bytes | str] = {
    "LF": LINES,
    "CRLF": LINES.replace("\n", "\r\n"),
    "CR": LINES.replace("\n", "\r"),
    "mixed line ends": LINES.replace("\n", "\r", 1),
    "no last line end": LINES.rstrip(),
    "blank lines": "\n\n" + LINES.replace("\n", "\n \t\n"),
    "BOM": b"\xef\xbb\xbf" + LINES.encode(),
    "gzip": gzip.compress(LINES.encode()),
    "gzip of CRLF with BOM": gzip.compress(b"\xef\xbb\xbf" + LINES.replace("\n", "\r\n").encode()),
    "array": '[{"prompt": "a"}, {"prompt": "né"}]',
    "array in one line per row": '[\n{"prompt": "a"},\n{"prompt": "né"}\n]\n',
    "array with CR": '[\r{"prompt": "a"},\r{"prompt": "né"}\r]',
    "objects, pretty": '{\n "prompt": "a"\n}\n{\n "prompt": "né"\n}',
    "objects, pretty, CRLF": '{\r\n "prompt": "a"\r\n}\r\n{\r\n "prompt": "né"\r\n}\r\n',
    "rows under data": '{"version": 1, "data": [{"prompt": "a"}, {"prompt": "né"}], "n": [2]}',
    "rows, each under row": '{"rows": [\n{"row_idx": 0, "row": {"prompt": "a"}},\n{"row": {"prompt": "né"}}]}',
    "escapes": '{"prompt": "\\u0061"}\n{"prompt": "n\\u00e9"}',
    "fields that stand twice with one value": '{"prompt": "a", "prompt": "a"}\n{"prompt": "né"}',
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("suffix", ["json", "jsonl", "txt", "jsonl.gz"])
def test_bytes_decide_not_the_name(tmp_path: Path, name: str, suffix: str) -> None:
    assert texts(loaded(tmp_path, FILES[name], f"data.{suffix}")) == ["a", "né"]


def test_a_line_separator_inside_a_text_is_text(tmp_path: Path) -> None:
    """U+2028, U+0085 and form feed end no line of JSON."""
    text = "a\u2028b\u0085c\x0cd"
    raw = json.dumps({"prompt": text}, ensure_ascii=False).replace("\\f", "\\u000c")
    assert texts(loaded(tmp_path, raw)) == [text]


def test_a_huge_line(tmp_path: Path) -> None:
    assert len(texts(loaded(tmp_path, json.dumps({"prompt": "x" * 5_000_000})))[0]) == 5_000_000


BROKEN: dict[str, tuple[bytes | str, str]] = {
    "empty": ("", "empty"),
    "blank": (" \n\t\r\n", "empty"),
    "BOM alone": (b"\xef\xbb\xbf", "empty"),
    "UTF-16 LE with BOM": (LINES.encode("utf-16"), "UTF-16"),
    "UTF-16 BE with BOM": (b"\xfe\xff" + LINES.encode("utf-16-be"), "UTF-16"),
    "UTF-16 without BOM": (LINES.encode("utf-16-le"), "UTF-16"),
    "UTF-16 BE without BOM": (LINES.encode("utf-16-be"), "UTF-16"),
    "UTF-32": (LINES.encode("utf-32"), "UTF-32"),
    "gzip cut short": (gzip.compress(LINES.encode() * 50)[:-20], "gzip"),
    "gzip damaged": (b"\x1f\x8b\x08" + b"\0" * 30, "gzip"),
    "zip": (b"PK\x03\x04rest", "zip"),
    "Parquet": (b"PAR1rest", "Parquet"),
    "zstd": (b"\x28\xb5\x2f\xfdrest", "zstd"),
    "CSV": ("prompt,answer\nx,y\n", "not valid JSON"),
    "cut line": ('{"prompt": "a"}\n{"prompt": "b', "line 2"),
    "cut array": ('[{"prompt": "a"},\n {"prompt": "b"}', "line 2"),
    "text behind the array": ('[{"prompt": "a"}]\n{"prompt": "b"}', "line 2"),
    "array of texts": ('["a", "b"]', "must be an object"),
    "a number": ("7", "must be an object"),
    "empty array": ("[]", "empty"),
    "NaN as id": ('{"prompt": "a", "id": NaN}', "id"),
    "list as id": ('{"prompt": "a", "id": [1]}', "id"),
    "true as id": ('{"prompt": "a", "id": true}', "id"),
    "field twice": ('{"prompt": "x"}\n{"prompt": "a", "prompt": "b"}', "line 2.*stands twice"),
    "field twice inside": ('{"messages": [{"role": "user", "content": "a", "content": "b"}]}', "stands twice"),
    "field twice in an array": ('[{"prompt": "x"},\n{"prompt": "a", "prompt": "b"}]', "line 2.*stands twice"),
    "a bad row under data": ('{"data": [\n{"prompt": "a"},\n{"prompt": 1}]}', "line 3.*must be a text"),
    "control character": ('{"prompt": "a\x01"}', "not valid JSON"),
    "nested too deeply": ('{"prompt": "a", "x": ' + "[" * 100_000 + "]" * 100_000 + "}", "too deeply"),
    "nested deeply": ('{"prompt": "a", "x": ' + "[" * 3000 + "]" * 3000 + "}", "too deeply"),
    "number of 5000 digits": ('{"prompt": "a", "x": ' + "9" * 5000 + "}", "line 1"),
    "system only": ('{"messages": [{"role": "system", "content": "s"}]}', "no usable user turn"),
    "assistant only": ('{"conversations": [{"from": "gpt", "value": "s"}]}', "no usable user turn"),
    "max_tokens as a text": ('{"prompt": "a", "max_tokens": "many"}', "max_tokens"),
    "max_tokens 0": ('{"prompt": "a", "max_tokens": 0}', "max_tokens"),
    "image alone": ('{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}', "no text"),
    "tool result in front of the question": (
        '{"messages": [{"role": "tool", "content": "r"}, {"role": "user", "content": "b"}]}',
        "role is 'tool'",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_be_read_is_an_error_with_file_and_line(tmp_path: Path, name: str) -> None:
    data, words = BROKEN[name]
    with pytest.raises(DatasetError, match=rf"data\.jsonl: line \d+.*({words})|data\.jsonl: ({words})"):
        loaded(tmp_path, data)


def test_a_folder_or_a_missing_file_is_named(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.jsonl"):
        with pytest.raises(DatasetError, match=str(path)):
            load_dataset(path)


def test_a_line_that_cannot_be_decoded_is_skipped_and_counted_in_every_container(tmp_path: Path) -> None:
    line = b'{"prompt": "caf\xe9"}'
    for data, at in (
        (b'{"prompt": "a"}\n' + line + b'\n{"prompt": "b"}', 2),
        (b'{"prompt": "a"}\r' + line + b'\r{"prompt": "b"}', 2),
        (b'[{"prompt": "a"},\n' + line + b',\n{"prompt": "b"}]', 2),
        (b'[{"prompt": "a"},' + line + b',{"prompt": "b"}]', 1),
        (gzip.compress(b'{"prompt": "a"}\n' + line + b'\n{"prompt": "b"}'), 2),
    ):
        dataset = loaded(tmp_path, data, on_error="skip")
        assert texts(dataset) == ["a", "b"]
        assert [(s.line, s.reason) for s in dataset.skipped] == [(at, "not UTF-8")]


ROWS: dict[str, tuple[dict[str, Any], str | None, str]] = {
    "messages with ShareGPT names": ({"messages": [{"from": "human", "value": "q"}]}, None, "q"),
    "conversations with chat names": ({"conversations": [{"role": "user", "content": "q"}]}, None, "q"),
    "conversation": (
        {"conversation": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]},
        "s",
        "q",
    ),
    "roles in capitals": (
        {"conversations": [{"from": "Human", "value": "q"}, {"from": "GPT", "value": "r"}]},
        None,
        "q",
    ),
    "developer role": (
        {"messages": [{"role": "developer", "content": "s"}, {"role": "user", "content": "q"}]},
        "s",
        "q",
    ),
    "answer behind with tool calls": (
        {
            "messages": [
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": None, "tool_calls": [{}]},
                {"role": "tool", "content": "r"},
            ]
        },
        None,
        "q",
    ),
    "text parts": ({"messages": [{"role": "user", "content": [{"type": "text", "text": "q"}]}]}, None, "q"),
    "image and text parts": (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}, {"type": "text", "text": "q"}]}]},
        None,
        "q",
    ),
    "prompt as a chat": ({"prompt": [{"role": "user", "content": "q"}], "chosen": "x", "rejected": "y"}, None, "q"),
    "batch line with prompt": ({"custom_id": "1", "body": {"prompt": "q", "max_completion_tokens": 3}}, None, "q"),
    "Dolly": ({"instruction": "q", "context": "", "response": "r"}, None, "q"),
    "null field in front": ({"messages": None, "prompt": "q"}, None, "q"),
    "turns beside prompt": ({"prompt": "q", "turns": ["q", "q2"]}, None, "q"),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_shape(tmp_path: Path, name: str) -> None:
    row, system, text = ROWS[name]
    (prompt,) = loaded(tmp_path, json.dumps(row)).prompts
    assert prompt.messages[-1].content == text
    firsts = [m.content for m in prompt.messages if m.role in ("system", "developer")]
    assert firsts == ([] if system is None else [system])


def test_left_out_image_parts_are_counted(tmp_path: Path) -> None:
    row, _, _ = ROWS["image and text parts"]
    dataset = loaded(tmp_path, json.dumps(row))
    assert any("1 content part(s)" in w and "line 1" in w for w in dataset.warnings)


def test_surrogates_and_nul_survive_as_what_can_be_sent(tmp_path: Path) -> None:
    rows = ['{"prompt": "\\ud83d"}', '{"prompt": "\\ude00\\ud83d x"}', '{"prompt": "a\\u0000b"}']
    dataset = loaded(tmp_path, "\n".join(rows))
    assert texts(dataset) == ["\ufffd", "\ufffd\ufffd x", "a\0b"]
    assert [p.messages[0].content.encode() for p in dataset.prompts]
