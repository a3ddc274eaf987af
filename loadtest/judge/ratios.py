"""Ratios of sums (A/D, 1 + A/S, coverage …) with intervals. The unit is the prompt, never the token.

Tokens of one request are accepted or rejected together (an easy text stays easy), so a binomial over tokens gives
intervals that are several times too narrow. Requests with the same prompt are one cluster. Few clusters: bootstrap;
many: delta method (Deng et al., arXiv 1803.06336), which then agrees and costs nothing.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from loadtest.judge.frame import Array, Floats, Rows

BOOTSTRAPS = 2000
"""Resamples: the 2.5 % quantile then rests on 50 of them."""
MIN_CLUSTERS = 20
"""Fewer clusters give bootstrap intervals that are visibly too narrow (at 10: about 89 % instead of 95 %)."""
MAX_BOOTSTRAP_CLUSTERS = 1000
"""Beyond, the matrix of resamples grows over 16 MB and the delta method is exact enough."""


def seed_of(plan_sha256: str, *labels: object) -> int:
    """A seed from the plan's hash and what it is for: the same input gives the same verdict."""
    text = "/".join([plan_sha256, *map(str, labels)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


@lru_cache(maxsize=8)
def weights(n: int, seed: int, draws: int = BOOTSTRAPS) -> Floats:
    """(draws, n): how often each of n clusters occurs in each resample."""
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, n, size=(draws, n)) + np.arange(draws)[:, None] * n
    counts = np.bincount(picks.ravel(), minlength=draws * n).reshape(draws, n).astype(np.float64)
    counts.setflags(write=False)
    return counts


def resampled(w: Floats, values: Floats) -> Floats:
    """(draws,): the sum of the values in each resample. einsum, because BLAS threads spin on a busy machine."""
    return np.asarray(np.einsum("ij,j->i", w, values))


@dataclass(frozen=True, slots=True)
class RatioInterval:
    """estimate = sum(num) / sum(den) with a one-sided bound on each side, or None where undefined."""

    estimate: float | None
    lower: float | None
    upper: float | None
    clusters: int
    method: str


def cluster_sums(keys: Array, *values: Floats) -> list[Floats]:
    """The sums of each value by key; keys are small integers, at least one."""
    index = keys - keys.min()
    there = np.bincount(index) > 0
    return [np.asarray(np.bincount(index, v)[there], dtype=np.float64) for v in values]


def ratio_interval(num: Floats, den: Floats, confidence: float, seed: int) -> RatioInterval:
    """Interval of sum(num) / sum(den) over clusters; each bound is one-sided at `confidence`."""
    n, total = len(num), float(den.sum())
    if not total > 0.0:
        return RatioInterval(None, None, None, n, "undefined: the denominator is 0")
    estimate = float(num.sum()) / total
    if n < MIN_CLUSTERS:
        return RatioInterval(estimate, None, None, n, f"no interval below {MIN_CLUSTERS} prompts")
    if n > MAX_BOOTSTRAP_CLUSTERS:
        half = NormalDist().inv_cdf(confidence) * delta_error(num, den)
        return RatioInterval(estimate, estimate - half, estimate + half, n, "delta method over prompts")
    w = weights(n, seed)
    with np.errstate(divide="ignore", invalid="ignore"):
        draws = resampled(w, num) / resampled(w, den)
    draws = draws[np.isfinite(draws)]
    lower, upper = (float(v) for v in np.quantile(draws, [1.0 - confidence, confidence]))
    return RatioInterval(estimate, lower, upper, n, "bootstrap over prompts")


def delta_error(num: Floats, den: Floats) -> float:
    """Standard error of sum(num) / sum(den) by the delta method; clusters are independent."""
    n = len(num)
    residual = num - num.sum() / den.sum() * den
    return float(residual.std(ddof=1)) / (math.sqrt(n) * float(den.mean()))


COUNTS = ("spec_steps", "draft_tokens", "accepted_tokens", "completion_tokens")
"""Columns of S, D, A, N."""

Coefficients = tuple[int, int, int, int]
"""Factors of S, D, A and N in a sum."""


@dataclass(frozen=True, slots=True)
class Formula:
    """A figure as num / den (+ offset), both linear in S, D, A and N."""

    num: Coefficients
    den: Coefficients
    offset: float = 0.0


FORMULAS: dict[str, Formula] = {
    "draft_acceptance_rate": Formula((0, 0, 1, 0), (0, 1, 0, 0)),
    "mean_accepted_drafts": Formula((0, 0, 1, 0), (1, 0, 0, 0)),
    "mean_acceptance_length": Formula((0, 0, 1, 0), (1, 0, 0, 0), 1.0),
    "tokens_per_target_step": Formula((0, 0, 0, 1), (0, 0, -1, 1)),
    "coverage": Formula((1, 0, 1, 0), (0, 0, 0, 1)),
    "wasted_drafts_per_token": Formula((0, 1, -1, 0), (0, 0, 0, 1)),
}


def with_block(rows: Rows) -> Rows:
    """Served rows that carry S, D, A and N."""
    known = rows["ok"].copy()
    for name in COUNTS:
        known &= np.isfinite(rows[name])
    return rows.take(known)


def acceptance_interval(rows: Rows, metric: str, confidence: float, seed: int) -> RatioInterval:
    """A figure of FORMULAS over rows with a block, clustered by prompt."""
    formula = FORMULAS[metric]
    if len(rows) == 0:
        return RatioInterval(None, None, None, 0, "no request carries acceptance counts")
    counts = np.stack([rows[name] for name in COUNTS])
    num, den = (
        np.einsum("i,ij->j", np.array(factors, dtype=np.float64), counts) for factors in (formula.num, formula.den)
    )
    num, den = cluster_sums(rows["prompt_id"], num, den)
    found = ratio_interval(num, den, confidence, seed)
    estimate, lower, upper = (
        None if v is None else v + formula.offset for v in (found.estimate, found.lower, found.upper)
    )
    return RatioInterval(estimate, lower, upper, found.clusters, found.method)
