"""The user: one keep-alive connection, one request after the other. Import after locust."""

from __future__ import annotations

from typing import Any

from locust import User, constant, task

from loadtest.load.sending import UserSlot
from loadtest.load.worker import Worker


class ReplayUser(User):
    """Replays the prompts of a mix against the server. Not an HttpUser: the streaming client is our own.

    Closed loop: the next request follows the answer at once (`wait_time` 0).
    """

    wait_time = constant(0)
    host = "http://127.0.0.1:8000"

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self._worker: Worker = environment.loadtest_worker
        self._slot = UserSlot(-1)

    def on_start(self) -> None:
        """Takes a number."""
        self._slot = self._worker.sender.enter()

    def on_stop(self) -> None:
        """Gives the number back."""
        self._worker.sender.leave(self._slot)

    @task
    def replay(self) -> None:
        """One request."""
        self._worker.serve(self._slot)
