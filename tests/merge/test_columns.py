"""The column table in docs/ is that of the code, and complete."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.merge.columns import REQUESTS, SERVER, cells_text, page
from loadtest.merge.schema import CELLS_SCHEMA, REQUESTS_SCHEMA, SERVER_SCHEMA

PAGE = Path(__file__).parents[2] / "docs" / "parquet.md"


def test_page_is_current() -> None:
    """`python -m loadtest.merge.columns > docs/parquet.md` was run after the last change."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_column_is_described() -> None:
    """No column without meaning and source, no description without its column."""
    assert list(REQUESTS) == REQUESTS_SCHEMA.names
    assert list(SERVER) == SERVER_SCHEMA.names
    for name in CELLS_SCHEMA.names:
        _, source, meaning = cells_text(name)
        assert source, name
        assert meaning, name


def test_durations_name_their_unit() -> None:
    """A `_us` column is in microseconds, `_ns` in nanoseconds, `_s` in seconds."""
    for name in (*REQUESTS_SCHEMA.names, *SERVER_SCHEMA.names, *CELLS_SCHEMA.names):
        texts = REQUESTS.get(name) or SERVER.get(name) or cells_text(name)
        for ending, unit in (("_us", "us"), ("_ns", "ns"), ("window_s", "s"), ("gap_s", "s")):
            if name.endswith(ending):
                assert texts[0].split()[0] == unit, name


def test_unknown_column_is_refused() -> None:
    """A figure without description cannot slip into the page."""
    with pytest.raises(KeyError):
        cells_text("ttft_p42_us")
