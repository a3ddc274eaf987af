"""Did this build regress? Two runs of the same plan, cell by cell, paired by prompt.

Everything but the build must be equal: the plan, the target, the machine. A difference that the user allowed by key is
recorded in the result.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.errors import InputError
from loadtest.judge import paired
from loadtest.judge.comparable import pair_reasons
from loadtest.judge.comparisons import CONFIDENCE
from loadtest.judge.context import Context, load_context
from loadtest.judge.frame import TURNS, Rows, RunLike
from loadtest.judge.select import Group, paired_cells
from loadtest.judge.verdict import EXIT_CODES, RatioEstimate, Reason, Status, finite, worst
from loadtest.judge.words import figure
from loadtest.model import to_json as plain

DELTA = 0.05
"""How much slower counts as a regression, if the caller does not say: the drift between two starts of the same build
is a few percent."""


KEYS = ("plan", "prompts", "versions", "gpus", "model", "host")
"""What must be equal in both runs, unless the user allows the difference by name."""


@dataclass(frozen=True, slots=True)
class GroupComparison:
    """One config, mix, sampling and load in both runs."""

    config: str
    mix: str
    sampling: str
    load: str
    status: Status
    """PASS: no regression over `delta`; FAIL: a regression over `delta` for certain."""
    pairs: int
    ratios: dict[str, RatioEstimate]
    """New over old."""
    reasons: tuple[Reason, ...]
    words: str


@dataclass(frozen=True, slots=True)
class RunComparison:
    """The answer for two runs."""

    old: str
    new: str
    status: Status
    delta: float
    groups: tuple[GroupComparison, ...]
    only_old: tuple[str, ...]
    only_new: tuple[str, ...]
    """Groups that only one run has."""
    allowed: tuple[str, ...] = field(default=())

    @property
    def exit_code(self) -> int:
        """0 no regression, 99 regression, 98 not known."""
        return EXIT_CODES[self.status]

    def text(self) -> str:
        """For a person: a line per group, what was left out, the answer last."""
        lines = [f"{g.status:12} {g.config} / {g.mix} / {g.sampling} / {g.load}: {g.words}" for g in self.groups]
        blocking = [(f"{g.config} / {g.mix} / {g.load}", r) for g in self.groups for r in g.reasons if r.blocking]
        for code in dict.fromkeys(r.code for _, r in blocking):
            where = [(w, r) for w, r in blocking if r.code == code]
            first = where[0][1]
            lines.append(f"{code} in {len(where)} of {len(self.groups)}, first {where[0][0]}: {first.seen}. {first.do}")
        lines += [f"only in {self.old}: {key}" for key in self.only_old]
        lines += [f"only in {self.new}: {key}" for key in self.only_new]
        if self.allowed:
            lines.append(f"allowed to differ: {', '.join(self.allowed)}")
        said = {
            "PASS": f"no regression over {100 * self.delta:g} %",
            "FAIL": f"a regression over {100 * self.delta:g} %",
            "INCONCLUSIVE": "not known",
        }[self.status]
        return "\n".join([*lines, f"{self.status} (exit code {self.exit_code}): {self.new} against {self.old}: {said}"])

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values without NaN or infinities."""
        return {**finite(plain(self)), "exit_code": self.exit_code}


def compare_runs(old: RunLike, new: RunLike, *, delta: float = DELTA, allow: Iterable[str] = ()) -> RunComparison:
    """Compare two runs of the same plan.

    delta: largest slow-down of TPOT, E2E or TTFT (and loss of output rate) that is no regression, as a share. allow:
    names of KEYS that may differ. Raises InputError where the runs may not be compared.
    """
    allowed = tuple(sorted(set(allow)))
    unknown = [key for key in allowed if key not in KEYS]
    if unknown:
        raise InputError(f"{', '.join(unknown)} cannot be allowed to differ; known: {', '.join(KEYS)}")
    if not 0.0 < delta < 1.0:
        raise InputError(f"delta must lie between 0 and 1 (0.05 means 5 % slower), got {delta}")
    plans = old.run.get("plan_sha256"), new.run.get("plan_sha256")
    if (plans[0] is None or plans[0] != plans[1]) and "plan" not in allowed:
        raise InputError(
            f"the runs have different plans ({plans[0]} and {plans[1]}); compare runs of one plan or allow `plan`"
        )
    sets = _data_sets(old), _data_sets(new)
    if None not in sets and sets[0] != sets[1] and "prompts" not in allowed:
        raise InputError(
            "the runs used other prompt files (prompts/datasets.json differs), so prompts with one id may have two "
            "texts; measure both on the same files, or say --allow prompts"
        )
    one, two = load_context(old), load_context(new)
    _check_provenance(one, two, allowed)
    ours, theirs = ({g.key: g for g in c.groups} for c in (one, two))
    common = [key for key in ours if key in theirs]
    groups = tuple(_group(one, two, ours[key], theirs[key], delta, allowed) for key in common)
    only = [tuple("/".join(k) for k in a if k not in b) for a, b in ((ours, theirs), (theirs, ours))]
    statuses: list[Status] = [g.status for g in groups]
    if only[0]:  # what the new run did not measure may have regressed
        statuses.append("INCONCLUSIVE")
    return RunComparison(
        str(old.run.get("run_id")),
        str(new.run.get("run_id")),
        worst(statuses),
        delta,
        groups,
        only[0],
        only[1],
        allowed,
    )


