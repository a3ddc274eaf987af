"""Cells and scopes: which cells a criterion selects, how repeats are grouped, which cell is whose baseline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from loadtest.judge.verdict import Scope
from loadtest.model import Slo

CellFacts = dict[str, Any]
GroupKey = tuple[str, str, str, str]
"""config, mix, sampling, load"""


@dataclass(frozen=True, slots=True)
class Group:
    """The repeats of one config x mix x sampling x load, in order."""

    cells: tuple[CellFacts, ...]

    @property
    def first(self) -> CellFacts:
        """Facts that all repeats share."""
        return self.cells[0]

    @property
    def key(self) -> GroupKey:
        """What names the group."""
        return key_of(self.first)

    def scope(self, cells: Sequence[CellFacts], stratum: str | None) -> Scope:
        """The scope of some (or all) repeats of the group."""
        f = self.first
        return Scope(
            config=f["config"],
            method=f["method"],
            gamma=f["gamma"],
            mix=f["mix"],
            sampling=f["sampling"],
            load=f["load"],
            load_value=float(f["load_value"]),
            stratum=stratum,
            repeat=int(cells[0]["repeat"]) if len(cells) == 1 else None,
            cell_ids=tuple(c["cell_id"] for c in cells),
            is_baseline=bool(f["is_baseline"]),
        )


def is_plain(facts: Mapping[str, Any]) -> bool:
    """A config without speculation: the baseline, or a second one that shows how far two baselines differ."""
    return bool(facts["is_baseline"]) or facts["method"] == "none"


def key_of(cell: Mapping[str, Any]) -> GroupKey:
    """config, mix, sampling, load of a cell."""
    return cell["config"], cell["mix"], cell["sampling"], cell["load"]


def group_cells(cells: Iterable[CellFacts]) -> list[Group]:
    """Cells with their repeats together, in the order of first appearance."""
    groups: dict[GroupKey, list[CellFacts]] = {}
    for cell in cells:
        groups.setdefault(key_of(cell), []).append(cell)
    return [Group(tuple(sorted(g, key=lambda c: int(c["repeat"])))) for g in groups.values()]


def selects(slo: Slo, group: Group) -> bool:
    """Whether the criterion's `where` selects this group (the stratum is looked at later, in the rows)."""
    facts = group.first
    return all(fnmatchcase(str(facts[key]), glob) for key, glob in slo.where.items() if key != "stratum")


def names_baseline(slo: Slo, group: Group) -> bool:
    """Whether the criterion names this config or its method itself, without a wildcard."""
    facts = group.first
    return any(slo.where.get(key) == facts[key] for key in ("config", "method"))


def baseline_of(group: Group, groups: Sequence[Group]) -> Group | None:
    """The baseline at the same mix, sampling and load; the group itself is never its own baseline."""
    if group.first["is_baseline"]:
        return None
    for other in groups:
        if other.first["is_baseline"] and other.key[1:] == group.key[1:]:
            return other
    return None


def paired_cells(base: Group, cand: Group) -> list[tuple[CellFacts, CellFacts]]:
    """(baseline, candidate) of each repeat that both have."""
    by_repeat = {int(c["repeat"]): c for c in base.cells}
    return [(by_repeat[int(c["repeat"])], c) for c in cand.cells if int(c["repeat"]) in by_repeat]
