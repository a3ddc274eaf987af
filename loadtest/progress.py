"""What a person sees while a run works: a bar in a terminal, plain lines without one."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

LINE_EVERY_S = 10.0
"""Without a terminal a waiting step says so this often: seen alive in a CI log, yet not a flood."""


class Reporter(Protocol):
    """Where the orchestrator says what it does."""

    def note(self, text: str) -> None:
        """A fact that stays on the screen."""

    def status(self, text: str) -> None:
        """What is going on now; the next one replaces it."""

    def advance(self, done: int) -> None:
        """How many cells are finished."""


class PlainReporter:
    """Lines on stderr; a status is printed when its first word changes or after `LINE_EVERY_S`."""

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0
        self._last_text, self._last_s = "", 0.0

    def note(self, text: str) -> None:
        """Print one line."""
        print(text, file=sys.stderr, flush=True)

    def status(self, text: str) -> None:
        """Print what is new, or a sign of life."""
        now = time.monotonic()
        key = text.split("|", 1)[0]
        if key != self._last_text or now - self._last_s >= LINE_EVERY_S:
            self._last_text, self._last_s = key, now
            self.note(f"[{self.done}/{self.total}] {text}")

    def advance(self, done: int) -> None:
        """Remember the count for the next line."""
        self.done = done


class RichReporter:
    """One bar over all cells, with the present step beside it."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task

    def note(self, text: str) -> None:
        """Print above the bar."""
        self._progress.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def status(self, text: str) -> None:
        """Show beside the bar."""
        self._progress.update(self._task, description=text[:70].ljust(70).replace("[", r"\["))

    def advance(self, done: int) -> None:
        """Move the bar."""
        self._progress.update(self._task, completed=done)


@contextmanager
def reporter(total: int) -> Iterator[Reporter]:
    """The reporter that suits stderr: a bar in a terminal, else lines."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield PlainReporter(total)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        yield RichReporter(progress, progress.add_task("starting", total=total))