def _data_sets(run: RunLike) -> str | None:
    """prompts/datasets.json of a run folder: the hashes of its prompt files; None where there is none."""
    folder = getattr(run, "path", None)
    file = None if folder is None else Path(folder) / "prompts" / "datasets.json"
    return file.read_text(encoding="utf-8") if file is not None and file.is_file() else None


def _check_provenance(one: Context, two: Context, allowed: Sequence[str]) -> None:
    """Every config must have run on the same versions, model and machine in both."""
    for cell in two.cells:
        other = next((c for c in one.cells if c["cell_id"] == cell["cell_id"]), None)
        texts = (None, None) if other is None else (other.get("provenance_equal"), cell.get("provenance_equal"))
        if texts[0] is None or texts[1] is None:
            continue  # not measured, or not known: the pair checks make that group inconclusive
        old, new = json.loads(str(texts[0])), json.loads(str(texts[1]))
        differ = sorted(k for k in {*old, *new} if old.get(k) != new.get(k) and k not in allowed)
        if differ:
            seen = "; ".join(f"{k}: {old.get(k)!r} and {new.get(k)!r}" for k in differ)
            keys = " ".join(f"--allow {k}" for k in differ)
            raise InputError(
                f"{cell['cell_id']}: the runs differ in {seen}. If that is the change under test, say {keys}"
            )


def _group(one: Context, two: Context, old: Group, new: Group, delta: float, allowed: Sequence[str]) -> GroupComparison:
    both = []
    for b, c in paired_cells(old, new):
        means = paired.mean_lengths(one.frame.cell(b["cell_id"]), _renumbered(one, two, c["cell_id"]))
        lengths = (None, None) if means is None else means
        facts_of_new = {**c, "allowed_differences": list(allowed), "mean_output_tokens": lengths[1]}
        both.append(({**b, "mean_output_tokens": lengths[0]}, facts_of_new))
    reasons: dict[str, Reason] = {}
    for b, c in both:
        of_cells = [*one.trust[b["cell_id"]], *two.trust[c["cell_id"]]]
        for reason in [*(r for r, _ in of_cells if r.blocking), *pair_reasons(b, c)]:
            reasons.setdefault(reason.code, reason)
    ratios = {}
    for name in paired.RATIOS:
        pairs = [_pair(one, two, b["cell_id"], c["cell_id"], name) for b, c in both]
        ratios[name] = paired.paired_ratio(name, pairs, CONFIDENCE, one.seed)
    status = worst([_no_worse(name, ratio, delta) for name, ratio in ratios.items()])
    trusted = not any(r.blocking for r in reasons.values())
    if not trusted and (status == "PASS" or any(r.blocking and r.code != "simulated" for r in reasons.values())):
        status = "INCONCLUSIVE"
    words = ", ".join(f"{name} {_interval(ratio)}" for name, ratio in ratios.items())
    facts = new.first
    return GroupComparison(
        facts["config"],
        facts["mix"],
        facts["sampling"],
        facts["load"],
        status,
        ratios["e2e"].n,
        ratios,
        tuple(reasons.values()),
        words,
    )


def _pair(one: Context, two: Context, old_id: str, new_id: str, name: str) -> paired.Pairs:
    return paired.pair(one.frame.cell(old_id), _renumbered(one, two, new_id), name)


def _renumbered(one: Context, two: Context, new_id: str) -> Rows:
    """Rows of a cell of the new run. Prompts are numbered per run, so its numbers are brought to the old run's."""
    names = {prompt: code for code, prompt in enumerate(one.frame.names["prompt_id"])}
    fresh = iter(range(len(names), len(names) + len(two.frame.names["prompt_id"])))
    codes = np.array([names[p] if p in names else next(fresh) for p in two.frame.names["prompt_id"]], dtype=np.int64)
    new = two.frame.cell(new_id)
    keys = two.frame.columns["pair_key"]
    return Rows({**two.frame.columns, "pair_key": codes[keys // TURNS] * TURNS + keys % TURNS}, new.picked)


def _no_worse(name: str, ratio: RatioEstimate, delta: float) -> Status:
    if ratio.lower is None or ratio.upper is None:
        return "INCONCLUSIVE"
    if name == "output_rate":
        floor = 1.0 - delta
        return "PASS" if ratio.lower >= floor else "FAIL" if ratio.upper < floor else "INCONCLUSIVE"
    return "PASS" if ratio.upper <= 1.0 + delta else "FAIL" if ratio.lower > 1.0 + delta else "INCONCLUSIVE"


def _interval(ratio: RatioEstimate) -> str:
    return f"{figure(ratio.estimate, 'times')} [{figure(ratio.lower, 'times')}, {figure(ratio.upper, 'times')}]"
