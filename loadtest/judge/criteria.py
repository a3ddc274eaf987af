"""Which claim answers which criterion: from (metric, stat) and cells to a `Claim`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pyarrow.compute as pc

from loadtest.errors import PlanError
from loadtest.judge import paired
from loadtest.judge.claims import Claim, Values, decide, error_claim, goodput_claim, latency_values, quantile_claim
from loadtest.judge.comparable import RUN_REASONS, pair_reasons
from loadtest.judge.comparisons import paired_facts
from loadtest.judge.context import Context
from loadtest.judge.frame import Array, Floats
from loadtest.judge.rates import rate_claim, relative_error, slice_rates, t_quantile
from loadtest.judge.ratios import MIN_CLUSTERS, acceptance_interval, with_block
from loadtest.judge.select import CellFacts, Group, baseline_of, paired_cells
from loadtest.judge.staged import pooled_claim, staged_claim, suits
from loadtest.judge.words import bounds_words, count, figure
from loadtest.model import Slo
from loadtest.plan.metrics import METRICS, RATIO_STAT, Metric, quantile_of

BLOCK_SHARE = 0.99
"""Served requests that must carry acceptance counts: the rest could hide what a P99 of prompts looks like."""
MIN_REPEATS = 3
"""Repeats that an interval between repeats needs: Student's t with one degree of freedom is useless."""


def limit_of(slo: Slo, metric: Metric) -> float:
    """The bound on the side that the metric's direction asks for. Raises PlanError where it is missing."""
    limit = slo.max if metric.direction == "lower" else slo.min
    if limit is None or not math.isfinite(limit):
        side = "max" if metric.direction == "lower" else "min"
        raise PlanError(
            f"criterion {slo.name!r}: {metric.name} is better when {metric.direction}, so it needs a finite `{side}`; "
            f"seen max = {slo.max}, min = {slo.min}"
        )
    return float(limit)


def claim_of(context: Context, slo: Slo, group: Group, cells: tuple[CellFacts, ...], stratum: str | None) -> Claim:
    """The claim of one criterion over some repeats of a group; of windows with `measure = "auto"` by their looks."""
    fixed = _fixed_claim(context, slo, group, cells, stratum)
    if not suits(slo) or all(cell.get("auto_budget") is None for cell in cells):
        return fixed
    if len(cells) > 1:
        return pooled_claim([claim_of(context, slo, group, (cell,), stratum) for cell in cells], fixed)
    budget, stopped = int(cells[0]["auto_budget"]), cells[0].get("auto_stopped") is not False
    return staged_claim(context.rows(cells, stratum), slo, budget, stopped, fixed) if fixed.n else fixed


def _fixed_claim(context: Context, slo: Slo, group: Group, cells: tuple[CellFacts, ...], stratum: str | None) -> Claim:
    """The claim from all rows at once."""
    metric = METRICS[slo.metric]
    limit = limit_of(slo, metric)
    if slo.stat == RATIO_STAT:
        return _relative(context, slo, metric, limit, group, cells, stratum)
    if slo.stat == "pooled":
        return _acceptance(context, slo, metric, limit, cells, stratum)
    if metric.unit == "per_s":
        return _rate(context, slo, metric, limit, cells, stratum)
    rows = context.rows(cells, stratum)
    if metric.name == "error_rate":
        return error_claim(rows, limit, slo.confidence)
    if metric.name == "goodput":
        if not slo.limits:
            raise PlanError(
                f'criterion {slo.name!r}: goodput needs limits per request, for example limits = {{ ttft = "500ms" }}'
            )
        return goodput_claim(rows, slo.limits, limit, slo.confidence)
    q = quantile_of(slo.stat)
    if q is None:
        raise PlanError(
            f"criterion {slo.name!r}: stat {slo.stat!r} does not suit {metric.name}; write a quantile such as p99"
        )
    values = chunk_gaps(context, cells, stratum) if metric.level == "chunk" else latency_values(rows, metric)
    return quantile_claim(values, limit, q, slo.confidence, metric.unit, metric.name)


def chunk_gaps(context: Context, cells: Sequence[CellFacts], stratum: str | None) -> Values:
    """All gaps between chunks, request after request; a failed request stands for as many infinite gaps as others have.

    They stand where the request was sent, because failures come in bursts as well.
    """
    parts, served = [], 0
    for cell in cells:
        rows = context.rows((cell,), stratum)
        gaps, per_request = _gaps_of(context, cell, stratum)
        ok = rows["ok"]
        served += int(ok.sum())
        lost = max(1, round(len(gaps) / len(per_request))) if len(per_request) else 1
        edges = np.concatenate([[0], np.cumsum(per_request)])
        before = np.minimum(np.cumsum(ok)[~ok], len(per_request))  # served requests ahead of each failed one
        parts.append(np.insert(gaps, np.repeat(edges[before], lost), np.inf))
    every = np.concatenate(parts) if parts else np.empty(0)
    return Values(every, every, served, 0)


