"""Runs by hand: `locust -f locustfiles/replay.py`, headless or from Locust's web page. Import after locust.

Locust's own fields give the users; each start of a test makes one run folder with one cell. The window begins when all
users are there and the warm-up is over, and ends when the test is stopped.
"""

from __future__ import annotations

import logging
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import gevent
from gevent.event import Event

from loadtest.errors import EXIT_CRASH, LoadtestError
from loadtest.load import adhoc
from loadtest.load.cellrun import FAR_FUTURE_NS
from loadtest.load.files import write_json
from loadtest.load.master import Master
from loadtest.load.protocol import WINDOW_LEAD_NS
from loadtest.load.scrapelink import ScrapeLink
from loadtest.load.stages import CellConductor

log = logging.getLogger(__name__)

STOP_WAIT_S = 60.0
"""A second stop while the first one drains waits for it, at most this long."""


def add_arguments(parser: Any) -> None:
    """The options of a run by hand. Locust's own parser takes no argument groups."""
    parser.set_defaults(
        web_host="127.0.0.1",  # Locust binds to all interfaces and has no protection against CSRF
        spawn_rate=100.0,  # ramp-up is not measured, so it need not be slow
    )
    parser.add_argument("--mix", default="code", help="bundled prompt mix: code or chat")
    parser.add_argument("--dataset", default="", help="prompt file (JSON Lines or JSON); replaces --mix")
    parser.add_argument("--max-tokens", type=int, default=256, help="length limit of each answer, in tokens")
    parser.add_argument("--temperature", type=float, default=0.0, help="sampling temperature")
    parser.add_argument("--warmup", default="5s", help="time from the last user's start to the window")
    parser.add_argument("--model", default="", help="model name; default: the first of /v1/models")
    parser.add_argument("--api", default="chat", choices=["chat", "completions"], help="route of the requests")
    parser.add_argument("--no-stream", action="store_true", help="ask for whole answers instead of streams")
    parser.add_argument(
        "--run-dir", default="", include_in_web_ui=False, help="run folder; default: reports/manual-<time>"
    )


def install(environment: Any, master: Master) -> None:
    """Hooks to Locust's events of the master (or of the only process)."""
    run = ManualRun(environment, master)
    environment.events.test_start.add_listener(run.on_start)
    environment.events.spawning_complete.add_listener(run.on_spawned)
    environment.events.test_stopping.add_listener(run.on_stopping)
    environment.events.quitting.add_listener(run.on_quitting)
    environment.events.quit.add_listener(run.on_quit)
    # Imports may have taken seconds; a timer of Locust's run time that is set now must not start from before them.
    gevent.get_hub().loop.update_now()


