"""Checks over a whole plan: names, data sets, baseline, selectors. They need every table, so they come last."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from loadtest.errors import LoadtestError
from loadtest.plan.loads import load_points
from loadtest.plan.methods import KNOWN_METHODS, unknown_parameters
from loadtest.plan.places import dataset_places, find_dataset
from loadtest.plan.problems import Loc, Problem
from loadtest.plan.schema import Plan
from loadtest.plan.slo import did_you_mean
from loadtest.plan.sweep import SweepError, swept

Entries = dict[str, list[tuple[int, Any]]]
"""List table -> (place in the file, entry) of its sound entries."""


def entry_checks(entries: Entries, folder: Path | None) -> list[Problem]:
    """Names that clash and data sets that are not there: needs only entries that are sound on their own."""
    return _unique_names(entries) + _datasets(entries, folder)


def plan_checks(plan: Plan) -> list[Problem]:
    """What only a whole plan can show: baseline, sweep, selectors that match nothing."""
    return _baselines(plan) + _caches(plan) + _sweep(plan) + _trace(plan) + _slos(plan)


AUTO_REPEATS = 3
"""Repeats from which early ends keep their error under bursts of eight: docs/method.md has the simulated figures."""


def warnings_of(plan: Plan) -> list[str]:
    """What is allowed but deserves a second look."""
    found = []
    for config in plan.config:
        method = (config.speculative or {}).get("method", "ngram")
        if method not in KNOWN_METHODS:
            hint = did_you_mean(method, KNOWN_METHODS)
            found.append(f'config "{config.name}": method "{method}" is not known here{hint} vLLM will decide')
        if config.sim is None and config.speculative is not None:
            found += [f'config "{config.name}": {text}' for text in unknown_parameters(config.speculative)]
    if not plan.slo:
        found.append("no [[slo]]: the run measures, but nothing can pass or fail")
    if all(config.speculative is not None for config in plan.config):
        found.append("no baseline: nothing can be compared, so no config can be cleared for deployment")
    if plan.load.measure.auto and plan.load.repeats < AUTO_REPEATS:
        found.append(
            f'load.measure = "auto" with {plan.load.repeats} repeat(s): where slow requests come in bursts, one early '
            f"end passes wrongly far more often than asked; set load.repeats = {AUTO_REPEATS}, each has to pass"
        )
    if any(config.sim is not None for config in plan.config):
        found.append("simulated servers: every result will say SIMULATED and none can be a deploy verdict")
    return found


def _unique_names(entries: Entries) -> list[Problem]:
    problems = []
    for table in ("config", "mix", "sampling"):
        seen: dict[str, str] = {}
        for place, entry in entries[table]:
            # Folded, because folders of some systems do not tell "A" from "a".
            folded = entry.name.lower()
            if folded in seen:
                text = f'"{entry.name}" is already the name of another {table} ("{seen[folded]}"); names must differ'
                problems.append(Problem((table, place, "name"), text))
            seen.setdefault(folded, entry.name)
    names: dict[str, int] = {}
    for place, slo in entries["slo"]:
        name = slo.to_slo().name
        if name in names:
            text = f'"{name}" is already criterion [{names[name]}]; remove one or give it a `name`'
            problems.append(Problem(("slo", place), text))
        names.setdefault(name, place)
    return problems


def _datasets(entries: Entries, folder: Path | None) -> list[Problem]:
    problems = []
    for place, mix in entries["mix"]:
        for index, part in enumerate(mix.parts):
            for key, name in (("dataset", part.dataset), ("warmup", part.warmup)):
                if name is not None and find_dataset(name, folder) is None:
                    looked = ", ".join(str(path) for path in dataset_places(name, folder))
                    text = f'"{name}" not found; looked at {looked}'
                    problems.append(Problem(("mix", place, "parts", index, key), text))
    return problems


def _baselines(plan: Plan) -> list[Problem]:
    plain = [config for config in plan.config if config.speculative is None]
    marked = [config for config in plain if config.baseline]
    relative = [i for i, slo in enumerate(plan.slo) if slo.is_relative]
    if not plain and relative:
        text = "compares with the baseline, but every config has `speculative`; add a [[config]] without it"
        return [Problem(("slo", i), text) for i in relative]
    if len(marked) > 1:
        names = ", ".join(f'"{config.name}"' for config in marked)
        return [Problem(("config",), f"baseline = true stands on {names}; mark exactly one")]
    if len(plain) > 1 and not marked:
        names = ", ".join(f'"{config.name}"' for config in plain)
        return [Problem(("config",), f"{names} have no `speculative`; mark the one to compare with: baseline = true")]
    if len(plain) == 1 and plain[0].baseline is False:
        return [
            Problem(("config",), f'"{plain[0].name}" is the only config without `speculative`, yet baseline = false')
        ]
    return []


def _caches(plan: Plan) -> list[Problem]:
    """Only a server that we start can be started again."""
    problems = []
    for index, config in enumerate(plan.config):
        suffix = (config.speculative or {}).get("method") == "suffix" and plan.cache.suffix == "fresh"
        if config.all_urls and (plan.cache.prefix == "restart" or suffix):
            key = "suffix" if suffix else "prefix"
            text = f'cache.{key} = "{getattr(plan.cache, key)}" restarts the server, but this one is only attached to'
            problems.append(Problem(("config", index), text))
    return problems


def _sweep(plan: Plan) -> list[Problem]:
    try:
        swept(plan)
    except SweepError as error:
        return [Problem(error.loc, str(error))]
    return []


def _slos(plan: Plan) -> list[Problem]:
    """A selector that matches nothing would never fail: an error, not a pass."""
    if _sweep(plan):
        return []
    configs = swept(plan)
    try:
        loads = [point.label for point in load_points(plan)]
    except LoadtestError:  # told by _trace
        return []
    known = {
        "config": [config.name for config in configs],
        "method": [str((config.speculative or {"method": "none"})["method"]) for config in configs],
        "mix": [mix.name for mix in plan.mix],
        "sampling": [sampling.name for sampling in plan.sampling],
        "load": loads,
    }
    problems = []
    for index, slo in enumerate(plan.slo):
        for key, glob in slo.where.items():
            values = list(dict.fromkeys(known.get(key, [])))
            if values and not any(fnmatchcase(value, glob) for value in values):
                loc: Loc = ("slo", index, "where", key)
                hint = did_you_mean(glob, values)
                problems.append(Problem(loc, f'"{glob}" matches nothing{hint} Known: {", ".join(values)}'))
    return problems


def _trace(plan: Plan) -> list[Problem]:
    try:
        load_points(plan)
    except LoadtestError as error:
        return [Problem(("load", "trace", "file"), str(error))]
    return []
