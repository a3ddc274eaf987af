"""Waits until a server that we started answers, with progress, and gives up with the cause when it cannot."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from loadtest.errors import StartError
from loadtest.server.probe import Answer, ask

POLL_S = 0.1
"""A refused connection costs microseconds; the simulated server is ready in a third of a second."""
PROGRESS_S = 1.0
"""A line per second is enough for a start of minutes."""
LOG_TAIL_BYTES = 4096

Progress = Callable[[str], None]


def wait_ready(
    base_url: str,
    model: str,
    *,
    exit_code: Callable[[], int | None],
    log: Path,
    timeout_s: float,
    progress: Progress | None = None,
    headers: Mapping[str, str] | None = None,
) -> float:
    """Seconds until /health answered 200 and /v1/models listed `model`.

    `exit_code` tells whether the process ended. Raises StartError with what was seen: it ended, it timed out, or it
    serves other models than `model`. The caller adds the diagnosis from the log.
    """
    start = time.monotonic()
    told = -PROGRESS_S
    while True:
        elapsed = time.monotonic() - start
        if (code := exit_code()) is not None:
            raise StartError(f"the server ended with exit code {code} after {elapsed:.0f} s, before it was ready")
        last = ask(f"{base_url}/health", headers, timeout_s=2.0)
        if last.status == 200:
            last = ask(f"{base_url}/v1/models", headers, timeout_s=5.0)
            served = models_of(last)
            if model in served:
                return time.monotonic() - start
            if served:
                raise StartError(f"the server at {base_url} serves {', '.join(map(repr, served))}, not {model!r}")
        if elapsed >= timeout_s:
            raise StartError(f"the server was not ready after {elapsed:.0f} s; {last.url} last said: {last.seen()}")
        if progress and elapsed - told >= PROGRESS_S:
            told = elapsed
            progress(f"{elapsed:.0f} s | {last_log_line(log)}")
        time.sleep(POLL_S)


def models_of(answer: Answer) -> list[str]:
    """The model ids of an answer of /v1/models; empty for anything else."""
    value = answer.json()
    data = value.get("data") if isinstance(value, dict) else None
    if not isinstance(data, list):
        return []
    return [str(m["id"]) for m in data if isinstance(m, dict) and m.get("id") is not None]


def last_log_line(log: Path) -> str:
    """The last line of a growing log; progress bars count as lines. "" for a missing or empty file."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
    lines = [line.strip() for line in text.replace("\r", "\n").splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""
