"""What the workers say of themselves becomes columns: stalls, clocks, pauses, and how many workers would be enough."""

from __future__ import annotations

from typing import Any

import pytest

from loadtest.merge.cells import CellFiles
from loadtest.merge.client import client_columns, workers_enough
from loadtest.merge.rows import RowSums
from tests.merge import make_run as mk


def columns(**changes: Any) -> dict[str, Any]:
    rows = [mk.row(seq=0, request_id="a", worker=0), mk.row(seq=1, request_id="b", worker=1)]
    told = mk.done(rows)
    for worker in told["workers"].values():
        worker.update(changes)
    return client_columns(RowSums((mk.T0, mk.T0 + 10 * mk.SECOND)), CellFiles(done=told))


def test_the_workers_facts_are_summed_or_the_worst_one_is_taken() -> None:
    seen = columns()
    assert seen["worker_stall_share"] == pytest.approx(0.0042)  # 42 ms of 10 s
    assert (seen["worker_stalls"], seen["worker_stall_max_ms"]) == (4, 30.0)
    assert (seen["connections_opened"], seen["requests_resent"], seen["conversations"]) == (8, 2, 6)
    assert seen["thinking_concurrency"] == pytest.approx(1.0)  # 2 x 5 s of pauses in 10 s
    assert seen["clock_skew_ms"] == 0.0  # the interval holds 0: nothing is certain


@pytest.mark.parametrize(("bounds", "certain"), [([60.0, 70.0], 60.0), ([-90.0, -80.0], 80.0), ([-1.0, 500.0], 0.0)])
def test_only_a_certain_offset_of_a_clock_counts(bounds: list[float], certain: float) -> None:
    assert columns(clock_skew_ms=bounds)["clock_skew_ms"] == certain


def test_what_a_worker_does_not_tell_is_null_not_zero() -> None:
    seen = columns(clock_skew_ms=None, stalled_window_ms=None, thinking_s=None)
    assert [seen[k] for k in ("clock_skew_ms", "worker_stall_share", "thinking_concurrency")] == [None] * 3
    assert client_columns(RowSums(None), CellFiles(done=None)) == {}


def test_runs_of_a_client_that_only_listed_its_stalls_get_an_upper_bound() -> None:
    """12 and 30 ms somewhere in the cell are at most 0.42 % of a window of 10 s; a list that was cut bounds nothing."""
    told = mk.done([mk.row(seq=0, request_id="a", worker=0)])
    worker = told["workers"]["0"]
    del worker["stalled_window_ms"]
    window = RowSums((mk.T0, mk.T0 + 10 * mk.SECOND))
    assert client_columns(window, CellFiles(done=told))["worker_stall_share"] == pytest.approx(0.0042)
    worker["stalls"] = 1000
    assert client_columns(window, CellFiles(done=told))["worker_stall_share"] is None


def test_workers_that_would_be_enough() -> None:
    assert workers_enough([[0.2, 0.9, 0.3]], streams=8) == 2  # 0.9 cores at 0.6 each
    assert workers_enough([[0.9, 0.95], [0.9, 0.95]], streams=8) == 4
    assert workers_enough([[0.1]], streams=3000) == 3  # streams, not CPU
    assert workers_enough([[0.1]], streams=8) == 1
    assert workers_enough([[], []], streams=8) is None
