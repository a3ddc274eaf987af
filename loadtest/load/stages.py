"""The conductor: drives the cells of a job, one after the other. Runs in the master only. Import after locust.

Stages of a cell: get ready, users, idle scrape, warm-up, window, drain, idle scrape, `done.json`. The edges of the
window are absolute times that the workers know ahead, so they do not depend on Locust's tick of one second, and the
warm-up runs into the window without draining.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any, cast

import gevent
from locust import LoadTestShape

from loadtest.errors import EXIT_CRASH, EXIT_PASS, LoadError
from loadtest.load.files import begin_cell, is_finished, read_stop, write_json
from loadtest.load.master import CellAbortedError, Master
from loadtest.load.protocol import FINAL_GRACE_S, WINDOW_LEAD_NS
from loadtest.load.recorder import Recorder
from loadtest.load.schedule import OPEN_KINDS
from loadtest.load.scrapelink import ScrapeLink
from loadtest.model import SCHEMA_VERSION, Cell, LoadJob

log = logging.getLogger(__name__)

SETTLE_S = 10.0
"""The server is idle a few steps after the last answer; a server that is not after this long has foreign traffic."""
USERS_TIMEOUT_S = 30.0
"""Spawning 1,000 users takes about a second."""


class Conductor:
    """Runs the cells of one job."""

    def __init__(self, master: Master, job: LoadJob) -> None:
        self.master, self.job = master, job
        self.link = ScrapeLink(job.scraper_socket)

    def run_all(self) -> None:
        """Every cell that is not finished, in order. Raises LoadError at the first that cannot be finished."""
        cells = self.job.cells
        for cell in cells:
            users_needed(cell)  # a load that cannot be driven is told before anything is measured
        for n, cell in enumerate(cells, 1):
            if is_finished(self.job, cell):
                log.info("cell %d/%d %s is finished already", n, len(cells), cell.cell_id)
                continue
            began = time.monotonic()
            log.info("cell %d/%d %s", n, len(cells), cell.cell_id)
            sent = CellConductor(self.master, self.job, cell, self.link).run()
            log.info("cell %d/%d %s: %d rows in %.1f s", n, len(cells), cell.cell_id, sent, time.monotonic() - began)


class CellConductor:
    """One cell from its folder to its `done.json`."""

    def __init__(self, master: Master, job: LoadJob, cell: Cell, link: ScrapeLink) -> None:
        self.master, self.job, self.cell, self.link = master, job, cell, link
        self.edges: dict[str, dict[str, Any]] = {}
        self.notes: list[str] = []
        self.start_ns = self.end_ns = 0
        self.folder: Path | None = None
        self.recorder: Recorder | None = None
        self.stop: dict[str, Any] | None = None

    def run(self) -> int:
        """Measures the cell. -> rows. Whatever ends it early leaves `unfinished.json` instead of `done.json`."""
        users = users_needed(self.cell)
        try:
            self.begin()
            self.set_users(users)
            self.open(self.cell.warmup_s)
            self.wait_for_window()
            return self.finish()
        except BaseException as e:  # also GreenletExit: the run is stopped from outside
            self.abandon(str(e) or type(e).__name__)
            raise

    def begin(self) -> None:
        """Folder, scraper, recorder, prompts; all workers are ready afterwards."""
        self.folder = folder = begin_cell(self.job, self.cell)
        if (problem := self.link.open(self.cell.cell_id, str(folder.resolve()))) is not None:
            self.notes.append(f"scraper: {problem}")
        self.recorder = Recorder(folder, self.cell.measure_s or self.cell.max_measure_s)
        sha256 = self.master.send_mix(self.cell.mix, *load_mix(self.job, self.cell.mix))
        self.master.prepare(self.cell, self.job, sha256, self.recorder, load_trace(self.job, self.cell))

    def set_users(self, users: int) -> None:
        """Has Locust keep exactly this many users; they wait at the gate."""
        runner = self.master.runner
        # One step of Locust's dispatcher: the ramp is not part of the measurement, and users wait at the gate anyway.
        runner.start(users, spawn_rate=max(100, users))
        if not self.master.wait(lambda: sum(self.master.users_of().values()) == users, USERS_TIMEOUT_S):
            raise CellAbortedError(f"asked Locust for {users} users, it has {self.master.users_of()}")

    def stripes(self) -> dict[str, list[int]]:
        """Which numbers of the prompt order each worker takes: only workers that have users get a share."""
        users = self.master.users_of()
        everybody = self.cell.load_kind in OPEN_KINDS  # arrivals need no users
        active = sorted(i for i, n in users.items() if n or everybody)
        return {str(index): [k, len(active)] for k, index in enumerate(active)}

    def open(self, warmup_s: float) -> None:
        """Idle scrape, then the gate opens: warm-up at once, window at its time."""
        self.edge("idle_start")
        cell = self.cell
        self.start_ns = time.time_ns() + max(WINDOW_LEAD_NS, int(warmup_s * 1e9))
        length_s = cell.measure_s if cell.measure_s is not None else cell.max_measure_s
        self.end_ns = self.start_ns + int(length_s * 1e9)
        self.master.send_window(cell, self.start_ns, self.end_ns, self.stripes())

    def wait_for_window(self) -> None:
        """From warm-up to the end of the window, with both edge scrapes."""
        master, cell = self.master, self.cell
        master.sleep_until(self.start_ns)
        self.edge("window_start")
        wanted = cell.measure_requests
        if cell.measure_s is None and wanted is not None and self.recorder is not None:
            recorder = self.recorder
            left_s = (self.end_ns - time.time_ns()) / 1e9
            if master.wait(lambda: recorder.measured >= wanted or self.told_to_stop(), left_s):
                self.end_window()
            else:
                self.notes.append(f"{recorder.measured} of {wanted} requests within {cell.max_measure_s:g} s")
        master.sleep_until(self.end_ns)
        self.edge("window_end")

    def told_to_stop(self) -> bool:
        """Whether the orchestrator has found every criterion of an `auto` cell certain (see `read_stop`)."""
        if self.cell.auto and self.stop is None and self.folder is not None:
            self.stop = read_stop(self.folder)
        return self.stop is not None

    def end_window(self) -> None:
        """Moves the end of the window to just ahead of now."""
        self.end_ns = time.time_ns() + WINDOW_LEAD_NS
        self.master.send_window(self.cell, self.start_ns, self.end_ns, self.stripes())

    def finish(self) -> int:
        """Drain, idle scrape, histograms, `done.json`. -> rows on disk."""
        master, cell, recorder, folder = self.master, self.cell, self.recorder, self.folder
        if recorder is None or folder is None:
            raise CellAbortedError("the cell was never begun")
        grace_s = cell.drain_s + FINAL_GRACE_S + self.job.client.connect_timeout_s
        left_s = max(0.0, (self.end_ns - time.time_ns()) / 1e9) + grace_s
        master.drain(cell, left_s - FINAL_GRACE_S)
        if not master.wait(lambda: set(master.finals) >= set(master.workers), left_s):
            silent = sorted(set(master.workers) - set(master.finals))
            for index in silent:
                master.lost.setdefault(index, "no final message")
            raise CellAbortedError(f"workers {silent} gave no final count within {grace_s:.0f} s after the window")
        drain_end_ns = time.time_ns()
        recorder.finish()
        self.edge("idle_end", SETTLE_S)
        if (problem := self.link.close()) is not None:
            self.notes.append(f"scraper: {problem}")
        recorder.write_hlog(self.start_ns, self.end_ns)
        write_json(folder / "done.json", self.record() | {"drain_end_ns": drain_end_ns})
        return sum(recorder.rows.values())

    def edge(self, name: str, settle_s: float | None = None) -> None:
        """One scrape at an edge; what goes wrong is kept and judged later."""
        self.edges[name] = self.link.edge(name, settle_s)

    def abandon(self, reason: str) -> None:
        """The cell ends without a result: rows so far are closed, the cause goes to `unfinished.json`."""
        log.error("cell %s is not finished: %s", self.cell.cell_id, reason)
        try:
            self.master.abort_cell(self.cell, reason)
            if self.recorder is not None:
                self.recorder.finish()
            self.link.close()
        except Exception:
            log.exception("while the cell was given up")
        if self.folder is not None:
            try:
                write_json(self.folder / "unfinished.json", self.record() | {"reason": reason})
            except OSError:
                log.exception("the cause could not be written")

    def record(self) -> dict[str, Any]:
        """Everything of `done.json` but the end of the drain."""
        master, recorder = self.master, self.recorder
        workers = {str(i): c | {"clock_skew_ms": master.skew_ms.get(i)} for i, c in sorted(master.finals.items())}
        rows = recorder.rows if recorder is not None else {}
        for index, counts in master.finals.items():
            if counts["rows"] != rows.get(index, 0):
                self.notes.append(f"worker {index} counted {counts['rows']} rows, {rows.get(index, 0)} were written")
            if counts["user_errors"]:
                self.notes.append(f"worker {index}: {counts['user_errors']} requests could not be made; see its log")
        clock = master.proof.clock()
        steps = [clock["max_step_us"], *(c["clock"]["max_step_us"] for c in master.finals.values())]
        return {
            "schema": SCHEMA_VERSION,
            "cell_id": self.cell.cell_id,
            "window_start_ns": self.start_ns,
            "window_end_ns": self.end_ns,
            "idle_start_ns": self.edges.get("idle_start", {}).get("t_ns"),
            "idle_end_ns": self.edges.get("idle_end", {}).get("t_ns"),
            "ended_ns": time.time_ns(),
            "workers_expected": len(master.workers),
            "workers": workers,
            "workers_missing": sorted(set(master.workers) - set(master.finals)),
            "workers_lost": {str(i): why for i, why in master.lost.items()},
            "hdr_overflow": recorder.overflow if recorder is not None else {},
            "clock_offset": {**clock, "max_step_us": max(steps)},
            "edges": self.edges,
            "drift": recorder.drift.intervals if recorder is not None else [],
            "notes": self.notes,
            "auto": {"budget": self.cell.measure_requests, "stop": self.stop} if self.cell.auto else None,
        }


def users_needed(cell: Cell) -> int:
    """Locust users of a cell; an open loop has none. Raises LoadError for a load that cannot be driven."""
    if cell.load_kind in OPEN_KINDS:
        if not cell.load_value > 0:
            raise LoadError(f"cell {cell.cell_id}: the rate must be above 0 per second: {cell.load_value}")
        if (cell.load_kind == "ramp" and not cell.ramp) or (cell.load_kind == "trace" and not cell.trace_file):
            raise LoadError(f"cell {cell.cell_id}: a {cell.load_kind} without its steps or arrivals cannot be driven")
        return 0
    if cell.load_kind == "sequential":
        return 1
    if cell.load_kind == "closed":
        if cell.load_value < 1 or cell.load_value != int(cell.load_value):
            raise LoadError(f"cell {cell.cell_id}: concurrency must be a whole number of 1 or more: {cell.load_value}")
        return int(cell.load_value)
    raise LoadError(f"cell {cell.cell_id}: load {cell.load_kind!r} cannot be driven; use concurrency or rate")


def load_mix(job: LoadJob, mix: str) -> tuple[bytes, bytes, tuple[float, ...]]:
    """(prompts, warm-up prompts, weights) of a mix as bytes of their files; the warm-up may be empty."""
    if mix not in job.prompt_files:
        raise LoadError(f"the job has no prompt file for mix {mix!r}; it has {sorted(job.prompt_files)}")
    run_dir = Path(job.run_dir)
    warmup = job.prompt_files.get(f"{mix}.warmup")
    weights = tuple(job.mix_weights.get(mix, (1.0,)))
    return (run_dir / job.prompt_files[mix]).read_bytes(), (run_dir / warmup).read_bytes() if warmup else b"", weights


def load_trace(job: LoadJob, cell: Cell) -> bytes:
    """The arrivals of a trace as bytes of their file; empty for other cells."""
    return (Path(job.run_dir) / cell.trace_file).read_bytes() if cell.trace_file else b""


class Stages(LoadTestShape):
    """Locust's shape: its one tick runs the whole job, then ends the test. `environment.loadtest_job` is the job."""

    def tick(self) -> None:
        """Runs all cells; the exit code is 0 only when every one is finished."""
        environment: Any = cast("Any", self.runner).environment
        master: Master = environment.loadtest_master
        try:
            Conductor(master, environment.loadtest_job).run_all()
            environment.process_exit_code = EXIT_PASS
        except LoadError as e:
            log.error("the run ends: %s", e)
            environment.process_exit_code = EXIT_CRASH
        except gevent.GreenletExit:
            log.error("the run was stopped before all cells were finished")
            raise
        finally:
            master.ending = True