def _gaps_of(context: Context, cell: CellFacts, stratum: str | None) -> tuple[Floats, Array]:
    """(gaps of all served requests in start order, number of gaps of each)."""
    wanted = (pc.field("cell_id") == cell["cell_id"]) & (pc.field("phase") == "measure") & (pc.field("outcome") == "ok")
    if stratum is not None:
        wanted = wanted & (pc.field("stratum") == stratum)
    lists = context.data.requests(["send_ns", "chunk_offset_us"], wanted).sort_by("send_ns")["chunk_offset_us"]
    lists = lists.combine_chunks()
    lengths = np.asarray(pc.fill_null(pc.list_value_length(lists), 0), dtype=np.int64)
    offsets = np.asarray(pc.list_flatten(lists), dtype=np.float64)
    gaps = np.diff(offsets)
    starts = (np.cumsum(lengths) - lengths)[lengths > 0]
    keep = np.ones(len(gaps), dtype=np.bool_)
    keep[starts[starts > 0] - 1] = False  # from the end of one request to the start of the next is no gap
    return gaps[keep], np.maximum(lengths - 1, 0)


def _rate(
    context: Context, slo: Slo, metric: Metric, limit: float, cells: Sequence[CellFacts], stratum: str | None
) -> Claim:
    rates, errors = [], []
    for cell in cells:
        rate, error = cell_rate(context, metric.name, cell, stratum)
        rates.append(rate)
        errors.append(error)
    return rate_claim(rates, errors, limit, slo.confidence, metric.name)


def cell_rate(context: Context, metric: str, cell: CellFacts, stratum: str | None) -> tuple[float | None, float]:
    """(rate per second, its relative standard error) of one window; None where the window is not known."""
    start, end = cell.get("window_start_ns"), cell.get("window_end_ns")
    if start is None or end is None or end <= start:
        return None, math.inf
    rows = context.frame.all_phases(cell["cell_id"])
    rows = rows if metric == "output_tok_s" else rows.take(rows["measured"])
    rows = rows if stratum is None else context.frame.in_stratum(rows, stratum)
    slices = slice_rates(rows, metric, float(start), float(end))
    mean = float(slices.mean())
    if metric == "output_tok_s" and stratum is None and cell.get("output_tok_s") is not None:
        mean = float(cell["output_tok_s"])  # counted from chunk stamps, so better than the even spread of the slices
    return mean, relative_error(slices)


def _acceptance(
    context: Context, slo: Slo, metric: Metric, limit: float, cells: tuple[CellFacts, ...], stratum: str | None
) -> Claim:
    rows = context.rows(cells, stratum)
    blocks = with_block(rows)
    served = int(rows["ok"].sum())
    if len(blocks) == 0:
        return _from_counters(slo, metric, limit, cells, stratum)
    found = acceptance_interval(blocks, metric.name, slo.confidence, context.seed)
    if len(blocks) < BLOCK_SHARE * served:
        return Claim("INCONCLUSIVE", f"only {len(blocks)} of {count(served, 'served request')} carry acceptance counts",
                     found.estimate, n=len(blocks))  # fmt: skip
    if found.estimate is None:
        return Claim("INCONCLUSIVE", f"{metric.name} is undefined: no draft was proposed", n=len(blocks))
    status = decide(found.lower, found.upper, limit, metric.direction)
    if found.lower is None or found.upper is None:
        words = f"{metric.name} {figure(found.estimate, metric.unit)}: {found.method}"
        return Claim(
            "INCONCLUSIVE",
            words,
            found.estimate,
            n=found.clusters,
            more=MIN_CLUSTERS - found.clusters,
            more_unit="prompts",
        )
    bounds = bounds_words(found.lower, found.upper, limit, slo.confidence, metric.unit, metric.direction)
    reason = f"{metric.name} {figure(found.estimate, metric.unit)} ({found.method}), {bounds}"
    more = _more(found.estimate, found.lower, found.upper, limit, found.clusters) if status == "INCONCLUSIVE" else None
    return Claim(
        status, reason, found.estimate, found.lower, found.upper, found.clusters, more=more, more_unit="prompts"
    )


