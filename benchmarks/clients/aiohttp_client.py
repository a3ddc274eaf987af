"""A plain aiohttp client, as most tools are built on one: `python aiohttp_client.py URL STREAMS REQUESTS OUT.json`."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import aiohttp
import numpy as np

BODY = {
    "model": "schedule",
    "messages": [{"role": "user", "content": "Text. " * 32}],
    "max_tokens": 120,
    "stream": True,
    "stream_options": {"include_usage": True},
}


async def ask(session: aiohttp.ClientSession, url: str) -> tuple[float, float]:
    """-> TTFT and TPOT in ms, from the times at which this code sees the lines."""
    start = time.perf_counter()
    first = last = None
    tokens = 0
    async with session.post(f"{url}/v1/chat/completions", json=BODY) as answer:
        async for line in answer.content:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            now = time.perf_counter()
            event = json.loads(line[6:])
            if event["choices"] and event["choices"][0]["delta"].get("content"):
                first = first or now
                last = now
            if event.get("usage"):
                tokens = event["usage"]["completion_tokens"]
    if first is None or last is None:
        raise RuntimeError("an answer without a token")
    return (first - start) * 1e3, (last - first) / (tokens - 1) * 1e3


async def load(url: str, streams: int, requests: int) -> list[tuple[float, float]]:
    """`streams` tasks, each asking `requests` times; -> TTFT and TPOT of every answer."""
    figures: list[tuple[float, float]] = []

    async def user(session: aiohttp.ClientSession) -> None:
        for _ in range(requests):
            figures.append(await ask(session, url))

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(user(session) for _ in range(streams)))
    return figures


def main() -> None:
    url, streams, requests, out = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    ttft, tpot = np.array(asyncio.run(load(url, streams, requests))).T
    percentiles = {name: np.percentile(v, [50, 99]).tolist() for name, v in (("ttft", ttft), ("tpot", tpot))}
    out.write_text(json.dumps(percentiles))


if __name__ == "__main__":
    main()
