"""`loadtest worker`: keeps Locust worker processes for one master until its run is over. No locust, no gevent here.

It needs the package and, where the server wants one, the API key in its environment; plan, prompts and trace come from
the master. A Locust process serves one Locust start; for the next one a new process is started.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from types import FrameType

from loadtest.errors import LoadError
from loadtest.load.launch import LOCUST_MODULE, LOCUSTFILE
from loadtest.load.protocol import ENV_CONNECTED, ENV_JOB, ENV_PARENT
from loadtest.load.remote import Found, look

LOOK_EVERY_S = 0.5
PATIENCE_S = 1800.0
"""Longest time without a master: a large model needs ten minutes to load, twice that with a download."""
SETTLE_S = 2.0
"""The master that has dismissed its workers still holds its port for about a second."""
END_S = 5.0
"""A Locust process that was told to end is gone within a second."""


def run_worker(host: str, port: int, *, processes: int = 1, patience_s: float = PATIENCE_S) -> None:
    """Serves the master at host:port until it says that the run is over. Raises LoadError where it is silent for long.

    Every process is a worker of its own and is counted by `--expect-workers`.
    """
    # As process 1 of a container a signal without a handler would be ignored.
    signal.signal(signal.SIGTERM, _interrupt)
    _say(f"waiting for the master at {host}:{port} ({processes} process{'es' if processes > 1 else ''})")
    seen = time.monotonic()
    while True:
        found = look(host, port)
        if found == "master":
            found = _serve(host, port, processes)
            seen = time.monotonic()
        if found == "farewell":
            _say("the run is over")
            return
        if time.monotonic() - seen > patience_s:
            raise LoadError(
                f"no master answered at {host}:{port} for {patience_s:.0f} s; is `loadtest run --expect-workers` "
                "running there, and is the port open?"
            )
        time.sleep(LOOK_EVERY_S)


def _serve(host: str, port: int, processes: int) -> Found:
    """One Locust start: until its processes end, or the run is over while they still look for their master."""
    argv = [sys.executable, "-m", LOCUST_MODULE, "-f", str(LOCUSTFILE), "--worker"]
    argv += ["--master-host", host, "--master-port", str(port)]
    told, tell = os.pipe()
    env = {k: v for k, v in os.environ.items() if k != ENV_JOB}
    env |= {ENV_PARENT: str(os.getpid()), ENV_CONNECTED: str(tell)}
    started: list[subprocess.Popen[bytes]] = []
    over = False
    try:
        started += [
            subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, pass_fds=(tell,)) for _ in range(processes)
        ]
        _say(f"serving with process {', '.join(str(p.pid) for p in started)}")
        connected = 0
        while not over and any(p.poll() is None for p in started):
            if connected < processes and select.select([told], [], [], 0)[0]:
                connected += len(os.read(told, processes))
            # Once they are connected, nothing of ours disturbs the master.
            over = connected < processes and look(host, port) == "farewell"
            time.sleep(LOOK_EVERY_S)
    finally:
        os.close(told)
        os.close(tell)
        _end(started)
    if over:
        return "farewell"
    _say(f"Locust ended with code {', '.join(str(p.returncode) for p in started)}")
    time.sleep(SETTLE_S)
    return "nobody"


def _end(started: list[subprocess.Popen[bytes]]) -> None:
    for process in started:
        if process.poll() is None:
            process.terminate()
    for process in started:
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        process.kill()
        process.wait()


def _interrupt(signum: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(signum).name)


def _say(text: str) -> None:
    print(f"loadtest worker: {text}", file=sys.stderr, flush=True)
