"""The field's table against figures worked out by hand (see world.py for the rows)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from loadtest.judge.verdict import Verdict
from loadtest.merge.merge import merge_run
from loadtest.merge.read import RunData, open_run
from loadtest.model import NOT_MEASURED, LoadKind
from loadtest.report import html, results, summary
from loadtest.report.latencies import CURVE_POINTS, curve_ranks, quantile_name, rank
from loadtest.report.tables import Row, build_rows
from loadtest.report.units import duration, in_unit, number, printable, share, shorten, tail
from tests.merge.make_run import make_big_run, make_cell, make_cell_folder, make_run
from tests.report.world import request


def test_acceptance_is_pooled_by_sums(rows: dict[str, Row]) -> None:
    """S 5+5+2, D 20+20+8, A 10+6+8, N 60: A/D 24/48 (the mean of the repeats' rates would be 0.7)."""
    row = rows["ngram-4"]

    assert (row.steps, row.drafts, row.accepted, row.tokens) == (12, 48, 24, 60)
    assert (row.acceptance_rate, row.acceptance_length) == (0.5, 3.0)
    assert row.coverage == pytest.approx(36 / 60)


def test_survival_adds_up_to_the_acceptance_length(rows: dict[str, Row]) -> None:
    """Steps with at least 1, 2, 3, 4 accepted: 9, 7, 5, 3 of 12; their sum is A/S = 2."""
    survival = rows["ngram-4"].survival

    assert survival == pytest.approx((9 / 12, 7 / 12, 5 / 12, 3 / 12))
    assert sum(s for s in survival if s is not None) == pytest.approx(2.0)


def test_strata_are_summed_over_repeats(rows: dict[str, Row]) -> None:
    """edit: S 7, D 28, A 18, N 40 of two requests; explain: S 5, D 20, A 6, N 20 of one."""
    row = rows["ngram-4"]
    edit, explain = row.figures_of("edit"), row.figures_of("explain")

    assert {k: s.n for k, s in row.strata.items()} == {"edit": 2, "explain": 1}
    assert (edit.draft_acceptance_rate, edit.coverage) == pytest.approx((18 / 28, 25 / 40))
    assert (explain.draft_acceptance_rate, explain.coverage) == pytest.approx((6 / 20, 11 / 20))


def test_percentiles_come_from_all_rows_together(rows: dict[str, Row]) -> None:
    """E2E 100, 200, 400 ms: nearest rank p50 is 200 (the mean of the repeats' medians would be 250), p99 is 400."""
    e2e = rows["ngram-4"].latency["e2e"]

    assert (e2e["n"], e2e["p50"], e2e["p95"], e2e["p99"]) == (3, 200_000, 400_000, 400_000)


def test_rates_are_weighted_by_their_windows(rows: dict[str, Row]) -> None:
    """40 tokens in 10 s and 20 in 30 s are 1.5 tokens/s; the mean of the two rates would be 2.33."""
    row = rows["ngram-4"]

    assert row.window_s == pytest.approx(40.0)
    assert row.output_tok_s == pytest.approx(60 / 40)
    assert (row.sent, row.ok, row.failed) == (4, 3, 1)


def test_no_drafts_is_undefined_not_zero(rows: dict[str, Row]) -> None:
    """D = 0: A/D and 1+A/S have no value; coverage is 0 because no token came from a draft."""
    row = rows["suffix-4"]
    line = dict(zip(results.HEADER, results.cells(row, ""), strict=True))

    assert (row.acceptance_rate, row.acceptance_length, row.coverage) == (None, None, 0.0)
    assert (line["A/D"], line["1+A/S"], line["coverage"]) == ("undefined", "undefined", "0.0 %")


def test_an_unmeasured_line_says_so_in_every_figure(rows: dict[str, Row]) -> None:
    """A config whose server did not start: no figure, and the reason stands beside the table."""
    row = rows["eagle3-4"]
    line = results.cells(row, "yes")
    ((where, why),) = results.unmeasured(list(rows.values()))

    assert not row.measured
    assert line == ["code", "eagle3-4", "greedy", "c8", *[NOT_MEASURED] * 13]
    assert where == "eagle3-4 on code (greedy) at c8"
    assert "no CUDA" in why


def test_the_baseline_has_no_drafts(rows: dict[str, Row]) -> None:
    """Not "not measured": a baseline drafts nothing, and its quality is the reference."""
    line = dict(zip(results.HEADER, results.cells(rows["baseline"], "reference"), strict=True))

    assert [line[c] for c in ("A/D", "1+A/S", "coverage", "S, D, A")] == ["no drafts"] * 4
    assert line["quality"] == "reference"


def test_a_missing_repeat_is_told(rows: dict[str, Row]) -> None:
    """A line of one of two repeats must not look like one of two."""
    row = replace(rows["ngram-4"], repeats=1, states=("done", "unfinished"), reason="cut short")

    assert results.counts(row) == "3 / 4 (1 of 2 repeats)"
    assert results.unmeasured([row]) == [("ngram-4 on code (greedy) at c8", "cut short")]


def test_acceptance_of_mixed_sources_is_not_measured(rows: dict[str, Row]) -> None:
    """Blocks of one repeat and counters of another are no sum."""
    row = replace(rows["ngram-4"], acceptance_source=None)

    assert results.cells(row, "")[results.HEADER.index("A/D")] == NOT_MEASURED


def test_a_cell_whose_requests_all_failed_has_no_latency(tmp_path: Path) -> None:
    """0 ok of 2 sent: latencies are undefined, never 0, and the table still renders."""
    cell = make_cell()
    make_run(tmp_path / "run", [cell])
    failed = [request(i, 100, outcome="http_error", http_status=500) for i in range(2)]
    make_cell_folder(tmp_path / "run", cell, failed)
    merge_run(tmp_path / "run")
    (row,) = build_rows(open_run(tmp_path / "run"))
    line = dict(zip(results.HEADER, results.cells(row, ""), strict=True))

    assert line["n (ok / sent)"] == "0 / 2"
    assert (line["E2E p50"], line["TTFT p99"], line["A/D"]) == ("undefined", "undefined", NOT_MEASURED)
    assert row.mean_e2e_us is None


def test_curves_and_gaps_of_many_rows_stay_small(tmp_path: Path) -> None:
    """5,000 requests of 40 chunks: bounded curves that end at the maximum; gaps within 0.2 % of the exact quantile."""
    run_dir = make_big_run(tmp_path / "run", 5000)
    merge_run(run_dir)
    data = open_run(run_dir)
    (row,) = build_rows(data)
    offsets = data.requests(["chunk_offset_us", "e2e_us"])
    gaps = np.concatenate([np.diff(x) for x in offsets["chunk_offset_us"].to_pylist()])

    assert all(len(c[0]) == len(c[1]) <= CURVE_POINTS for c in row.curve.values())
    assert row.curve["e2e"][0][-1] == 1.0
    assert row.curve["e2e"][1][-1] == max(offsets["e2e_us"].to_pylist())
    assert row.latency["chunk_gap"]["n"] == len(gaps) == 5000 * 39
    assert row.latency["chunk_gap"]["p99"] == pytest.approx(float(rank(np.sort(gaps), 0.99) or 0), rel=2e-3)


@pytest.mark.parametrize("n", [1, 2, 3, 100, 1_000_000])
def test_curve_ranks_are_ranks(n: int) -> None:
    """Strictly rising from the first to the last, few enough to draw."""
    ranks = curve_ranks(n)

    assert ranks[0] == 1
    assert ranks[-1] == n
    assert (np.diff(ranks) > 0).all()
    assert len(ranks) <= CURVE_POINTS


def test_units() -> None:
    """Three significant digits; what has no value is never a number."""
    assert [duration(v) for v in (950.0, 12_345.0, 1_234_567.0, None)] == ["950 µs", "12.3 ms", "1.23 s", "undefined"]
    assert [share(0.5), share(None), number(1723.4), number(float("nan"))] == [
        "50.0 %",
        "undefined",
        "1723",
        "undefined",
    ]
    assert in_unit(2.5, "per_s") == "2.50 /s"
    assert (tail(1000.0, 298, 299), tail(1000.0, 299, 299), tail(None, 0, 299)) == ("1.00 ms†", "1.00 ms", "undefined")
    assert quantile_name(0.999) == "p999"
    assert shorten("one two three four", 12) == "one two …"
    assert printable("a\x1b[31m\n b") == "a\ufffd[31m b"


def test_every_kind_of_load_says_what_it_cannot_tell(world: tuple[RunData, Verdict]) -> None:
    """A closed-loop figure read as one for an arrival rate promises users what nobody measured."""
    rows = build_rows(world[0])
    kinds = get_args(LoadKind)

    assert set(results.LOAD_KINDS) == set(kinds)
    [(loads, what)] = results.load_kinds(rows)
    assert loads == "c8"
    assert "no statement about an arrival rate" in what
    pages = (summary.render(world[0].run, rows, world[1]), html.render(world[0], rows, world[1]))
    assert all(b"no statement about an arrival rate" in page for page in pages)
