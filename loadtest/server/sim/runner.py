"""Drives the engine in real time, on an absolute schedule, so that step times do not drift."""

from __future__ import annotations

import asyncio
import logging

from loadtest.server.sim.engine import Engine

MAX_BACKLOG_S = 0.25
"""Behind by more than this (a paused process), the schedule starts anew instead of racing to catch up."""

logger = logging.getLogger(__name__)


class EngineRunner:
    """Runs the engine loop as one asyncio task."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.dead = False
        self.restarts = 0
        """How often the schedule was given up: above 0 the machine was too slow for the modelled speed."""
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts the loop; needs a running event loop."""
        self._task = asyncio.create_task(self._loop(), name="engine")

    async def stop(self) -> None:
        """Ends the loop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def wake(self) -> None:
        """Something was submitted."""
        self._wake.set()

    def kill(self) -> None:
        """The engine process is gone: no step any more."""
        self.dead = True
        if self._task is not None:
            self._task.cancel()

    async def _loop(self) -> None:
        clock = asyncio.get_running_loop().time
        due = clock()
        try:
            while True:
                length_s = self.engine.begin_step(due)
                if length_s is None:
                    self._wake.clear()
                    await self._wake.wait()
                    due = clock()
                    continue
                due += length_s
                ahead_s = due - clock()
                if ahead_s < -MAX_BACKLOG_S:
                    self.restarts += 1
                    due = clock()
                await asyncio.sleep(max(0.0, ahead_s))
                self.engine.end_step(clock())
        except Exception:
            self.dead = True
            logger.exception("the simulated engine failed; every request gets an error from now on")
            raise
