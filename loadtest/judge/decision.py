"""Deploy, deploy up to a load, or do not deploy: four questions per config, mix and sampling, then one sentence.

A decision never rests on a cell that does not count, and a simulated server or synthetic acceptance can only ever
lead to INCONCLUSIVE or DO NOT DEPLOY; what the figures alone say is kept beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from loadtest.judge.comparisons import CONFIDENCE, SPEEDUP, Compared
from loadtest.judge.context import Context
from loadtest.judge.lossless import OutputCheck
from loadtest.judge.output import Key, lines_of
from loadtest.judge.ratios import acceptance_interval, with_block
from loadtest.judge.select import CellFacts, Group, baseline_of
from loadtest.judge.verdict import Answer, Check, Decision, DecisionKind, Question, RatioEstimate, worst
from loadtest.judge.words import figure

KIND_ORDER = {"closed": 0, "sequential": 1, "constant": 2, "poisson": 3, "ramp": 4, "trace": 5}
"""Order in which kinds of load are spoken of."""
WORTH_VERIFYING = 1.1
"""Tokens per target step from which drafts are worth a look: a verifying step costs at least a plain one, and measured
ones cost 1.1 to 2 times as much."""

QUESTIONS = {
    "output": "Is the output right?",
    "candidates": "Which tasks have candidates worth verifying?",
    "pays": "Does the extra output pay for the extra work?",
    "slo": "Do the SLOs hold at high concurrency?",
}


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What one load says."""

    label: str
    load_kind: str
    pays: Answer
    slo: Answer
    speedup: RatioEstimate | None
    untrusted: tuple[str, ...] = ()
    """Codes of why there is no comparison that counts."""
    broken: tuple[str, ...] = ()
    """Criteria that fail here."""
    open: tuple[str, ...] = ()
    """Criteria that are not decided here."""

    @property
    def good(self) -> Answer:
        """Whether the config may run at this load."""
        if "no" in (self.pays, self.slo):
            return "no"
        return "yes" if (self.pays, self.slo) == ("yes", "yes") else "not known"


def decide_all(
    context: Context,
    compared: Sequence[Compared],
    checks: Sequence[Check],
    has_slo: bool,
    outputs: Mapping[Key, OutputCheck],
) -> list[Decision]:
    """One decision per config with speculation, mix and sampling. outputs: the answers to question 1."""
    decisions = [
        _decide(context, groups, compared, checks if has_slo else (), outputs[key])
        for key, groups in lines_of(context, plain=False).items()
    ]
    return _several(decisions)


def _decide(
    context: Context,
    groups: Sequence[Group],
    compared: Sequence[Compared],
    checks: Sequence[Check],
    output: OutputCheck,
) -> Decision:
    groups = sorted(groups, key=lambda g: (KIND_ORDER.get(g.first["load_kind"], 9), float(g.first["load_value"])))
    facts = groups[0].first
    results = [_at_load(group, compared, checks) for group in groups]
    kind, up_to, because = _figures_say(results, output.answer)
    baselines = [base for group in groups if (base := baseline_of(group, context.groups)) is not None]
    cells = [c for g in (*groups, *baselines) for c in g.cells]
    simulated = any(c["simulated"] is not False for c in cells)
    synthetic = any(c["synthetic_acceptance"] is not False for c in cells)
    decision: DecisionKind = "INCONCLUSIVE" if (simulated or synthetic) and kind != "DO NOT DEPLOY" else kind
    mark = "SIMULATED" if simulated else "SYNTHETIC ACCEPTANCE" if synthetic else ""
    answers = {
        "output": (output.answer, output.evidence),
        "candidates": _candidates(context, groups),
        "pays": _pays(results),
        "slo": _slo(results, groups, checks),
    }
    return Decision(
        config=facts["config"],
        method=facts["method"],
        gamma=facts["gamma"],
        mix=facts["mix"],
        sampling=facts["sampling"],
        decision=decision,
        up_to=up_to if decision == "DEPLOY UP TO" else None,
        sentence=_sentence(facts, decision, kind, up_to, because, mark),
        questions=tuple(Question(key, QUESTIONS[key], *answer) for key, answer in answers.items()),  # type: ignore[arg-type]
        on_these_figures=kind,
        on_these_figures_up_to=up_to,
    )


