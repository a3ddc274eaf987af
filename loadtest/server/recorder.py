"""The asyncio side of the scraper: 1 Hz recording, edges, and the control channel (see docs/architecture.md)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp

from loadtest.server.counters import Snapshot, snapshot
from loadtest.server.fetch import Fetched, fetch
from loadtest.server.recording import Recording

SETTLE_POLL_S = 0.25
"""Two equal scrapes this far apart show an idle engine: a decode step of a large model takes a tenth of it."""
WATCH_S = 0.5
"""How often the scraper looks whether its parent lives and its socket is there."""
RESET_TIMEOUT_S = 20.0
"""Below the load generator's patience of 30 s with the control channel."""
BUSY_GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting")


class Recorder:
    """Scrapes several endpoints in parallel into the recording that is open, if one is."""

    def __init__(
        self,
        endpoints: list[str],
        headers: dict[str, str],
        period_s: float,
        timeout_s: float,
        reset_urls: Sequence[str] = (),
    ) -> None:
        self.endpoints = endpoints
        self._reset_urls = reset_urls
        self._headers = headers
        self._period_s = period_s
        self._timeout_s = timeout_s
        self._recording: Recording | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._session: aiohttp.ClientSession | None = None
        self.stop = asyncio.Event()

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to one control request."""
        op = request.get("op")
        if op == "open":
            return await self.open(Path(request["dir"]))
        if op == "edge":
            return await self.edge(str(request["name"]), float(request.get("settle_s") or 0))
        if op == "close":
            return await self.close()
        if op == "quit":
            self.stop.set()
            return {"ok": True}
        return {"ok": False, "error": f"unknown op {op!r}; known: open, edge, close, quit"}

    async def open(self, folder: Path) -> dict[str, Any]:
        """Start recording into `folder`/server.arrows; a recording left open by a client that died is closed first."""
        if self._recording:
            await self.close()
        if problems := [p for p in await asyncio.gather(*(self._reset(u) for u in self._reset_urls)) if p]:
            return {"ok": False, "error": f"nothing is recorded: {'; '.join(problems)}"}
        self._recording = Recording(folder)
        start = time.monotonic()
        self._tasks = [asyncio.create_task(self._every_period(e, start)) for e in self.endpoints]
        return {"ok": True}

    async def edge(self, name: str, settle_s: float) -> dict[str, Any]:
        """Scrape now, keep rows and raw text. With `settle_s` first wait until the engine is idle, at most so long."""
        if not self._recording:
            return {"ok": False, "error": "no recording is open: send open first"}
        if not name.replace("_", "").isalnum():
            return {"ok": False, "error": f"an edge name is letters, digits and _: {name!r}"}
        got, unsettled = await self._settled(settle_s) if settle_s > 0 else (await self._all(), None)
        for number, one in enumerate(got):
            self._recording.add(one, name)
            self._recording.keep_text(one, name, number)
        answer: dict[str, Any] = {
            "ok": all(one.ok for one in got),
            "t_ns": max(one.t_ns for one in got),
            "t_request_ns": min(one.t_request_ns for one in got),
            "errors": [f"{one.endpoint}: {one.error}" for one in got if not one.ok],
            "series": sum(one.page.vllm_series for one in got if one.page),
        }
        if settle_s > 0:
            answer["settled"] = unsettled is None
            answer["errors"] += [unsettled] if unsettled else []
        return answer

    async def close(self) -> dict[str, Any]:
        """End the recording; fine without one."""
        for task in self._tasks:
            task.cancel()
        ends = await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        recording, self._recording = self._recording, None
        if recording is None:
            return {"ok": True, "scrapes": 0, "errors": 0}
        broken = [f"{type(e).__name__}: {e}" for e in ends if isinstance(e, Exception)]  # a full disk, for example
        with contextlib.suppress(OSError):
            recording.close()
        answer: dict[str, Any] = {"ok": not broken, "scrapes": recording.scrapes, "errors": recording.errors}
        return answer | ({"error": f"the recording broke off: {broken[0]}"} if broken else {})

    async def shutdown(self) -> None:
        """Close the recording and the connections."""
        await self.close()
        if self._session:
            await self._session.close()

    async def _every_period(self, endpoint: str, start: float) -> None:
        """Scrape on the grid start + k * period. A slow answer loses grid points, which the gap then shows."""
        tick = 0
        while True:
            got = await self._one(endpoint)
            if self._recording:
                self._recording.add(got)
            tick = max(tick + 1, int((time.monotonic() - start) / self._period_s) + 1)
            await asyncio.sleep(max(0.0, start + tick * self._period_s - time.monotonic()))

    async def _all(self) -> list[Fetched]:
        return list(await asyncio.gather(*(self._one(e) for e in self.endpoints)))

    async def _one(self, endpoint: str) -> Fetched:
        return await fetch(self._http(), endpoint, self._headers, self._timeout_s)

    async def _reset(self, url: str) -> str | None:
        """Empties a prefix cache; what went wrong, or None."""
        try:
            async with asyncio.timeout(RESET_TIMEOUT_S):
                async with self._http().post(url, headers=self._headers) as answer:
                    return None if answer.status == 200 else f"{url}: HTTP {answer.status}"
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return f"{url}: {type(error).__name__}: {error}"

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            # no limit on connections: an edge must not wait for a 1 Hz scrape that hangs
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        return self._session

    async def _settled(self, settle_s: float) -> tuple[list[Fetched], str | None]:
        """The last scrape, and None or why the engines do not count as idle."""
        deadline = time.monotonic() + settle_s
        last: Snapshot | None = None
        while True:
            got = await self._all()
            now = snapshot({g.endpoint: g.page for g in got if g.ok and g.page})
            healthy = all(g.ok for g in got)
            busy = sum(v for k, v in now.values.items() if k.metric in BUSY_GAUGES)
            still = last is not None and _cumulative(now) == _cumulative(last)
            if healthy and still and busy == 0:
                return got, None
            if time.monotonic() >= deadline:
                cause = f"{busy:g} requests run or wait" if busy else "counters still move" if healthy else "no scrape"
                return got, f"not idle after {settle_s:g} s: {cause}"
            last = now if healthy else None
            await asyncio.sleep(min(SETTLE_POLL_S, max(0.0, deadline - time.monotonic())))


def _cumulative(snap: Snapshot) -> dict[Any, float]:
    kinds = snap.kinds
    return {k: v for k, v in snap.values.items() if k.metric.startswith("vllm:") and kinds[k.metric] != "gauge"}


async def serve(spec: dict[str, Any]) -> None:
    """Run until `quit`, a signal, the parent's death or the loss of the socket.

    `spec`: {endpoints, socket, headers_env, reset_urls, period_s, timeout_s, parent_pid}.
    """
    headers = {name: os.environ[variable] for name, variable in spec["headers_env"].items()}
    recorder = Recorder(spec["endpoints"], headers, spec["period_s"], spec["timeout_s"], spec["reset_urls"])

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(json.dumps(await _answer(recorder, line)).encode() + b"\n")
                await writer.drain()
        except asyncio.CancelledError:
            return  # we are ending, the master still holds its line: no traceback for the log
        except OSError as error:
            print(f"control connection lost: {error}", file=sys.stderr, flush=True)
        finally:
            writer.close()

    server = await asyncio.start_unix_server(talk, path=spec["socket"], limit=2**20)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, recorder.stop.set)
    while not recorder.stop.is_set() and _wanted(spec):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(recorder.stop.wait(), WATCH_S)
    server.close()
    await recorder.shutdown()
    _remove_socket(Path(spec["socket"]))


def _remove_socket(path: Path) -> None:
    """With the folder that was made for it alone: nobody else removes them when our parent was killed."""
    path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        path.parent.rmdir()


def _wanted(spec: dict[str, Any]) -> bool:
    """Whether the process that started us lives and its socket is still there."""
    return os.getppid() == spec["parent_pid"] and Path(spec["socket"]).exists()


async def _answer(recorder: Recorder, line: bytes) -> dict[str, Any]:
    """An answer whatever the line is: a client that waits for one must not hang."""
    try:
        request = json.loads(line)
        return await recorder.answer(request)
    except Exception as error:
        return {"ok": False, "error": f"{type(error).__name__}: {error}"}
