"""SLO entries: units, directions, and everything that must not be let through."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from loadtest.load.records import RAW_SCHEMA
from loadtest.merge.schema import CELLS_SCHEMA
from loadtest.plan.metrics import GOODPUT_METRICS, METRICS, RATIO_STAT, quantile_of
from loadtest.plan.slo import SloEntry
from loadtest.plan.units import format_duration, parse_duration


@pytest.mark.parametrize(
    ("entry", "bound"),
    [
        ({"metric": "ttft", "stat": "p99", "limit": "500ms"}, (500_000.0, None)),
        ({"metric": "e2e", "stat": "p99.9", "max": "2m"}, (120e6, None)),
        ({"metric": "chunk_gap", "stat": "p50", "limit": "250us"}, (250.0, None)),
        ({"metric": "tpot", "stat": RATIO_STAT, "limit": 1.02}, (1.02, None)),
        ({"metric": "output_tok_s", "stat": RATIO_STAT, "limit": 1.1}, (None, 1.1)),
        ({"metric": "error_rate", "limit": "1%"}, (0.01, None)),
        ({"metric": "error_rate", "stat": "rate", "limit": 0}, (0.0, None)),
        ({"metric": "request_rate", "stat": "rate", "limit": "4 req/s"}, (None, 4.0)),
        ({"metric": "output_tok_s", "stat": "rate", "min": 100}, (None, 100.0)),
        ({"metric": "draft_acceptance_rate", "min": 0.3}, (None, 0.3)),
        ({"metric": "wasted_drafts_per_token", "limit": 1.5}, (1.5, None)),
        ({"metric": "goodput", "limit": "95%", "limits": {"ttft": "1s"}}, (None, 0.95)),
    ],
)
def test_a_limit_becomes_a_bound_in_the_unit_of_the_metric(entry: dict[str, Any], bound: tuple[Any, Any]) -> None:
    slo = SloEntry(**entry).to_slo()
    assert (slo.max, slo.min) == pytest.approx(bound)


def test_goodput_limits_are_in_microseconds() -> None:
    slo = SloEntry(metric="goodput", limit=0.9, limits={"ttft": "1s", "tpot": "50ms"}).to_slo()
    assert slo.limits == {"ttft": 1e6, "tpot": 50_000.0}
    assert slo.name == "goodput >= 0.9 of ttft <= 1s and tpot <= 50ms"


TTFT = {"metric": "ttft", "stat": "p99"}


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"metric": "ttf", "limit": 1}, 'did you mean "ttft"'),
        ({**TTFT}, "exactly one of limit, max; seen: none"),
        ({**TTFT, "max": "1s", "min": "1s"}, "exactly one of limit, max"),
        ({**TTFT, "min": "1s"}, "ttft is better when lower"),
        ({"metric": "coverage", "max": 0.5}, "coverage is better when higher"),
        ({**TTFT, "limit": 500}, "500 is not a duration"),
        ({**TTFT, "limit": "-5ms"}, "is not a duration"),
        ({**TTFT, "limit": math.nan}, "nan is no limit"),
        ({**TTFT, "limit": math.inf}, "inf is no limit"),
        ({"metric": "error_rate", "limit": -0.1}, "between 0 and 1"),
        ({"metric": "error_rate", "limit": 1.5}, "between 0 and 1"),
        ({"metric": "error_rate", "limit": "101%"}, "between 0 and 1"),
        ({"metric": "error_rate", "limit": math.nan}, "between 0 and 1"),
        ({"metric": "coverage", "limit": "half"}, "write for example"),
        ({"metric": "tpot", "stat": RATIO_STAT, "limit": "1.02"}, "is no ratio"),
        ({"metric": "tpot", "stat": RATIO_STAT, "limit": -1}, "finite and not negative"),
        ({"metric": "ttft", "limit": "1s"}, "stat is missing"),
        ({"metric": "ttft", "stat": "p100", "limit": "1s"}, "does not suit"),
        ({"metric": "ttft", "stat": "p0", "limit": "1s"}, "does not suit"),
        ({"metric": "ttft", "stat": "pooled", "limit": "1s"}, "does not suit"),
        ({"metric": "chunk_gap", "stat": RATIO_STAT, "limit": 1}, "does not suit"),
        ({"metric": "coverage", "stat": "p99", "limit": 0.5}, "does not suit"),
        ({**TTFT, "limit": "1s", "confidence": 0.5}, "confidence = 0.5"),
        ({**TTFT, "limit": "1s", "confidence": 1.0}, "confidence = 1.0"),
        ({**TTFT, "limit": "1s", "confidence": 95}, "confidence = 95"),
        ({**TTFT, "limit": "1s", "confidence": math.nan}, "confidence = nan"),
        ({**TTFT, "limit": "1s", "where": {"mode": "x"}}, "is no selector"),
        ({**TTFT, "limit": "1s", "limits": {"ttft": "1s"}}, "only goodput takes them"),
        ({"metric": "goodput", "limit": 0.9}, "limits is missing"),
        ({"metric": "goodput", "limit": 0.9, "limits": {"error_rate": 1}}, "has no value per request"),
        ({"metric": "goodput", "limit": 0.9, "limits": {"ttft": 3}}, "limits.ttft: 3 is not a duration"),
        ({**TTFT, "limit": True}, "limit"),
    ],
)
def test_a_bad_criterion_is_refused_in_words(entry: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        SloEntry(**entry)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("stat", "quantile"),
    [("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999), ("p5", 0.05), ("p99.99", 0.9999),
     ("p100", None), ("p0", None), ("p", None), ("P99", None), ("p9999", None), ("rate", None)],
)  # fmt: skip
def test_quantiles(stat: str, quantile: float | None) -> None:
    assert quantile_of(stat) == quantile


def test_every_source_is_a_column_that_exists() -> None:
    """A metric whose column was renamed would be judged as missing for ever."""
    columns = {"request": RAW_SCHEMA.names, "chunk": RAW_SCHEMA.names, "cell": CELLS_SCHEMA.names}
    for metric in METRICS.values():
        assert metric.source is None or metric.source in columns[metric.level], metric.name
    assert set(GOODPUT_METRICS) <= {name for name, metric in METRICS.items() if metric.per_request}


@given(st.integers(0, 10**10))
def test_a_duration_survives_being_written(microseconds: int) -> None:
    assert parse_duration(format_duration(microseconds / 1e6)) == pytest.approx(microseconds / 1e6, abs=1e-9)


@given(st.text() | st.integers() | st.floats() | st.none() | st.booleans())
def test_any_value_is_a_duration_or_a_clear_error(value: object) -> None:
    try:
        seconds = parse_duration(value)
    except ValueError as error:
        text = str(error)
    else:
        text = "write a number"
        assert math.isfinite(seconds)
        assert seconds >= 0
    assert "write a number" in text