def _more(estimate: float, lower: float, upper: float, limit: float, n: int) -> int | None:
    """About how many more clusters shrink the interval to the distance between estimate and limit."""
    distance = abs(estimate - limit)
    if distance == 0.0:
        return None
    return max(1, math.ceil(n * ((upper - lower) / 2 / distance) ** 2) - n)


def _from_counters(slo: Slo, metric: Metric, limit: float, cells: tuple[CellFacts, ...], stratum: str | None) -> Claim:
    """The server's counters give one ratio per window: repeats are the clusters."""
    figures = [cell.get(metric.name) for cell in cells]
    known = [float(f) for f in figures if f is not None and math.isfinite(f)]
    if stratum is not None or not known or len(known) < len(figures):
        words = f"{metric.name} is not known: no draft was proposed, or neither requests nor counters tell"
        told = [n for cell in cells for key in ("edge_errors", "ctr_notes") for n in cell.get(key) or ()]
        return Claim("INCONCLUSIVE", "; ".join([words, *told[:2]]))
    mean = math.fsum(known) / len(known)
    if len(known) < MIN_REPEATS:
        words = (
            f"{metric.name} {figure(mean, metric.unit)} from the server's counters, "
            f"which give an interval only over {MIN_REPEATS} repeats"
        )
        return Claim("INCONCLUSIVE", words, mean, n=len(known), more=MIN_REPEATS - len(known), more_unit="repeats")
    half = t_quantile(slo.confidence, len(known) - 1) * float(np.std(known, ddof=1)) / math.sqrt(len(known))
    status = decide(mean - half, mean + half, limit, metric.direction)
    bounds = bounds_words(mean - half, mean + half, limit, slo.confidence, metric.unit, metric.direction)
    reason = f"{metric.name} {figure(mean, metric.unit)} over {len(known)} repeats of the server's counters, {bounds}"
    return Claim(status, reason, mean, mean - half, mean + half, len(known), more_unit="repeats")


def _relative(
    context: Context,
    slo: Slo,
    metric: Metric,
    limit: float,
    group: Group,
    cells: tuple[CellFacts, ...],
    stratum: str | None,
) -> Claim:
    base = baseline_of(group, context.groups)
    both = [] if base is None else [(b, c) for b, c in paired_cells(base, group) if c in cells]
    if len(both) < len(cells):
        return Claim("INCONCLUSIVE", f"no_baseline: {RUN_REASONS['no_baseline'].seen}; {RUN_REASONS['no_baseline'].do}")
    for b, c in both:
        blocking = [r for r in pair_reasons(*paired_facts(context, b, c)) if r.blocking]
        if not context.trusted(b["cell_id"], real=False):
            return Claim("INCONCLUSIVE", f"the baseline cell {b['cell_id']} does not count; see its reasons")
        if blocking:
            return Claim("INCONCLUSIVE", f"{blocking[0].code}: {blocking[0].seen}; {blocking[0].why}")
    if metric.unit == "per_s":
        return _relative_rate(context, slo, metric, limit, both, stratum)
    pairs = [paired.pair(context.rows([b], stratum), context.rows([c], stratum), metric.name) for b, c in both]
    estimate, lower, upper, n = paired.median_ratio(pairs, slo.confidence)
    if estimate is None:
        return Claim("INCONCLUSIVE", "no_baseline: no prompt was served by both sides")
    status = decide(lower, upper, limit, metric.direction) if n >= MIN_CLUSTERS else "INCONCLUSIVE"
    bounds = bounds_words(lower, upper, limit, slo.confidence, "times", metric.direction)
    reason = (
        f"median {metric.name} {figure(estimate, 'times')} of the baseline over {count(n, 'paired prompt')}, {bounds}"
    )
    more = max(0, MIN_CLUSTERS - n)
    if status == "INCONCLUSIVE" and lower is not None and upper is not None:
        more = max(more, _more(estimate, lower, upper, limit, n) or 0)
    return Claim(status, reason, estimate, lower, upper, n, more=more or None, more_unit="prompts")


def _relative_rate(
    context: Context,
    slo: Slo,
    metric: Metric,
    limit: float,
    both: Sequence[tuple[CellFacts, CellFacts]],
    stratum: str | None,
) -> Claim:
    ratios, errors = [], []
    for base, cand in both:
        (one, one_error), (two, two_error) = (cell_rate(context, metric.name, cell, stratum) for cell in (base, cand))
        ratios.append(two / one if one and two is not None else None)
        errors.append(math.hypot(one_error, two_error))
    return rate_claim(ratios, errors, limit, slo.confidence, f"{metric.name} over the baseline's", "times")
