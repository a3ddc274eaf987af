"""What the commands of the command line do with several rooms; each function prints and returns an exit code.

The command line imports this only when a command runs: `loadtest --help` must not wait for Arrow.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from loadtest.capacity.drive import find_capacity, prepare_capacity
from loadtest.capacity.page import exit_code, publish_answer
from loadtest.capacity.settings import Asked
from loadtest.errors import EXIT_CRASH, EXIT_INCONCLUSIVE, EXIT_PASS, InputError
from loadtest.judge.gate import judge_run
from loadtest.judge.unit_tests import run_unit_tests
from loadtest.merge.merge import merge_run
from loadtest.merge.read import open_run
from loadtest.model import Slo
from loadtest.plan.loader import load_slos
from loadtest.progress import reporter
from loadtest.report.labels import write_labels
from loadtest.report.manager import publish
from loadtest.run import drive, prepare_probe
from loadtest.run_folder import RunFolder


def measure(folder: RunFolder, *, gate_it: bool = True, on_inconclusive: str = "fail", unit_tests: bool = False) -> int:
    """Measure what is left of a run, merge, and judge it; ends with `run: PATH`. -> exit code.

    Without the gate: 0 when every cell was measured. `unit_tests`: run the answers to code prompts before the gate.
    """
    cells = folder.cells()
    with reporter(len(cells)) as show:
        show.note(f"run folder: {folder.path} ({len(cells)} cells)")
        for warning in folder.facts.get("warnings", []):
            show.note(f"warning: {warning}")
        drive(folder, show)
        show.status("merging")
        merge_run(folder.path)
    if unit_tests:
        try:
            click.echo(run_unit_tests(open_run(folder.path)))
        except InputError as e:  # no code prompts: the run is judged without
            click.echo(f"loadtest: {e}", err=True)
    if gate_it:
        code = judge(folder.path, on_inconclusive=on_inconclusive)
    else:
        code = EXIT_PASS if all(folder.is_done(c) for c in cells) else EXIT_CRASH
    click.echo(f"run: {folder.path}")
    return code


def slos_for(run: Path, file: Path | None) -> list[Slo]:
    """The criteria of an SLO file, or those that the run's plan named."""
    return load_slos(file) if file is not None else RunFolder(run).slos()


def judge(run: Path, *, slo: Path | None = None, as_json: bool = False, on_inconclusive: str = "fail") -> int:
    """Judge a merged run, write verdict.json and the reports, print the verdict. -> exit code."""
    data = open_run(run)
    verdict = judge_run(data, slos_for(run, slo))
    published = publish(run, data, verdict)
    if as_json:
        click.echo(json.dumps(verdict.to_json(), ensure_ascii=False, indent=1, allow_nan=False))
    else:
        click.echo(published.text)
    if verdict.exit_code == EXIT_INCONCLUSIVE and on_inconclusive == "warn" and not verdict.simulated:
        click.echo("inconclusive, and --on-inconclusive warn was given: exit code 0. This is no PASS.", err=True)
        return EXIT_PASS
    return verdict.exit_code


def probe_plan(plan: Path, out: Path, requests: int | None) -> int:
    """Measure a sequential probe and print its labels. -> exit code: 0 all cells were measured."""
    folder = prepare_probe(plan, out, requests)
    code = measure(folder, gate_it=False)
    click.echo(write_labels(folder.path, open_run(folder.path)))
    return code


def search_capacity(plan: Path, out: Path, configs: tuple[str, ...], asked: Asked) -> int:
    """Search each config's largest load, print the answer and `run: PATH`. -> exit code."""
    prepared = prepare_capacity(plan, out, configs, asked)
    with reporter(len(prepared.configs) * prepared.settings.area.max_probes()) as show:
        show.note(f"run folder: {prepared.run.path}")
        found = find_capacity(prepared, show)
        show.status("reporting")
        click.echo(publish_answer(prepared, found))
    click.echo(f"run: {prepared.run.path}")
    return exit_code(prepared, found)
