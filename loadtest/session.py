"""One server start: what is around it, the server, its scraper, and the Locust starts that measure on it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from loadtest.auto import AutoWatch
from loadtest.errors import (
    CommandError,
    ConfigContradictionError,
    EndpointError,
    LoadError,
    LoadtestError,
    ServerError,
    StartError,
)
from loadtest.load.drift import live_text
from loadtest.load.launch import locust_argv, locust_env
from loadtest.load.remote import FIRST_WAIT_S, NEXT_WAIT_S
from loadtest.model import Cell, ClientSpec, LoadJob, to_json
from loadtest.progress import Reporter
from loadtest.run_folder import RunFolder, ServerStart, write_json
from loadtest.server.attach import attach
from loadtest.server.caches import require_reset, reset_urls
from loadtest.server.commands import run_commands
from loadtest.server.launch import Phase, ServerProcess
from loadtest.server.provenance import Server as ProvedServer
from loadtest.server.provenance import collect, require_no_contradiction
from loadtest.server.scraper import start_scraper

POLL_S = 0.2
"""How often the orchestrator looks at Locust and at the cells: often enough for a live line, cheap beside a run."""
STOP_LOCUST_S = 20.0
"""Grace for the Locust master after SIGTERM: it has to close the record files of the cell."""
CELL_OVERHEAD_S = 120.0
"""Allowance per cell on top of its own stages before Locust is called wedged: spawn, edge scrapes, settling."""
DEATH_S = 10.0
"""After Locust failed a server gets this long to be found dead: vLLM's API server ends seconds after its engine."""
VLLM_KEY = "VLLM_API_KEY"
PHASES: tuple[tuple[type[LoadtestError], str], ...] = (
    (CommandError, "command"),
    (StartError, "start"),
    (EndpointError, "proof"),
    (ConfigContradictionError, "proof"),
)
"""What a config was at when it failed; anything else is `measure`."""


class Server(ProvedServer, Protocol):
    """A started or attached server, as the run needs it."""

    def stop(self) -> None:
        """Free everything that the start took."""

    def check_alive(self, phase: Phase = "measure") -> None:
        """Raise ServerError with the diagnosis where the server has ended."""


class Session:
    """A running server with its scraper; takes any number of jobs."""

    def __init__(self, run: RunFolder, start: ServerStart, server: Server, scraper: Path, reporter: Reporter) -> None:
        self.run, self.start, self.server, self.reporter = run, start, server, reporter
        self._scraper = scraper
        self._folder = start_folder(run, start)
        self._facts = run.facts

    def _client(self) -> ClientSpec:
        """How the client sends. A vLLM that we start takes its key from VLLM_API_KEY: requests then carry that one."""
        client = self.run.client()
        from_vllm = self.server.started_by_us and bool(os.environ.get(VLLM_KEY, "").strip())
        if from_vllm and client.api_key_env == ClientSpec().api_key_env:
            return replace(client, api_key_env=VLLM_KEY)
        return client

    def measure(self, cells: tuple[Cell, ...], job_name: str) -> None:
        """One Locust start for these cells. Raises ServerError for a dead server, LoadError for unfinished cells."""
        run, server, provenance = self.run, self.server, self._folder / "provenance.json"
        client, remote = self._client(), run.remote
        job = LoadJob(
            run_id=self._facts["run_id"],
            run_dir=str(run.path.resolve()),
            config=self.start.config,
            base_urls=tuple(server.base_urls),
            model_name=server.model_name,
            api=run.target().api,
            client=client if remote is None else replace(client, workers=remote.workers),
            cells=cells,
            prompt_files=self._facts["prompt_files"],
            mix_weights={k: tuple(v) for k, v in self._facts["mix_weights"].items()},
            scraper_socket=str(self._scraper),
            provenance_file=str(provenance.resolve()),
            server_fingerprint=server.fingerprint,
            simulated=bool(json.loads(provenance.read_text(encoding="utf-8")).get("simulated")),
        )
        if remote is not None:
            first = next(s.number for s in run.starts() if not all(run.is_done(c) for c in s.cells))
            wait_s = FIRST_WAIT_S if self.start.number == first else NEXT_WAIT_S
            job = replace(job, bind_host=remote.host, bind_port=remote.port, workers_timeout_s=wait_s)
        job_file = run.path / "jobs" / f"{job_name}.json"
        write_json(job_file, to_json(job))
        _run_locust(run, self.start, job, job_file, server, self.reporter)


@contextmanager
def serving(run: RunFolder, start: ServerStart, reporter: Reporter) -> Iterator[Session]:
    """The server of one start, proven, with its scraper and the config's own commands around it.

    Raises ServerError where it does not come up or is not what was asked for.
    """
    folder = start_folder(run, start)
    with _commands(start, folder, reporter), _server(run, start, folder, reporter) as server:
        cache = run.facts["plan"]["cache"]
        provenance = _proven(run, start, server, folder) | {"caches": cache}
        write_json(folder / "provenance.json", provenance)
        require_no_contradiction(provenance)
        resets = reset_urls(server.base_urls) if cache["prefix"] == "reset" else ()
        if resets:
            require_reset(server.base_urls, server.headers)
        scraper = start_scraper(list(server.metrics_urls), folder, run.client().headers_env, reset_urls=resets)
        try:
            yield Session(run, start, server, Path(scraper.socket), reporter)
        finally:
            scraper.stop()


def _proven(run: RunFolder, start: ServerStart, server: Server, folder: Path) -> dict[str, Any]:
    """Provenance of the server. One whose engine dies at its first request is diagnosed from its log."""
    try:
        return collect(start.config, run.target(), server, folder)
    except EndpointError:
        _wait_for_death(server, "proof")
        raise