def _sentence(
    facts: CellFacts, decision: DecisionKind, kind: DecisionKind, up_to: str | None, because: str, mark: str
) -> str:
    name = f"{facts['config']} on {facts['mix']} ({facts['sampling']})"
    said = f"{kind} {up_to}" if up_to else kind
    if decision == kind:
        return f"{name}: {said}{f' ({mark})' if mark else ''}: {because}."
    return f"{name}: {decision} ({mark}: no verdict). The figures alone would say {said}: {because}."


def _at_load(group: Group, compared: Sequence[Compared], checks: Sequence[Check]) -> LoadResult:
    facts = group.first
    found = next(
        (
            o
            for o in compared
            if o.comparison.stratum is None
            and (o.comparison.config, o.comparison.mix, o.comparison.sampling, o.comparison.load) == group.key
        ),
        None,
    )
    speedup = found.comparison.ratios[SPEEDUP] if found is not None and not found.blockers else None
    pays: Answer = "not known"
    if speedup is not None and speedup.lower is not None and speedup.upper is not None:
        pays = "yes" if speedup.lower > 1.0 else "no" if speedup.upper < 1.0 else "not known"
    ids = {c["cell_id"] for c in group.cells}
    here = [c for c in checks if c.gating and c.scope is not None and ids.issuperset(c.scope.cell_ids)]
    slo: Answer = {"PASS": "yes", "FAIL": "no", "INCONCLUSIVE": "not known"}[worst([c.on_these_figures for c in here])]  # type: ignore[assignment]
    return LoadResult(
        label=facts["load"],
        load_kind=facts["load_kind"],
        pays=pays,
        slo=slo,
        speedup=speedup,
        untrusted=tuple(r.code for r in found.blockers) if found is not None else (),
        broken=tuple(dict.fromkeys(c.slo for c in here if c.on_these_figures == "FAIL")),
        open=tuple(dict.fromkeys(c.slo for c in here if c.on_these_figures == "INCONCLUSIVE")),
    )


def _figures_say(results: Sequence[LoadResult], output: Answer) -> tuple[DecisionKind, str | None, str]:
    """(decision, label of the highest load, why). Loads of different kinds have no common order: each by itself."""
    if output == "no":
        return "DO NOT DEPLOY", None, "its output differs from the baseline's by more than two baselines differ"
    said = [_range(list(part), output) for _, part in groupby(results, key=lambda r: r.load_kind)]
    for kind in ("DO NOT DEPLOY", "INCONCLUSIVE"):
        found = next((s for s in said if s[0] == kind), None)
        if found is not None:
            return found[0], None, found[2]
    why = "; ".join(s[2] for s in said)
    if all(s[0] == "DEPLOY" for s in said):
        return "DEPLOY", None, why
    return "DEPLOY UP TO", ", ".join(s[1] for s in said), why


def _range(results: Sequence[LoadResult], output: Answer) -> tuple[DecisionKind, str, str]:
    """(decision, label of the highest good load, why) over rising loads of one kind."""
    good = 0
    while good < len(results) and results[good].good == "yes":
        good += 1
    if good == 0:
        bad = results[0]
        if bad.good == "no":
            return "DO NOT DEPLOY", "", f"already at the lowest load, {bad.label}, {_why(bad)}"
        return "INCONCLUSIVE", "", f"at {bad.label} {_why(bad)}{_certainly_bad(results)}"
    top = results[good - 1].label
    if output != "yes":
        words = f"it pays and keeps its SLOs up to {top}, but whether its output is right is not known"
        return "INCONCLUSIVE", "", words
    if good == len(results):
        return "DEPLOY", top, f"it pays and keeps its SLOs at every load measured, up to {top}"
    return (
        "DEPLOY UP TO",
        top,
        f"it pays and keeps its SLOs up to there; at {results[good].label} {_why(results[good])}",
    )


def _certainly_bad(results: Sequence[LoadResult]) -> str:
    """What is certain although the lowest load is open: from which load on the config must not run."""
    for i, result in enumerate(results):
        if all(r.good == "no" for r in results[i:]):
            return f"; from {result.label} on it must not run: {_why(result)}"
    return ""


def _why(result: LoadResult) -> str:
    """What is against this load: what is certain if anything is, else what is not known."""
    parts = []
    if result.pays == "no":
        parts.append(f"it is slower than the baseline ({_speed(result)})")
    if result.slo == "no":
        parts.append(f"it breaks an SLO ({_names(result.broken)})")
    if not parts and result.pays == "not known":
        parts.append(f"it is not known whether it pays ({_speed(result)})")
    if not parts or (result.slo == "not known" and result.good != "no"):
        parts.append("it is not known whether the SLOs hold" + (f" ({_names(result.open)})" if result.open else ""))
    return " and ".join(parts)


