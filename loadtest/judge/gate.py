"""The gate: every criterion in every cell it selects, each repeat by itself and the repeats pooled.

A criterion passes where every repeat and the pool pass. Deciding a go over many cells at one level each needs no
correction (an intersection-union test): the whole passes wrongly at most as often as a single check does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import loadtest
from loadtest.judge.comparable import RUN_REASONS
from loadtest.judge.comparisons import compare_all, crossovers
from loadtest.judge.context import NOT_REAL, Context, load_context
from loadtest.judge.criteria import claim_of, limit_of
from loadtest.judge.decision import decide_all
from loadtest.judge.frame import RunLike
from loadtest.judge.output import all_unit_tests, output_answers
from loadtest.judge.profile import profiles
from loadtest.judge.select import CellFacts, Group, is_plain, names_baseline, selects
from loadtest.judge.verdict import CellTrust, Check, Decision, Reason, Scope, Status, Verdict, worst
from loadtest.model import Slo
from loadtest.plan.estimate import IMPLICIT_ERRORS
from loadtest.plan.metrics import METRICS, Metric

IMPLICIT_ERROR_BUDGET = IMPLICIT_ERRORS
"""Share of failed requests allowed where no criterion on error_rate selects a cell: fast rejects must not look fast.
It equals the share that a P99 limit leaves over."""
IMPLICIT_NAME = "error_rate <= 1% (implicit)"


def implicit_slo() -> Slo:
    """The error budget that holds where none is configured."""
    return Slo(name=IMPLICIT_NAME, metric="error_rate", stat="rate", max=IMPLICIT_ERROR_BUDGET)


def judge_run(data: RunLike, slos: Sequence[Slo]) -> Verdict:
    """Judge a merged run (see `frame.RunLike`) against the criteria. Same input, same verdict."""
    context = load_context(data)
    checks = [check for slo in slos for check in judge_slo(context, slo)]
    # A budget for one stratum leaves the failures of the others unlooked at, so it does not replace the implicit one.
    budgets = [c.scope for c in checks if c.metric == "error_rate" and c.scope is not None and c.scope.stratum is None]
    covered = {cell_id for scope in budgets for cell_id in scope.cell_ids}
    for group in context.groups:
        if not covered.issuperset(c["cell_id"] for c in group.cells):
            checks += _checks_of(context, implicit_slo(), group, None, implicit=True)
    compared = compare_all(context)
    tested = all_unit_tests(context)
    decisions = decide_all(context, compared, checks, bool(slos), output_answers(context, tested))
    reasons = _run_reasons(context, slos)
    simulated = any(c["simulated"] is not False for c in context.cells)
    synthetic = any(c["synthetic_acceptance"] is not False for c in context.cells)
    status = worst([c.status for c in checks if c.gating] + ["INCONCLUSIVE" for _ in reasons])
    if simulated or synthetic:
        status = worst([status, "INCONCLUSIVE"])
    return Verdict(
        run_id=str(context.run.get("run_id", "")),
        plan_sha256=str(context.run.get("plan_sha256", "")),
        tool_version=loadtest.__version__,
        status=status,
        sentence=_sentence(status, checks, reasons, simulated, synthetic) + _not_deployed(status, decisions),
        simulated=simulated,
        synthetic_acceptance=synthetic,
        checks=tuple(checks),
        cells=tuple(_cell_trust(context, cell) for cell in context.cells),
        comparisons=tuple(c.comparison for c in compared),
        crossovers=tuple(crossovers(compared)),
        decisions=tuple(decisions),
        profiles=tuple(profiles(context)),
        unit_tests=tuple(tested),
        reasons=reasons,
    )


def judge_slo(context: Context, slo: Slo) -> list[Check]:
    """The checks of one criterion; one INCONCLUSIVE check without a scope where it selects nothing."""
    metric = METRICS[slo.metric]
    chosen = [g for g in context.groups if selects(slo, g) and applies(metric, slo, g)]
    checks = []
    for group in chosen:
        for stratum in _strata(context, slo, group):
            checks += _checks_of(context, slo, group, stratum)
    if any(check.gating for check in checks):
        return checks
    where = ", ".join(f"{k}={v}" for k, v in slo.where.items()) or "no selector"
    words = f"selects no cell that can be judged ({where}); correct `where` or measure such a cell"
    return [*checks, _check(slo, metric, None, "INCONCLUSIVE", words)]


def applies(metric: Metric, slo: Slo, group: Group) -> bool:
    """Whether a criterion means this group at all: a baseline has no acceptance and no baseline of its own."""
    if not is_plain(group.first):
        return True
    return not ("pooled" in metric.stats or slo.stat == "median_ratio_to_baseline")


def _strata(context: Context, slo: Slo, group: Group) -> Sequence[str | None]:
    """[None] for all requests together; with a stratum selector each stratum that matches, by itself."""
    glob = slo.where.get("stratum")
    return [None] if glob is None else context.matching_strata(group, glob)


def _checks_of(context: Context, slo: Slo, group: Group, stratum: str | None, *, implicit: bool = False) -> list[Check]:
    scopes: list[tuple[CellFacts, ...]] = [(cell,) for cell in group.cells]
    if len(group.cells) > 1:
        scopes.append(group.cells)
    gating = not is_plain(group.first) or names_baseline(slo, group) or context.only_baselines
    return [_judge(context, slo, group, cells, stratum, gating=gating, implicit=implicit) for cells in scopes]


def _judge(
    context: Context,
    slo: Slo,
    group: Group,
    cells: tuple[CellFacts, ...],
    stratum: str | None,
    *,
    gating: bool,
    implicit: bool,
) -> Check:
    metric = METRICS[slo.metric]
    claim = claim_of(context, slo, group, cells, stratum)
    taint = context.taint_of(slo)
    status, reason = _with_trust(context, cells, taint, claim.status, claim.reason)
    on_figures, _ = _with_trust(context, cells, taint, claim.status, claim.reason, real=False)
    fields = {f.name: getattr(claim, f.name) for f in dataclasses.fields(claim) if f.name not in ("status", "reason")}
    scope = group.scope(cells, stratum)
    return _check(
        slo,
        metric,
        scope,
        status,
        reason,
        on_these_figures=on_figures,
        gating=gating,
        implicit=implicit,
        **fields,
    )


def _with_trust(
    context: Context, cells: Sequence[CellFacts], group: str, status: Status, reason: str, *, real: bool = True
) -> tuple[Status, str]:
    """A PASS needs trust; a FAIL stands unless a fault could have caused it. real=False looks past simulation."""
    past = () if real else NOT_REAL
    blocking = [
        (r, taints)
        for cell in cells
        for r, taints in context.trust[cell["cell_id"]]
        if r.blocking and r.code not in past
    ]
    if not blocking or status == "INCONCLUSIVE":
        first = f"{blocking[0][0].code}: {blocking[0][0].seen}; " if blocking else ""
        return status, first + reason
    if status == "FAIL" and not any(group in taints for _, taints in blocking):
        return status, reason
    relevant = next((r for r, taints in blocking if group in taints), blocking[0][0])
    return "INCONCLUSIVE", f"{relevant.code}: {relevant.seen}; otherwise {status}: {reason}"


def _check(slo: Slo, metric: Metric, scope: Scope | None, status: Status, reason: str, **rest: Any) -> Check:
    unit = "times" if slo.stat == "median_ratio_to_baseline" else metric.unit
    return Check(
        slo=slo.name, metric=slo.metric, stat=slo.stat, unit=unit, direction=metric.direction,
        limit=limit_of(slo, metric), confidence=slo.confidence, status=status, reason=reason, scope=scope, **rest,
    )  # fmt: skip


def _cell_trust(context: Context, cell: CellFacts) -> CellTrust:
    reasons = tuple(reason for reason, _ in context.trust[cell["cell_id"]])
    return CellTrust(cell["cell_id"], cell["config"], cell["state"], not any(r.blocking for r in reasons), reasons)


def _run_reasons(context: Context, slos: Sequence[Slo]) -> tuple[Reason, ...]:
    found = []
    if not slos:
        found.append(RUN_REASONS["no_slo"])
    if not context.cells:
        found.append(RUN_REASONS["no_cells"])
    return tuple(found)


def _sentence(
    status: Status, checks: Sequence[Check], reasons: Sequence[Reason], simulated: bool, synthetic: bool
) -> str:
    gating = [c for c in checks if c.gating]
    counts = {s: sum(c.status == s for c in gating) for s in ("PASS", "FAIL", "INCONCLUSIVE")}
    words = ", ".join(f"{n} {s.lower()}" for s, n in counts.items())
    text = f"{status}: of {len(gating)} checks {words}"
    worst_check = next((c for c in gating if c.status == status and status != "PASS"), None)
    if worst_check is not None:
        where = f" in {worst_check.scope.cell_ids[0]}" if worst_check.scope else ""
        text += f"; first: {worst_check.slo}{where}: {worst_check.reason}"
    for reason in reasons:
        text += f"; {reason.seen}"
    marks = [word for word, on in (("SIMULATED", simulated), ("SYNTHETIC ACCEPTANCE", synthetic)) if on]
    return f"{' and '.join(marks)}: no deploy verdict. {text}" if marks else text


def _not_deployed(status: Status, decisions: Sequence[Decision]) -> str:
    """A PASS says that the criteria hold; what the comparison with the baseline says must not be overlooked."""
    if status != "PASS":
        return ""
    short = [f"{d.config} on {d.mix} ({d.sampling}): {d.decision} {d.up_to or ''}".strip() for d in decisions]
    return "".join(f"; {text}" for text in short if not text.endswith(": DEPLOY"))
