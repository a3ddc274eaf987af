"""Where the tail comes from (TPOT by acceptance decile) and whether acceptance drifts over the window."""

from __future__ import annotations

import numpy as np

from loadtest.judge.context import Context
from loadtest.judge.frame import Rows
from loadtest.judge.orderstats import nearest_rank, share_bounds
from loadtest.judge.ratios import acceptance_interval, with_block
from loadtest.judge.select import Group
from loadtest.judge.verdict import Answer, Decile, Profile, RatioEstimate, TimeSlice
from loadtest.judge.words import figure

DECILES = 10
MIN_REQUESTS = 300
"""Below, a tenth holds under 30 requests and the slowest hundredth under 3: no pattern can be told from chance."""
TAIL = 0.99
BADLY = 2.0
"""The worst-drafted tenth makes the tail if it holds for certain at least twice its share of it."""
SLICES = 6
"""Parts of the window: enough to see a trend, few enough that each has its own interval."""
CONFIDENCE = 0.95


def profiles(context: Context) -> list[Profile]:
    """One profile per group whose requests carry acceptance counts."""
    out = []
    for group in context.groups:
        rows = with_block(context.rows(group.cells))
        rows = rows.take(rows["draft_tokens"] > 0)
        if len(rows) >= MIN_REQUESTS:
            out.append(_profile(context, group, rows))
    return out


def _profile(context: Context, group: Group, rows: Rows) -> Profile:
    facts = group.first
    deciles, tail = by_decile(rows)
    answer = _badly_drafted(deciles, tail)
    # Drift is a matter of one server's life: the longest-running question is asked of the first repeat.
    cell = group.cells[0]
    one = with_block(context.rows([cell]))
    slices = by_time(one, cell.get("window_start_ns"), cell.get("window_end_ns"), context.seed)
    drifts = drift(slices)
    words = (
        f"the worst-drafted tenth holds {figure(deciles[0].tail_share, 'share')} of the slowest {tail} requests; "
        f"acceptance {' -> '.join(figure(s.acceptance.estimate, 'share') for s in slices) or 'over time not known'}"
    )
    return Profile(
        config=facts["config"],
        mix=facts["mix"],
        sampling=facts["sampling"],
        load=facts["load"],
        deciles=deciles,
        badly_drafted_tail=answer,
        slices=slices,
        drifts=drifts,
        words=words,
    )


def by_decile(rows: Rows) -> tuple[tuple[Decile, ...], int]:
    """(deciles, requests in the tail). Rows have drafts; those without a TPOT count in n only."""
    rate = rows["accepted_tokens"] / rows["draft_tokens"]
    tpot = rows["tpot_us"]
    order = np.argsort(rate, kind="stable")
    rate, tpot = rate[order], tpot[order]
    known = np.sort(tpot[np.isfinite(tpot)])
    limit = nearest_rank(known, TAIL) if len(known) else np.inf
    slow = np.isfinite(tpot) & (tpot >= limit)
    total = int(slow.sum())
    out = []
    for number, part in enumerate(np.array_split(np.arange(len(rate)), DECILES), start=1):
        mine = np.sort(tpot[part][np.isfinite(tpot[part])])
        out.append(
            Decile(
                decile=number,
                n=len(part),
                acceptance_low=float(rate[part[0]]),
                acceptance_high=float(rate[part[-1]]),
                tpot_p50_us=nearest_rank(mine, 0.5) if len(mine) else None,
                tpot_p99_us=nearest_rank(mine, TAIL) if len(mine) else None,
                tail_share=float(slow[part].sum()) / total if total else 0.0,
            )
        )
    return tuple(out), total


def _badly_drafted(deciles: tuple[Decile, ...], tail: int) -> Answer:
    if tail == 0:
        return "not known"
    lower, upper = share_bounds(round(deciles[0].tail_share * tail), tail, CONFIDENCE)
    if lower >= BADLY / DECILES:
        return "yes"
    return "no" if upper < BADLY / DECILES else "not known"


def by_time(rows: Rows, start_ns: float | None, end_ns: float | None, seed: int) -> tuple[TimeSlice, ...]:
    """Acceptance in SLICES equal parts of the window; empty where the window is not known."""
    if start_ns is None or end_ns is None or end_ns <= start_ns or len(rows) == 0:
        return ()
    width = (end_ns - start_ns) / SLICES
    index = np.clip(((rows["send_ns"] - start_ns) / width).astype(np.int64), 0, SLICES - 1)
    out = []
    for i in range(SLICES):
        found = acceptance_interval(rows.take(index == i), "draft_acceptance_rate", (1 + CONFIDENCE) / 2, seed)
        ratio = RatioEstimate(
            "draft_acceptance_rate", found.estimate, found.lower, found.upper, CONFIDENCE, found.clusters, found.method
        )
        out.append(TimeSlice(i * width / 1e9, ratio))
    return tuple(out)


def drift(slices: tuple[TimeSlice, ...]) -> Answer:
    """Whether the intervals of the first and the last slice lie apart."""
    if len(slices) < 2:
        return "not known"
    first, last = slices[0].acceptance, slices[-1].acceptance
    if first.lower is None or first.upper is None or last.lower is None or last.upper is None:
        return "not known"
    return "yes" if last.upper < first.lower or last.lower > first.upper else "no"
