"""Plain Locust, HttpUser (requests), as its documentation streams an answer. Run by peers.py."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import gevent
from locust import HttpUser, task
from locust.exception import StopUser

sys.path.insert(0, str(Path(__file__).parent))
from locustfile_common import BODY, REQUESTS, timed

finished = 0


class Streaming(HttpUser):
    sent = 0

    @task
    def ask(self) -> None:
        global finished
        if self.sent == REQUESTS:
            finished += 1
            if finished == self.environment.parsed_options.num_users:
                gevent.spawn_later(0.1, self.environment.runner.quit)
            raise StopUser
        self.sent += 1
        start = time.perf_counter()
        answer = self.client.post("/v1/chat/completions", json=BODY, stream=True, name="http")
        # Whole chunks as they come; the default of 512 bytes would wait for the next event.
        timed(self.environment, answer.iter_lines(chunk_size=None), start)
