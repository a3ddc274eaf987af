"""Every config against the baseline, at every load, for all requests and per stratum; and where it stops paying."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadtest.judge import paired
from loadtest.judge.comparable import RUN_REASONS, length_ratio, pair_reasons
from loadtest.judge.context import NOT_REAL, Context
from loadtest.judge.crossover import LoadPoint, crossing_of
from loadtest.judge.frame import Floats
from loadtest.judge.ratios import MIN_CLUSTERS
from loadtest.judge.select import CellFacts, Group, baseline_of, paired_cells
from loadtest.judge.verdict import Comparison, Crossover, Reason

CONFIDENCE = 0.95
"""Two-sided confidence of the comparisons."""
SPEEDUP = "output_rate"
"""The ratio that says whether speculation pays: tokens per second of a request, from send to last token. It counts the
wait for the first token and does not reward shorter answers."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A comparison with the resamples that the crossover needs."""

    comparison: Comparison
    load_kind: str
    draws: Floats | None
    """Log speed-ups; None without an interval."""
    blockers: tuple[Reason, ...] = ()
    """What keeps the comparison from counting, but for the server being simulated or its acceptance synthetic."""


def compare_all(context: Context) -> list[Compared]:
    """Comparisons of every config that is no baseline, in order; strata after the whole where there are several."""
    out = []
    for group in context.groups:
        if group.first["is_baseline"]:
            continue
        base = baseline_of(group, context.groups)
        out.append(_compare(context, group, base, None))
        strata = context.frame.strata(context.rows(group.cells))
        if base is not None and len(strata) > 1:
            out += [_compare(context, group, base, stratum) for stratum in strata]
    return out


def _compare(context: Context, group: Group, base: Group | None, stratum: str | None) -> Compared:
    both = [] if base is None else paired_cells(base, group)
    of_pairs: dict[str, Reason] = {} if both else {"no_baseline": RUN_REASONS["no_baseline"]}
    reasons: dict[str, Reason] = {}
    for b, c in both:
        for reason in (r for cell in (b, c) for r, _ in context.trust[cell["cell_id"]] if r.blocking):
            reasons.setdefault(reason.code, reason)
        for reason in pair_reasons(*paired_facts(context, b, c)):
            of_pairs.setdefault(reason.code, reason)
    reasons |= of_pairs
    pairs = {
        name: [paired.pair(context.rows([b], stratum), context.rows([c], stratum), name) for b, c in both]
        for name in paired.RATIOS
    }
    ratios = {name: paired.paired_ratio(name, p, CONFIDENCE, context.seed) for name, p in pairs.items()}
    speed = [p for p in pairs[SPEEDUP] if len(p.logs)]
    enough = bool(speed) and min(len(p.logs) for p in speed) >= MIN_CLUSTERS
    facts = group.first
    comparison = Comparison(
        config=facts["config"],
        baseline=base.first["config"] if base is not None else "",
        mix=facts["mix"],
        sampling=facts["sampling"],
        load=facts["load"],
        load_value=float(facts["load_value"]),
        stratum=stratum,
        repeats=tuple(int(c["repeat"]) for _, c in both),
        pairs=sum(len(p.logs) for p in speed),
        unpaired=sum(p.unpaired for p in pairs[SPEEDUP]),
        length_ratio=_mean_length_ratio([length_ratio(*paired_facts(context, b, c, stratum)) for b, c in both]),
        ratios=ratios,
        trusted=not any(r.blocking for r in reasons.values()),
        reasons=tuple(reasons),
        details=tuple(of_pairs.values()) if stratum is None else (),
    )
    draws = paired.boot_means(speed, context.seed) if enough else None
    blocking = tuple(r for r in reasons.values() if r.blocking and r.code not in NOT_REAL)
    return Compared(comparison, facts["load_kind"], draws, blocking)


def paired_facts(
    context: Context, base: CellFacts, cand: CellFacts, stratum: str | None = None
) -> tuple[CellFacts, CellFacts]:
    """Both cells with the mean output tokens of the prompts that both served.

    The faster side gets through more prompts of its window, so means over all rows would compare other prompts.
    """
    sides = [context.rows([cell], stratum) for cell in (base, cand)]
    means = paired.mean_lengths(*sides)
    one, two = means if means is not None else (None, None)
    return {**base, "mean_output_tokens": one}, {**cand, "mean_output_tokens": two}


def _mean_length_ratio(ratios: Sequence[float | None]) -> float | None:
    known = [r for r in ratios if r is not None]
    return float(np.mean(known)) if known and len(known) == len(ratios) else None


def crossovers(compared: Sequence[Compared]) -> list[Crossover]:
    """One crossover per config, mix, sampling, stratum and kind of load; comparisons that do not count are left out."""
    lines: dict[tuple[str, str, str, str | None, str], list[Compared]] = {}
    for one in compared:
        c = one.comparison
        if one.draws is not None and c.load_value > 0 and not one.blockers:
            lines.setdefault((c.config, c.mix, c.sampling, c.stratum, one.load_kind), []).append(one)
    out = []
    for (config, mix, sampling, stratum, kind), ones in lines.items():
        points = [
            LoadPoint(o.comparison.load_value, math.log(o.comparison.ratios[SPEEDUP].estimate or math.nan), o.draws)
            for o in ones
            if o.draws is not None
        ]
        found = crossing_of(points, CONFIDENCE)
        out.append(
            Crossover(
                config=config,
                mix=mix,
                sampling=sampling,
                stratum=stratum,
                load_kind=kind,
                pays_up_to=found.pays_up_to,
                loses_from=found.loses_from,
                estimate=found.estimate,
                lower=found.lower,
                upper=found.upper,
                confidence=CONFIDENCE,
                monotone=found.monotone,
                note=found.note,
            )
        )
    return out
