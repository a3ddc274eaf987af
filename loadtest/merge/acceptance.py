"""Acceptance arithmetic of speculative decoding: S, D, A in, figures out. Pure functions; sums first, division last.

S = verification steps that had a draft, D = draft tokens proposed, A = draft tokens accepted (the bonus token is not
counted), N = completion tokens. A figure whose denominator is 0 or unknown is None: never 0, never 100 %.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Number = float | int
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SpecCounts:
    """Sums over one scope (a request, a window, a cell). None = not measured."""

    steps: Number | None = None
    drafted: Number | None = None
    accepted: Number | None = None
    completion: Number | None = None
    """N of the same scope."""
    per_position: tuple[Number, ...] | None = None
    """Drafts accepted at position 0, 1, ...; one entry for each position."""
    overrun: Number = 0
    """Accepted tokens that were cut off by max_tokens, EOS or a stop and never delivered, where known."""


@dataclass(frozen=True, slots=True)
class SpecFigures:
    """What the counts say; see docs/method.md for each formula."""

    draft_acceptance_rate: float | None
    mean_accepted_drafts: float | None
    mean_acceptance_length: float | None
    mean_draft_length: float | None
    tokens_per_target_step: float | None
    coverage: float | None
    wasted_drafts_per_token: float | None
    position_survival: tuple[float | None, ...] | None
    conditional_acceptance: tuple[float | None, ...] | None
    acceptance_histogram: tuple[float, ...] | None


def ratio(numerator: Number | None, denominator: Number | None) -> float | None:
    """The quotient; None where either is unknown or the denominator is not above 0."""
    if numerator is None or denominator is None or not denominator > 0:
        return None
    return float(numerator) / float(denominator)


def figures(counts: SpecCounts) -> SpecFigures:
    """Every figure of the counts.

    Figures in tokens (tokens per target step, coverage) use the accepted tokens that were delivered, A - overrun.
    """
    s, d, a, n = counts.steps, counts.drafted, counts.accepted, counts.completion
    delivered = None if a is None else a - counts.overrun
    accepted_mean = ratio(a, s)
    return SpecFigures(
        draft_acceptance_rate=ratio(a, d),
        mean_accepted_drafts=accepted_mean,
        mean_acceptance_length=None if accepted_mean is None else 1 + accepted_mean,
        mean_draft_length=ratio(d, s),
        tokens_per_target_step=None if n is None or delivered is None else ratio(n, n - delivered),
        coverage=None if s is None or delivered is None else ratio(s + delivered, n),
        wasted_drafts_per_token=None if d is None or a is None else ratio(d - a, n),
        position_survival=survival(counts.per_position, s),
        conditional_acceptance=conditional(counts.per_position, s),
        acceptance_histogram=histogram(counts.per_position, s),
    )


def survival(per_position: Sequence[Number] | None, steps: Number | None) -> tuple[float | None, ...] | None:
    """Pr(K >= i) for i = 1, 2, ...: share of drafted steps whose first i drafts were all accepted."""
    return None if per_position is None else tuple(ratio(at, steps) for at in per_position)


def conditional(per_position: Sequence[Number] | None, steps: Number | None) -> tuple[float | None, ...] | None:
    """Pr(K >= i | K >= i - 1) for i = 1, 2, ...; the first entry is conditional on a drafted step."""
    if per_position is None:
        return None
    return tuple(ratio(at, before) for at, before in zip(per_position, [steps, *per_position], strict=False))


def histogram(per_position: Sequence[Number] | None, steps: Number | None) -> tuple[float, ...] | None:
    """H_j, j = 0..K: drafted steps of which exactly j drafts were accepted."""
    if per_position is None or steps is None:
        return None
    edges = [float(steps), *(float(at) for at in per_position), 0.0]
    return tuple(high - low for high, low in itertools.pairwise(edges))


def per_position_from_histogram(hist: Sequence[Number]) -> tuple[float, ...]:
    """Drafts accepted at position 0..K-1 from H_0..H_K; inverse of `histogram` (with S = sum of H)."""
    tail = 0.0
    out: list[float] = []
    for count in reversed(hist[1:]):
        tail += float(count)
        out.append(tail)
    return tuple(reversed(out))


def identity_breaches(counts: SpecCounts, hist: Sequence[Number] | None = None) -> list[str]:
    """What contradicts itself, in words; empty if nothing does.

    Checked where known: sum of H = S, sum of j * H_j = A, sum over positions = A, positions do not rise, A <= D,
    S <= D (a drafted step has at least one draft).
    """
    s, d, a, pos = counts.steps, counts.drafted, counts.accepted, counts.per_position
    out = []
    if hist is not None:
        total, weighted = sum(hist), sum(j * h for j, h in enumerate(hist))
        if s is not None and total != s:
            out.append(f"sum of the histogram is {total:g} but {s:g} steps")
        if a is not None and weighted != a:
            out.append(f"the histogram implies {weighted:g} accepted but {a:g} are counted")
    if pos is not None:
        if a is not None and sum(pos) != a:
            out.append(f"the positions sum to {sum(pos):g} but {a:g} accepted")
        top = ([] if s is None else [s]) + list(pos)
        if any(later > earlier for earlier, later in itertools.pairwise(top)):
            out.append(f"acceptance rises along the positions: {[float(p) for p in top]}")
    if a is not None and d is not None and a > d:
        out.append(f"{a:g} accepted of {d:g} drafted")
    if s is not None and d is not None and s > d:
        out.append(f"{s:g} drafted steps but only {d:g} draft tokens")
    return out


def overrun_tokens(
    *,
    chunks: IntArray,
    first_chunk: IntArray,
    last_chunk: IntArray,
    chunk_sum: IntArray,
    completion: IntArray,
    steps: IntArray,
    accepted: IntArray,
    last_step: IntArray,
) -> IntArray:
    """Accepted tokens cut off at the end of each request; -1 where the chunks do not prove it. Arrays over requests.

    Where each chunk is one step, N + overrun = 1 + undrafted + sum(a_i + 1) gives overrun = chunks + A - N. Merged
    chunks would make that too small, so the answer must agree with the last chunk as well: with an overrun it holds
    a_last + 1 - overrun tokens, without one a_last + 1 (a drafted step) or 1 (a step without a draft).
    """
    value = chunks + accepted - completion
    whole = (first_chunk == 1) & (chunk_sum == completion) & (chunks > 0)
    cut = (value > 0) & (value <= last_step) & (last_chunk == last_step + 1 - value)
    uncut = (value == 0) & ((last_chunk == last_step + 1) | (last_chunk == 1))
    known = np.where(whole & (cut | uncut), value, -1)
    return np.where(steps == 0, 0, known)
