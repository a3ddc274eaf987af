"""HDR histograms: nothing lost, merges exact, ranks exact, logs that other readers accept."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hdrh.log import HistogramLogReader
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.load import hdr

VALUES = st.lists(st.one_of(st.integers(0, 5000), st.integers(0, hdr.HIGHEST_US)), max_size=30)
SETTINGS = settings(max_examples=1000, deadline=None)


def of(values: list[int]) -> object:
    h = hdr.new_histogram()
    hdr.record(h, values)
    return h


def same(a: object, b: object) -> bool:
    left, right = (np.frombuffer(h.counts, dtype=np.uint64) for h in (a, b))  # type: ignore[attr-defined]
    return bool((left == right).all()) and state_short(a) == state_short(b)


def state_short(h: object) -> tuple[int, int, int]:
    return h.total_count, h.min_value, h.max_value  # type: ignore[attr-defined]


def test_value_out_of_range_is_clamped_and_counted() -> None:
    """Dropping it would take the worst request out of the tail."""
    h = hdr.new_histogram()

    assert hdr.record(h, [100_000, 200_000, 300_000, 7_200_000_000]) == 1

    p50, p99 = hdr.percentiles(h, [50, 99])
    assert h.total_count == 4
    assert p50 == pytest.approx(200_000, rel=1e-3)
    assert p99 >= 3_600_000_000


def test_negative_value_is_counted_at_zero() -> None:
    h = hdr.new_histogram()

    assert hdr.record(h, np.array([-5, 0, 7])) == 1
    assert (h.total_count, h.min_value) == (3, 0)


def test_merged_workers_are_one_population() -> None:
    """The mean of two p99 would be 505 ms; 99 of the 100 values are 10 ms."""
    merged = of([10_000] * 99)
    hdr.merge(merged, of([1_000_000]))

    assert [round(v / 1000) for v in hdr.percentiles(merged, [50, 99, 99.9])] == [10, 10, 1000]
    assert merged.total_count == 100  # type: ignore[attr-defined]


def test_merging_an_empty_histogram_changes_nothing() -> None:
    h = of([5, 9])
    hdr.merge(h, hdr.new_histogram())
    assert state_short(h) == (2, 5, 9)


def test_merging_another_configuration_is_refused() -> None:
    from hdrh.histogram import HdrHistogram

    with pytest.raises(ValueError, match="make both with new_histogram"):
        hdr.merge(hdr.new_histogram(), HdrHistogram(1, 60_000_000, 2))


@pytest.mark.parametrize("n", [1, 2, 99, 100, 160, 260, 20_000])
def test_rank_is_the_ceiling(n: int) -> None:
    """The package's own p99 of 160 values is the 158th; the exact rank is 159."""
    h = of(list(range(1, min(n, 2000) + 1)))

    m = h.total_count  # type: ignore[attr-defined]
    assert hdr.percentiles(h, [0, 50, 99, 99.9, 100]) == [
        of([max(1, math.ceil(p * m / 1000))]).get_max_value()
        for p in (0, 500, 990, 999, 1000)  # type: ignore[attr-defined]
    ]


def test_empty_histogram_has_no_percentile() -> None:
    assert hdr.percentiles(hdr.new_histogram(), [50, 99]) == [None, None]


def test_batches_count_as_the_package_does_one_by_one() -> None:
    values = np.random.default_rng(7).lognormal(10, 2, 2000).astype(np.int64)
    one_by_one, batch = hdr.new_histogram(), hdr.new_histogram()
    for v in values:
        one_by_one.record_value(int(v))
    hdr.record(batch, values[:700])
    hdr.record(batch, values[700:])

    assert batch.encode() == one_by_one.encode()


@SETTINGS
@given(VALUES, VALUES, VALUES)
def test_merging_is_exact_and_associative(a: list[int], b: list[int], c: list[int]) -> None:
    left, right, tail, whole = of(a), of(a), of(b), of([*a, *b, *c])
    hdr.merge(left, of(b))
    hdr.merge(left, of(c))
    hdr.merge(tail, of(c))
    hdr.merge(right, tail)

    assert same(left, whole)
    assert same(right, whole)


@SETTINGS
@given(VALUES.filter(bool), st.lists(st.floats(0, 100), min_size=1, max_size=5))
def test_percentiles_lie_between_minimum_and_maximum_and_rise(values: list[int], ps: list[float]) -> None:
    got = hdr.percentiles(of(values), sorted(ps))

    assert got == sorted(got)
    assert min(values) <= got[0]
    assert got[-1] <= max(values) * 1.001 + 1
    for p, v in zip(sorted(ps), got, strict=True):
        exact = sorted(values)[max(1, math.ceil(p / 100 * len(values) - 1e-9)) - 1]
        assert exact <= v <= exact * 1.001 + 1


def test_log_is_read_back_by_us_and_by_the_package(tmp_path: Path) -> None:
    path, t0 = tmp_path / "x.hlog", 1_795_968_963_000_000_000
    histograms = {"ttft": of([1000, 2000]), "c8.e2e": of([5_000_000] * 3), "none": of([])}
    hdr.write_hlog(path, hdr.one_interval(histograms, t0, t0 + 60_000_000_000))

    entries = hdr.read_hlog(path)
    assert [(e.tag, e.start_s, e.length_s) for e in entries] == [(tag, t0 / 1e9, 60.0) for tag in histograms]
    assert all(list(e.histogram.counts) == list(histograms[e.tag].counts) for e in entries)  # type: ignore[attr-defined]

    reader = HistogramLogReader(str(path), hdr.new_histogram())
    seen = {}
    while (h := reader.get_next_interval_histogram()) is not None:
        seen[h.get_tag()] = (h.get_total_count(), h.get_start_time_stamp() / 1000)
    reader.close()
    assert seen == {tag: (h.total_count, t0 / 1e9) for tag, h in histograms.items()}  # type: ignore[attr-defined]


@pytest.mark.parametrize("tag", ["", "a b", "a,b", "a\n"])
def test_tag_that_would_break_the_line_is_refused(tmp_path: Path, tag: str) -> None:
    with pytest.raises(ValueError, match="without comma and white space"):
        hdr.write_hlog(tmp_path / "x.hlog", [hdr.HlogEntry(tag, 0.0, 1.0, of([1]))])


def test_torn_log_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "x.hlog"
    hdr.write_hlog(path, [hdr.HlogEntry("a", 0.0, 1.0, of([1]))])
    path.write_text(path.read_text()[:-30] + "\n")

    with pytest.raises(ValueError, match=r"x.hlog:5: no histogram log line"):
        hdr.read_hlog(path)


def test_committed_log_is_what_the_java_script_reader_was_checked_with(data_dir: Path) -> None:
    """tools/hlog_js_check writes the file's percentiles as hdr-histogram-js reads them; they must be ours."""
    entries = {e.tag: e.histogram for e in hdr.read_hlog(data_dir / "load" / "js" / "sample.hlog")}
    told = json.loads((data_dir / "load" / "js" / "read_by_js.json").read_text())

    assert {e["tag"] for e in told} == set(entries)
    for entry in told:
        h = entries[entry["tag"]]
        assert entry["total"] == h.total_count
        assert entry["percentiles"] == dict(
            zip(("50", "90", "99", "100"), hdr.percentiles(h, [50, 90, 99, 100]), strict=True)
        )
