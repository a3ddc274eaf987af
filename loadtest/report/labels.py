"""The table of a sequential probe: whole-request time and raw speculation counts per kind of task and config.

One request at a time, not streaming: its rate is the speed of one lonely request, never serving throughput.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from loadtest.merge.acceptance import ratio
from loadtest.merge.read import RunData
from loadtest.model import NOT_MEASURED
from loadtest.plan.describe import table

FILE = "probe.md"
COLUMNS = [
    "config", "method", "mix", "sampling", "stratum", "phase", "load_kind", "outcome", "e2e_us", "completion_tokens",
    "spec_steps", "draft_tokens", "accepted_tokens",
]  # fmt: skip
HEAD = [
    "data set", "kind", "sampling", "config", "ok", "failed", "s per request", "output tok/s", "x baseline",
    "S", "D", "A", "A/D", "1+A/S",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Label:
    """Sums of one kind of task under one config; None where a row did not tell."""

    mix: str
    stratum: str
    sampling: str
    config: str
    ok: int
    failed: int
    seconds: float
    """Sum of the whole-request times of ok requests."""
    tokens: int | None
    steps: int | None
    drafts: int | None
    accepted: int | None
    speculative: bool

    @property
    def rate(self) -> float | None:
        """Output tokens per second of request time."""
        return ratio(self.tokens, self.seconds)


def labels(data: RunData) -> list[Label]:
    """Every (mix, kind, sampling) in the order of the run, its configs in the plan's order."""
    rows = data.requests(COLUMNS, (pc.field("phase") == "measure") & (pc.field("load_kind") == "sequential"))
    order = {c["name"]: n for n, c in enumerate(data.run.get("configs") or [])}
    groups: dict[tuple[str, str, str, str], list[dict[str, Any]]] = {}
    for row in rows.to_pylist():
        groups.setdefault((row["mix"], row["stratum"], row["sampling"], row["config"]), []).append(row)
    found = [_label(key, group) for key, group in groups.items()]
    return sorted(found, key=lambda b: (b.mix, b.stratum, b.sampling, order.get(b.config, len(order))))


def _label(key: tuple[str, str, str, str], rows: list[dict[str, Any]]) -> Label:
    good = [r for r in rows if r["outcome"] == "ok"]
    sums = {k: _sum(good, k) for k in ("completion_tokens", "spec_steps", "draft_tokens", "accepted_tokens")}
    return Label(
        *key,
        ok=len(good),
        failed=len(rows) - len(good),
        seconds=sum(r["e2e_us"] for r in good) / 1e6,
        tokens=sums["completion_tokens"],
        steps=sums["spec_steps"],
        drafts=sums["draft_tokens"],
        accepted=sums["accepted_tokens"],
        speculative=rows[0]["method"] != "none",
    )


def _sum(rows: list[dict[str, Any]], key: str) -> int | None:
    """Null as soon as one row does not tell: a part must not pass for the whole."""
    values = [r[key] for r in rows]
    return None if not values or None in values else sum(values)


def text(data: RunData) -> str:
    """The page: what this is, the table, what is missing."""
    found = labels(data)
    base = {c["name"] for c in data.run.get("configs") or [] if c.get("is_baseline")}
    baseline = {(b.mix, b.stratum, b.sampling): b.rate for b in found if b.config in base}
    lines = [
        "Sequential probe: one request at a time, not streaming. Times are whole requests. This is no load test: it",
        "says nothing about TTFT, TPOT or serving throughput. S drafted steps, D drafts, A accepted drafts.",
        "",
    ]
    if pc.any(data.cells.column("simulated")).as_py():
        lines.insert(0, "SIMULATED: made with the simulated server; no figure is real.")
    if pc.any(data.cells.column("synthetic_acceptance")).as_py():
        lines.insert(0, "SYNTHETIC: the server was told what to accept; no acceptance is real.")
    lines += table(HEAD, [_line(b, baseline.get((b.mix, b.stratum, b.sampling))) for b in found])
    lines += ["", *_missing(data.cells)]
    return "\n".join(lines).rstrip() + "\n"


def write_labels(run_dir: Path, data: RunData) -> str:
    """Write the page to `probe.md` of the run and give it back."""
    page = text(data)
    (run_dir / FILE).write_text(f"```\n{page}```\n", encoding="utf-8")
    return page


def _line(label: Label, baseline: float | None) -> list[str]:
    spec = ["-"] * 5
    if label.speculative:
        counts = (label.steps, label.drafts, label.accepted)
        known = None not in counts
        per_step = ratio(label.accepted, label.steps)
        spec = [NOT_MEASURED if c is None else f"{c}" for c in counts]
        spec += [_number(ratio(label.accepted, label.drafts), 3, known)]
        spec += [_number(None if per_step is None else 1 + per_step, 2, known)]
    mean_s = ratio(label.seconds, label.ok)
    speedup = ratio(label.rate, baseline)
    return [
        label.mix, label.stratum, label.sampling, label.config, str(label.ok), str(label.failed),
        _number(mean_s, 3), _number(label.rate, 1), _number(speedup, 2), *spec,
    ]  # fmt: skip


def _number(value: float | None, digits: int, counted: bool = False) -> str:
    """`counted`: the counts are there, so that a missing ratio is one of nothing by nothing."""
    if value is None:
        return "undefined" if counted else NOT_MEASURED
    return f"{value:.{digits}f}"


def _missing(cells: pa.Table) -> list[str]:
    told = cells.select(["cell_id", "state", "state_reason"]).to_pylist()
    return [
        f"{c['cell_id']}: {NOT_MEASURED}: {c['state']}" + (f" ({c['state_reason']})" if c["state_reason"] else "")
        for c in told
        if c["state"] != "done"
    ]
