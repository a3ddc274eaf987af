"""Exact quantiles, counted gaps and repeated ids, in memory and spilled to a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.load import hdr
from loadtest.merge import quantiles
from loadtest.merge.latency import max_relative_error, record_counts
from loadtest.merge.quantiles import CountedMicroseconds, DistinctStrings, ExactQuantiles, nearest_rank

QS = [0.5, 0.9, 0.95, 0.99, 0.999]


def by_sorting(values: np.ndarray) -> list[float]:
    ordered = np.sort(values)
    return [float(ordered[nearest_rank(len(ordered), q) - 1]) for q in QS]


def test_rank_is_the_ceiling() -> None:
    """P99 of 160 is the 159th value; float noise must not add one."""
    assert [nearest_rank(n, 0.99) for n in (1, 100, 160, 260)] == [1, 99, 159, 258]
    assert nearest_rank(20_000, 0.999) == 19_980


def test_no_values_no_quantiles() -> None:
    """All requests failed: null, not 0."""
    held = ExactQuantiles()
    held.add(np.array([np.nan]))
    assert held.quantiles(QS) == [None] * 5
    assert held.mean is None
    assert CountedMicroseconds().quantiles(QS) == [None] * 5


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1e9, 1e12, allow_subnormal=False), min_size=1, max_size=300))
def test_spilled_quantiles_are_those_of_the_sorted_values(values: list[float]) -> None:
    """The second pass over the file finds the same value that sorting everything finds."""
    held = ExactQuantiles()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantiles, "_IN_MEMORY", 10)
        patch.setattr(quantiles, "_PASS", 7)
        for i in range(0, len(values), 13):
            held.add(np.array(values[i : i + 13]))
        assert held.quantiles(QS) == by_sorting(np.array(values))
        assert held.n == len(values)
    held.close()


def test_large_spill(tmp_path: Path) -> None:
    """Above the in-memory limit with real sizes, in several pieces."""
    rng = np.random.default_rng(1)
    values = rng.lognormal(10, 1, 1_200_000)
    held = ExactQuantiles(tmp_path)
    for part in np.array_split(values, 7):
        held.add(part)
    assert held.quantiles(QS) == by_sorting(values)
    assert held.mean == pytest.approx(values.mean())
    held.close()
    assert list(tmp_path.iterdir()) == []


def test_counted_gaps_with_long_ones() -> None:
    """Gaps beyond the counters (a stalled server) keep their exact place in the tail."""
    rng = np.random.default_rng(2)
    gaps = np.concatenate([rng.integers(0, 50_000, 5000), rng.integers(3_000_000, 90_000_000, 60)]).astype(np.int32)
    held = CountedMicroseconds()
    for part in np.array_split(gaps, 5):
        held.add(part)
    assert held.quantiles(QS) == by_sorting(gaps)
    assert held.n == len(gaps)
    assert sum(int(c.sum()) for _, c in held.value_counts()) == len(gaps)


def test_weighted_recording_equals_one_by_one() -> None:
    """The HDR histogram from counted gaps is byte for byte that of the single values; out of range is kept."""
    rng = np.random.default_rng(3)
    values = np.concatenate([rng.integers(0, 10_000_000, 4000), [4_000_000_000_000, 0, 0]])
    unique, counts = np.unique(values, return_counts=True)
    weighted, single = hdr.new_histogram(), hdr.new_histogram()
    assert record_counts(weighted, unique, counts) == 1
    assert hdr.record(single, values) == 1
    assert weighted.encode() == single.encode()
    assert weighted.total_count == len(values)


def test_cross_check_sees_a_wrong_histogram() -> None:
    """0.2 % is the limit: the right histogram stays below, one that lost its tail does not."""
    values = np.random.default_rng(4).lognormal(10, 0.5, 3000).astype(np.int64)
    exact = dict(zip(quantiles.QUANTILES, by_sorting(values), strict=True))
    good, cut = hdr.new_histogram(), hdr.new_histogram()
    hdr.record(good, values)
    hdr.record(cut, np.sort(values)[:2900])
    assert (max_relative_error(good, exact) or 0) < 0.002
    assert (max_relative_error(cut, exact) or 0) > 0.05
    assert max_relative_error(hdr.new_histogram(), exact) is None


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(max_size=150), max_size=30))
def test_repeated_strings(texts: list[str]) -> None:
    """Repeats are counted across batches, for any text, sliced arrays included."""
    held = DistinctStrings()
    for i in range(0, len(texts), 7):
        array = pa.array(["x", *texts[i : i + 7]], pa.string()).slice(1)
        _, offsets, data = array.buffers()
        if data is not None:
            starts = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
            held.add(starts, np.frombuffer(data, np.uint8))
    assert held.repeats() == len(texts) - len(set(texts))


def test_repeats_found_in_a_spill(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids that repeat far apart are found range by range."""
    monkeypatch.setattr(quantiles, "_IN_MEMORY", 100)
    monkeypatch.setattr(quantiles, "_PASS", 64)
    held = DistinctStrings()
    ids = [f"1-0-{i % 990}" for i in range(1000)]
    for i in range(0, 1000, 50):
        _, offsets, data = pa.array(ids[i : i + 50]).buffers()
        held.add(np.frombuffer(offsets, np.int32)[:51], np.frombuffer(data, np.uint8))
    assert held.repeats() == 10
    held.close()