class ManualRun:
    """The run that is on, if one is. A cell that fails to finish makes the exit code 1."""

    def __init__(self, environment: Any, master: Master) -> None:
        self.environment, self.master = environment, master
        self._conductor: CellConductor | None = None
        self._options: adhoc.Options | None = None
        self._scraper: subprocess.Popen[bytes] | None = None
        self._window: gevent.Greenlet | None = None
        self._stripes: dict[str, list[int]] = {}
        self._started_ns = 0
        self._measured = False
        self._stopped = Event()
        self._stopped.set()

    def on_start(self, **_: Any) -> None:
        """A test starts: folder, prompts, workers ready; the gate opens for the warm-up."""
        runner = self.environment.runner
        if not self._stopped.is_set():
            log.warning("the last test is still draining; wait for it")
            self._stopped.wait(STOP_WAIT_S)
        try:
            self._begin(runner)
        except (LoadtestError, OSError) as e:
            log.error("the test cannot start: %s", e)
            self._give_up()

    def _begin(self, runner: Any) -> None:
        options = adhoc.options_of(
            self.environment.parsed_options,
            self.environment.host or self.environment.user_classes[0].host,
            int(runner.target_user_count),
            max(1, len(self.master.workers)),
        )
        job = adhoc.make_job(options)
        run_dir = Path(job.run_dir)
        if (started := adhoc.start_scraper(options.host, run_dir)) is not None:
            self._scraper, control = started
            job = replace(job, scraper_socket=control)
        else:
            log.warning("%s/metrics does not answer: nothing is scraped", options.host.rstrip("/"))
        (cell,) = job.cells
        self._options, self._started_ns = options, time.time_ns()
        write_json(run_dir / "run.json", adhoc.run_facts(job, options, self._started_ns))
        self._stopped.clear()
        conductor = self._conductor = CellConductor(self.master, job, cell, ScrapeLink(job.scraper_socket))
        conductor.begin()
        conductor.edge("idle_start")
        conductor.start_ns = conductor.end_ns = FAR_FUTURE_NS
        n = len(self.master.workers)
        self._stripes = {str(index): [k, n] for k, index in enumerate(sorted(self.master.workers))}
        self.master.send_window(cell, FAR_FUTURE_NS, FAR_FUTURE_NS, self._stripes)
        log.info("run: %s", run_dir)

    def on_spawned(self, user_count: int, **_: Any) -> None:
        """All users are there: the window begins after the warm-up. A later change of the users is noted."""
        conductor = self._conductor
        if conductor is None:
            return
        if conductor.start_ns != FAR_FUTURE_NS:
            conductor.notes.append(f"users changed to {user_count} at {time.time_ns()}")
            return
        conductor.start_ns = time.time_ns() + max(WINDOW_LEAD_NS, int(conductor.cell.warmup_s * 1e9))
        self.master.send_window(conductor.cell, conductor.start_ns, FAR_FUTURE_NS, self._stripes)
        self._window = gevent.spawn(self._open_window, conductor)

    def _open_window(self, conductor: CellConductor) -> None:
        self.master.sleep_until(conductor.start_ns)
        conductor.edge("window_start")
        log.info("the window is open: requests are measured until the test is stopped")

    def on_stopping(self, **_: Any) -> None:
        """The test is being stopped, users still run: end of the window, drain, `done.json`."""
        conductor, self._conductor = self._conductor, None
        if conductor is None:
            self._stopped.wait(STOP_WAIT_S)
            return
        try:
            if self._window is not None:
                self._window.kill()
            now = time.time_ns()
            if conductor.start_ns > now:
                conductor.notes.append("stopped before the warm-up was over: nothing was measured")
                conductor.start_ns = now + WINDOW_LEAD_NS
            conductor.end_ns = time.time_ns() + WINDOW_LEAD_NS
            self.master.send_window(conductor.cell, conductor.start_ns, conductor.end_ns, self._stripes)
            self.master.sleep_until(conductor.end_ns)
            conductor.edge("window_end")
            rows = conductor.finish()
            log.info("%d rows; run: %s", rows, conductor.job.run_dir)
            self._measured |= conductor.recorder is not None and conductor.recorder.measured > 0
            state = "measured"
        except (LoadtestError, OSError) as e:
            conductor.abandon(str(e))
            self.environment.process_exit_code = EXIT_CRASH
            state = "unfinished"
        self._close(conductor, state)

    def _close(self, conductor: CellConductor, state: str) -> None:
        conductor.link.disconnect()
        self._end_scraper()
        if self._options is not None:
            facts = adhoc.run_facts(conductor.job, self._options, self._started_ns)
            facts |= {"ended_ns": time.time_ns(), "state": state}
            write_json(Path(conductor.job.run_dir) / "run.json", facts)
        self._stopped.set()

    def _give_up(self) -> None:
        conductor, self._conductor = self._conductor, None
        if conductor is not None:
            conductor.abandon("the test could not start")
        self._end_scraper()
        self._stopped.set()
        self.environment.process_exit_code = EXIT_CRASH
        if self.environment.parsed_options.headless:
            gevent.spawn_later(0.1, self.environment.runner.quit)

    def _end_scraper(self) -> None:
        if self._scraper is not None:
            self._scraper.terminate()
            self._scraper.wait()
            self._scraper = None

    def on_quitting(self, **_: Any) -> None:
        """Ctrl-C comes here first. A headless run that measured nothing must not look like one that did."""
        if self._conductor is not None:
            self.on_stopping()
        if self.environment.parsed_options.headless and not self._measured:
            log.error("nothing was measured: the test ended before its warm-up; give it more time with -t")
            self.environment.process_exit_code = EXIT_CRASH

    def on_quit(self, **_: Any) -> None:
        """Locust ends: nothing of ours stays behind."""
        self._end_scraper()
