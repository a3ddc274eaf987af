"""The checks of a verdict as people read them: grouped by criterion, worst first, in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from loadtest.judge.verdict import Check
from loadtest.report.units import in_unit

ORDER = {"FAIL": 0, "INCONCLUSIVE": 1, "PASS": 2}


@dataclass(frozen=True, slots=True)
class Group:
    """Gating checks of one criterion (and of one config, where it is grouped so)."""

    slo: str
    config: str
    """"" over all configs."""
    checks: tuple[Check, ...]

    @property
    def worst(self) -> Check:
        """The check that speaks for the group."""
        return self.checks[0]

    def count(self, status: str) -> int:
        """How many have this status."""
        return sum(c.status == status for c in self.checks)


def ranked(checks: Iterable[Check]) -> list[Check]:
    """Worst first: by status, gating ones before shown ones, then by how far the figure is beyond its limit."""
    return sorted(checks, key=lambda c: (ORDER[c.status], not c.gating, -_excess(c)))


def by_criterion(checks: Sequence[Check]) -> list[Group]:
    """One group per criterion, in the order of the SLO file."""
    return _grouped(checks, with_config=False)


def by_criterion_and_config(checks: Sequence[Check]) -> list[Group]:
    """One group per criterion and config, worst status first, then in the order of the SLO file."""
    return sorted(_grouped(checks, with_config=True), key=lambda g: ORDER[g.worst.status])


def scope_text(check: Check, with_config: bool = True) -> str:
    """Where a criterion was applied, in one line."""
    s = check.scope
    if s is None:
        return "no cell selected"
    repeat = "repeats pooled" if s.repeat is None else f"r{s.repeat}"
    return " / ".join(x for x in (s.config if with_config else "", s.mix, s.sampling, s.load, s.stratum, repeat) if x)


def limit_text(check: Check) -> str:
    """`ttft p95 ≤ 500 ms`."""
    return (
        f"{check.metric} {check.stat} {'≤' if check.direction == 'lower' else '≥'} {in_unit(check.limit, check.unit)}"
    )


def estimate_text(check: Check) -> str:
    """The figure of the sample."""
    return in_unit(check.estimate, check.unit, "no figure")


def bounds_text(check: Check) -> str:
    """Both one-sided bounds; "none" where the sample is too small for either."""
    if check.lower is None and check.upper is None:
        return "none"
    low, high = in_unit(check.lower, check.unit, "no lower"), in_unit(check.upper, check.unit, "no upper")
    return f"{low} to {high} at {check.confidence * 100:g} %"


def n_text(check: Check) -> str:
    """Sample size, with the independent requests that it is worth where they are fewer."""
    return f"{check.n}" + (f" (n_eff {check.n_eff})" if check.n_eff is not None and check.n_eff != check.n else "")


def _grouped(checks: Sequence[Check], with_config: bool) -> list[Group]:
    groups: dict[tuple[str, str], list[Check]] = {}
    for c in checks:
        if c.gating:
            config = c.scope.config if with_config and c.scope is not None else ""
            groups.setdefault((c.slo, config), []).append(c)
    return [Group(slo, config, tuple(ranked(found))) for (slo, config), found in groups.items()]


def _excess(check: Check) -> float:
    """How many times the figure is beyond its limit; 0 where there is none."""
    if not check.estimate or not check.limit or check.estimate < 0:
        return 0.0
    return check.estimate / check.limit if check.direction == "lower" else check.limit / check.estimate
