"""Prompt files: the shapes that public data sets have, and every way in which they go wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadtest.errors import DatasetError
from loadtest.model import Message
from loadtest.plan.datasets import Dataset, load_dataset


@pytest.fixture
def cases(data_dir: Path) -> Path:
    return data_dir / "plan"


def expected(folder: Path) -> Any:
    return json.loads((folder / "expected.json").read_text())


def user_texts(dataset: Dataset) -> list[str]:
    return [prompt.messages[-1].content for prompt in dataset.prompts]


def write(tmp_path: Path, data: bytes | str) -> Path:
    path = tmp_path / "data.jsonl"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def test_duplicate_source_ids_are_kept_and_warned_about(cases: Path) -> None:
    dataset = load_dataset(cases / "56-duplicate-request-ids" / "data.jsonl")
    assert [p.prompt_id for p in dataset.prompts] == ["a", "a"]
    assert "different prompts" in dataset.warnings[0]


def test_sharegpt_variants(cases: Path) -> None:
    folder = cases / "68-sharegpt-variants"
    want = expected(folder)
    dataset = load_dataset(folder / "sharegpt.json", on_error="skip")
    assert {p.prompt_id: p.messages[-1].content for p in dataset.prompts} == want["prompts_first_user_turn"]
    system = {p.prompt_id: m.content for p in dataset.prompts for m in p.messages if m.role == "system"}
    assert system == want["system"]
    assert {s.source_id: s.reason for s in dataset.skipped} == want["skipped"]
    assert len(dataset.prompts) + len(dataset.skipped) == want["total"]
    assert dataset.prompts[0].later_turns == ("q2",)


def test_sharegpt_by_default_names_the_first_bad_row(cases: Path) -> None:
    with pytest.raises(DatasetError, match=r"sharegpt\.json: line 1 \(row 2\): empty"):
        load_dataset(cases / "68-sharegpt-variants" / "sharegpt.json")


@pytest.mark.parametrize("name", ["lines.json", "array.jsonl", "one.jsonl"])
def test_json_or_jsonl_by_content(cases: Path, name: str) -> None:
    folder = cases / "70-json-vs-jsonl-by-content"
    assert user_texts(load_dataset(folder / name)) == expected(folder)[name]


def test_a_line_that_is_not_utf8(cases: Path) -> None:
    path = cases / "71-non-utf8-line" / "data.jsonl"
    with pytest.raises(DatasetError, match=r"data\.jsonl: line 2: not UTF-8"):
        load_dataset(path)
    dataset = load_dataset(path, on_error="skip")
    want = expected(path.parent)["if_skip_policy"]
    assert len(dataset.prompts) == want["records"]
    assert [s.line for s in dataset.skipped] == want["skipped_lines"]
    assert dataset.prompts[1].messages[0].content == expected(path.parent)["line_3_text"]


def test_field_name_variants(cases: Path) -> None:
    folder = cases / "73-field-name-variants"
    want = expected(folder)
    dataset = load_dataset(folder / "data.jsonl", on_error="skip")
    assert user_texts(dataset) == want["user_text"]
    system = [next((m.content for m in p.messages if m.role == "system"), None) for p in dataset.prompts]
    assert system == want["system"]
    assert dataset.prompts[5].max_tokens == want["batch_max_tokens_line6"]
    assert [s.line for s in dataset.skipped] == want["invalid_lines"]
    assert dataset.prompts[2].unit_tests == "x"
    assert "line 6: the row's model 'other' is not used" in dataset.warnings[0]


def test_turns(cases: Path) -> None:
    folder = cases / "74-turns-shape"
    want = expected(folder)
    dataset = load_dataset(folder / "question.jsonl", on_error="skip")
    assert {p.prompt_id: p.messages[0].content for p in dataset.prompts} == want["first_prompts"]
    assert {p.prompt_id: 1 + len(p.later_turns) for p in dataset.prompts} == want["turns"]
    assert [int(s.source_id or 0) for s in dataset.skipped] == want["skipped_ids"]
    maths = load_dataset(folder / "question.jsonl", category="math")
    assert [int(p.prompt_id) for p in maths.prompts] == want["category_filter_math_ids"]
    assert (maths.filtered, maths.prompts[0].stratum) == (5, "math")


def test_a_category_that_no_row_has(cases: Path) -> None:
    with pytest.raises(DatasetError, match="no row of category maths; seen: math, qa, writing"):
        load_dataset(cases / "74-turns-shape" / "question.jsonl", category="maths")


def test_half_a_surrogate_pair_can_be_sent_and_stored(cases: Path) -> None:
    dataset = load_dataset(cases / "76-lone-surrogate" / "data.jsonl")
    assert user_texts(dataset) == ["bad \ufffd end", expected(dataset.path.parent)["line_2_text"]]
    assert "line 1: half of a surrogate pair" in dataset.warnings[0]
    assert "".join(user_texts(dataset)).encode()


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ('{"prompt": 5}', "prompt must be a text, not the number 5"),
        ('{"id": NaN, "prompt": "x"}', "id = nan is no id"),
        ('{"id": true, "prompt": "x"}', "id = True is no id"),
        ('{"id": ["x"], "prompt": "x"}', "is no id"),
        ('{"prompt": "  "}', "empty text"),
        ('{"prompt": "x", "max_tokens": 0}', "max_tokens = 0 is no whole number"),
        ('{"prompt": "x", "max_tokens": 1.5}', "max_tokens = 1.5"),
        ('{"prompt": "x", "tests": 4}', "tests must be"),
        ('{"prompt": "x", "turns": "y"}', "turns must be a list"),
        ('{"turns": ["x", ""]}', r"turns\[1\] is empty"),
        ('{"messages": [{"role": "robot", "content": "x"}]}', "role is 'robot'; allowed"),
        ('{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', "no text"),
        ('{"messages": [{"role": "system", "content": "x"}]}', "no usable user turn"),
        ('{"messages": "x"}', "messages must be a list"),
        ('{"body": {}}', "neither messages nor prompt"),
        ('"x"', "a row must be an object"),
        ("[1]", "a row must be an object"),
        ("{", "not valid JSON"),
        ("hello", "not valid JSON"),
        ('{"a":' * 100000, "nested too deeply|not valid JSON"),
        ('{"prompt": ' + "9" * 5000 + "}", "not valid JSON"),
    ],
)
def test_a_bad_row_names_file_and_line(tmp_path: Path, row: str, reason: str) -> None:
    path = write(tmp_path, '{"prompt": "good"}\n\n' + row + "\n")
    with pytest.raises(DatasetError, match=rf"data\.jsonl: line 3: .*({reason})"):
        load_dataset(path)
    assert [s.line for s in load_dataset(path, on_error="skip").skipped] == [3]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "line 1: the file is empty"),
        (b" \n\n", "line 1: the file is empty"),
        (b"[]", "line 1: the array is empty"),
        (b"\xff\xfe{\x00}\x00", "line 1: the file is UTF-16"),
        (b'[{"prompt": "a"},\n{"prompt": }]', r"line 2 \(row 2\): not valid JSON"),
        (b'[{"prompt": "a"}\n{"prompt": "b"}]', "line 2: the array is not closed"),
        (b'[{"prompt": "a"}', "line 1: the array is not closed"),
        (b'[{"prompt": "a"}] x', "more text"),
        (b'{\n"prompt": "a"}\n{\n"prompt": ', r"line 3 \(row 2\): not valid JSON"),
        (b'{"prompt": ""}', "no usable prompt"),
    ],
)
def test_a_broken_file_is_an_error_even_where_rows_may_be_skipped(tmp_path: Path, data: bytes, words: str) -> None:
    with pytest.raises(DatasetError, match=words):
        load_dataset(write(tmp_path, data), on_error="skip")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"gone\.jsonl: cannot be read: No such file"):
        load_dataset(tmp_path / "gone.jsonl")


def test_byte_order_mark_windows_line_ends_and_unicode_line_separators(tmp_path: Path) -> None:
    path = write(tmp_path, '\ufeff{"prompt": "a\u2028b"}\r\n{"prompt": "c"}\r\n')
    assert user_texts(load_dataset(path)) == ["a\u2028b", "c"]


def test_pretty_printed_objects_one_after_the_other(tmp_path: Path) -> None:
    dataset = load_dataset(write(tmp_path, '{\n "prompt": "a"\n}\n{\n "prompt": "b"\n}\n'))
    assert (user_texts(dataset), dataset.lines) == (["a", "b"], (1, 4))


def test_rows_of_an_array_have_lines(tmp_path: Path) -> None:
    dataset = load_dataset(write(tmp_path, '[\n {"prompt": "a"},\n\n {"prompt": "b"}\n]\n'))
    assert dataset.lines == (2, 4)


def test_our_own_rows(tmp_path: Path) -> None:
    row = {"id": "x", "stratum": "edit", "prompt": "do", "turns": ["more"], "tests": "assert f()", "max_tokens": 9}
    (prompt,) = load_dataset(write(tmp_path, json.dumps(row))).prompts
    assert (prompt.prompt_id, prompt.stratum, prompt.messages) == ("x", "edit", (Message("user", "do"),))
    assert (prompt.later_turns, prompt.unit_tests, prompt.max_tokens) == (("more",), "assert f()", 9)


def test_the_history_of_messages_is_kept_and_the_answer_is_not_sent(tmp_path: Path) -> None:
    roles = ["system", "user", "assistant", "user", "assistant"]
    row = {"messages": [{"role": role, "content": f"{i}"} for i, role in enumerate(roles)]}
    (prompt,) = load_dataset(write(tmp_path, json.dumps(row))).prompts
    assert [(m.role, m.content) for m in prompt.messages] == [(r, str(i)) for i, r in enumerate(roles[:4])]


def test_a_missing_id_is_a_hash_of_the_content(tmp_path: Path) -> None:
    one = load_dataset(write(tmp_path, '{"prompt": "a"}\n{"prompt": "b"}')).prompts
    two = load_dataset(write(tmp_path, '{"prompt": "b"}')).prompts
    assert one[1].prompt_id == two[0].prompt_id != one[0].prompt_id


def test_field_stratum_and_limit(tmp_path: Path) -> None:
    path = write(tmp_path, '{"ask": "a", "category": "k"}\n{"ask": "b"}\n{"ask": 1}')
    dataset = load_dataset(path, field="ask", stratum="s", limit=2)
    assert [(p.messages[0].content, p.stratum) for p in dataset.prompts] == [("a", "s"), ("b", "s")]
    assert [p.stratum for p in load_dataset(path, field="ask", limit=2).prompts] == ["k", "data"]
    with pytest.raises(DatasetError, match='line 1: no field "askk"; seen: ask, category'):
        load_dataset(path, field="askk")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["id", "prompt", "messages", "turns", "body", "role", "content", "conversations", "from", "value", "text",
             "instruction", "input", "tests", "max_tokens", "category", "model", "type", "test_list"]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip
files = st.one_of(
    st.binary(max_size=200),
    st.text(max_size=200).map(lambda s: s.encode("utf-8", "surrogatepass")),
    st.lists(json_values, max_size=4).map(lambda rows: "\n".join(map(json.dumps, rows)).encode()),
    st.lists(json_values, max_size=4).map(lambda rows: json.dumps(rows, indent=1).encode()),
    json_values.map(lambda row: json.dumps(row, indent=1).encode()),
)


@pytest.mark.parametrize("on_error", ["fail", "skip"])
@given(data=files)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_give_prompts_or_an_error_with_file_and_line(tmp_path: Path, on_error: Any, data: bytes) -> None:
    path = write(tmp_path, data)
    told = ""
    try:
        dataset = load_dataset(path, on_error=on_error)
    except DatasetError as error:
        told = str(error)
    if told:
        assert told.startswith(f"{path}: line ")
        return
    assert dataset.prompts
    for prompt in dataset.prompts:
        texts = [prompt.prompt_id, prompt.stratum, *(m.content for m in prompt.messages), *prompt.later_turns]
        assert all(text.strip() or text for text in texts)
        assert "".join(texts).encode()
        assert prompt.messages[-1].role == "user"
        assert prompt.messages[-1].content.strip()
