"""What a search asks: which criteria, which loads, how sure. Made from the plan before anything is measured."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from loadtest.capacity.search import Range, level
from loadtest.errors import PlanError
from loadtest.judge.gate import implicit_slo
from loadtest.judge.live import criteria_of
from loadtest.model import ConfigSpec, LoadKind, Slo
from loadtest.plan.cells import sampling_specs, slos
from loadtest.plan.estimate import auto_requests
from loadtest.plan.loads import LoadPoint
from loadtest.plan.metrics import RATIO_STAT
from loadtest.plan.schema import Plan

DOUBLINGS = 10
"""From the lowest load up to a thousand times as much, where no other end is given."""
BUDGET_FACTOR = 3
"""Budget of a probe over that of an ordinary auto window: most probes end long before it, and one near the capacity
that decides nothing widens the answer."""
HALVINGS = 4
"""Down from the lowest rate to a sixteenth, where that fails; users go down to one."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One search, the same for all configs."""

    kind: LoadKind
    area: Range
    confidence: float
    """Of the whole interval, over all probes and criteria."""
    criteria: tuple[Slo, ...]
    """At the level of one probe."""
    requests: int
    """Budget of one probe's window."""
    left_out: tuple[str, ...]
    """Criteria of the plan that cannot be asked here, and why."""

    @property
    def unit(self) -> str:
        """What loads are counted in."""
        return "users" if self.kind == "closed" else "requests/s"

    def point(self, load: float) -> LoadPoint:
        """One load as the plan's room knows it."""
        return LoadPoint(self.kind, load)


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user may choose."""

    by: str | None = None
    """`concurrency` or `rate`; None: concurrency where the plan has any."""
    ceiling: float | None = None
    tolerance: float = 0.1
    confidence: float = 0.95


def settings_of(
    plan: Plan, configs: Sequence[ConfigSpec], strata: Mapping[str, frozenset[str]], asked_for: Asked
) -> Settings:
    """The search that a plan asks for. strata: kinds of task in the prompts of each mix.

    Raises PlanError where the plan has no load to begin at, no criterion that can be asked, or a bad number is given.
    """
    kind, start = _load(plan, asked_for.by)
    ceiling, tolerance, confidence = asked_for.ceiling, asked_for.tolerance, asked_for.confidence
    whole = kind == "closed"
    if not 0.001 <= tolerance <= 1.0:
        raise PlanError(f"--tolerance {tolerance:g}: must lie between 0.001 and 1 (0.1: an interval of 10 %)")
    if not 0.5 < confidence < 1.0:
        raise PlanError(f"--confidence {confidence:g}: must be above 0.5 and below 1, for example 0.95")
    most = start * 2.0**DOUBLINGS if ceiling is None else float(ceiling)
    if most < start or (whole and most != int(most)):
        raise PlanError(f"--max {most:g}: must be at least the plan's lowest load {start:g}, and whole for users")
    area = Range(start, 1.0 if whole else start / 2.0**HALVINGS, most, tolerance, whole)
    asked, left_out = _criteria(slos(plan))
    if not asked:
        why = "; ".join(left_out) or "it has no [[slo]]"
        raise PlanError(f"the plan has no criterion for a capacity: {why}")
    checks = max(_checks(plan, config, asked, strata) for config in configs)
    sure = level(confidence, area.max_probes(), checks)
    criteria = tuple(dataclasses.replace(slo, confidence=sure) for slo in asked)
    return Settings(kind, area, confidence, criteria, BUDGET_FACTOR * auto_requests(criteria), tuple(left_out))


def _load(plan: Plan, by: str | None) -> tuple[LoadKind, float]:
    load = plan.load
    if by in (None, "concurrency") and load.concurrency:
        return "closed", float(min(load.concurrency))
    if by in (None, "rate") and load.rate:
        return load.arrival, min(load.rate)
    raise PlanError(
        f"load.{by or 'concurrency (or load.rate)'} is missing: its lowest value is where the search begins"
    )


def _criteria(given: Sequence[Slo]) -> tuple[list[Slo], list[str]]:
    """(criteria that are asked at every load, what is left out and why)."""
    asked, left_out = [], []
    for slo in given:
        if slo.stat == RATIO_STAT:
            left_out.append(f"{slo.name!r} compares with the baseline at the same load, which is not measured here")
            continue
        if "load" in slo.where:
            left_out.append(f"{slo.name!r}: its `load` selector; the search goes over the loads")
        asked.append(dataclasses.replace(slo, where={k: v for k, v in slo.where.items() if k != "load"}))
    if asked and not any(slo.metric == "error_rate" and "stratum" not in slo.where for slo in asked):
        # Asked by the gate anyway; here it takes part in the level and in the budget.
        asked.append(implicit_slo())
    return asked, left_out


def _checks(plan: Plan, config: ConfigSpec, asked: Sequence[Slo], strata: Mapping[str, frozenset[str]]) -> int:
    """How many single checks one load of a config takes."""
    total = 0
    for sampling in sampling_specs(plan):
        for mix in plan.mix:
            facts = {
                "config": config.name,
                "method": config.method,
                "mix": mix.name,
                "sampling": sampling.name,
                "load": "",
                "is_baseline": config.is_baseline,
            }
            for slo in criteria_of(facts, asked):
                glob = slo.where.get("stratum")
                named = strata.get(mix.name, frozenset())
                total += 1 if glob is None else max(1, sum(fnmatchcase(name, glob) for name in named))
    return total


def strata_of(run_dir: Path, prompt_files: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """Kinds of task in the prompts of each mix."""
    found = {}
    for mix, name in prompt_files.items():
        with (run_dir / name).open(encoding="utf-8") as lines:
            found[mix] = frozenset(str(json.loads(line)["stratum"]) for line in lines if line.strip())
    return found
