"""Everything the judge looks up more than once: cells with their facts, rows, trust reasons, seeds."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from loadtest.judge.frame import Frame, Rows, RunLike, load_frame
from loadtest.judge.ratios import seed_of
from loadtest.judge.select import CellFacts, Group, group_cells, is_plain
from loadtest.judge.trust import ACCEPTANCE, ERRORS, LATENCY, RATES, cell_reasons
from loadtest.judge.verdict import Reason
from loadtest.model import Slo
from loadtest.plan.metrics import METRICS

NOT_REAL = ("simulated", "synthetic_acceptance")
"""Reasons that no longer run can cure: the figures may be sound, but they are not those of a real server."""


@dataclass(frozen=True, slots=True)
class Context:
    """One run, read once."""

    data: RunLike
    run: dict[str, Any]
    frame: Frame
    cells: list[CellFacts]
    groups: list[Group]
    trust: dict[str, list[tuple[Reason, frozenset[str]]]]
    seed: int

    @property
    def only_baselines(self) -> bool:
        """A run that compares nothing: its baseline is what is judged."""
        return all(is_plain(g.first) for g in self.groups)

    def rows(self, cells: tuple[CellFacts, ...] | list[CellFacts], stratum: str | None = None) -> Rows:
        """Window rows of some cells, one after the other."""
        rows = Rows.concat([self.frame.cell(c["cell_id"]) for c in cells])
        return rows if stratum is None else self.frame.in_stratum(rows, stratum)

    def matching_strata(self, group: Group, glob: str) -> list[str]:
        """Strata of the group's rows that match."""
        return [s for s in self.frame.strata(self.rows(group.cells)) if fnmatchcase(s, glob)]

    def trusted(self, cell_id: str, *, real: bool = True) -> bool:
        """Whether nothing blocks the cell. real=False looks past "simulated" and "synthetic_acceptance"."""
        past = () if real else NOT_REAL
        return not any(r.blocking and r.code not in past for r, _ in self.trust[cell_id])

    def taint_of(self, slo: Slo) -> str:
        """The group of figures that a criterion belongs to."""
        metric = METRICS[slo.metric]
        if slo.metric == "error_rate":
            return ERRORS
        if "pooled" in metric.stats:
            return ACCEPTANCE
        return RATES if metric.unit == "per_s" else LATENCY


def load_context(data: RunLike) -> Context:
    """Read the run. Facts of a cell = its row of cells.parquet and what its request rows say."""
    frame = load_frame(data)
    cells: list[CellFacts] = data.cells.to_pylist()
    for cell in cells:
        cell.update(row_facts(frame.cell(cell["cell_id"])))
    trust = {cell["cell_id"]: cell_reasons(cell) for cell in cells}
    seed = seed_of(str(data.run.get("plan_sha256", "")), "bootstrap")
    return Context(data, dict(data.run), frame, cells, group_cells(cells), trust, seed)


def row_facts(rows: Rows) -> dict[str, int]:
    """What the trust checks want to know of the rows of a window."""
    served = rows.take(rows["ok"])
    ttft, e2e, tpot = served["ttft_us"], served["e2e_us"], served["tpot_us"]
    with np.errstate(invalid="ignore"):
        impossible = (ttft <= 0) | (e2e <= 0) | (tpot < 0) | (ttft > e2e)
        impossible |= (tpot == 0) & (served["completion_tokens"] > 1) & (served["chunks"] > 1) & ~served["merged"]
    return {
        "rows": len(rows),
        "implausible_rows": int(impossible.sum()),
        "served_without_usage": int(np.isnan(served["completion_tokens"]).sum()),
    }
