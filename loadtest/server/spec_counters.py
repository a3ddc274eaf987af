"""What the speculation counters and the histograms of one span say. Pure; the merge imports it.

Three generations of servers: "v1" counts drafts, draft tokens, accepted tokens and accepted tokens per position;
"v0" had acceptance gauges (state since the server's start, never used here) and counted draft, accepted and emitted
tokens, but no drafts; "absent" has no speculation series at all, which is right for a baseline.
Figures are not computed here: the sums go to the merge, which divides last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from loadtest.server.counters import Deltas, SeriesKey, Snapshot
from loadtest.server.metrics import VLLM_PREFIX

SpecSchema = Literal["v1", "v0", "absent"]

SPEC_PREFIX = "vllm:spec_decode_"
DRAFTS = "vllm:spec_decode_num_drafts_total"
DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
ACCEPTED_PER_POS = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
EMITTED = "vllm:spec_decode_num_emitted_tokens_total"

NO_VLLM_SERIES = "endpoint has no vllm:* series; point metrics_url at the engine"


@dataclass(frozen=True, slots=True)
class SpecDelta:
    """Sums of the speculation counters over one span. None = not measured; a sum after a reset is a lower bound."""

    schema: SpecSchema
    drafts: float | None
    """S: verification steps that had draft tokens."""
    draft_tokens: float | None
    """D."""
    accepted: float | None
    """A; the bonus token is not counted."""
    accepted_per_pos: tuple[float, ...] | None
    """Accepted tokens at position 0, 1, …; None where no such series exists."""
    emitted: float | None
    """v0 only: accepted and bonus tokens."""
    engines: int
    """Number of (endpoint, engine) pairs with speculation series."""
    endpoints: int
    """Number of endpoints with speculation series."""
    resets: tuple[str, ...]
    """`<endpoint> engine=<n>` of restarted engines: the sums are lower bounds and must not pass a gate."""
    complete: bool
    """True where every endpoint answered at both edges, nothing vanished and nothing was reset."""
    notes: tuple[str, ...]
    """What a reader must know, in words."""
    model: str | None = None
    """The model_name whose series were summed; None: all of them."""

    def fits(self, key: SeriesKey) -> bool:
        """Whether a series belongs to the model of these sums."""
        return _fits(key, self.model)


def positions_k(snapshot: Snapshot, model: str | None = None) -> int | None:
    """num_speculative_tokens as the page tells it: the number of `position` label values; None without any."""
    values = {k.label("position") for k in snapshot.values if k.metric == ACCEPTED_PER_POS and _fits(k, model)}
    values.discard(None)
    return len(values) or None


def spec_families(snapshot: Snapshot) -> list[str]:
    """Names of the speculation samples on the page, sorted."""
    return sorted({k.metric for k in snapshot.values if k.metric.startswith(SPEC_PREFIX)})


def spec_delta(deltas: Deltas, after: Snapshot, model: str | None = None) -> SpecDelta:
    """The speculation sums of one span.

    `model` is the served name (the `model` field of the responses). Where it matches no series while speculation
    series of other names exist, those are used if they agree on one name, and a note says so.
    """
    keys = [k for k in after.values if k.metric.startswith(SPEC_PREFIX)]
    keys += [k for k in deltas.vanished if k.metric.startswith(SPEC_PREFIX) and k not in after.values]
    model, notes = _choose_model(keys, model)
    mine = [k for k in keys if _fits(k, model)]
    names = {k.metric for k in mine}
    schema: SpecSchema = "v1" if DRAFTS in names else "v0" if names else "absent"
    if schema == "absent":
        notes += _why_absent(after)
    else:
        bare = sorted(after.endpoints - {k.endpoint for k in mine})
        notes += [f"{e}: no spec series, though other endpoints have them: another config or a router?" for e in bare]
    notes += [f"{endpoint} was not scraped {why}" for endpoint, why in sorted(deltas.missing.items())]
    resets = tuple(r for r in deltas.resets if _concerns(r, mine))
    notes += [f"counter_reset: {r}: the sums are a lower bound" for r in resets]
    gone = sorted({f"{k.endpoint} engine={k.engine}" for k in deltas.vanished if k in set(mine)})
    notes += [f"series_vanished: {g}: not there or without a value at an edge: the sums are unknown" for g in gone]
    notes += [f"engine_added: {a} began inside the span" for a in _added(deltas, mine)]

    def total(metric: str) -> float | None:
        return deltas.total(metric, lambda k: _fits(k, model))

    return SpecDelta(
        schema=schema,
        drafts=total(DRAFTS),
        draft_tokens=total(DRAFT_TOKENS),
        accepted=total(ACCEPTED),
        accepted_per_pos=_per_position(deltas, model),
        emitted=total(EMITTED),
        engines=len({(k.endpoint, k.engine) for k in mine}),
        endpoints=len({k.endpoint for k in mine}),
        resets=resets,
        complete=schema != "absent" and not (deltas.missing or resets or gone),
        notes=tuple(notes),
        model=model,
    )


def histogram_bounds(
    deltas: Deltas, family: str, q: float, where: Callable[[SeriesKey], bool] | None = None
) -> tuple[float, float | None] | None:
    """(lower, upper) edge of the bucket that holds quantile `q` (nearest rank), in the unit of the family.

    Bucket deltas are summed over endpoints and engines, at the edges that all of them have. The upper edge is None in
    the last bucket. None where nothing was observed, an edge is missing or a series vanished.
    """
    if deltas.missing:
        return None
    groups: dict[tuple[object, ...], dict[float, float]] = {}
    for item in deltas.select(f"{family}_bucket", where):
        le = item.key.label("le")
        if le is None or item.delta is None:
            return None
        rest = tuple(pair for pair in item.key.labels if pair[0] != "le")
        groups.setdefault((item.key.endpoint, item.key.engine, item.key.model, rest), {})[float(le)] = item.delta
    if not groups:
        return None
    common = sorted(set.intersection(*(set(g) for g in groups.values())))
    cumulative = [sum(g[edge] for g in groups.values()) for edge in common]
    if not cumulative or common[-1] != math.inf or cumulative[-1] <= 0:
        return None
    rank = max(1, math.ceil(q * cumulative[-1]))
    index = next(i for i, c in enumerate(cumulative) if c >= rank)
    return (common[index - 1] if index else 0.0), (None if math.isinf(common[index]) else common[index])


def _choose_model(keys: Iterable[SeriesKey], model: str | None) -> tuple[str | None, list[str]]:
    names = {k.model for k in keys if k.model is not None}
    if model is None or not names or model in names:
        return model, []
    listed = ", ".join(repr(n) for n in sorted(names))
    if len(names) == 1:
        return None, [f"no speculation series has model_name={model!r}; the series of {listed} are used"]
    return model, [f"no speculation series has model_name={model!r}, but there are series of {listed}: nothing summed"]


def _fits(key: SeriesKey, model: str | None) -> bool:
    return model is None or key.model is None or key.model == model


def _why_absent(after: Snapshot) -> list[str]:
    """Per endpoint: no engine page at all, a router's page, or an engine without speculation."""
    notes = []
    for endpoint in sorted(after.endpoints):
        series = [k for k in after.values if k.endpoint == endpoint and k.metric.startswith(VLLM_PREFIX)]
        if not series:
            notes.append(f"{endpoint}: {NO_VLLM_SERIES}")
        elif not any(k.engine is not None or k.model is not None for k in series):
            notes.append(
                f"{endpoint}: no spec series, and no series names an engine: a router's page? {NO_VLLM_SERIES}"
            )
        else:
            notes.append(f"{endpoint}: no spec series: the engine runs without speculative decoding")
    return notes


