"""The schedule-driven server as a context manager, and its log as the truth."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
SOURCE, BINARY = HERE / "schedule_server.c", HERE / "bin" / "schedule_server"


@dataclass(frozen=True, slots=True)
class Truth:
    """One request as the server saw it; times in UNIX ns."""

    request_id: str
    """X-Request-Id, "-" where the client sent none."""
    connection: int
    how: str
    """"ok", a failure mode, or "closed" (by the client)."""
    arrival_ns: int
    tokens: int
    sent_ns: tuple[int, ...]
    """Send time of each token chunk."""


def build() -> Path:
    """Compiles the server where its source is newer. Raises CalledProcessError."""
    if not BINARY.exists() or BINARY.stat().st_mtime < SOURCE.stat().st_mtime:
        BINARY.parent.mkdir(exist_ok=True)
        new = BINARY.with_suffix(".new")
        subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-o", new, SOURCE], check=True)
        new.replace(BINARY)
    return BINARY


@contextlib.contextmanager
def server(log: Path, start: Sequence[str] = (), **options: object) -> Iterator[str]:
    """Runs the server on a free port; gives its base URL. The log is whole once the context is left.

    `start` goes in front of its command line, for example `taskset -c 0`.
    """
    argv = [*start, str(build()), "port=0", f"log={log}", *(f"{k}={v}" for k, v in options.items())]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("port "):
            raise RuntimeError(f"the schedule server did not start: {line!r}, exit code {process.wait(5)}")
        yield f"http://127.0.0.1:{line.split()[1]}"
    finally:
        process.terminate()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()


def read_requests(path: Path) -> list[Truth]:
    """Every request of the log, in the order of their arrival."""
    out = []
    for line in path.read_text().splitlines():
        request_id, connection, how, arrival, tokens, *sent = line.split()
        out.append(Truth(request_id, int(connection), how, int(arrival), int(tokens), tuple(map(int, sent))))
    return sorted(out, key=lambda told: told.arrival_ns)


def read_log(path: Path) -> dict[str, Truth]:
    """Request id -> what the server did."""
    return {told.request_id: told for told in read_requests(path)}
