"""The plan of a confirming run: the best of several configs against its baseline, on fresh draws.

The best of several is partly the luckiest of several, so its figures are too good. A fresh run of that one config, with
another seed and other prompts where there are some, is not chosen and therefore not biased.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from loadtest.errors import InputError
from loadtest.judge.gate import judge_run
from loadtest.judge.orderstats import certify
from loadtest.judge.ratios import seed_of
from loadtest.judge.toml_text import toml_of
from loadtest.judge.verdict import Check, Decision, Verdict
from loadtest.merge.read import RunData
from loadtest.model import Prompt, Slo, from_json
from loadtest.plan.cells import config_specs
from loadtest.plan.estimate import ALLOWED_OVER, DEFAULT_REQUESTS, needed_for
from loadtest.plan.loader import load_plan, plan_from_json
from loadtest.plan.schema import Config, Plan
from loadtest.plan.sweep import swept
from loadtest.plan.units import format_duration

GOOD = ("DEPLOY", "DEPLOY UP TO")
MAX_REQUESTS = 20_000
"""Of one window: beyond it a criterion is so near its limit that a longer window is a decision for a person."""
LUCK = 2.0
"""Standard deviations of bad luck that the number of requests allows for: it certifies in 19 of 20 windows."""
MIN_FRESH = 50
"""Prompts of a data set that must be left over; fewer would be repeated more than old ones would."""
REPEATS = 3


@dataclass(frozen=True, slots=True)
class Choice:
    """What is confirmed."""

    config: str
    loads: frozenset[str]
    """Labels of the loads at which it may be deployed."""
    mixes: frozenset[str]
    why: str


def write_confirm_plan(data: RunData, slos: Sequence[Slo], output: Path, config: str | None = None) -> str:
    """Write the plan and its prompt files beside it; returns what was done, in words.

    config: confirm this one instead of the best. Raises InputError where no config may be deployed on the figures of
    this run, or where a file exists already; nothing is written then.
    """
    if not isinstance(data.run.get("plan"), dict):
        raise InputError(f"{data.path}/run.json holds no plan, so none can be made from it; write one by hand")
    plan = plan_from_json(data.run["plan"], f"{data.path}/run.json")
    verdict = judge_run(data, slos)
    choice = _choose(verdict, config)
    requests, notes = _requests(verdict, slos, choice)
    prompt_files, fresh = _prompt_files(data, plan, choice, output)
    content, dropped = _content(plan, choice, requests, prompt_files, str(data.run.get("plan_sha256", "")))
    head = [
        f"A fresh run to confirm {choice.config}, picked after run {verdict.run_id}: {choice.why}",
        "Figures of a config that was picked as the best of several are too good: judge it by this run alone.",
        *notes,
        *fresh,
        *dropped,
    ]
    body = "".join(f"# {line}\n" for line in head) + "\n" + toml_of(content)
    files = {output: body, **{output.parent / name: text for name, text in prompt_files.texts.items()}}
    taken = [str(path) for path in files if path.exists()]
    if taken:
        raise InputError(f"{', '.join(taken)} exists; give another name with -o, or move it away")
    if not output.parent.is_dir():
        raise InputError(f"{output.parent} is no folder; make it first")
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
    try:
        load_plan(output)
    except InputError:
        for path in files:
            path.unlink()
        raise
    return "\n".join([*head, f"wrote {', '.join(map(str, files))}", f"next: loadtest plan {output}"])


def _choose(verdict: Verdict, config: str | None) -> Choice:
    names = list(dict.fromkeys(d.config for d in verdict.decisions))
    if config is not None:
        if config not in names:
            raise InputError(f"the run decides about no config {config!r}; it has {', '.join(names) or 'none'}")
        mine = [d for d in verdict.decisions if d.config == config]
        loads = frozenset(load for d in mine for load in _loads(verdict, d, anywhere=True))
        return Choice(config, loads, frozenset(d.mix for d in mine), "you asked for it")
    good = {name: [d for d in verdict.decisions if d.config == name and d.on_these_figures in GOOD] for name in names}
    ranked = sorted((name for name in names if good[name]), key=lambda name: _rank(verdict, good[name]), reverse=True)
    if not ranked:
        said = "; ".join(d.sentence for d in verdict.decisions[:3]) or "no config was compared with a baseline"
        raise InputError(f"no config may be deployed on the figures of this run, so none can be confirmed: {said}")
    best = good[ranked[0]]
    loads = frozenset(load for d in best for load in _loads(verdict, d))
    where = ", ".join(
        f"{d.mix} ({d.sampling}) {d.on_these_figures} {d.on_these_figures_up_to or ''}".strip() for d in best
    )
    _, _, speed = _rank(verdict, best)
    why = f"{where}; {math.exp(speed):.2f}x the output rate of the baseline on average"
    if len(ranked) > 1:
        why += f"; ahead of {', '.join(ranked[1:4])} by settings, then loads, then output rate"
    return Choice(ranked[0], loads, frozenset(d.mix for d in best), why)


def _rank(verdict: Verdict, decisions: Sequence[Decision]) -> tuple[int, int, float]:
    """(settings, loads, mean log speed-up) at which the config may be deployed."""
    good = {(d.mix, d.sampling, load) for d in decisions for load in _loads(verdict, d)}
    name = decisions[0].config
    logs = [
        math.log(c.ratios["output_rate"].estimate or 1.0)
        for c in verdict.comparisons
        if c.config == name and c.stratum is None and (c.mix, c.sampling, c.load) in good
    ]
    return len(decisions), len(good), math.fsum(logs) / len(logs) if logs else 0.0


def _loads(verdict: Verdict, decision: Decision, *, anywhere: bool = False) -> list[str]:
    """Labels of the loads of a decision, up to the highest good one of each kind."""
    mine = [
        c for c in verdict.comparisons
        if c.stratum is None and (c.config, c.mix, c.sampling) == (decision.config, decision.mix, decision.sampling)
    ]  # fmt: skip
    if anywhere or decision.on_these_figures == "DEPLOY":
        return [c.load for c in mine]
    tops = [c for c in mine if c.load in (decision.on_these_figures_up_to or "").split(", ")]
    kinds = {_kind(c.load): c.load_value for c in tops}
    return [c.load for c in mine if c.load_value <= kinds.get(_kind(c.load), -math.inf)]


def _kind(label: str) -> str:
    return label.rstrip("0123456789.e+-")


def _requests(verdict: Verdict, slos: Sequence[Slo], choice: Choice) -> tuple[int, list[str]]:
    """(requests of each window, what asks for them)."""
    most, who = DEFAULT_REQUESTS, "the default, enough for a P99 with four over its limit"
    notes = []
    by_name = {slo.name: slo for slo in slos}
    for check in verdict.checks:
        scope = check.scope
        if scope is None or scope.config != choice.config or scope.load not in choice.loads or scope.repeat is None:
            continue
        if check.slo not in by_name:
            continue
        n = _needed(check, by_name[check.slo])
        if n is None:
            note = f"{check.slo} at {scope.load} is so near its limit that {MAX_REQUESTS:,} requests may not decide it"
            if note not in notes:
                notes.append(note)
        elif n > most:
            most, who = n, f"{check.slo} at {scope.load}, {check.over} of {check.n} over its limit in this run"
    most = MAX_REQUESTS if notes else math.ceil(most / 100) * 100
    return most, [f"{most:,} requests in each window: {who}.", *notes]


def _needed(check: Check, slo: Slo) -> int | None:
    """Requests that certify the criterion if its share over the limit stays; None above MAX_REQUESTS.

    Criteria whose need cannot be counted beforehand (ratios, rates, acceptance) take the default, or what the gate
    said was missing.
    """
    least = needed_for(slo, ALLOWED_OVER)
    if least is None:
        return DEFAULT_REQUESTS if check.more is None or check.more_unit != "requests" else check.n + check.more
    allowed = slo.max if slo.metric == "error_rate" else None if slo.min is None else 1.0 - slo.min
    if allowed is None:
        allowed = 1.0 - float(slo.stat.removeprefix("p")) / 100.0
    share, stretch = (check.over or 0) / max(check.n, 1), check.tau or 1.0
    n = least
    while n * stretch <= MAX_REQUESTS:
        over = math.ceil(n * share + LUCK * math.sqrt(n * share * (1.0 - share)))
        if over < n and certify(n, over, 1.0 - allowed, slo.confidence):
            return math.ceil(n * stretch)
        n = math.ceil(n * 1.1)
    return None


@dataclass(frozen=True, slots=True)
class PromptFiles:
    """Prompt files of the new plan: text by name, and which part of which mix uses which."""

    texts: dict[str, str]
    parts: dict[tuple[str, int], str]
    warmups: dict[str, str]


def _prompt_files(data: RunData, plan: Plan, choice: Choice, output: Path) -> tuple[PromptFiles, list[str]]:
    """The prompts of the run, without those that were sent where enough others are left."""
    files, notes = PromptFiles({}, {}, {}), []
    for mix in plan.mix:
        if mix.name not in choice.mixes:
            continue
        rows = data.requests(["prompt_id"], pc.field("mix") == mix.name)
        sent = set(pc.unique(rows["prompt_id"]).to_pylist())
        for index, part in enumerate(mix.parts):
            pool = [p for p in _pool(data.path / "prompts" / f"{mix.name}.jsonl") if p.part == index]
            fresh = [p for p in pool if p.prompt_id not in sent]
            chosen = fresh if len(fresh) >= MIN_FRESH else pool
            name = f"{output.stem}.{mix.name}.{index}.jsonl"
            files.texts[name] = "".join(_line(p) for p in chosen)
            files.parts[mix.name, index] = name
            notes.append(
                f"{part.dataset} in {mix.name}: {len(fresh)} prompts that this run did not send."
                if chosen is fresh
                else f"{part.dataset} in {mix.name}: all {len(pool)} prompts again, only {len(fresh)} were not sent "
                "before; a larger data set would make the confirmation independent of these prompts."
            )
        name = f"{output.stem}.{mix.name}.warmup.jsonl"
        files.texts[name] = "".join(_line(p) for p in _pool(data.path / "prompts" / f"{mix.name}.warmup.jsonl"))
        files.warmups[mix.name] = name
    return files, notes


def _pool(file: Path) -> list[Prompt]:
    try:
        return [from_json(Prompt, json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{file} cannot be read ({error}); the prompts of the run are needed") from error


def _line(prompt: Prompt) -> str:
    row: dict[str, Any] = {
        "id": prompt.prompt_id,
        "stratum": prompt.stratum,
        "messages": [{"role": m.role, "content": m.content} for m in prompt.messages],
        "turns": list(prompt.later_turns) or None,
        "max_tokens": prompt.max_tokens,
        "tests": prompt.unit_tests,
    }
    return json.dumps({k: v for k, v in row.items() if v is not None}, ensure_ascii=False) + "\n"


def _content(
    plan: Plan, choice: Choice, requests: int, files: PromptFiles, plan_sha256: str
) -> tuple[dict[str, Any], list[str]]:
    """(tables of the new plan, notes about criteria that were left out)."""
    configs = [c for c in swept(plan) if c.speculative is None or c.name == choice.config]
    content: dict[str, Any] = plan.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    content.pop("sweep", None)
    content["name"] = f"{plan.name}-confirm"[:64]
    content["seed"] = seed_of(plan_sha256, "confirm", choice.config) % 2**31
    baseline = next((s.name for s in config_specs(plan) if s.is_baseline), None)
    content["config"] = [_config(c, c.name == baseline) for c in configs]
    mixes = []
    for mix in content["mix"]:
        if mix["name"] not in choice.mixes:
            continue
        for index, part in enumerate(mix["parts"]):
            mix["parts"][index] = {
                "dataset": files.parts[mix["name"], index],
                "weight": part.get("weight", 1.0),
                "warmup": files.warmups[mix["name"]],
            }
        mixes.append(mix)
    content["mix"] = mixes
    load = content["load"]
    load["concurrency"] = [c for c in plan.load.concurrency if f"c{c:g}" in choice.loads]
    load["rate"] = [r for r in plan.load.rate if f"{plan.load.arrival}{r:g}" in choice.loads]
    load |= {"measure": {"requests": requests}, "repeats": max(REPEATS, plan.load.repeats)}
    lowest = min([*(c / 2.0 for c in load["concurrency"]), *load["rate"]], default=1.0)
    load["budget"] = format_duration(max(float(plan.load.budget), 2.0 * requests / lowest))
    kept: list[dict[str, Any]] = []
    dropped: list[dict[str, Any]] = []
    for entry, slo in zip(content.get("slo", []), plan.slo, strict=True):
        ours = any(_names(slo.where, c) for c in configs) and fnmatch_any(slo.where.get("mix"), choice.mixes)
        ours = ours and fnmatch_any(slo.where.get("load"), choice.loads)
        (kept if ours else dropped).append(entry)
    content["slo"] = kept
    return content, [f"Left out, since it selects nothing here: {json.dumps(d, ensure_ascii=False)}" for d in dropped]


def _config(config: Config, is_baseline: bool) -> dict[str, Any]:
    table: dict[str, Any] = config.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    table.pop("sweep", None)
    if is_baseline:
        table["baseline"] = True
    return table


def _names(where: dict[str, str], config: Config) -> bool:
    method = "none" if config.speculative is None else str(config.speculative["method"])
    return fnmatch_any(where.get("config"), [config.name]) and fnmatch_any(where.get("method"), [method])


def fnmatch_any(glob: str | None, names: Sequence[str] | frozenset[str]) -> bool:
    """Whether a selector (None = everything) matches one of the names."""
    return glob is None or any(fnmatchcase(name, glob) for name in names)
