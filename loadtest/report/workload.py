"""What each server was given and gave, side by side: sampling, lengths of prompts and outputs, prefix cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loadtest.merge.acceptance import ratio
from loadtest.merge.read import RunData
from loadtest.model import NOT_MEASURED, Cell, ConfigSpec, from_json
from loadtest.plan.cells import server_starts

LENGTH_RATIO = 1.05
"""Mean lengths further apart than this make the comparison inconclusive at temperature 0; here they turn red."""
HIT_RATE_GAP = 0.05
"""The same for the prefix cache's hit rate."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One line: a text for each server, and whether they are too far apart."""

    key: str
    values: tuple[str, ...]
    differs: bool


def workload(data: RunData, servers: Sequence[str]) -> list[Fact]:
    """Facts about the cells of each server start (`<nn>-<config>`), over ok requests of the windows."""
    groups = _cells_of(data.run)
    rows = {row["cell_id"]: row for row in data.cells.to_pylist()}
    cells = [[rows[i] for i in groups.get(server, ()) if i in rows] for server in servers]
    settings = [_settings(data.run, groups.get(server, ())) for server in servers]
    facts = [Fact("workload.sampling", tuple(settings), len(set(settings)) > 1)]
    for key, name in (("prompt_tokens", "prompt tokens"), ("completion_tokens", "output tokens")):
        lengths = [_lengths(data, group, key) for group in cells]
        texts = tuple(_distribution(found.column("length").to_numpy()) for found in lengths)
        facts.append(Fact(f"workload.{name}", texts, _apart(lengths)))
    hits = [_hit_rate(group) for group in cells]
    known = [h for h in hits if h is not None]
    rates = tuple(NOT_MEASURED if h is None else f"{100 * h:.1f} %" for h in hits)
    apart = bool(known) and max(known) - min(known) > HIT_RATE_GAP
    return [*facts, Fact("workload.prefix cache hit rate", rates, apart)]


def _cells_of(run: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """Server start -> ids of its cells."""
    cells = [from_json(Cell, c) for c in run.get("cells") or []]
    configs = [from_json(ConfigSpec, c) for c in run.get("configs") or []]
    starts = enumerate(server_starts(cells, configs))
    return {f"{number:02d}-{name}": tuple(c.cell_id for c in group) for number, (name, group) in starts}


def _settings(run: dict[str, Any], ids: Sequence[str]) -> str:
    found = {}
    for cell in run.get("cells") or []:
        if cell["cell_id"] in ids:
            s = cell["sampling"]
            more = "".join(f", {k} {s[k]}" for k in ("seed", "ignore_eos", "extra_body") if s.get(k))
            found[s["name"]] = f"temperature {s['temperature']:g}, top_p {s['top_p']:g}, max {s['max_tokens']}{more}"
    return "; ".join(f"{name}: {text}" for name, text in found.items()) or NOT_MEASURED


def _lengths(data: RunData, cells: Sequence[dict[str, Any]], key: str) -> pa.Table:
    """(prompt_id, length) of every ok request of the windows."""
    parts = [pa.table({"prompt_id": pa.array([], pa.string()), "length": pa.array([], pa.float64())})]
    for cell in cells:
        if not cell["ok"]:
            continue
        table = data.cell_requests(cell["cell_id"], ["prompt_id", key, "phase", "outcome"])
        table = table.filter(
            (pc.field("phase") == "measure") & (pc.field("outcome") == "ok") & pc.field(key).is_valid()
        )
        lengths = table.column(key).cast(pa.float64())
        parts.append(pa.table({"prompt_id": table.column("prompt_id").cast(pa.string()), "length": lengths}))
    return pa.concat_tables(parts)


def _apart(lengths: Sequence[pa.Table]) -> bool:
    """Whether the same prompts have other lengths; a faster server simply comes further in the same order."""
    means = []
    for found in lengths:
        grouped = found.group_by("prompt_id").aggregate([("length", "mean")]).to_pydict()
        if grouped["prompt_id"]:
            means.append(dict(zip(grouped["prompt_id"], grouped["length_mean"], strict=True)))
    common = set.intersection(*map(set, means)) if means else set()
    sums = [sum(held[prompt] for prompt in common) for held in means]
    return bool(common) and max(sums) > LENGTH_RATIO * min(sums)


def _distribution(values: np.ndarray[Any, np.dtype[np.float64]]) -> str:
    if not len(values):
        return NOT_MEASURED
    p50, p90 = np.quantile(values, [0.5, 0.9], method="inverted_cdf")
    return f"mean {values.mean():.1f}, P50 {p50:g}, P90 {p90:g}, max {values.max():g}, n {len(values)}"


def _hit_rate(cells: Sequence[dict[str, Any]]) -> float | None:
    hits = [(c["prefix_cache_hits"], c["prefix_cache_queries"]) for c in cells if c["state"] == "done"]
    if not hits or any(None in pair for pair in hits):
        return None
    return ratio(sum(h for h, _ in hits), sum(q for _, q in hits))
