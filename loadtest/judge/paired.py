"""Two configs on the same prompts: ratios of latencies, paired by prompt (and turn) and by repeat.

Prompts differ far more than configs do, so each prompt is its own control: the statistic is the mean log ratio over
prompts, shown as a ratio. Prompts are resampled for the interval, and repeats as well where there are several, because
a server start is a source of variation of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadtest.judge import orderstats
from loadtest.judge.frame import Array, Floats, Rows
from loadtest.judge.ratios import BOOTSTRAPS, MAX_BOOTSTRAP_CLUSTERS, MIN_CLUSTERS, resampled, weights
from loadtest.judge.verdict import RatioEstimate

RATIOS = ("tpot", "e2e", "ttft", "output_rate")
_COLUMNS = {
    "tpot": "tpot_us",
    "e2e": "e2e_us",
    "ttft": "ttft_us",
    "ttft_visible": "ttft_visible_us",
    "e2e_intended": "e2e_intended_us",
}


@dataclass(frozen=True, slots=True)
class Pairs:
    """Log ratios candidate / baseline of the prompts that both sides served, of one repeat."""

    keys: Array
    logs: Floats
    unpaired: int
    """Prompts that only one side served with a usable value."""


def request_values(rows: Rows, name: str) -> Floats:
    """The value of each request under the name of a ratio; NaN where not served or not positive."""
    with np.errstate(divide="ignore", invalid="ignore"):
        value = rows["completion_tokens"] / rows["e2e_us"] if name == "output_rate" else rows[_COLUMNS[name]]
    return np.where(rows["ok"] & np.isfinite(value) & (value > 0), value, np.nan)


def _mean_logs(rows: Rows, name: str) -> tuple[Array, Floats]:
    values = request_values(rows, name)
    known = ~np.isnan(values)
    keys = rows["pair_key"][known]
    times = np.bincount(keys, minlength=1)  # keys are small codes: counting beats sorting
    sums = np.bincount(keys, np.log(values[known]), minlength=1)
    there = np.flatnonzero(times)
    return there, sums[there] / times[there]


def pair(base: Rows, cand: Rows, name: str) -> Pairs:
    """Pair by prompt; passes over the same prompt are averaged (in logs) within each side first."""
    base_keys, base_logs = _mean_logs(base, name)
    cand_keys, cand_logs = _mean_logs(cand, name)
    keys, i, j = np.intersect1d(base_keys, cand_keys, assume_unique=True, return_indices=True)
    return Pairs(keys, cand_logs[j] - base_logs[i], len(base_keys) + len(cand_keys) - 2 * len(keys))


def mean_lengths(base: Rows, cand: Rows) -> tuple[float, float] | None:
    """Mean output tokens of the prompts that both sides served, each prompt once; None where there is none."""
    sides = []
    for rows in (base, cand):
        tokens = np.where(rows["ok"], rows["completion_tokens"], np.nan)
        known = ~np.isnan(tokens)
        keys = rows["pair_key"][known]
        times = np.bincount(keys, minlength=1)
        there = np.flatnonzero(times)
        sides.append((there, np.bincount(keys, tokens[known], minlength=1)[there] / times[there]))
    _, i, j = np.intersect1d(sides[0][0], sides[1][0], assume_unique=True, return_indices=True)
    return (float(sides[0][1][i].mean()), float(sides[1][1][j].mean())) if len(i) else None


def boot_means(repeats: Sequence[Pairs], seed: int) -> Floats:
    """(BOOTSTRAPS,) means of the log ratio; prompts and repeats are both resampled (crossed).

    The repeats answer the same prompts, and a prompt that gains much gains much in each of them: drawing prompts anew
    for every repeat would count it as often as there are repeats (nominal 95 % then covers about 80 %).
    """
    repeats = [r for r in repeats if len(r.logs)]
    keys = np.unique(np.concatenate([r.keys for r in repeats]))
    units = min(len(keys), MAX_BOOTSTRAP_CLUSTERS)
    # More prompts than that are thrown into so many groups at random, which resample as well.
    group = np.random.default_rng([seed, 1]).permutation(len(keys)) % units if len(keys) > units else np.arange(units)
    w = weights(units, seed)
    means = np.empty((BOOTSTRAPS, len(repeats)))
    for k, one in enumerate(repeats):
        index = group[np.searchsorted(keys, one.keys)]
        times = resampled(w, np.bincount(index, minlength=units).astype(np.float64))
        sums = resampled(w, np.bincount(index, one.logs, minlength=units).astype(np.float64))
        means[:, k] = np.where(times > 0, sums / np.maximum(times, 1.0), one.logs.mean())
    drawn = np.random.default_rng([seed, 2]).integers(0, len(repeats), size=means.shape)
    return np.asarray(np.take_along_axis(means, drawn, axis=1).mean(axis=1))


def paired_ratio(name: str, repeats: Sequence[Pairs], confidence: float, seed: int) -> RatioEstimate:
    """Ratio candidate / baseline (geometric mean over prompts, repeats weighing alike) with a two-sided interval."""
    repeats = [r for r in repeats if len(r.logs)]
    pairs = sum(len(r.logs) for r in repeats)
    if not repeats:
        return RatioEstimate(name, None, None, None, confidence, 0, "no prompt was served by both sides")
    estimate = math.exp(float(np.mean([r.logs.mean() for r in repeats])))
    if min(len(r.logs) for r in repeats) < MIN_CLUSTERS:
        return RatioEstimate(name, estimate, None, None, confidence, pairs, f"no interval below {MIN_CLUSTERS} prompts")
    tail = (1.0 - confidence) / 2.0
    lower, upper = (math.exp(v) for v in np.quantile(boot_means(repeats, seed), [tail, 1.0 - tail]))
    method = "bootstrap over prompts" if len(repeats) == 1 else "bootstrap over prompts and repeats"
    return RatioEstimate(name, estimate, lower, upper, confidence, pairs, method)


def median_ratio(repeats: Sequence[Pairs], confidence: float) -> tuple[float | None, float | None, float | None, int]:
    """(estimate, lower, upper, prompts) of the median ratio over prompts; exact one-sided rank bounds.

    A prompt that several repeats share counts once, with the mean of its log ratios.
    """
    keys = np.concatenate([r.keys for r in repeats]) if repeats else np.empty(0)
    if len(keys) == 0:
        return None, None, None, 0
    logs = np.concatenate([r.logs for r in repeats])
    _, index, times = np.unique(keys, return_inverse=True, return_counts=True)
    values = np.sort(np.bincount(index, logs) / times)
    n = len(values)
    low, high = orderstats.lower_bound_rank(n, 0.5, confidence), orderstats.upper_bound_rank(n, 0.5, confidence)
    bounds = [None if rank is None else math.exp(float(values[rank - 1])) for rank in (low, high)]
    return math.exp(float(np.median(values))), bounds[0], bounds[1], n
