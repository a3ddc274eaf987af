"""The verdict for a person at a terminal or in a CI log: about a screen, the verdict last."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from loadtest.judge.verdict import Verdict
from loadtest.merge.read import RunData
from loadtest.model import NOT_MEASURED
from loadtest.report import results
from loadtest.report.criteria import by_criterion, estimate_text
from loadtest.report.tables import Row
from loadtest.report.units import DAGGER_NOTE, printable

PIPED_WIDTH = 120
"""Columns where nobody tells: what CI logs show without wrapping."""
LEAST_WIDTH = 80
LEAST_COLUMN, GAP = 12, 2
MAX_ROWS, MAX_DECISIONS = 40, 12
"""Lines of a table at most, so that the verdict of a large run still fits a screen or two."""
MAX_CODES = 5
"""Names of reasons in one line."""

SHOWN = ("A/D", "1+A/S", "coverage", "E2E p50", "output tok/s", "TTFT p99", "TPOT p99")
"""Figures of the results table that a terminal has room for."""
STYLES = {"PASS": "green", "FAIL": "red", "INCONCLUSIVE": "yellow"}


def terminal_text(data: RunData, verdict: Verdict, rows: Sequence[Row]) -> str:
    """The text, with colours only where standard output is a terminal."""
    terminal = sys.stdout.isatty()
    width = max(LEAST_WIDTH, Console().width) if terminal else PIPED_WIDTH
    console = Console(width=width, highlight=False, force_terminal=terminal, soft_wrap=False)
    with console.capture() as captured:
        if verdict.simulated:
            console.print(
                "SIMULATED: made with the simulated server; it says nothing about a real one.", style="bold yellow"
            )
        if verdict.synthetic_acceptance:
            console.print("SYNTHETIC ACCEPTANCE: no figure here may decide a deployment.", style="bold yellow")
        _results(console, rows)
        _decisions(console, verdict)
        _criteria(console, verdict)
        _trust(console, verdict)
        console.print()
        line = f"{verdict.status} (exit code {verdict.exit_code}): {verdict.sentence}"
        console.print(_text(line, f"bold {STYLES[verdict.status]}"))
        console.print(_text(f"report: {data.path / 'report.html'}"), soft_wrap=True)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()).strip()


def _text(text: str, style: str = "") -> Text:
    return Text(printable(text), style=style)


def _table(console: Console, header: Sequence[str], lines: Sequence[Sequence[str | Text]], flexible: int) -> None:
    """One line per row, no frame. Where room is short only the column `flexible` is cut, never a figure."""
    rows = [[c if isinstance(c, Text) else _text(c) for c in line] for line in lines]
    widths = [max(cell_len(name), *(r[i].cell_len for r in rows)) for i, name in enumerate(header)]
    excess = sum(widths) + GAP * (len(widths) - 1) - console.width
    widths[flexible] = max(min(widths[flexible], LEAST_COLUMN), widths[flexible] - max(0, excess))
    for row in ([Text(name, style="bold underline") for name in header], *rows):
        for cell, width in zip(row, widths, strict=True):
            cell.truncate(width, overflow="ellipsis", pad=True)
        line = Text(" " * GAP).join(row)
        line.rstrip()
        console.print(line, no_wrap=True, overflow="ignore", crop=False)


def _results(console: Console, rows: Sequence[Row]) -> None:
    if not rows:
        return
    console.print("\nResults: point estimates, repeats pooled", style="bold")
    samplings = len({r.sampling for r in rows}) > 1
    lines = _folded(rows)
    shown = []
    for row, loads in lines[:MAX_ROWS]:
        line = dict(zip(results.HEADER, results.cells(row, ""), strict=True))
        figures = [results.counts(row), *("–" if line[c] == "no drafts" else line[c] for c in SHOWN)]
        if not row.measured:
            figures = [NOT_MEASURED, *["–"] * len(SHOWN)]
        shown.append([row.mix, row.label, *([row.sampling] if samplings else []), loads, *figures])
    sampling = ["sampling"] if samplings else []
    header = ["data set", "scheme/gamma", *sampling, "load", "ok / sent", *(c.removeprefix("output ") for c in SHOWN)]
    _table(console, header, shown, flexible=1)
    if len(lines) > MAX_ROWS:
        console.print(f"{len(lines) - MAX_ROWS} more lines in summary.md")
    if any("†" in c for line in shown for c in line):
        console.print(DAGGER_NOTE, style="dim")
    for where, why in results.unmeasured(rows):
        console.print(_text(f"{NOT_MEASURED}: {where}: {why}"), no_wrap=True, overflow="ellipsis")


def _folded(rows: Sequence[Row]) -> list[tuple[Row, str]]:
    """Rows with their load; loads of one config and mix that were not measured share a line."""
    out: list[tuple[Row, str]] = []
    for (measured, _), group in groupby(rows, key=lambda r: (r.measured, r.key if r.measured else r.key[:3])):
        found = list(group)
        if measured or len(found) == 1:
            out += [(r, r.load) for r in found]
        else:
            out.append((found[0], f"{len(found)} loads"))
    return out


def _decisions(console: Console, verdict: Verdict) -> None:
    if not verdict.decisions:
        return
    console.print("\nDecision for each config", style="bold")
    lines = []
    for d in verdict.decisions[:MAX_DECISIONS]:
        answers: dict[str, str] = {q.key: q.answer for q in d.questions}
        words = d.decision + (f" {d.up_to}" if d.up_to else "")
        if d.on_these_figures != d.decision:
            up_to = f" {d.on_these_figures_up_to}" if d.on_these_figures_up_to else ""
            words += f" (on these figures alone: {d.on_these_figures}{up_to})"
        asked = (answers.get(k, "not known") for k in ("output", "candidates", "pays", "slo"))
        lines.append([d.config, d.mix, d.sampling, *asked, words])
    _table(console, ["config", "mix", "sampling", *results.QUESTIONS, "decision"], lines, flexible=0)
    if len(verdict.decisions) > MAX_DECISIONS:
        console.print(f"{len(verdict.decisions) - MAX_DECISIONS} more in summary.md")


def _criteria(console: Console, verdict: Verdict) -> None:
    groups = by_criterion(verdict.checks)
    console.print("\nCriteria: how many checks pass, fail, stay open, and the worst of each", style="bold")
    if not groups:
        console.print("no criterion was given, so nothing can pass")
        return
    lines: list[list[str | Text]] = []
    for g in groups[:MAX_ROWS]:
        counts = [str(g.count(s)) for s in ("PASS", "FAIL", "INCONCLUSIVE")]
        s = g.worst.scope
        where = " ".join(x for x in (s.config, s.mix, s.load, s.stratum) if x) if s else "no cell selected"
        words = f"{where}: {estimate_text(g.worst)}; {g.worst.reason}"
        lines.append([*counts, g.slo, _text(words, STYLES[g.worst.status])])
    _table(console, ["pass", "fail", "open", "criterion", "worst"], lines, flexible=4)
    if len(groups) > MAX_ROWS:
        console.print(f"{len(groups) - MAX_ROWS} more in summary.md")


def _trust(console: Console, verdict: Verdict) -> None:
    for reason in verdict.reasons:
        console.print(_text(f"{reason.code}: {reason.seen}. {reason.do}"))
    doubted = [c for c in verdict.cells if not c.trusted]
    if doubted:
        codes = Counter(r.code for c in doubted for r in {r.code: r for r in c.reasons if r.blocking}.values())
        more = f" and {len(codes) - MAX_CODES} more" if len(codes) > MAX_CODES else ""
        why = ", ".join(f"{code} {n}" for code, n in codes.most_common(MAX_CODES)) + more
        console.print(_text(f"{len(doubted)} of {len(verdict.cells)} cells do not count: {why}"))
