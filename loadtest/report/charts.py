"""What page.js draws, as plain JSON: figures only, the drawing is in the page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from loadtest.judge.verdict import Verdict
from loadtest.merge.acceptance import SpecCounts, figures
from loadtest.report.latencies import METRICS
from loadtest.report.tables import Row
from loadtest.report.units import P99_CLAIM_N


def chart_data(rows: Sequence[Row], verdict: Verdict) -> dict[str, Any]:
    """One entry per measured row, and the paired ratios against the baseline (all strata together)."""
    return {
        "metrics": list(METRICS),
        "claim_p99": P99_CLAIM_N,
        "simulated": verdict.simulated,
        "synthetic": verdict.synthetic_acceptance,
        "rows": [
            {
                "config": r.config,
                "mix": r.mix,
                "sampling": r.sampling,
                "load": r.load,
                "kind": r.load_kind,
                "value": r.load_value,
                "tok_s": r.output_tok_s,
                "n": r.ok,
                "steps": r.steps,
                "survival": list(r.survival),
                "tasks": _tasks(r),
                "curve": {m: [[_short(q, 7) for q in c[0]], [_short(v, 1) for v in c[1]]] for m, c in r.curve.items()},
                "latency": r.latency,
            }
            for r in rows
            if r.measured
        ],
        "ratios": [
            {
                "config": c.config,
                "mix": c.mix,
                "sampling": c.sampling,
                "load": c.load,
                "value": c.load_value,
                "trusted": c.trusted,
                "name": name,
                "estimate": e.estimate,
                "lower": e.lower,
                "upper": e.upper,
                "confidence": e.confidence,
                "n": e.n,
            }
            for c in verdict.comparisons
            if c.stratum is None
            for name, e in c.ratios.items()
            if e.estimate
        ],
    }


def _tasks(row: Row) -> list[dict[str, Any]]:
    """Points of the chart of acceptance against coverage: the whole line first, then each kind of task.

    All from the same sums, so that the whole lies among its parts: per stratum it is not known which accepted tokens
    of a last step were cut, so here they stay in, and coverage may lie a little above the table's.
    """
    parts = [(name, s.n, s.counts) for name, s in row.strata.items()]
    if len(parts) != 1:
        whole = SpecCounts(row.steps, row.drafts, row.accepted, row.tokens)
        parts.insert(0, ("all tasks", row.ok or 0, whole))
    found = [(name, n, counts, figures(counts)) for name, n, counts in parts]
    return [
        {
            "name": name,
            "n": n,
            "drafts": counts.drafted,
            "accepted": counts.accepted,
            "acceptance": f.draft_acceptance_rate,
            "coverage": f.coverage,
        }
        for name, n, counts, f in found
        if f.draft_acceptance_rate is not None and f.coverage is not None
    ]


def embed(value: Any) -> str:
    """JSON that is safe inside a script element."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign, escaped in (("&", "\\u0026"), ("<", "\\u003c"), (">", "\\u003e"), ("\u2028", "\\u2028")):
        text = text.replace(sign, escaped)
    return text


def _short(value: float, digits: int) -> float:
    """Fewer characters in the page; finer than a pixel."""
    return round(value, digits)
