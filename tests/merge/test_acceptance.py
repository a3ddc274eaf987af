"""The S, D, A arithmetic: by hand, and its identities for any counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.merge import acceptance as acc


def test_two_engines_by_hand() -> None:
    """Sums of two data-parallel engines: 30 steps, 60 drafts, 39 accepted, 26 + 13 by position."""
    f = acc.figures(acc.SpecCounts(30, 60, 39, None, (26, 13)))
    assert f.mean_acceptance_length == pytest.approx(2.3)
    assert f.draft_acceptance_rate == pytest.approx(0.65)
    assert f.position_survival == pytest.approx((26 / 30, 13 / 30))
    assert f.conditional_acceptance == pytest.approx((26 / 30, 0.5))
    assert f.acceptance_histogram == (4, 13, 13)
    assert f.tokens_per_target_step is None
    assert f.coverage is None


def test_ngram_acceptance_length_is_not_tokens_per_step() -> None:
    """10 drafted steps of 70: 1 + A/S says 4.0, the target really made 1.43 tokens a step."""
    f = acc.figures(acc.SpecCounts(10, 50, 30, 100))
    assert f.mean_acceptance_length == 4.0
    assert f.draft_acceptance_rate == 0.6
    assert f.tokens_per_target_step == pytest.approx(100 / 70)
    assert f.coverage == pytest.approx(0.4)
    assert f.wasted_drafts_per_token == pytest.approx(0.2)
    assert f.mean_draft_length == 5.0


def test_same_acceptance_at_other_gamma() -> None:
    """A/D falls with gamma although the same tokens are accepted; 1 + A/S does not."""
    k3, k7 = (acc.figures(acc.SpecCounts(100, d, 150)) for d in (300, 700))
    assert (k3.draft_acceptance_rate, k7.draft_acceptance_rate) == pytest.approx((0.5, 150 / 700))
    assert k3.mean_acceptance_length == k7.mean_acceptance_length == 2.5


def test_nothing_drafted_is_undefined() -> None:
    """D = 0 is neither 0 nor 100 %."""
    f = acc.figures(acc.SpecCounts(0, 0, 0, 50, (0, 0, 0)))
    assert f.draft_acceptance_rate is None
    assert f.mean_acceptance_length is None
    assert f.position_survival == (None, None, None)
    assert f.conditional_acceptance == (None, None, None)
    assert f.tokens_per_target_step == 1.0
    assert f.coverage == 0.0


def test_v0_knows_the_rate_only() -> None:
    """Old servers count no drafts: acceptance length stays unknown, whatever gamma was configured."""
    f = acc.figures(acc.SpecCounts(None, 100, 60, None))
    assert f.draft_acceptance_rate == 0.6
    assert (f.mean_acceptance_length, f.mean_draft_length, f.position_survival) == (None, None, None)


def test_overrun_comes_out_of_the_figures_in_tokens() -> None:
    """9 accepted, 3 cut at max_tokens: 10 tokens came from 4 steps (prefill and 3), not from 1."""
    f = acc.figures(acc.SpecCounts(3, 9, 9, 10, None, overrun=3))
    assert f.mean_acceptance_length == 4.0
    assert f.tokens_per_target_step == pytest.approx(10 / 4)
    assert f.coverage == pytest.approx(0.9)


def overrun_of(chunks: list[int], steps: list[int]) -> int:
    one = {
        "chunks": len(chunks),
        "first_chunk": chunks[0],
        "last_chunk": chunks[-1],
        "chunk_sum": sum(chunks),
        "completion": sum(chunks),
        "steps": len(steps),
        "accepted": sum(steps),
        "last_step": steps[-1] if steps else -1,
    }
    return int(acc.overrun_tokens(**{k: np.array([v]) for k, v in one.items()})[0])


def test_overrun_of_real_responses() -> None:
    """Chunks and steps as vLLM 0.32 sent them (suffix decoding cut at 32 tokens; n-gram that ended on a step)."""
    assert overrun_of([1, 3, 6, 9, 9, 4], [2, 5, 8, 8, 8]) == 5
    assert overrun_of([1, 1, 1, 3, 1, 1, 1, 1, 3, 2, 1, 1, 3, 2, 5, 5], [2, 2, 1, 2, 1, 4, 4]) == 0
    assert overrun_of([1, 1, 1], []) == 0


def test_overrun_is_unknown_when_chunks_merge() -> None:
    """Two steps in one chunk hide a step; a guess would be too small."""
    assert overrun_of([1, 3, 6, 18, 4], [2, 5, 8, 8, 8]) == -1
    assert overrun_of([4, 6, 9, 9, 4], [2, 5, 8, 8, 8]) == -1


def test_breaches_are_named() -> None:
    """A block whose histogram implies 6 accepted while it counts 12 is not used as if it were whole."""
    out = acc.identity_breaches(acc.SpecCounts(10, 30, 12), [6, 2, 2, 0])
    assert out == ["the histogram implies 6 accepted but 12 are counted"]
    assert acc.identity_breaches(acc.SpecCounts(10, 5, 6, None, (2, 4))) == [
        "acceptance rises along the positions: [10.0, 2.0, 4.0]",
        "6 accepted of 5 drafted",
        "10 drafted steps but only 5 draft tokens",
    ]
    assert acc.identity_breaches(acc.SpecCounts(10, 30, 12), [4, 3, 0, 3]) == []


@settings(max_examples=1000, deadline=None)
@given(hist=st.lists(st.integers(0, 10_000), min_size=2, max_size=9), spare=st.integers(0, 500), n=st.integers(0, 9999))
def test_identities_hold_for_any_counts(hist: list[int], spare: int, n: int) -> None:
    """Histogram and positions are two views of the same steps; no figure leaves its range."""
    steps, accepted = sum(hist), sum(j * h for j, h in enumerate(hist))
    drafted = max(accepted, steps) + spare
    positions = acc.per_position_from_histogram(hist)
    completion = steps + accepted + n
    counts = acc.SpecCounts(steps, drafted, accepted, completion, positions)
    assert acc.identity_breaches(counts, hist) == []
    assert sum(positions) == accepted
    assert acc.histogram(positions, steps) == tuple(hist)
    f = acc.figures(counts)
    if steps == 0:
        assert f.mean_acceptance_length is None
        assert f.draft_acceptance_rate == (0.0 if drafted else None)
        return
    assert f.position_survival is not None
    assert f.mean_acceptance_length == pytest.approx(1 + sum(p for p in f.position_survival if p is not None))
    assert 0 <= (f.draft_acceptance_rate or 0) <= 1
    assert 0 < (f.coverage or 0) <= 1
    assert 1 <= (f.tokens_per_target_step or 0) <= (f.mean_acceptance_length or 0) + 1e-9
    product = 1.0
    for survival, conditional in zip(f.position_survival, f.conditional_acceptance or (), strict=True):
        product *= conditional or 0.0
        assert product == pytest.approx(survival)
