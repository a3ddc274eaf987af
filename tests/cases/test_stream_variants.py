"""Kinds of the stream cases: other transports, line ends, error forms, deltas, usages and blocks."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cases import exchanges
from tests.cases.answer_variants import ANSWERED
from tests.cases.kit import Run
from tests.cases.stream_variants import STREAMED, Has


def row_of(run: Run, name: str) -> dict[str, Any]:
    """The first row of a script's name: later ones met silence."""
    return next(r for r in run.rows() if r["prompt_id"] == name)


def check(row: dict[str, Any], expected: dict[str, Any]) -> None:
    for column, want in expected.items():
        got = row[column]
        if want is ...:
            assert got is not None, column
        elif isinstance(want, Has):
            assert want.text in (got or ""), (column, got)
        else:
            assert got == want, (column, got, row["outcome"], row["error"])


@pytest.mark.parametrize("name", STREAMED)
def test_a_stream(streams: Run, name: str) -> None:
    check(row_of(streams, f"v {name}"), STREAMED[name][1])


@pytest.mark.parametrize("name", ANSWERED)
def test_a_plain_answer(answers: Run, name: str) -> None:
    check(row_of(answers, f"v {name}"), ANSWERED[name][1])


SAME = (
    "outcome",
    "finish_reason",
    "completion_tokens",
    "prompt_tokens",
    "token_source",
    "output_text",
    "reasoning_text",
    "output_sha256",
    "chunks",
    "chunk_tokens",
    "tpot_basis",
)


@pytest.mark.parametrize("change", exchanges.CHANGES)
@pytest.mark.parametrize("number", exchanges.PLAIN_SSE)
def test_writing_and_transport_change_nothing(streams: Run, number: str, change: str) -> None:
    plain, other = row_of(streams, number), row_of(streams, f"{number} {change}")
    assert {k: other[k] for k in SAME} == {k: plain[k] for k in SAME}