@contextmanager
def failures_kept(run: RunFolder, start: ServerStart, reporter: Reporter) -> Iterator[None]:
    """A server or a load that fails ends the block, not the run: `failed.json` says what happened."""
    folder = start_folder(run, start)
    folder.mkdir(exist_ok=True)
    _keep_earlier(folder)
    try:
        yield
    except (ServerError, LoadError) as e:
        reporter.note(f"{start.name}: {e}")
        if not (folder / "failed.json").exists():
            phase = next((name for kind, name in PHASES if isinstance(e, kind)), "measure")
            failed = {"reason": type(e).__name__, "phase": phase, "diagnosis": str(e), "log_tail": ""}
            write_json(folder / "failed.json", failed)


def start_folder(run: RunFolder, start: ServerStart) -> Path:
    """`servers/<nn>-<config>` of a server start."""
    return run.path / "servers" / start.name


def _keep_earlier(folder: Path) -> None:
    """What an earlier try of this start left stays readable beside the new try's files."""
    for name in ("failed.json", "server.log"):
        if (folder / name).exists():
            taken = len(list(folder.glob(f"{name}.*")))
            (folder / name).rename(folder / f"{name}.{taken + 1}")


@contextmanager
def _commands(start: ServerStart, folder: Path, reporter: Reporter) -> Iterator[None]:
    """`before` of the config, and `after` whatever happened in between; a failing `after` undoes no measurement."""
    try:
        if start.config.before:
            reporter.status(f"{start.name}: running the `before` commands")
            run_commands("before", start.config, folder)
        yield
    finally:
        if start.config.after:
            reporter.status(f"{start.name}: running the `after` commands")
            try:
                run_commands("after", start.config, folder)
            except CommandError as e:
                reporter.note(f"{start.name}: {e}")


@contextmanager
def _server(run: RunFolder, start: ServerStart, folder: Path, reporter: Reporter) -> Iterator[Server]:
    config, target = start.config, run.target()
    server: Server
    if config.urls:
        client = run.client()
        headers = {name: os.environ.get(variable, "") for name, variable in client.headers_env.items()}
        server = attach(config, target, headers, (client.api_key_env,))
    else:
        process = ServerProcess(config, target, folder)
        reporter.status(f"{start.name}: starting the server")
        process.start(lambda text: reporter.status(f"{start.name}: starting the server | {text}"))
        server = process
    try:
        yield server
    finally:
        reporter.status(f"{start.name}: stopping the server")
        server.stop()


def _run_locust(
    run: RunFolder, start: ServerStart, job: LoadJob, job_file: Path, server: Server, reporter: Reporter
) -> None:
    """All cells of a job. Raises ServerError when the server dies meanwhile, LoadError when cells stay unfinished."""
    log = job_file.with_suffix(".locust.log")
    budget_s = sum(
        c.warmup_s + (c.measure_s if c.measure_s is not None else c.max_measure_s) + c.drain_s + CELL_OVERHEAD_S
        for c in job.cells
    )
    budget_s += job.workers_timeout_s
    page: dict[str, Any] = {} if run.web_port is None else {"web_ui": True, "web_port": run.web_port}
    began_ns = time.time_ns()
    with log.open("ab") as out:
        locust = subprocess.Popen(
            locust_argv(job_file, job, **page),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=locust_env(job_file),
            start_new_session=True,
        )
    deadline = time.monotonic() + budget_s
    everything = run.cells()  # read once: the client measures on this host, and looking must cost it nothing
    watch = AutoWatch(run, job.cells, reporter.note, since_ns=began_ns)
    try:
        while locust.poll() is None:
            _show(run, job, everything, reporter, began_ns)
            watch.poll()
            server.check_alive()
            if time.monotonic() > deadline:
                raise LoadError(f"Locust did not finish {start.name} within {budget_s:.0f} s; see {log}")
            time.sleep(POLL_S)
    finally:
        _stop_group(locust)
    _show(run, job, everything, reporter, began_ns)
    left = [c.cell_id for c in job.cells if not run.is_done(c)]
    if locust.returncode != 0 or left:
        _wait_for_death(server)
        tail = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-5:]
        raise LoadError(
            f"Locust ended with code {locust.returncode} and {len(left)} of {len(job.cells)} cells unfinished; "
            f"see {log}. Last lines: {' / '.join(tail)}"
        )


def _wait_for_death(server: Server, phase: Phase = "measure") -> None:
    """A failure may be the first sign of a dying server: its diagnosis, raised here, says more. Else nothing."""
    deadline = time.monotonic() + (DEATH_S if server.started_by_us else 0.0)
    while time.monotonic() < deadline:
        server.check_alive(phase)
        time.sleep(POLL_S)


def _show(run: RunFolder, job: LoadJob, everything: list[Cell], reporter: Reporter, since_ns: int) -> None:
    reporter.advance(sum(run.is_done(c) for c in everything))
    for cell in job.cells:
        if not run.is_done(cell) and (started_ns := run.begun_ns(cell, since_ns)) is not None:
            live = live_text(run.cell_dir(cell))
            seconds = f"{max(0, time.time_ns() - started_ns) / 1e9:.0f} s"
            reporter.status(f"{cell.cell_id} | {seconds}{', ' if live else ''}{live}")
            return


def _stop_group(process: subprocess.Popen[bytes]) -> None:
    """End a process and all of its session; a crash of the master must not leave workers behind."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_LOCUST_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
