"""Deploy, deploy up to a load, or do not deploy: four questions per config, mix and sampling, then one sentence.

A decision never rests on a cell that does not count, and a simulated server or synthetic acceptance can only ever
lead to INCONCLUSIVE or DO NOT DEPLOY; what the figures alone say is kept beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadtest.judge.comparisons import CONFIDENCE, SPEEDUP, Compared, blockers, trusted_figures
from loadtest.judge.context import Context
from loadtest.judge.frame import Bools
from loadtest.judge.lossless import OutputCheck, Outputs, check_outputs
from loadtest.judge.ratios import acceptance_interval, with_block
from loadtest.judge.select import Group, baseline_of, paired_cells
from loadtest.judge.verdict import Answer, Check, Decision, DecisionKind, Question, RatioEstimate, worst
from loadtest.judge.words import figure

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
    load: float
    pays: Answer
    slo: Answer
    speedup: RatioEstimate | None
    untrusted: str = ""
    """Why there is no comparison that counts."""

    @property
    def good(self) -> Answer:
        """Whether the config may run at this load."""
        if "no" in (self.pays, self.slo):
            return "no"
        return "yes" if (self.pays, self.slo) == ("yes", "yes") else "not known"


def decide_all(
    context: Context, compared: Sequence[Compared], checks: Sequence[Check], has_slo: bool
) -> list[Decision]:
    """One decision per config that is no baseline, mix and sampling."""
    lines: dict[tuple[str, str, str], list[Group]] = {}
    for group in context.groups:
        if not group.first["is_baseline"]:
            lines.setdefault((group.first["config"], group.first["mix"], group.first["sampling"]), []).append(group)
    outputs = Outputs(context.data, context.cells)
    answers = {key: _output(context, outputs, groups) for key, groups in lines.items()}
    decisions = []
    for key, groups in lines.items():
        output = answers[key]
        if (groups[0].first.get("temperature") or 0.0) > 0.0:
            output = _greedy_answer(key, lines, answers)
        decisions.append(_decide(context, groups, compared, checks if has_slo else (), output))
    return _several(decisions)


def _output(context: Context, outputs: Outputs, groups: Sequence[Group]) -> OutputCheck:
    """All loads together: equal texts do not get more equal with the load, and noise needs many prompts."""
    same, noise = [], []
    for group in groups:
        base = baseline_of(group, context.groups)
        if base is None:
            continue
        others = [g for g in context.groups if g is not base and g.first["is_baseline"] and g.key[1:] == base.key[1:]]
        for b, c in paired_cells(base, group):
            same.append(outputs.matches(b, c))
            noise += [outputs.matches(b, o) for g in others for o in g.cells if o["repeat"] == b["repeat"]]
    return check_outputs(_joined(same), _joined(noise), CONFIDENCE, context.seed)


def _joined(parts: Sequence[Bools]) -> Bools:
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.bool_)


def _greedy_answer(
    key: tuple[str, str, str],
    lines: dict[tuple[str, str, str], list[Group]],
    answers: dict[tuple[str, str, str], OutputCheck],
) -> OutputCheck:
    """Sampled outputs differ by chance, so the answer is that of a greedy sampling of the same config and mix."""
    for (config, mix, sampling), groups in lines.items():
        if (config, mix) == key[:2] and groups[0].first.get("temperature") == 0.0:
            found = answers[config, mix, sampling]
            return OutputCheck(found.answer, f"checked at temperature 0 ({sampling}): {found.evidence}")
    return OutputCheck(
        "not known", "sampled outputs differ by chance; add a sampling with temperature 0 to check equality"
    )


def _decide(
    context: Context,
    groups: Sequence[Group],
    compared: Sequence[Compared],
    checks: Sequence[Check],
    output: OutputCheck,
) -> Decision:
    groups = sorted(groups, key=lambda g: float(g.first["load_value"]))
    facts = groups[0].first
    results = [_at_load(group, compared, checks) for group in groups]
    kind, up_to, because = _figures_say(results, output.answer)
    real = all(c["simulated"] is False and c["synthetic_acceptance"] is False for g in groups for c in g.cells)
    decision: DecisionKind = kind if real or kind == "DO NOT DEPLOY" else "INCONCLUSIVE"
    name = f"{facts['config']} on {facts['mix']} ({facts['sampling']})"
    said = f"{kind} {up_to}" if up_to else kind
    if real:
        sentence = f"{name}: {said}: {because}."
    else:
        mark = (
            "SIMULATED" if any(c["simulated"] is not False for g in groups for c in g.cells) else "SYNTHETIC ACCEPTANCE"
        )
        sentence = f"{name}: {decision} ({mark}): on these figures {said}: {because}."
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
        sentence=sentence,
        questions=tuple(Question(key, QUESTIONS[key], *answer) for key, answer in answers.items()),  # type: ignore[arg-type]
        on_these_figures=kind,
        on_these_figures_up_to=up_to,
    )


def _at_load(group: Group, compared: Sequence[Compared], checks: Sequence[Check]) -> LoadResult:
    facts = group.first
    found = next(
        (
            o.comparison
            for o in compared
            if o.comparison.stratum is None
            and (o.comparison.config, o.comparison.mix, o.comparison.sampling, o.comparison.load) == group.key
        ),
        None,
    )
    speedup = found.ratios[SPEEDUP] if found is not None and trusted_figures(found) else None
    pays: Answer = "not known"
    if speedup is not None and speedup.lower is not None and speedup.upper is not None:
        pays = "yes" if speedup.lower > 1.0 else "no" if speedup.upper < 1.0 else "not known"
    ids = {c["cell_id"] for c in group.cells}
    here = [c.on_these_figures for c in checks if c.gating and c.scope is not None and ids.issuperset(c.scope.cell_ids)]
    slo: Answer = {"PASS": "yes", "FAIL": "no", "INCONCLUSIVE": "not known"}[worst(here)]  # type: ignore[assignment]
    untrusted = "" if found is None else "; ".join(f"{r.code}: {r.seen}" for r in blockers(found)[:2])
    return LoadResult(facts["load"], float(facts["load_value"]), pays, slo, speedup, untrusted)


def _figures_say(results: Sequence[LoadResult], output: Answer) -> tuple[DecisionKind, str | None, str]:
    """(decision, label of the highest load, why)."""
    if output == "no":
        return "DO NOT DEPLOY", None, "its output differs from the baseline's by more than two baselines differ"
    good = 0
    while good < len(results) and results[good].good == "yes":
        good += 1
    first_bad = results[good] if good < len(results) else None
    if good == 0 and first_bad is not None and first_bad.good == "no":
        return "DO NOT DEPLOY", None, _why(first_bad) + " already at the lowest load"
    if good == 0:
        why = _why(first_bad) if first_bad is not None else "nothing was measured"
        return "INCONCLUSIVE", None, why
    if output != "yes":
        return (
            "INCONCLUSIVE",
            None,
            f"it pays and keeps its SLOs up to {results[good - 1].label}, but whether its output is right is not known",
        )
    if first_bad is None:
        return "DEPLOY", None, f"it pays and keeps its SLOs at every load measured, up to {results[-1].label}"
    return "DEPLOY UP TO", results[good - 1].label, f"it pays and keeps its SLOs up to there; {_why(first_bad)}"


def _why(result: LoadResult) -> str:
    parts = []
    if result.pays == "no":
        parts.append(f"at {result.label} it is slower than the baseline ({_speed(result)})")
    elif result.pays == "not known":
        parts.append(f"at {result.label} it is not known whether it pays ({_speed(result)})")
    if result.slo == "no":
        parts.append(f"at {result.label} it breaks an SLO")
    elif result.slo == "not known":
        parts.append(f"at {result.label} it is not known whether the SLOs hold")
    return " and ".join(parts)


def _speed(result: LoadResult) -> str:
    ratio = result.speedup
    if ratio is None or ratio.estimate is None:
        return "no comparison that counts" + (f": {result.untrusted}" if result.untrusted else "")
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
                f" It is one of {len(good)} that may be deployed: before picking the best, confirm it on a fresh run "
                "with other prompts and another seed."
            )
            one = replace(one, sentence=one.sentence + words)
        out.append(one)
    return out
