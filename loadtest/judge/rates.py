"""Throughput of a window with an interval: batch means over slices of the window.

One window gives one rate, so its spread is taken from equal slices; the slices are long against a request where the
window is, and Student's t allows for their small number.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from loadtest.judge.claims import Claim, decide
from loadtest.judge.frame import Floats, Rows
from loadtest.judge.words import bounds_words, figure

SLICES = 20
"""Slices of a window: t(19) is only 5 % wider than the normal, and a 60 s window gives slices of 3 s."""


def t_quantile(confidence: float, df: int) -> float:
    """Quantile of Student's t (Hill 1970 expansion; exact for df 1 and 2, error below 0.5 % from df 3)."""
    if df < 1:
        return math.inf
    if df == 1:
        return math.tan(math.pi * (confidence - 0.5))
    if df == 2:
        a = 2.0 * confidence - 1.0
        return a * math.sqrt(2.0 / (1.0 - a * a))
    z = NormalDist().inv_cdf(confidence)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return math.fsum(term / df**i for i, term in enumerate(terms))


def slice_rates(rows: Rows, metric: str, start_ns: float, end_ns: float) -> Floats:
    """The rate in each of SLICES equal slices of the window, per second.

    `request_rate`: served requests by send time. `output_tok_s`: tokens of served requests of any phase, spread evenly
    between first and last token.
    """
    edges = np.linspace(start_ns, end_ns, SLICES + 1)
    width_s = (end_ns - start_ns) / SLICES / 1e9
    served = rows.take(rows["ok"])
    if metric == "request_rate":
        return np.histogram(served["send_ns"], bins=edges)[0] / width_s
    first, last, tokens = served["first_token_ns"], served["last_token_ns"], served["completion_tokens"]
    known = np.isfinite(first) & np.isfinite(last) & np.isfinite(tokens)
    first, last, tokens = first[known], last[known], tokens[known]
    span = np.maximum(last - first, 1.0)
    done = np.array([float((tokens * np.clip((edge - first) / span, 0.0, 1.0)).sum()) for edge in edges])
    return np.asarray(np.diff(done) / width_s)


def relative_error(slices: Floats) -> float:
    """Standard error of the mean of the slices over the mean; infinite without a mean."""
    mean = float(slices.mean()) if len(slices) else 0.0
    return float(slices.std(ddof=1)) / math.sqrt(len(slices)) / mean if mean > 0.0 and len(slices) > 1 else math.inf


def rate_claim(
    rates: list[float | None], errors: list[float], limit: float, confidence: float, what: str, unit: str = "per_s"
) -> Claim:
    """Whether the mean rate of the repeats is at least `limit`.

    rates: per repeat, per second. errors: relative standard error of each. The larger of the error within and between
    repeats counts.
    """
    known = [r for r in rates if r is not None and math.isfinite(r)]
    if len(known) < len(rates) or not known:
        return Claim("INCONCLUSIVE", f"{what} is not known for every repeat")
    mean = math.fsum(known) / len(known)
    if mean <= 0.0:
        return Claim("FAIL" if limit > 0.0 else "INCONCLUSIVE", f"{what} is 0: nothing was served", 0.0, 0.0, 0.0)
    within = math.sqrt(math.fsum((r * e) ** 2 for r, e in zip(known, errors, strict=True))) / len(known)
    half = t_quantile(confidence, SLICES - 1) * within
    if len(known) > 1:
        between = float(np.std(known, ddof=1)) / math.sqrt(len(known))
        half = max(half, t_quantile(confidence, len(known) - 1) * between)
    if not math.isfinite(half):
        return Claim(
            "INCONCLUSIVE", f"{what} {figure(mean, unit)} has no interval (fewer than two slices with data)", mean
        )
    lower, upper = mean - half, mean + half
    status = decide(lower, upper, limit, "higher")
    reason = f"{what} {figure(mean, unit)}, {bounds_words(lower, upper, limit, confidence, unit, 'higher')}"
    return Claim(status, reason, mean, lower, upper, SLICES * len(known))