def _added(deltas: Deltas, keys: Iterable[SeriesKey]) -> list[str]:
    """Engines all of whose series are new, beside others that were there before."""
    wanted = set(keys)
    old = {(k.endpoint, k.engine) for k, d in deltas.series.items() if k in wanted and d.status != "new"}
    new = {(k.endpoint, k.engine) for k, d in deltas.series.items() if k in wanted and d.status == "new"}
    return sorted(f"{endpoint} engine={engine}" for endpoint, engine in new - old) if old else []


def _concerns(reset: str, keys: Iterable[SeriesKey]) -> bool:
    return any(reset in (f"{k.endpoint} engine={k.engine or '?'}", f"{k.endpoint} engine=*") for k in keys)


def _per_position(deltas: Deltas, model: str | None) -> tuple[float, ...] | None:
    """Sums by position over all engines; positions that an engine does not have count as zero there."""
    chosen = deltas.select(ACCEPTED_PER_POS, lambda k: _fits(k, model))
    if not chosen or deltas.missing:
        return None
    sums: dict[int, float] = {}
    for item in chosen:
        position = item.key.label("position")
        if item.delta is None or position is None or not position.isdecimal():
            return None
        sums[int(position)] = sums.get(int(position), 0.0) + item.delta
    return tuple(sums.get(i, 0.0) for i in range(max(sums) + 1))
