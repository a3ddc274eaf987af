"""How many requests a claim needs, whether a plan's windows will reach it, and how long the plan takes.

The claim is by order statistics: of n independent requests, t were over the limit; "quantile q is within the limit"
holds at confidence c where P(Bin(n, 1 - q) <= t) < 1 - c. It is the rule of MLPerf's early stopping, exact for any
distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.model import Cell, ConfigSpec, Slo
from loadtest.plan.metrics import RATIO_STAT, quantile_of

DEFAULT_REQUESTS = 1000
"""Requests of an "auto" window whose SLOs need no number of their own: enough for a P99 with 4 over the limit."""
ALLOWED_OVER = 4
"""Requests over the limit that an "auto" window can bear and still make its claim: with none allowed, a config whose
true share over the limit is 0.1 % would be refused one time in four (n = 299, P99)."""
IMPLICIT_ERRORS, IMPLICIT_CONFIDENCE = 0.01, 0.95
"""The error budget that the gate asks for where no SLO does: the share that a P99 limit leaves over."""
ASSUMED_TPOT_S = 0.02
"""Time per output token where nothing is known yet: a mid-size model on one data-centre GPU under load."""
START_S = 120.0
"""Start of `vllm serve`: 40 to 125 s were seen (imports, weights, compilation, CUDA graphs)."""
SIM_START_S = 2.0
CELL_OVERHEAD_S = 3.0
"""Idle scrapes at both ends of a cell and the hand-over."""
COMFORT = 1.5
"""A window is likely to reach n where it expects this many times n: the assumed speed is only a guess."""


def binomial_cdf(t: int, n: int, p: float) -> float:
    """P(Bin(n, p) <= t), summed exactly in logarithms."""
    if t >= n:
        return 1.0
    log_p, log_q = math.log(p), math.log1p(-p)
    return math.fsum(
        math.exp(math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) + i * log_p + (n - i) * log_q)
        for i in range(t + 1)
    )


def requests_needed(share_within: float, confidence: float, over: int = 0) -> int | None:
    """Fewest requests that can show "at least `share_within` are within the limit" with `over` of them over it.

    299 for P99 at 95 %, 59 for P95. None where no number can: a share of 1 cannot be shown from a sample.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, not {confidence}")
    if share_within >= 1:
        return None
    if share_within <= 0:
        return over + 1

    def shown(n: int) -> bool:
        return binomial_cdf(over, n, 1 - share_within) < 1 - confidence

    low = high = over + 1
    while not shown(high):
        high *= 2
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if shown(middle) else (middle + 1, high)
    return low


def needed_for(slo: Slo, over: int = 0) -> int | None:
    """Fewest requests of one window for this SLO; None where no such number exists (see `why_no_number`)."""
    quantile = quantile_of(slo.stat)
    if quantile is not None:
        return requests_needed(quantile, slo.confidence, over)
    if slo.metric == "error_rate" and slo.max is not None:
        return requests_needed(1 - slo.max, slo.confidence, over)
    if slo.stat == "goodput" and slo.min is not None:
        return requests_needed(slo.min, slo.confidence, over)
    return None


def why_no_number(slo: Slo) -> str:
    """Why `needed_for` gives None, in words."""
    if slo.metric == "error_rate" or slo.stat == "goodput":
        return "no number of requests can show it: a sample cannot exclude the last failure; allow a small share"
    if slo.stat == RATIO_STAT:
        return "depends on the spread of the paired ratios: an interval is made from what is measured"
    if slo.stat == "pooled":
        return "depends on the spread between requests: an interval is made from what is measured"
    return "a figure of the whole window: its spread comes from slices of the window and the repeats"


def auto_requests(slos: Sequence[Slo]) -> int:
    """Most requests of an "auto" window: what the strictest SLO needs with a few requests over its limit.

    Where no SLO bounds the errors the gate does so itself; a window that could never show that would decide nothing.
    """
    needed = [n for slo in slos if (n := needed_for(slo, ALLOWED_OVER)) is not None]
    if slos and not any(slo.metric == "error_rate" and "stratum" not in slo.where for slo in slos):
        needed += [n for n in (requests_needed(1 - IMPLICIT_ERRORS, IMPLICIT_CONFIDENCE, ALLOWED_OVER),) if n]
    return max(needed, default=DEFAULT_REQUESTS)


def expected_requests(cell: Cell, tpot_s: float = ASSUMED_TPOT_S) -> float:
    """Requests that a window is expected to send: its own number, else from the load and an assumed speed."""
    if cell.measure_requests is not None:
        return float(cell.measure_requests)
    window = cell.measure_s or 0.0
    if cell.load_kind in ("closed", "sequential"):
        return cell.load_value * window / (cell.sampling.max_tokens * tpot_s)
    return cell.load_value * window


@dataclass(frozen=True, slots=True)
class Duration:
    """Where the time goes, in seconds; `at_most_s` if every drain and every counted window takes all it may."""

    server_starts: int
    starts_s: float
    warmup_s: float
    windows_s: float
    overhead_s: float
    drains_at_most_s: float
    windows_at_most_s: float

    @property
    def expected_s(self) -> float:
        """Without drains: they end as soon as nothing is in flight."""
        return self.starts_s + self.warmup_s + self.windows_s + self.overhead_s

    @property
    def at_most_s(self) -> float:
        """With full drains and full budgets; server starts as assumed."""
        return self.starts_s + self.warmup_s + self.windows_at_most_s + self.overhead_s + self.drains_at_most_s


def plan_duration(configs: Sequence[ConfigSpec], cells: Sequence[Cell], tpot_s: float = ASSUMED_TPOT_S) -> Duration:
    """The time of all cells and server starts."""
    by_name = {config.name: config for config in configs}
    starts = [
        (cell.config, cell.repeat)
        for n, cell in enumerate(cells)
        if by_name[cell.config].restart_per_cell
        or n == 0
        or (cells[n - 1].config, cells[n - 1].repeat) != (cell.config, cell.repeat)
    ]
    return Duration(
        server_starts=sum(not by_name[name].urls for name, _ in starts),
        starts_s=math.fsum(_start_s(by_name[name]) for name, _ in starts),
        warmup_s=math.fsum(cell.warmup_s for cell in cells),
        windows_s=math.fsum(_window_s(cell, tpot_s) for cell in cells),
        overhead_s=CELL_OVERHEAD_S * len(cells),
        drains_at_most_s=math.fsum(cell.drain_s for cell in cells),
        windows_at_most_s=math.fsum(cell.measure_s or cell.max_measure_s for cell in cells),
    )


def _start_s(config: ConfigSpec) -> float:
    if config.urls:
        return 0.0
    return START_S if config.launch is not None else SIM_START_S


def _window_s(cell: Cell, tpot_s: float) -> float:
    if cell.measure_s is not None:
        return cell.measure_s
    per_second = cell.load_value
    if cell.load_kind in ("closed", "sequential"):
        per_second /= cell.sampling.max_tokens * tpot_s
    return min(cell.max_measure_s, (cell.measure_requests or 0) / per_second)
