"""Plain Locust, FastHttpUser (geventhttpclient), with its `iter_lines`. Run by peers.py."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import gevent
from locust import FastHttpUser, task
from locust.exception import StopUser

sys.path.insert(0, str(Path(__file__).parent))
from locustfile_common import BODY, REQUESTS, timed

finished = 0


class Streaming(FastHttpUser):
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
        timed(self.environment, self.client.iter_lines("/v1/chat/completions", "POST", json=BODY, name="http"), start)
