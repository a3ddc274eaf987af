"""Is a cell that is still being measured decided already? Used while it runs; the gate judges its final rows again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from loadtest.judge.frame import Bools, Floats, Frame, Rows
from loadtest.judge.gate import applies, implicit_slo
from loadtest.judge.select import CellFacts, Group, selects
from loadtest.judge.staged import Staged, series_of, suits, walk
from loadtest.model import Slo
from loadtest.plan.metrics import METRICS


@dataclass(frozen=True, slots=True)
class Looked:
    """One criterion (in one stratum) of a running cell."""

    slo: Slo
    stratum: str | None
    staged: Staged

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values for `stop.json`."""
        s = self.staged
        return {
            "slo": self.slo.name,
            "stratum": self.stratum,
            "confidence": self.slo.confidence,
            "status": s.status,
            "n": s.n,
            "over": s.over,
            "n_eff": s.n_eff,
            "looks": list(s.looks),
            "pass_at": list(s.pass_at),
            "fail_at": list(s.fail_at),
            "spent_error": s.spent,
        }


def criteria_of(facts: CellFacts, slos: Sequence[Slo]) -> list[Slo]:
    """The criteria that the gate will ask of a cell, its implicit error budget included.

    facts: config, method, mix, sampling, load, is_baseline.
    """
    group = Group((facts,))
    chosen = [slo for slo in slos if selects(slo, group) and applies(METRICS[slo.metric], slo, group)]
    if not any(slo.metric == "error_rate" and "stratum" not in slo.where for slo in chosen):
        chosen.append(implicit_slo())
    return chosen


def never_early(criteria: Sequence[Slo]) -> list[Slo]:
    """Criteria that looks cannot decide: they need all that the budget gives."""
    return [slo for slo in criteria if not suits(slo)]


def look(
    frame: Frame, cell_id: str, criteria: Sequence[Slo], budget: int, pending: frozenset[int], now_ns: int
) -> list[Looked]:
    """Every criterion on the rows so far. pending: `seq` of rows that are only known to be under way.

    A stratum that a criterion names and that has no row yet is undecided.
    """
    rows = frame.cell(cell_id)
    out = []
    for slo in criteria:
        glob = slo.where.get("stratum")
        strata = [None] if glob is None else [s for s in frame.strata(rows) if fnmatchcase(s, glob)]
        for stratum in strata:
            chosen = rows if stratum is None else frame.in_stratum(_complete(rows, pending), stratum)
            waiting, age_us = _pending(chosen, pending, now_ns)
            series = series_of(chosen, slo, waiting, age_us)
            out.append(Looked(slo, stratum, walk(series, slo.confidence, budget, last=False)))
        if not strata:
            nothing = Staged(None, 0, 0, 0, 1.0, (), (), (), 0.0)
            out.append(Looked(slo, glob, nothing))
    return out


def _complete(rows: Rows, pending: frozenset[int]) -> Rows:
    """The rows before the first that is under way: what it asks is not known, so it may belong to any stratum."""
    return rows.take(rows["seq"] < min(pending)) if pending else rows


def _pending(rows: Rows, pending: frozenset[int], now_ns: int) -> tuple[Bools, Floats]:
    waiting = np.isin(rows["seq"], np.fromiter(pending, dtype=np.float64, count=len(pending)))
    return waiting, np.maximum(0.0, (now_ns - rows["send_ns"]) / 1e3)
