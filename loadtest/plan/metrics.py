"""Every metric that an SLO may name: its unit, its good direction, where its values come from and which stats suit it.

The direction is part of the metric, so that `limit = …` in an SLO cannot be got wrong: a latency limit is always an
upper bound, a throughput limit always a lower one. Units: `us` microseconds, `share` 0 to 1, `per_s` per second,
`tokens` and `ratio` plain numbers.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

Unit = Literal["us", "share", "per_s", "tokens", "ratio"]
Direction = Literal["lower", "higher"]
Level = Literal["request", "chunk", "cell"]

RATIO_STAT = "median_ratio_to_baseline"
_QUANTILE = re.compile(r"^p(\d{1,2}(?:\.\d{1,3})?)$")


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric that an SLO can name."""

    name: str
    unit: Unit
    direction: Direction
    """`lower`: smaller is better, an SLO's limit is a maximum. `higher`: a minimum."""
    level: Level
    """What one value belongs to: a request row, a gap between chunks of a request, or a whole window."""
    source: str | None
    """Column of `requests/` (level request), of the chunk lists (level chunk) or of `cells.parquet` (level cell)."""
    stats: tuple[str, ...]
    """Kinds of stat that suit: `quantile` (p50, p95, p99, p99.9 …), `rate`, `pooled`, `goodput`, the ratio."""
    what: str

    @property
    def per_request(self) -> bool:
        """True where each request row has one value of its own."""
        return self.level == "request"

    def allows(self, stat: str) -> bool:
        """True where `stat` suits this metric."""
        return ("quantile" if quantile_of(stat) is not None else stat) in self.stats


def quantile_of(stat: str) -> float | None:
    """0.99 for "p99", 0.999 for "p99.9"; None for a stat that is no quantile (or p0)."""
    match = _QUANTILE.match(stat)
    if match is None:
        return None
    # Through the decimal text: 99.9 / 100 would be 0.9990000000000001.
    whole, _, digits = match.group(1).partition(".")
    value = int(whole + digits) / 10 ** (2 + len(digits))
    return value if 0.0 < value < 1.0 else None


_LATENCY = ("quantile", RATIO_STAT)
_TABLE = (
    Metric("ttft", "us", "lower", "request", "ttft_us", _LATENCY,
           "send to the first chunk that carries a generated token"),
    Metric("ttft_visible", "us", "lower", "request", "ttft_visible_us", _LATENCY,
           "send to the first visible content (not reasoning)"),
    Metric("tpot", "us", "lower", "request", "tpot_us", _LATENCY,
           "time per output token after the first chunk"),
    Metric("e2e", "us", "lower", "request", "e2e_us", _LATENCY,
           "send to the last token"),
    Metric("e2e_intended", "us", "lower", "request", "e2e_intended_us", _LATENCY,
           "scheduled start to the last token (open loop)"),
    Metric("chunk_gap", "us", "lower", "chunk", "chunk_offset_us", ("quantile",),
           "time between two token-carrying chunks of a request; one chunk may carry several tokens"),
    Metric("error_rate", "share", "lower", "cell", "error_rate", ("rate",),
           "failed and censored requests over requests sent"),
    Metric("request_rate", "per_s", "higher", "cell", "request_rate", ("rate", RATIO_STAT),
           "requests per second of the window"),
    Metric("output_tok_s", "per_s", "higher", "cell", "output_tok_s", ("rate", RATIO_STAT),
           "output tokens that arrived inside the window, per second"),
    Metric("goodput", "share", "higher", "request", None, ("goodput",),
           "share of all sent requests that keep every one of `limits`"),
    Metric("draft_acceptance_rate", "share", "higher", "cell", "draft_acceptance_rate", ("pooled",),
           "A / D: accepted over proposed draft tokens; undefined where D = 0"),
    Metric("mean_acceptance_length", "tokens", "higher", "cell", "mean_acceptance_length", ("pooled",),
           "1 + A / S over steps that had a draft"),
    Metric("mean_accepted_drafts", "tokens", "higher", "cell", "mean_accepted_drafts", ("pooled",),
           "A / S over steps that had a draft"),
    Metric("tokens_per_target_step", "tokens", "higher", "cell", "tokens_per_target_step", ("pooled",),
           "N / (N - A): counts the steps without a draft too"),
    Metric("coverage", "share", "higher", "cell", "coverage", ("pooled",),
           "(S + A) / N: share of output tokens from drafted steps"),
    Metric("wasted_drafts_per_token", "tokens", "lower", "cell", "wasted_drafts_per_token", ("pooled",),
           "(D - A) / N: rejected drafts per output token"),
)  # fmt: skip

METRICS: dict[str, Metric] = {metric.name: metric for metric in _TABLE}
"""All metrics by name, in the order of the documentation."""

GOODPUT_METRICS = ("ttft", "ttft_visible", "tpot", "e2e", "e2e_intended")
"""Metrics that a goodput SLO's `limits` may name: each request has one value of its own."""

SELECTORS = ("config", "method", "mix", "sampling", "stratum", "load")
"""Keys of an SLO's `where`; the values are globs."""


def stats_of(metric: Metric) -> str:
    """The stats that suit a metric, as words for error texts and tables."""
    words = {"quantile": "a quantile such as p50, p95, p99 or p99.9"}
    return ", ".join(words.get(stat, stat) for stat in metric.stats)


def is_sound_limit(metric: Metric, stat: str, value: float) -> bool:
    """True for a finite limit that the metric can have: not negative, and at most 1 for a share."""
    if not math.isfinite(value) or value < 0:
        return False
    return not (metric.unit == "share" and stat != RATIO_STAT and value > 1)
