"""Command line and environment of one Locust start. No locust, no gevent here: `run.py` imports this module."""

from __future__ import annotations

import os
import random
import socket
import sys
from pathlib import Path

from loadtest.errors import LoadError
from loadtest.load.protocol import ENV_JOB, ENV_PARENT
from loadtest.model import LoadJob

LOCUSTFILE = Path(__file__).with_name("locustfile.py")
"""The packaged locustfile; `locustfiles/replay.py` of the repository imports the same names from it."""
LOCUST_MODULE = "loadtest.load.locust_process"
"""Locust without its configuration files and variables, which belong to other tests."""

PORTS = range(15_000, 32_000)
"""Below the range from which systems take the ports of outgoing connections (Linux: 32768 to 60999), so that none of
those can take the port between our look and Locust's bind."""


def free_port() -> int:
    """A TCP port of the loopback interface that is free now; at random, so that two starts at once do not meet."""
    chosen = random.SystemRandom()
    for _ in range(100):
        port = chosen.choice(PORTS)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise LoadError(f"no free port between {PORTS.start} and {PORTS.stop} on 127.0.0.1 after 100 tries")


def locust_argv(
    job_file: Path, job: LoadJob, *, web_ui: bool = False, web_host: str = "127.0.0.1", web_port: int = 8089
) -> list[str]:
    """The argument list that runs all cells of `job`; start it with `locust_env(job_file)`.

    There is always a master and at least one worker process: the process that measures does nothing else. With
    `job.bind_host` the workers come from other hosts (`loadtest worker`). The exit code of the process is 0 only when
    every cell of the job is finished.
    """
    if not job_file.is_file():
        raise FileNotFoundError(f"no job file {job_file}: write it with loadtest.model.to_json first")
    argv = [sys.executable, "-m", LOCUST_MODULE, "-f", str(LOCUSTFILE)]
    if job.bind_host is not None:
        argv += ["--master", "--master-bind-host", job.bind_host, "--master-bind-port", str(job.bind_port)]
    else:
        port = str(free_port())
        argv += ["--processes", str(max(1, job.client.workers))]
        argv += ["--master-bind-host", "127.0.0.1", "--master-bind-port", port]
        argv += ["--master-host", "127.0.0.1", "--master-port", port]
    argv += ["--host", job.base_urls[0], "--stop-timeout", "0"]
    if web_ui:
        argv += ["--web-host", web_host, "--web-port", str(web_port), "--autostart", "--autoquit", "0"]
    else:
        argv += ["--headless", "--only-summary"]
    return argv


def locust_env(job_file: Path, base: dict[str, str] | None = None) -> dict[str, str]:
    """The environment for `locust_argv`: `base` (or this process's own) plus the job and who started it."""
    env = dict(os.environ if base is None else base)
    env[ENV_JOB] = str(job_file.resolve())
    env[ENV_PARENT] = str(os.getpid())
    return env
