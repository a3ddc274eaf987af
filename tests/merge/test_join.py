"""As-of values: the last scrape at or before a moment."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loadtest.merge.join import asof, combine

Times = st.lists(st.integers(0, 200), max_size=30)


@given(at=Times, t=Times, age=st.integers(0, 300))
def test_asof_is_the_linear_search(at: list[int], t: list[int], age: int) -> None:
    """Same answer as looking at every scrape, for any times, ages and ties."""
    t = sorted(t)
    values = [float(i) for i in range(len(t))]
    found = asof(np.array(at, np.int64), np.array(t, np.int64), np.array(values), max_age_ns=age)
    for moment, value in zip(at, found, strict=True):
        before = [v for s, v in zip(t, values, strict=True) if s <= moment and moment - s <= age]
        assert (before[-1] == value) if before else np.isnan(value)


def test_a_sum_without_one_engine_is_unknown() -> None:
    """An engine that has not been scraped yet must not count as idle."""
    at = np.array([1, 5], np.int64)
    one = (np.array([0], np.int64), np.array([3.0]))
    late = (np.array([4], np.int64), np.array([2.0]))
    assert np.array_equal(combine(at, [one, late]), [np.nan, 5.0], equal_nan=True)
    assert np.isnan(combine(at, [])).all()
