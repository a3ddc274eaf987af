"""Opens every report file of a run; exporters only return bytes. The verdict is on disk before anything shows it.

A crash half way leaves verdict.json and no report that contradicts it: reports of another verdict are taken away first.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from loadtest.errors import RunFolderError
from loadtest.judge.verdict import VERDICT_SCHEMA_VERSION, Verdict
from loadtest.merge.read import RunData
from loadtest.model import from_json
from loadtest.report import github, html, junit, machines, summary
from loadtest.report.files import write_durably
from loadtest.report.hgrm import write_all as write_hgrm
from loadtest.report.tables import build_rows
from loadtest.report.terminal import terminal_text

VERDICT = "verdict.json"
STEP_SUMMARY = "exports/github-step-summary.md"
REPORTS = (
    "summary.md",
    "junit.xml",
    "report.html",
    "exports/bencher.json",
    "exports/benchmark-smaller-is-better.json",
    "exports/benchmark-bigger-is-better.json",
    STEP_SUMMARY,
)
"""Everything that is made from the verdict, in the order in which it is written."""


@dataclass(frozen=True, slots=True)
class Published:
    """What was written, and what to tell the person who asked."""

    paths: list[Path]
    text: str


def write_reports(run_dir: Path, data: RunData, verdict: Verdict) -> list[Path]:
    """Write verdict.json durably, then everything that is made from it. Returns the paths in that order.

    Raises RunFolderError, before an old file is touched, where the folder takes no files.
    """
    return publish(run_dir, data, verdict).paths


def publish(run_dir: Path, data: RunData, verdict: Verdict) -> Published:
    """`write_reports`, with the text for the terminal from the same reading of the run."""
    run_dir = Path(run_dir)
    _require_writable(run_dir)
    content = json.dumps(verdict.to_json(), ensure_ascii=False, indent=1, allow_nan=False).encode()
    verdict_file = run_dir / VERDICT
    if not verdict_file.exists() or verdict_file.read_bytes() != content:
        for name in REPORTS:
            (run_dir / name).unlink(missing_ok=True)
        write_durably(verdict_file, content)
    rows = build_rows(data)
    figures = machines.figures_of(rows, verdict)
    bodies = (
        summary.render(data.run, rows, verdict),
        junit.render(verdict),
        html.render(data, rows, verdict),
        machines.bmf(figures),
        machines.smaller_is_better(figures),
        machines.bigger_is_better(figures),
        github.step_summary(verdict),
    )
    files = dict(zip(REPORTS, bodies, strict=True))
    for name, body in files.items():
        write_durably(run_dir / name, body)
    _tell_github(verdict, files[STEP_SUMMARY])
    paths = [verdict_file, *(run_dir / n for n in files), *write_hgrm(run_dir)]
    return Published(paths, terminal_text(data, verdict, rows))


def read_verdict(path: Path) -> Verdict:
    """The verdict that a gate wrote. Raises RunFolderError where there is none or it has another schema."""
    again = f"run `loadtest gate {path.parent}`"
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunFolderError(f"{path} does not exist; {again} first") from None
    except (OSError, ValueError) as e:
        raise RunFolderError(f"{path} cannot be read ({e}); {again} again") from e
    schema = value.get("schema") if isinstance(value, dict) else None
    if schema != VERDICT_SCHEMA_VERSION:
        raise RunFolderError(
            f"{path} has schema {schema!r}, this version reads {VERDICT_SCHEMA_VERSION}; {again} again"
        )
    value.pop("exit_code", None)
    try:
        return from_json(Verdict, value)
    except (TypeError, AttributeError) as e:
        raise RunFolderError(f"{path} was written by another version ({e}); {again} again") from e


def _require_writable(run_dir: Path) -> None:
    """A folder that takes no reports must say so before an old one is touched."""
    probe = run_dir / "exports" / ".probe"
    try:
        probe.parent.mkdir(exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
        for name in (VERDICT, *REPORTS):
            if (run_dir / name).is_dir():
                raise IsADirectoryError(f"{name} is a folder")
    except OSError as e:
        raise RunFolderError(
            f"cannot write reports into {run_dir}: {e}; free the path or copy the run elsewhere"
        ) from e


def _tell_github(verdict: Verdict, step_summary: bytes) -> None:
    """Where GitHub Actions asks for it: append the step summary, write the annotations to standard error."""
    target = os.environ.get("GITHUB_STEP_SUMMARY")
    if not target:
        return
    try:
        with Path(target).open("ab") as f:
            f.write(step_summary + b"\n")
    except OSError as e:
        print(f"GITHUB_STEP_SUMMARY: cannot write {target}: {e}; the reports are complete", file=sys.stderr)
    for line in github.annotation_lines(verdict):
        print(line, file=sys.stderr)
