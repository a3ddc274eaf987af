"""Measures the probes of a search, each as ordinary cells of one run folder, on one server start per config."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from loadtest.capacity.search import Interval, Probe, in_words, interval, next_load
from loadtest.capacity.settings import Asked, Settings, settings_of, strata_of
from loadtest.errors import PlanError
from loadtest.judge.gate import judge_run
from loadtest.judge.verdict import Check, Status, worst
from loadtest.merge.merge import merge_run
from loadtest.merge.read import RunData, open_run
from loadtest.model import Cell, ConfigSpec, to_json
from loadtest.plan.cells import client_spec, config_specs, load_cells
from loadtest.plan.loader import load_plan
from loadtest.plan.schema import Plan
from loadtest.progress import Reporter
from loadtest.run import signals_as_interrupt, write_run
from loadtest.run_folder import RunFolder, ServerStart, new_folder
from loadtest.session import Session, failures_kept, serving

AS_ALWAYS = Asked()


@dataclass(frozen=True, slots=True)
class Tried:
    """One probe with what it rests on."""

    probe: Probe
    cells: tuple[str, ...]
    checks: tuple[Check, ...]
    requests: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Found:
    """The answer for one config."""

    config: str
    interval: Interval
    text: str
    tried: tuple[Tried, ...]
    broken: str | None = None
    """Why the search ended early: the server or the load failed."""

    @property
    def status(self) -> Status:
        """PASS: a capacity was found; FAIL: already the lowest load fails; else INCONCLUSIVE."""
        if self.interval.holds_at is not None and self.interval.fails_at is not None and self.broken is None:
            return "PASS"
        lowest = min((t.probe.load for t in self.tried), default=None)
        return "FAIL" if self.broken is None and self.interval.fails_at == lowest is not None else "INCONCLUSIVE"


@dataclass(frozen=True, slots=True)
class CapacityRun:
    """A prepared search."""

    run: RunFolder
    plan: Plan
    configs: tuple[ConfigSpec, ...]
    settings: Settings


def prepare_capacity(plan_file: Path, root: Path, names: Sequence[str] = (), asked: Asked = AS_ALWAYS) -> CapacityRun:
    """Validates and makes the run folder. names: configs to search; none: all. Raises PlanError, DatasetError."""
    plan = load_plan(plan_file)
    specs = config_specs(plan)
    if unknown := set(names) - {c.name for c in specs}:
        raise PlanError(f"--config {min(unknown)}: the plan has {', '.join(c.name for c in specs)}")
    chosen = tuple(c for c in specs if not names or c.name in names)
    settings_of(plan, chosen, {}, asked)  # what is wrong is told before a folder is made
    path = new_folder(root, f"{plan.name}-capacity")
    run = write_run(plan, plan_file, path, (list(chosen), []), client_spec(plan), [])
    files = {name: file for name, file in run.facts["prompt_files"].items() if not name.endswith(".warmup")}
    settings = settings_of(plan, chosen, strata_of(run.path, files), asked)
    run.update(slos=to_json(list(settings.criteria)), capacity=facts_of(settings))
    return CapacityRun(run, plan, chosen, settings)


def facts_of(settings: Settings) -> dict[str, Any]:
    """The settings as plain JSON values."""
    return {
        "by": settings.unit,
        "load_kind": settings.kind,
        "start": settings.area.start,
        "ceiling": settings.area.ceiling,
        "tolerance": settings.area.tolerance,
        "confidence": settings.confidence,
        "confidence_per_check": settings.criteria[0].confidence,
        "max_probes": settings.area.max_probes(),
        "requests_per_probe": settings.requests,
        "left_out": list(settings.left_out),
    }


def find_capacity(prepared: CapacityRun, reporter: Reporter) -> list[Found]:
    """Searches config by config. A config whose server fails is told so, and the next one is searched."""
    run = prepared.run
    for text in prepared.settings.left_out:
        reporter.note(f"left out: {text}")
    with run.locked(), signals_as_interrupt():
        run.update(state="running")
        try:
            found = [_Search(prepared, config, reporter).run() for config in prepared.configs]
        except BaseException:
            run.update(state="interrupted", ended_ns=time.time_ns())
            raise
        missing = [c.cell_id for c in run.cells() if not run.is_done(c)]
        run.update(state="incomplete" if missing else "complete", ended_ns=time.time_ns(), missing_cells=missing)
    return found


class _Search:
    """One config: a server that stays, and a Locust start for each probe."""

    def __init__(self, prepared: CapacityRun, config: ConfigSpec, reporter: Reporter) -> None:
        self.prepared, self.config, self.reporter = prepared, config, reporter
        self.folder, self.settings = prepared.run, prepared.settings
        self.tried: list[Tried] = []
        self.complete = False

    def run(self) -> Found:
        cells = self._add(self.settings.area.start)
        if self.config.restart_per_cell:
            self._all(None, cells)
        else:
            start = self._start_of(cells[0])
            with (
                failures_kept(self.folder, start, self.reporter),
                serving(self.folder, start, self.reporter) as session,
            ):
                self._all(session, cells)
        answer = interval(t.probe for t in self.tried)
        text = in_words(answer, self.settings.area, self.settings.unit)
        broken = None if self.complete else "the measurement broke off; see servers/*/failed.json"
        text += f"; {broken}" if broken else ""
        self.reporter.note(f"{self.config.name}: {text}")
        return Found(self.config.name, answer, text, tuple(self.tried), broken)

    def _all(self, session: Session | None, cells: tuple[Cell, ...]) -> None:
        while True:
            began = time.monotonic()
            self._measure(session, cells)
            if not all(self.folder.is_done(cell) for cell in cells):
                return
            tried = self._judge(cells, time.monotonic() - began)
            self.tried.append(tried)
            load, reasons = tried.probe.load, [c.reason for c in tried.checks if c.on_these_figures != "PASS"]
            self.reporter.note(
                f"{self.config.name} at {load:g} {self.settings.unit}: {tried.probe.status}"
                + (f" ({reasons[0]})" if reasons else "")
            )
            if (following := next_load([t.probe for t in self.tried], self.settings.area)) is None:
                self.complete = True
                return
            cells = self._add(following)

    def _add(self, load: float) -> tuple[Cell, ...]:
        """The cells of a load, written into run.json before they are measured."""
        known, run_id = self.folder.cells(), self.folder.path.name
        point, budget = self.settings.point(load), self.settings.requests
        fresh = load_cells(self.prepared.plan, self.config, point, len(known), budget, run_nonce=run_id)
        self.folder.update(cells=to_json([*known, *fresh]))
        return tuple(fresh)

    def _measure(self, session: Session | None, cells: tuple[Cell, ...]) -> None:
        if session is not None:
            session.measure(cells, f"{session.start.name}-p{len(self.tried) + 1:02d}")
            return
        for cell in cells:
            start = self._start_of(cell)
            with failures_kept(self.folder, start, self.reporter), serving(self.folder, start, self.reporter) as own:
                own.measure((cell,), start.name)

    def _start_of(self, cell: Cell) -> ServerStart:
        return next(s for s in self.folder.starts() if cell in s.cells)

    def _judge(self, cells: tuple[Cell, ...], seconds: float) -> Tried:
        """The gate's own checks of these cells, as if the server were real; whether it is stands in the answer."""
        merge_run(self.folder.path)
        ids = tuple(cell.cell_id for cell in cells)
        verdict = judge_run(_part(open_run(self.folder.path), ids), self.settings.criteria)
        checks = tuple(c for c in verdict.checks if c.scope is not None)
        status = worst([c.on_these_figures for c in checks])
        sent = max((c.n for c in checks), default=0)
        return Tried(Probe(cells[0].load_value, status), ids, checks, sent, seconds)


@dataclass(frozen=True, slots=True)
class _Part:
    """Some cells of a merged run, as the judge reads a run."""

    run: dict[str, Any]
    cells: pa.Table
    whole: RunData

    def requests(self, columns: list[str] | None = None, filter: Any = None) -> pa.Table:  # noqa: A002, ARG002
        """Rows of these cells."""
        return self.whole.requests(columns, pc.field("cell_id").isin(self.cells["cell_id"].to_pylist()))


def _part(data: RunData, cell_ids: Sequence[str]) -> _Part:
    chosen = data.cells.filter(pc.is_in(data.cells["cell_id"], pa.array(cell_ids, pa.string())))
    return _Part(data.run, chosen, data)
