"""summary.md: the verdict in words, the decision per config, the table the field uses, and why cells do not count.

Bounded: a line per criterion and config with its worst check; verdict.json has every check.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loadtest.judge.verdict import Verdict
from loadtest.report import results
from loadtest.report.criteria import (
    bounds_text,
    by_criterion_and_config,
    estimate_text,
    limit_text,
    n_text,
    scope_text,
)
from loadtest.report.tables import Row
from loadtest.report.units import printable, shorten

SIMULATED = (
    "**SIMULATED**: made with the simulated server. It checks the process; it says nothing about any real server."
)
SYNTHETIC = (
    "**SYNTHETIC ACCEPTANCE**: the server was told which drafts to accept. No figure here may decide a deployment."
)
BUNDLED = (
    "Figures on the bundled sample prompts check the process; "
    "a verdict for a business needs its own, larger prompt set."
)
MAX_RESULTS, MAX_CRITERIA, MAX_SEEN = 300, 100, 3
"""Lines of each table at most: what a person still scrolls through; the rest is in verdict.json and Parquet."""
MAX_TEXT = 240
"""Characters of a reason at most; the whole sentence is in verdict.json."""


def render(run: dict[str, Any], rows: Sequence[Row], verdict: Verdict) -> bytes:
    """The whole page as UTF-8 Markdown."""
    lines = [f"# {'SIMULATED ' if verdict.simulated else ''}{verdict.status}: {verdict.run_id}", ""]
    lines += [s for s in banners(verdict) for s in (s, "")]
    lines += [cell(verdict.sentence), ""]
    lines += _decisions(verdict)
    lines += _results(rows, verdict)
    lines += _criteria(verdict)
    lines += _reasons(verdict)
    lines += ["## Where this comes from", "", *_origin(run), ""]
    return "\n".join(lines).encode()


def banners(verdict: Verdict) -> list[str]:
    """What must be said above everything else."""
    return ([SIMULATED] if verdict.simulated else []) + ([SYNTHETIC] if verdict.synthetic_acceptance else [])


def cell(text: str) -> str:
    """Text that cannot break out of a Markdown table cell or start an HTML element."""
    return printable(text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;"))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    return [
        "| " + " | ".join(header) + " |",
        "|" + "---|" * len(header),
        *("| " + " | ".join(cell(c) for c in row) + " |" for row in rows),
    ]


def _results(rows: Sequence[Row], verdict: Verdict) -> list[str]:
    quality = results.quality_of(verdict)
    shown = [results.cells(r, results.quality_cell(r, quality)) for r in rows[:MAX_RESULTS]]
    lines = ["## Results by data set and scheme", "", results.NOTE, "", *table(results.HEADER, shown)]
    lines += ["", *(f"* {cell(loads)}: {what}" for loads, what in results.load_kinds(rows))]
    if len(rows) > MAX_RESULTS:
        lines += ["", f"{len(rows) - MAX_RESULTS} more lines in report.html."]
    missing = results.unmeasured(rows)
    if missing:
        lines += ["", "Why not measured:", ""]
        lines += [f"* {cell(where)}: {cell(shorten(why, MAX_TEXT))}" for where, why in missing]
    return [*lines, ""]


def _decisions(verdict: Verdict) -> list[str]:
    if not verdict.decisions:
        return []
    rows = []
    for d in verdict.decisions:
        answers: dict[str, str] = {q.key: q.answer for q in d.questions}
        words = [answers.get(k, "not known") for k in ("output", "candidates", "pays", "slo")]
        label = d.decision + (f" {d.up_to}" if d.up_to else "")
        if d.on_these_figures != d.decision:
            up_to = f" {d.on_these_figures_up_to}" if d.on_these_figures_up_to else ""
            label += f" (no verdict; figures alone: {d.on_these_figures}{up_to})"
        rows.append([d.config, d.mix, d.sampling, label, *words, shorten(d.sentence, 2 * MAX_TEXT)])
    header = ("config", "mix", "sampling", "decision", *results.QUESTIONS, "in words")
    return ["## Decision for each config", "", *table(header, rows), ""]


def _criteria(verdict: Verdict) -> list[str]:
    lines = ["## Criteria", ""]
    groups = by_criterion_and_config(verdict.checks)
    if not groups:
        return [*lines, "No criterion was given, so nothing can pass.", ""]
    rows = [
        [
            g.worst.status,
            g.slo,
            " / ".join(str(g.count(s)) for s in ("PASS", "FAIL", "INCONCLUSIVE")),
            scope_text(g.worst),
            limit_text(g.worst),
            estimate_text(g.worst),
            bounds_text(g.worst),
            n_text(g.worst),
            shorten(g.worst.reason, MAX_TEXT),
        ]
        for g in groups[:MAX_CRITERIA]
    ]
    header = (
        "status",
        "criterion",
        "pass / fail / inconclusive",
        "worst at",
        "limit",
        "estimate",
        "bounds",
        "n",
        "why",
    )
    lines += [
        "One line per criterion and config, worst first, with the figures of its worst check.",
        "",
        *table(header, rows),
    ]
    if len(groups) > MAX_CRITERIA:
        lines += ["", f"{len(groups) - MAX_CRITERIA} more lines in report.html."]
    return [*lines, "", f"All {len(verdict.checks)} checks are in verdict.json.", ""]


def _reasons(verdict: Verdict) -> list[str]:
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for r in verdict.reasons:
        grouped.setdefault((r.code, r.why, r.do), []).append(f"the run: {r.seen} (limit: {r.limit})")
    for c in verdict.cells:
        for r in c.reasons:
            grouped.setdefault((r.code, r.why, r.do), []).append(f"{c.cell_id}: {r.seen} (limit: {r.limit})")
    if not grouped:
        return []
    trusted = sum(c.trusted for c in verdict.cells)
    lines = ["## What to know before trusting the figures", "", f"{trusted} of {len(verdict.cells)} cells count.", ""]
    for (code, why, do), seen in grouped.items():
        lines.append(f"* **{code}** ({len(seen)}): {cell(why)} {cell(do)}")
        lines += [f"  * {cell(shorten(s, MAX_TEXT))}" for s in seen[:MAX_SEEN]]
        if len(seen) > MAX_SEEN:
            lines.append(f"  * and {len(seen) - MAX_SEEN} more in verdict.json")
    return [*lines, ""]


def _origin(run: dict[str, Any]) -> list[str]:
    host = run.get("host") or {}
    cores, python = host.get("cores") or "unknown", host.get("python") or "unknown"
    return [
        f"* run `{run['run_id']}`, plan sha256 `{run['plan_sha256']}`, loadtest {run['tool_version']}",
        f"* load from {host.get('cpu') or 'an unnamed CPU'}, {cores} cores, Python {python}",
        f"* {BUNDLED}",
        "* recompute: `loadtest merge RUN` from raw files, `loadtest gate RUN` from Parquet, or SQL over `requests/`",
    ]
