"""Drives a plan: one server after the other, all cells of each, whatever happens to one of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from loadtest.errors import (
    CommandError,
    ConfigContradictionError,
    EndpointError,
    LoadError,
    LoadtestError,
    ServerError,
    StartError,
)
from loadtest.load.launch import locust_argv, locust_env
from loadtest.model import Cell, ClientSpec, ConfigSpec, LoadJob, Slo, to_json
from loadtest.plan.cells import client_spec, expand, expand_probe, slos, target_spec
from loadtest.plan.loader import load_plan
from loadtest.plan.prompts import load_mixes, write_prompts
from loadtest.plan.schema import Plan
from loadtest.progress import Reporter
from loadtest.run_folder import RunFolder, ServerStart, new_folder, write_facts, write_json
from loadtest.server.attach import attach
from loadtest.server.caches import require_reset, reset_urls
from loadtest.server.commands import run_commands
from loadtest.server.launch import ServerProcess
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

    def check_alive(self) -> None:
        """Raise ServerError with the diagnosis where the server has ended."""


def prepare(plan_file: Path, root: Path) -> RunFolder:
    """Validate a plan and make its run folder. Raises PlanError and DatasetError before anything starts."""
    plan = load_plan(plan_file)
    path = new_folder(root, plan.name)
    return _write(plan, plan_file, path, expand(plan, run_nonce=path.name), client_spec(plan), slos(plan))


def prepare_probe(plan_file: Path, root: Path, requests: int | None = None) -> RunFolder:
    """The run folder of a sequential probe: every prompt once, or `requests` per mix. Errors as `prepare`.

    Nothing streams, so there is no first token and no time per token; the criteria of the plan do not apply.
    """
    plan = load_plan(plan_file)
    counts = {m.name: min(requests or len(m.prompts), len(m.prompts)) for m in load_mixes(plan)}
    path = new_folder(root, f"{plan.name}-probe")
    expanded = expand_probe(plan, counts, run_nonce=path.name)
    return _write(plan, plan_file, path, expanded, replace(client_spec(plan), stream=False), [])


def _write(
    plan: Plan,
    plan_file: Path,
    path: Path,
    expanded: tuple[list[ConfigSpec], list[Cell]],
    client: ClientSpec,
    criteria: list[Slo],
) -> RunFolder:
    configs, cells = expanded
    run = write_facts(
        path,
        plan_file,
        plan=plan.model_dump(mode="json"),
        target=target_spec(plan),
        client=client,
        configs=configs,
        cells=cells,
        slos=criteria,
    )
    prompt_files, mix_weights = write_prompts(plan, run.path)
    run.update(prompt_files=prompt_files, mix_weights={k: list(v) for k, v in mix_weights.items()})
    return run


def drive(run: RunFolder, reporter: Reporter) -> None:
    """Measure every cell that has no done.json yet. A config that fails is marked and the run goes on.

    Raises LoadtestError when another process holds the run, KeyboardInterrupt after SIGINT or SIGTERM; both leave
    what was measured in place for `--resume`.
    """
    with run.locked(), _signals_as_interrupt():
        run.update(state="running")
        try:
            for start in run.starts():
                _measure_start(run, start, reporter)
        except BaseException:
            run.update(state="interrupted", ended_ns=time.time_ns())
            raise
        missing = [c.cell_id for c in run.cells() if not run.is_done(c)]
        run.update(state="incomplete" if missing else "complete", ended_ns=time.time_ns(), missing_cells=missing)


def _measure_start(run: RunFolder, start: ServerStart, reporter: Reporter) -> None:
    todo = tuple(c for c in start.cells if not run.is_done(c))
    reporter.advance(sum(run.is_done(c) for c in run.cells()))
    if not todo:
        return
    folder = run.path / "servers" / start.name
    folder.mkdir(exist_ok=True)
    _keep_earlier(folder)
    try:
        with _commands(start, folder, reporter), _server(run, start, folder, reporter) as server:
            _measure_on(run, start, todo, server, folder, reporter)
    except (ServerError, LoadError) as e:
        reporter.note(f"{start.name}: {e}")
        if not (folder / "failed.json").exists():
            phase = next((name for kind, name in PHASES if isinstance(e, kind)), "measure")
            failed = {"reason": type(e).__name__, "phase": phase, "diagnosis": str(e), "log_tail": ""}
            write_json(folder / "failed.json", failed)


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


def _measure_on(
    run: RunFolder, start: ServerStart, todo: tuple[Any, ...], server: Server, folder: Path, reporter: Reporter
) -> None:
    facts = run.facts
    cache = facts["plan"]["cache"]
    provenance = collect(start.config, run.target(), server, folder) | {"caches": cache}
    write_json(folder / "provenance.json", provenance)
    require_no_contradiction(provenance)
    resets = reset_urls(server.base_urls) if cache["prefix"] == "reset" else ()
    if resets:
        require_reset(server.base_urls, server.headers)
    scraper = start_scraper(list(server.metrics_urls), folder, run.client().headers_env, reset_urls=resets)
    try:
        job = LoadJob(
            run_id=facts["run_id"],
            run_dir=str(run.path.resolve()),
            config=start.config,
            base_urls=tuple(server.base_urls),
            model_name=server.model_name,
            api=run.target().api,
            client=run.client(),
            cells=todo,
            prompt_files=facts["prompt_files"],
            mix_weights={k: tuple(v) for k, v in facts["mix_weights"].items()},
            scraper_socket=str(scraper.socket),
            provenance_file=str((folder / "provenance.json").resolve()),
            server_fingerprint=server.fingerprint,
            simulated=bool(provenance.get("simulated")),
        )
        job_file = run.path / "jobs" / f"{start.name}.json"
        write_json(job_file, to_json(job))
        _run_locust(run, start, job, job_file, server, reporter)
    finally:
        scraper.stop()


def _run_locust(
    run: RunFolder, start: ServerStart, job: LoadJob, job_file: Path, server: Server, reporter: Reporter
) -> None:
    """All cells of a job. Raises ServerError when the server dies meanwhile, LoadError when cells stay unfinished."""
    log = job_file.with_suffix(".locust.log")
    budget_s = sum(
        c.warmup_s + (c.measure_s if c.measure_s is not None else c.max_measure_s) + c.drain_s + CELL_OVERHEAD_S
        for c in job.cells
    )
    with log.open("ab") as out:
        locust = subprocess.Popen(
            locust_argv(job_file, job),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=locust_env(job_file),
            start_new_session=True,
        )
    deadline = time.monotonic() + budget_s
    try:
        while locust.poll() is None:
            _show(run, start, reporter)
            server.check_alive()
            if time.monotonic() > deadline:
                raise LoadError(f"Locust did not finish {start.name} within {budget_s:.0f} s; see {log}")
            time.sleep(POLL_S)
    finally:
        _stop_group(locust)
    _show(run, start, reporter)
    left = [c.cell_id for c in job.cells if not run.is_done(c)]
    if locust.returncode != 0 or left:
        _wait_for_death(server)
        tail = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-5:]
        raise LoadError(
            f"Locust ended with code {locust.returncode} and {len(left)} of {len(job.cells)} cells unfinished; "
            f"see {log}. Last lines: {' / '.join(tail)}"
        )


def _wait_for_death(server: Server) -> None:
    """A failed load may be the first sign of a dying server: its diagnosis says more than Locust's. Else nothing."""
    deadline = time.monotonic() + (DEATH_S if server.started_by_us else 0.0)
    while time.monotonic() < deadline:
        server.check_alive()
        time.sleep(POLL_S)


def _show(run: RunFolder, start: ServerStart, reporter: Reporter) -> None:
    reporter.advance(sum(run.is_done(c) for c in run.cells()))
    for cell in start.cells:
        folder = run.cell_dir(cell)
        if (folder / "cell.json").exists() and not (folder / "done.json").exists():
            started_ns = json.loads((folder / "cell.json").read_text(encoding="utf-8")).get(
                "started_ns", time.time_ns()
            )
            reporter.status(f"{cell.cell_id} | {max(0, time.time_ns() - started_ns) / 1e9:.0f} s")
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


@contextmanager
def _signals_as_interrupt() -> Iterator[None]:
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
