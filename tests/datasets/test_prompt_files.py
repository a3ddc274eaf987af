"""The bundled prompt sets: shape, ids, counts, and tables and hashes of datasets/README.md."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

DATASETS = Path(__file__).parents[2] / "datasets"
FILES = ("code.jsonl", "chat.jsonl", "warmup.jsonl")
KEYS = {"id", "stratum", "language", "messages", "turns", "tests"}
LEAST = {"code.jsonl": 64, "chat.jsonl": 64, "warmup.jsonl": 32}


def rows_of(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATASETS / name).read_text(encoding="utf-8").splitlines()]


def texts(row: dict[str, Any]) -> list[str]:
    return row["turns"] if "turns" in row else [m["content"] for m in row["messages"]]


def normal(text: str) -> str:
    return re.sub(r"\W+", " ", text).casefold().strip()


@pytest.mark.parametrize("name", FILES)
def test_every_row_has_the_shape_that_the_readme_promises(name: str) -> None:
    rows = rows_of(name)
    assert len(rows) >= LEAST[name]
    prefix = {"code.jsonl": "code", "chat.jsonl": "chat", "warmup.jsonl": "warm"}[name]
    for row in rows:
        assert not set(row) - KEYS, row["id"]
        assert re.fullmatch(rf"{prefix}-[a-z0-9]+-\d{{3}}", row["id"])
        assert row["stratum"]
        assert re.fullmatch(r"[a-z]{2}", row["language"])
        assert ("messages" in row) != ("turns" in row), row["id"]
        if "turns" in row:
            assert 2 <= len(row["turns"]) <= 3, row["id"]
        else:
            assert [set(m) for m in row["messages"]] == [{"role", "content"}]
            assert row["messages"][0]["role"] == "user"
        assert all(text == text.strip() and text for text in texts(row)), row["id"]


@pytest.mark.parametrize("name", FILES)
def test_files_end_with_a_newline_and_hold_no_byte_order_mark(name: str) -> None:
    data = (DATASETS / name).read_bytes()
    assert data.endswith(b"}\n")
    assert data.startswith(b"{")
    assert b"\r" not in data


def test_ids_are_unique_over_all_files() -> None:
    ids = Counter(row["id"] for name in FILES for row in rows_of(name))
    assert [i for i, n in ids.items() if n > 1] == []


def test_no_text_stands_there_twice_neither_measured_nor_warm_up() -> None:
    """Also with other punctuation and case: a warmed-up prompt would flatter caches in the measured window."""
    seen = Counter(normal(" ".join(texts(row))) for name in FILES for row in rows_of(name))
    assert [text for text, n in seen.items() if n > 1] == []


def test_prompts_are_truly_distinct_not_one_sentence_with_another_number() -> None:
    shapes = Counter(re.sub(r"\d+", "#", normal(texts(row)[0])) for name in FILES for row in rows_of(name))
    assert [shape for shape, n in shapes.items() if n > 1] == []


def test_counts_per_stratum_and_language() -> None:
    code = Counter(row["stratum"] for row in rows_of("code.jsonl"))
    assert {s for s, n in code.items() if n >= 4} == {
        "one-liner", "function", "algorithm", "debug", "refactor", "docs-tests", "edit", "explain-code"
    }  # fmt: skip
    assert code["edit"] >= 10
    chat = Counter(row["stratum"] for row in rows_of("chat.jsonl"))
    assert {s for s, n in chat.items() if n >= 6} == {
        "qa", "explain", "write", "summarise", "translate", "roleplay", "reasoning", "multi-turn"
    }  # fmt: skip
    languages = Counter(row["language"] for row in rows_of("chat.jsonl"))
    assert languages["zh"] >= 12
    assert {"en", "zh", "de", "fr", "es", "ja", "ar", "hi"} <= set(languages)


def test_lengths_reach_from_one_line_to_a_whole_file() -> None:
    code = {row["id"]: len(texts(row)[0]) for row in rows_of("code.jsonl")}
    assert min(code.values()) < 60
    edits = [len(texts(row)[0]) for row in rows_of("code.jsonl") if row["stratum"] == "edit"]
    assert min(edits) >= 1200, "an edit prompt shorter than about 300 tokens has little to copy"
    assert 4800 <= max(edits) <= 6000


def test_readme_tables_and_hashes_are_current() -> None:
    done = subprocess.run(
        [sys.executable, str(DATASETS / "describe.py"), "--check"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    readme = (DATASETS / "README.md").read_text(encoding="utf-8")
    for name in FILES:
        assert hashlib.sha256((DATASETS / name).read_bytes()).hexdigest() in readme


def test_the_check_notices_a_changed_prompt(tmp_path: Path) -> None:
    for file in DATASETS.iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    changed = (tmp_path / "chat.jsonl").read_text(encoding="utf-8").replace("two high tides", "three high tides", 1)
    (tmp_path / "chat.jsonl").write_text(changed, encoding="utf-8")
    command = [sys.executable, str(tmp_path / "describe.py")]
    stale = subprocess.run([*command, "--check"], capture_output=True, text=True, timeout=60)
    assert stale.returncode == 1
    assert "not current" in stale.stderr
    assert subprocess.run(command, timeout=60).returncode == 0
    assert subprocess.run([*command, "--check"], timeout=60).returncode == 0
