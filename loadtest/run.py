"""Drives a plan: one server after the other, all cells of each, whatever happens to one of them."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

from loadtest.load.remote import say_farewell
from loadtest.model import Cell, ClientSpec, ConfigSpec, Slo
from loadtest.plan.cells import client_spec, expand, expand_probe, slos, target_spec
from loadtest.plan.loader import load_plan
from loadtest.plan.prompts import load_mixes, write_prompts
from loadtest.plan.schema import Plan
from loadtest.progress import Reporter
from loadtest.run_folder import RunFolder, ServerStart, new_folder, write_facts
from loadtest.session import failures_kept, serving


def prepare(plan_file: Path, root: Path) -> RunFolder:
    """Validate a plan and make its run folder. Raises PlanError and DatasetError before anything starts."""
    plan = load_plan(plan_file)
    path = new_folder(root, plan.name)
    return write_run(plan, plan_file, path, expand(plan, run_nonce=path.name), client_spec(plan), slos(plan))


def prepare_probe(plan_file: Path, root: Path, requests: int | None = None) -> RunFolder:
    """The run folder of a sequential probe: every prompt once, or `requests` per mix. Errors as `prepare`.

    Nothing streams, so there is no first token and no time per token; the criteria of the plan do not apply.
    """
    plan = load_plan(plan_file)
    counts = {m.name: min(requests or len(m.prompts), len(m.prompts)) for m in load_mixes(plan)}
    path = new_folder(root, f"{plan.name}-probe")
    expanded = expand_probe(plan, counts, run_nonce=path.name)
    return write_run(plan, plan_file, path, expanded, replace(client_spec(plan), stream=False), [])


def write_run(
    plan: Plan,
    plan_file: Path,
    path: Path,
    expanded: tuple[list[ConfigSpec], list[Cell]],
    client: ClientSpec,
    criteria: list[Slo],
) -> RunFolder:
    """Facts, plan and prompts of a new run folder."""
    configs, cells = expanded
    prompt_files, mix_weights = write_prompts(plan, path)  # before run.json: a folder that has one can be resumed
    return write_facts(
        path,
        plan_file,
        plan=plan.model_dump(mode="json"),
        target=target_spec(plan),
        client=client,
        configs=configs,
        cells=cells,
        slos=criteria,
        prompt_files=prompt_files,
        mix_weights=mix_weights,
        warnings=list(plan.warnings),
    )


def drive(run: RunFolder, reporter: Reporter) -> None:
    """Measure every cell that has no done.json yet. A config that fails is marked and the run goes on.

    Raises LoadtestError when another process holds the run, KeyboardInterrupt after SIGINT or SIGTERM; both leave
    what was measured in place for `--resume`.
    """
    with run.locked(), signals_as_interrupt():
        run.update(state="running")
        try:
            for start in run.starts():
                _measure_start(run, start, reporter)
        except BaseException:
            run.update(state="interrupted", ended_ns=time.time_ns())
            raise
        finally:
            if run.remote is not None:
                say_farewell(run.remote, reporter.note)
        missing = [c.cell_id for c in run.cells() if not run.is_done(c)]
        run.update(state="incomplete" if missing else "complete", ended_ns=time.time_ns(), missing_cells=missing)


def _measure_start(run: RunFolder, start: ServerStart, reporter: Reporter) -> None:
    todo = tuple(c for c in start.cells if not run.is_done(c))
    reporter.advance(sum(run.is_done(c) for c in run.cells()))
    if not todo:
        return
    with failures_kept(run, start, reporter), serving(run, start, reporter) as session:
        session.measure(todo, start.name)


@contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """SIGTERM unwinds like Ctrl-C, so that servers and Locust are stopped by the same `finally` blocks."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(signum: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt(signal.Signals(signum).name)

    before = {s: signal.signal(s, interrupt) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)