def _names(names: Sequence[str]) -> str:
    """At most two of them, so that the sentence stays short."""
    return ", ".join(names) if len(names) <= 2 else f"{names[0]} and {len(names) - 1} more"


def _speed(result: LoadResult) -> str:
    ratio = result.speedup
    if ratio is None or ratio.estimate is None:
        return "no comparison that counts" + (f": {_names(result.untrusted)}" if result.untrusted else "")
    bounds = f" [{ratio.lower:.2f}, {ratio.upper:.2f}]" if ratio.lower is not None and ratio.upper is not None else ""
    return f"output rate {ratio.estimate:.2f}x{bounds}"


def _pays(results: Sequence[LoadResult]) -> tuple[Answer, str]:
    evidence = "; ".join(f"{r.label}: {_speed(r)}" for r in results)
    answers = [r.pays for r in results]
    if answers[0] == "yes":
        up_to = results[next((i for i, a in enumerate(answers) if a != "yes"), len(answers)) - 1].label
        return "yes", f"up to {up_to}: {evidence}"
    return ("no" if all(a == "no" for a in answers) else answers[0]), evidence


def _slo(results: Sequence[LoadResult], groups: Sequence[Group], checks: Sequence[Check]) -> tuple[Answer, str]:
    if not checks:
        return "not known", "no criterion is configured"
    top = results[-1]
    ids = {c["cell_id"] for c in groups[-1].cells}
    here = [c for c in checks if c.gating and c.scope is not None and ids.issuperset(c.scope.cell_ids)]
    bad = [c for c in here if c.on_these_figures != "PASS"]
    if not here:
        return "not known", f"no criterion selects {top.label}"
    words = "; ".join(f"{c.slo}: {c.reason}" for c in bad[:3]) or f"all {len(here)} checks at {top.label} pass"
    return top.slo, words


def _candidates(context: Context, groups: Sequence[Group]) -> tuple[Answer, str]:
    """Coverage, A/D and tokens per target step by stratum, over all loads: acceptance hardly depends on the load."""
    cells = [c for g in groups for c in g.cells]
    rows = with_block(context.rows(cells))
    if len(rows) == 0:
        told = [c.get("tokens_per_target_step") for c in cells]
        known = [float(t) for t in told if t is not None]
        if not known:
            return "not known", "neither responses nor counters tell about drafts"
        mean = sum(known) / len(known)
        answer: Answer = "yes" if mean >= WORTH_VERIFYING else "no"
        return answer, f"{mean:.2f} tokens per target step from the server's counters, without an interval"
    worth: list[Answer] = []
    parts = []
    for stratum in ("all tasks", *context.frame.strata(rows)):
        part = rows if stratum == "all tasks" else context.frame.in_stratum(rows, stratum)
        steps, rate, coverage = (
            acceptance_interval(part, name, CONFIDENCE, context.seed)
            for name in ("tokens_per_target_step", "draft_acceptance_rate", "coverage")
        )
        sure: Answer = "not known"
        if steps.lower is not None and steps.upper is not None:
            sure = "yes" if steps.lower >= WORTH_VERIFYING else "no" if steps.upper < WORTH_VERIFYING else "not known"
        worth.append(sure)
        parts.append(
            f"{stratum}: {figure(steps.estimate, 'tokens')} tokens per target step, "
            f"A/D {figure(rate.estimate, 'share')}, coverage {figure(coverage.estimate, 'share')}"
        )
    overall: Answer = (
        "yes" if "yes" in worth else "no" if worth[0] == "no" and "not known" not in worth else "not known"
    )
    return overall, "; ".join(parts)


def _several(decisions: list[Decision]) -> list[Decision]:
    """Whoever picks the best of several configs picks its luck as well: say so."""
    out = []
    for one in decisions:
        rivals = [d for d in decisions if (d.mix, d.sampling) == (one.mix, one.sampling)]
        good = [d for d in rivals if d.on_these_figures in ("DEPLOY", "DEPLOY UP TO")]
        if one in good and len(good) > 1:
            words = (
                f" One of {len(good)} that may be deployed: before picking the best, confirm it on a fresh run "
                "(`loadtest confirm`)."
            )
            one = replace(one, sentence=one.sentence + words)
        out.append(one)
    return out
