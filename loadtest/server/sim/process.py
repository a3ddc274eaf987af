"""A simulated server in a process of its own, for tests, benchmarks and notebooks."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.errors import StartError
from loadtest.server.sim.options import sim_argv

START_TIMEOUT_S = 30.0
"""Starting takes half a second; the rest is for a machine that is busy."""
STOP_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class SimProcess:
    """A server that listens."""

    url: str
    port: int
    process: subprocess.Popen[bytes]
    log: Path


@contextmanager
def simulated_server(**options: Any) -> Iterator[SimProcess]:
    """Starts `loadtest sim` with these options (as `sim_options` takes them) and stops it at the end.

    Raises StartError with the server's output when it does not come up.
    """
    with tempfile.TemporaryDirectory(prefix="loadtest-sim-") as folder:
        port_file, log = Path(folder) / "port", Path(folder) / "log"
        argv = [sys.executable, "-m", "loadtest.server.sim", *sim_argv({**options, "port_file": port_file})]
        with log.open("wb") as output:
            process = subprocess.Popen(argv, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            port = _wait_for_port(process, port_file, log)
            yield SimProcess(f"http://127.0.0.1:{port}", port, process, log)
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for_port(process: subprocess.Popen[bytes], port_file: Path, log: Path) -> int:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not port_file.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            state = "did not listen in time" if process.poll() is None else f"ended with code {process.returncode}"
            raise StartError(f"sim: the server {state}: {log.read_text('utf-8', 'replace').strip()[-2000:]}")
        time.sleep(0.02)
    return int(port_file.read_text("utf-8"))
