"""Sets up a Locust process for its role when Locust starts it: worker, master, or both in one. Import after locust."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from typing import Any

import gevent
import orjson
from locust.runners import MasterRunner, WorkerRunner

from loadtest.errors import EXIT_CRASH, LoadError
from loadtest.load import manual, webui
from loadtest.load.lifeline import die_with_parent
from loadtest.load.master import Master
from loadtest.load.protocol import ENV_CONNECTED, ENV_JOB, ENV_PARENT
from loadtest.load.selfproof import watch_master
from loadtest.load.worker import Worker
from loadtest.model import LoadJob, from_json

log = logging.getLogger(__name__)


def job_file() -> Path | None:
    """The job of a planned run, or None: a run by hand."""
    value = os.environ.get(ENV_JOB)
    return Path(value) if value else None


def read_job(path: Path) -> LoadJob:
    """The job of a file. Raises LoadError naming the file."""
    try:
        return from_json(LoadJob, orjson.loads(path.read_bytes()))
    except (OSError, TypeError, KeyError, AttributeError, orjson.JSONDecodeError) as e:
        raise LoadError(f"{path} (from {ENV_JOB}) is no job file: {e!r}") from e


def install(events: Any) -> None:
    """Hooks everything to Locust's events; called once, when the locustfile is imported."""
    path = job_file()
    if path is None:
        events.init_command_line_parser.add_listener(manual.add_arguments)
    events.init.add_listener(_on_init)
    events.quit.add_listener(_on_quit)


_master: Master | None = None


def _on_init(environment: Any, runner: Any, web_ui: Any, **_: Any) -> None:
    """Raising here ends Locust with exit code 1 before anything is sent."""
    global _master  # one per process; the quit event brings no environment
    if isinstance(runner, WorkerRunner):
        _be_worker(environment)
        return
    _master = environment.loadtest_master = Master(environment)
    if not isinstance(runner, MasterRunner):
        environment.loadtest_worker = Worker(environment, 0)
    if web_ui is not None:
        webui.install(web_ui, _master)
    path = job_file()
    if path is None:
        manual.install(environment, _master)
        return
    environment.process_exit_code = EXIT_CRASH  # until all cells are finished
    environment.loadtest_job = job = read_job(path)
    _quit_once(runner)
    # Locust handles SIGTERM only after the shape is done; until then the signal would end the master at once.
    gevent.signal_handler(signal.SIGTERM, _master.fail, "the run was stopped (SIGTERM)")
    # Waiting here saves the second that Locust's own waiting would take.
    expected = max(1, job.client.workers) if isinstance(runner, MasterRunner) else 1
    _master.await_workers(expected, job.workers_timeout_s)


def _be_worker(environment: Any) -> None:
    options = environment.parsed_options
    if options.processes:  # forked by the master: it tells us when to end, Ctrl-C is for the master
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        die_with_parent(os.getppid())
    else:
        watch_master(environment.runner)
        if agent := os.environ.get(ENV_PARENT):
            die_with_parent(int(agent))
        if fd := os.environ.get(ENV_CONNECTED):
            os.write(int(fd), b"+")
    environment.loadtest_worker = Worker(environment, environment.runner.worker_index)


def _quit_once(runner: Any) -> None:
    """Locust calls `quit` up to four times at the end and sleeps half a second in each."""
    first = runner.quit

    def quit_once() -> None:
        runner.quit = lambda: None
        first()

    runner.quit = quit_once


def _on_quit(exit_code: int, **_: Any) -> None:
    if _master is not None:
        _master.ending = True
        log.debug("exit code %d", exit_code)
        _master.end_workers()
