"""The scraper process: `python -m loadtest.server.scraper --spec FILE`, and how the orchestrator starts it.

It is a process of its own so that neither a busy load generator nor a busy orchestrator delays a scrape.
The control channel is described in docs/architecture.md; `ScraperProcess.ask` and `ask` speak it without asyncio.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import socket as sockets
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from loadtest.errors import InputError, ServerError

PERIOD_S = 1.0
TIMEOUT_S = 5.0
"""A page takes milliseconds; an engine that cannot answer in five seconds is a finding."""
START_TIMEOUT_S = 30.0
"""Imports of aiohttp and pyarrow on a loaded small machine."""
ANSWER_TIMEOUT_S = 60.0
MAX_SOCKET_PATH_BYTES = 107
"""sun_path of Linux holds 108 bytes with the final zero."""


class ScraperProcess:
    """A running scraper. `socket` is the path of its control channel."""

    def __init__(self, process: subprocess.Popen[bytes], socket: Path, log: Path) -> None:
        self.process = process
        self.socket = str(socket)
        self.log = log

    def ask(self, request: Mapping[str, Any], timeout_s: float = ANSWER_TIMEOUT_S) -> dict[str, Any]:
        """Send one request on a connection of its own."""
        with self.connect(timeout_s) as control:
            return control.ask(request)

    def connect(self, timeout_s: float = ANSWER_TIMEOUT_S) -> Control:
        """A control connection."""
        return Control(self.socket, timeout_s)

    def stop(self, timeout_s: float = 10.0) -> None:
        """End the process; an open recording is closed first."""
        self.process.terminate()
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(Path(self.socket).parent, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Control:
    """One connection to the control channel."""

    def __init__(self, path: str, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._socket = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
        try:
            self._socket.connect(path)
        except OSError as error:
            self._socket.close()
            raise ServerError(f"the scraper does not answer at {path}: {error}") from error
        self._lines = self._socket.makefile("rb")

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one request. Raises ServerError when the scraper is gone or silent."""
        try:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            line = self._lines.readline()
        except OSError as error:
            raise ServerError(f"the scraper did not answer {request.get('op')!r}: {error}") from error
        if not line:
            raise ServerError(f"the scraper ended while asked {request.get('op')!r}; see scraper.log")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Close the connection."""
        self._lines.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start_scraper(
    metrics_urls: Sequence[str],
    folder: Path,
    headers_env: Mapping[str, str] | None = None,
    *,
    reset_urls: Sequence[str] = (),
    period_s: float = PERIOD_S,
    timeout_s: float = TIMEOUT_S,
) -> ScraperProcess:
    """Start a scraper for the endpoints of one server; its log is `folder`/scraper.log.

    `headers_env`: header name -> name of the environment variable with its value (the value is never stored).
    `reset_urls` get a POST before each recording; one that fails refuses the recording, so that the cell cannot count.
    Raises InputError for a variable that is not set, ServerError when the process does not come up.
    """
    for header, variable in (headers_env or {}).items():
        if variable not in os.environ:
            raise InputError(f"headers_env: the environment variable {variable} for header {header} is not set")
    if not metrics_urls:
        raise ServerError("no metrics URL to scrape: give the config metrics_urls")
    control = _socket_folder() / "s"
    folder.mkdir(parents=True, exist_ok=True)
    spec = {
        "endpoints": list(metrics_urls),
        "socket": str(control),
        "headers_env": dict(headers_env or {}),
        "reset_urls": list(reset_urls),
        "period_s": period_s,
        "timeout_s": timeout_s,
        "parent_pid": os.getpid(),
    }
    (folder / "scraper.json").write_text(json.dumps(spec, indent=1) + "\n")
    log = folder / "scraper.log"
    with log.open("ab") as out:
        argv = [sys.executable, "-m", "loadtest.server.scraper", "--spec", str(folder / "scraper.json")]
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
    scraper = ScraperProcess(process, control, log)
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            scraper.connect().close()
        except ServerError:
            if process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
                continue
            scraper.stop()
            tail = log.read_text(errors="replace")[-2000:]
            raise ServerError(f"the scraper did not start (exit code {process.returncode}): {tail}") from None
        return scraper


def _socket_folder() -> Path:
    """A private folder whose path is short enough for a Unix socket, whatever TMPDIR says."""
    for parent in (tempfile.gettempdir(), "/tmp"):  # noqa: S108 - mkdtemp makes it private
        if len(f"{parent}/ltsc-xxxxxxxx/s".encode()) <= MAX_SOCKET_PATH_BYTES:
            return Path(tempfile.mkdtemp(prefix="ltsc-", dir=parent))
    raise ServerError("no temporary folder has a path short enough for a Unix socket; set TMPDIR=/tmp")


def main() -> None:
    """Entry point of the process."""
    parser = argparse.ArgumentParser(description="Records /metrics pages; started by `loadtest run`.")
    parser.add_argument("--spec", required=True, help="JSON file written by start_scraper")
    spec = json.loads(Path(parser.parse_args().spec).read_text())
    from loadtest.server.recorder import serve  # the orchestrator, which imports this module, needs no aiohttp

    asyncio.run(serve(spec))


if __name__ == "__main__":
    main()
