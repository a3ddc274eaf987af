""".hgrm files against the hdrhistogram package's own output and against the format that plotters read."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest

from loadtest.judge.verdict import Verdict
from loadtest.load.hdr import new_histogram, percentiles, record
from loadtest.merge.read import RunData
from loadtest.report.hgrm import _levels, _recorded, render

LINE = re.compile(r"^ *(\d+\.\d{3}) (\d\.\d{12}) +(\d+)(?: +(\d+\.\d\d))?$")


def sample(n: int) -> np.ndarray:
    return np.random.default_rng(n).lognormal(10, 1, n).astype(int)


def histogram_of(n: int):
    h = new_histogram()
    record(h, sample(n))
    return h


@pytest.mark.parametrize("n", [1, 2, 3, 10, 1000, 50_000])
def test_values_equal_those_of_the_package(n: int) -> None:
    """At each percentile that the package reports (its own grid), value and count are what ours are there."""
    h = histogram_of(n)
    highest, _, counts = _recorded(h)
    seen = np.cumsum(counts)
    reached = 100.0 * seen / n
    theirs = [
        (i.percentile_level_iterated_to, i.value_iterated_to, i.total_count_to_this_value)
        for i in h.get_percentile_iterator(5)
    ]
    at = [min(int(np.searchsorted(reached, level)), len(seen) - 1) for level, _, _ in theirs]

    assert [(highest[i], seen[i]) for i in at] == [(value, count) for _, value, count in theirs]


@pytest.mark.parametrize("n", [1, 2, 1000])
def test_footer_equals_the_package_but_for_its_unscaled_deviation(n: int) -> None:
    """Mean, maximum, count and buckets agree; the package prints its deviation in microseconds."""
    h = histogram_of(n)
    out = io.BytesIO()
    h.output_percentile_distribution(out, 1000.0)
    number = re.compile(r"= +([\d.]+)")
    theirs = [float(x) for line in out.getvalue().decode().splitlines()[-3:] for x in number.findall(line)]
    ours = [float(x) for line in render(h).decode().splitlines()[-3:] for x in number.findall(line)]
    theirs[1] /= 1000

    assert ours == pytest.approx(theirs, abs=0.0006)


def test_the_text_is_what_plotters_read() -> None:
    """Header, then value, percentile, count and 1/(1-percentile); the last line has three columns."""
    lines = render(histogram_of(1000)).decode().splitlines()
    parsed = [LINE.match(line) for line in lines[2:-3]]

    assert lines[0].split() == ["Value", "Percentile", "TotalCount", "1/(1-Percentile)"]
    assert lines[1] == ""
    assert all(parsed)
    assert [m.group(4) is None for m in parsed if m] == [False] * (len(parsed) - 1) + [True]
    for m in parsed[:-1]:
        assert m is not None
        assert float(m.group(4)) == pytest.approx(1 / (1 - float(m.group(2))), abs=0.01, rel=1e-6)


def test_levels_halve_the_distance_in_five_steps() -> None:
    """0, 10, … 50, 55, … 75, 77.5: the Java reference's grid, up to the first level above the last but one value."""
    levels = _levels(76.0)

    assert levels == pytest.approx([0, 10, 20, 30, 40, 50, 55, 60, 65, 70, 75, 77.5, 100])


def test_an_empty_histogram_has_no_line() -> None:
    """Zero values: header and footer only, no 0 that looks measured."""
    assert len(render(new_histogram()).decode().splitlines()) == 5


def test_one_file_per_cell_and_metric(world: tuple[RunData, Verdict]) -> None:
    """Values in the files are those of the rows: E2E of repeat 1 was 100 and 200 ms."""
    folder = Path(world[0].path / "exports" / "hgrm")
    names = {p.name for p in folder.iterdir()}
    lines = (folder / "003-ngram-r1.e2e.hgrm").read_text().splitlines()
    h = new_histogram()
    record(h, [100_000, 200_000])

    assert {f"00{i}-ngram-r{i - 2}.{m}.hgrm" for i in (3, 4) for m in ("ttft", "tpot", "e2e")} <= names
    assert not [n for n in names if not n.endswith(".hgrm")]
    assert [float(lines[2].split()[0]), float(lines[-4].split()[0])] == [
        (v or 0) / 1000 for v in percentiles(h, [0, 100])
    ]
