"""Opens every report file of a run; exporters only return bytes. The verdict is on disk before anything shows it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from rich.console import Console
from rich.table import Table

from loadtest.errors import RunFolderError
from loadtest.judge.verdict import VERDICT_SCHEMA_VERSION, Check, Verdict
from loadtest.merge.read import RunData
from loadtest.model import from_json
from loadtest.report import github, html, junit, machines, summary
from loadtest.report.files import write_durably
from loadtest.report.hgrm import write_all as write_hgrm
from loadtest.report.tables import Row, build_rows


def write_reports(run_dir: Path, data: RunData, verdict: Verdict) -> list[Path]:
    """Write verdict.json durably, then everything that is made from it. Returns the paths in that order."""
    verdict_file = run_dir / "verdict.json"
    content = json.dumps(verdict.to_json(), ensure_ascii=False, indent=1, allow_nan=False).encode()
    write_durably(verdict_file, content)
    rows = build_rows(data)
    files = {
        "summary.md": summary.render(data.run, rows, verdict),
        "junit.xml": junit.render(verdict),
        "report.html": html.render(data, rows, verdict),
        "exports/bencher.json": machines.bmf(rows),
        "exports/benchmark-smaller-is-better.json": machines.smaller_is_better(rows),
        "exports/benchmark-bigger-is-better.json": machines.bigger_is_better(rows),
        "exports/github-step-summary.md": github.step_summary(verdict),
    }
    (run_dir / "exports").mkdir(exist_ok=True)
    for name, body in files.items():
        write_durably(run_dir / name, body)
    _tell_github(verdict, files["exports/github-step-summary.md"])
    return [verdict_file, *(run_dir / n for n in files), *write_hgrm(run_dir)]


def read_verdict(path: Path) -> Verdict:
    """The verdict that a gate wrote. Raises RunFolderError where there is none or it has another schema."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunFolderError(f"{path} does not exist; run `loadtest gate {path.parent}` first") from None
    except ValueError as e:
        raise RunFolderError(f"{path} is no JSON ({e}); run `loadtest gate {path.parent}` again") from e
    if value.get("schema") != VERDICT_SCHEMA_VERSION:
        raise RunFolderError(
            f"{path} has schema {value.get('schema')!r}, this version reads {VERDICT_SCHEMA_VERSION}; "
            f"run `loadtest gate {path.parent}` again"
        )
    value.pop("exit_code", None)
    return from_json(Verdict, value)


def terminal_text(data: RunData, verdict: Verdict) -> str:
    """The verdict for a person at a terminal or in a CI log."""
    console = Console(width=max(100, Console().width), highlight=False, record=False)
    with console.capture() as captured:
        if verdict.simulated:
            console.print(
                "SIMULATED: made with the simulated server; it says nothing about a real one.", style="bold yellow"
            )
        console.print(_results(build_rows(data)))
        if verdict.decisions:
            console.print(_decisions(verdict))
        console.print(_checks(verdict))
        for reason in verdict.reasons:
            console.print(f"{reason.code}: {reason.seen}. {reason.do}", markup=False)
        console.print(
            f"{verdict.status} (exit code {verdict.exit_code}): {verdict.sentence}", markup=False, style="bold"
        )
    return captured.get().rstrip()


def _results(rows: list[Row]) -> Table:
    out = Table(title="point estimates over the n of each line; repeats pooled")
    keep = (0, 1, 2, 3, 4, 5, 6, 9, 11, 13, 15)
    for i in keep:
        out.add_column(summary.RESULT_HEADER[i], overflow="fold")
    for row in rows:
        cells = summary.result_cells(row, "")
        out.add_row(*(cells[i] for i in keep))
    return out


def _decisions(verdict: Verdict) -> Table:
    out = Table(title="decision for each config")
    for name in ("config", "mix", "sampling", "decision", "in words"):
        out.add_column(name, overflow="fold")
    for d in verdict.decisions:
        out.add_row(d.config, d.mix, d.sampling, d.decision + (f" {d.up_to}" if d.up_to else ""), d.sentence)
    return out


def _checks(verdict: Verdict) -> Table:
    """One line per criterion: how many cells pass, fail or stay open, and the worst one in words."""
    order = ["FAIL", "INCONCLUSIVE", "PASS"]
    by_slo: dict[str, list[Check]] = {}
    for c in verdict.checks:
        if c.gating:
            by_slo.setdefault(c.slo, []).append(c)
    out = Table(title="criteria; every check is in summary.md and report.html")
    for name in ("criterion", "pass", "fail", "inconclusive", "worst"):
        out.add_column(name, overflow="fold")
    for slo, checks in by_slo.items():
        worst = min(checks, key=lambda c: order.index(c.status))
        counts = [str(sum(c.status == s for c in checks)) for s in ("PASS", "FAIL", "INCONCLUSIVE")]
        out.add_row(slo, *counts, f"{worst.status}: {summary.scope_text(worst)}: {_shorten(worst.reason)}")
    return out


def _shorten(text: str, limit: int = 160) -> str:
    return text if len(text) <= limit else text[: limit - 1].rsplit(" ", 1)[0] + " …"


def _tell_github(verdict: Verdict, step_summary: bytes) -> None:
    """Where GitHub Actions asks for it: append the step summary, print the annotations."""
    target = os.environ.get("GITHUB_STEP_SUMMARY")
    if not target:
        return
    with Path(target).open("ab") as f:
        f.write(step_summary + b"\n")
    for line in github.annotation_lines(verdict):
        print(line)
