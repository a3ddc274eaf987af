"""What a Locust user's own streaming code usually does: time the lines of the answer, fire one event per figure."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from typing import Any

STREAMS = int(os.environ.get("BENCH_STREAMS", "1"))
REQUESTS = int(os.environ.get("BENCH_REQUESTS", "1"))
"""Requests of each user; then the user stops, and Locust with the last one."""
BODY = {
    "model": "schedule",
    "messages": [{"role": "user", "content": "Text. " * 32}],
    "max_tokens": 120,
    "stream": True,
    "stream_options": {"include_usage": True},
}


def timed(environment: Any, lines: Iterable[str | bytes], start: float) -> None:
    """Reads the answer to its end; reports TTFT, TPOT and E2E to Locust's statistics (TPOT in microseconds: Locust
    keeps whole milliseconds, which would round 6.67 ms to 7).
    """
    first = last = None
    tokens = 0
    for line in lines:
        text = line.decode() if isinstance(line, bytes) else line
        if not text.startswith("data: ") or text.startswith("data: [DONE]"):
            continue
        now = time.perf_counter()
        event = json.loads(text[6:])
        if event["choices"] and event["choices"][0]["delta"].get("content"):
            first = first or now
            last = now
        if event.get("usage"):
            tokens = event["usage"]["completion_tokens"]
    if first is None or last is None or tokens < 2:
        raise RuntimeError(f"an answer of {tokens} tokens")
    figures = {"ttft": (first - start) * 1e3, "tpot": (last - first) / (tokens - 1) * 1e6, "e2e": (last - start) * 1e3}
    for name, value in figures.items():
        environment.events.request.fire(
            request_type="LLM", name=name, response_time=value, response_length=0, exception=None, context={}
        )
