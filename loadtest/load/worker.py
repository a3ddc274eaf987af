"""The worker's side of a run: gets cells from the master, feeds the users, sends rows back. Import after locust.

Everything here runs on the gevent hub of the process that measures, so it does little and never blocks: parsing and
batching happen in idle time, files and histograms belong to the master.
"""

from __future__ import annotations

import gc
import heapq
import logging
import os
import socket
import time
from typing import Any

import gevent
from gevent.event import Event
from locust import log as locust_log

from loadtest import __version__
from loadtest.load import protocol
from loadtest.load.batches import BatchSender
from loadtest.load.cellrun import CellRun, MixPrompts, Ticket, decode_mix
from loadtest.load.engine import Connection, IdleParser, RawExchange, Reader, quiet_collector
from loadtest.load.lifeline import raise_file_limit
from loadtest.load.parse import RequestFacts, parse_exchange
from loadtest.load.request import RequestBuilder
from loadtest.load.selfproof import SelfProof
from loadtest.model import Cell, LoadJob, from_json

log = logging.getLogger(__name__)

BACKOFF_S = (0.1, 1.0)
"""Pause of a user after a request that could not even be sent, doubled each time up to the second value: a server
that is down must not be asked thousands of times a second. The rows still show every try."""
DEADLINE_POLL_S = 0.005


class RequestFailedError(Exception):
    """What Locust's own page shows as the failure of a request."""


class UserSlot:
    """What one user keeps between requests: its number, its connection, its back-off."""

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.connection: Connection | None = None
        self.builder: RequestBuilder | None = None
        self.backoff_s = BACKOFF_S[0]

    def close(self) -> None:
        """Closes the connection."""
        if self.connection is not None:
            self.connection.close()
        self.connection = self.builder = None


class Worker:
    """One per measuring process. `serve(slot)` is called by each user in a loop and does one request."""

    def __init__(self, environment: Any, index: int) -> None:
        self.environment, self.runner, self.index = environment, environment.runner, index
        raise_file_limit()
        self.run: CellRun | None = None
        self.job: LoadJob | None = None
        self.workers = 1
        self._reader = Reader()
        self._builders: list[RequestBuilder] = []
        self._gate = Event()
        self._changed = Event()
        self._mixes: dict[str, MixPrompts] = {}
        self._in_flight = 0
        self._free_slots: list[int] = []
        self._slots = 0
        self._collector = quiet_collector()
        self._collector_is_off = False
        self._batches = BatchSender(self._send_batch)
        self._parser: IdleParser[tuple[CellRun, RawExchange, dict[str, Any]]] = IdleParser(self._finished)
        self._proof = SelfProof()
        self._facts = RequestFacts()
        self._before: dict[str, int] = {}
        for name, listener in (
            (protocol.MIX, self._on_mix),
            (protocol.CELL, self._on_cell),
            (protocol.WINDOW, self._on_window),
            (protocol.ABORT, self._on_abort),
        ):
            self.runner.register_message(name, listener)
        environment.events.user_error.add_listener(self._on_user_error)
        hello = {"index": index, "pid": os.getpid(), "host": socket.gethostname(), "version": __version__}
        self.runner.send_message(protocol.HELLO, hello)

    # -- users

    def enter(self) -> UserSlot:
        """A number for a new user, the lowest that is free."""
        if self._free_slots:
            return UserSlot(heapq.heappop(self._free_slots))
        self._slots += 1
        return UserSlot(self._slots - 1)

    def leave(self, user: UserSlot) -> None:
        """The user is gone: its connection is closed, its number is free."""
        user.close()
        if user.slot >= 0:
            heapq.heappush(self._free_slots, user.slot)

    def serve(self, user: UserSlot) -> None:
        """Waits until a request is due, sends it and hands the raw answer to the parser."""
        run, ticket = self._next()
        connection, builder = self._connection(user)
        number = user.slot * self.workers + self.index
        sampling = run.cell.sampling
        max_tokens = ticket.prompt.max_tokens or sampling.max_tokens
        body = builder.body(ticket.messages, sampling, max_tokens=max_tokens)
        facts = {
            "seq": ticket.seq,
            "worker": self.index,
            "user": number,
            "request_id": ticket.request_id,
            "prompt_id": ticket.prompt.prompt_id,
            "stratum": ticket.prompt.stratum,
            "turn": 0,
            "prompt_sha256": body.prompt_sha256,
            "max_tokens": max_tokens,
        }
        client = builder.client
        run.sent += 1
        self._in_flight += 1
        asked_ns = time.time_ns()
        raw: RawExchange | None = None
        try:
            raw = connection.exchange(
                builder.frame(body, ticket.request_id),
                total_timeout_s=client.total_timeout_s,
                read_timeout_s=client.read_timeout_s,
            )
        finally:
            self._in_flight -= 1
            if raw is None:  # the user is being stopped in mid-request
                raw = connection.partial() or RawExchange()
            facts["phase"] = run.phase(ticket, raw.send_ns or asked_ns)
            self._parser.put((run, raw, facts))
        self._reader.pump()
        if raw.send_ns is None:
            gevent.sleep(user.backoff_s)
            user.backoff_s = min(BACKOFF_S[1], user.backoff_s * 2)
        else:
            user.backoff_s = BACKOFF_S[0]

    def _next(self) -> tuple[CellRun, Ticket]:
        while True:
            run = self.run
            if run is not None and (ticket := run.take(time.time_ns())) is not None:
                return run, ticket
            self._gate.clear()
            self._gate.wait()

    def _connection(self, user: UserSlot) -> tuple[Connection, RequestBuilder]:
        number = user.slot * self.workers + self.index
        builder = self._builders[number % len(self._builders)]
        if user.connection is None or user.builder is not builder:
            user.close()
            user.builder = builder
            user.connection = Connection(
                self._reader, builder.endpoint, connect_timeout_s=builder.client.connect_timeout_s
            )
        return user.connection, builder

    # -- answers

    def _finished(self, item: tuple[CellRun, RawExchange, dict[str, Any]]) -> None:
        """Parses one answer, in idle time. Whatever goes wrong here, the request stays a row."""
        run, raw, facts = item
        row = {**facts, **parse_exchange(raw, self._facts)}
        run.note(row)
        self._batches.add(row)
        self._fire(run, row)

    def _fire(self, run: CellRun, row: dict[str, Any]) -> None:
        """Locust's own `request` event, once per request. A listener that raises is swallowed there; count it."""
        stage = " (warm-up)" if row["phase"] == "warmup" else ""
        failed = None if row["outcome"] == "ok" else RequestFailedError(f"{row['outcome']}: {row.get('error') or ''}")
        e2e_us = row.get("e2e_us")
        before, locust_log.unhandled_greenlet_exception = locust_log.unhandled_greenlet_exception, False
        try:
            self.environment.events.request.fire(
                request_type=self.job.api if self.job is not None else "",
                name=f"{run.cell.mix}/{row['stratum']}{stage}",
                response_time=None if e2e_us is None else e2e_us / 1000,
                response_length=row.get("output_bytes") or 0,
                response=None,
                context={},
                exception=failed,
                start_time=(row.get("send_ns") or 0) / 1e9,
                url=None,
            )
        finally:
            run.event_errors += bool(locust_log.unhandled_greenlet_exception)
            locust_log.unhandled_greenlet_exception = before

    def _send_batch(self, data: bytes, rows: int) -> None:
        cell_id = self.run.cell.cell_id if self.run is not None else ""
        self.runner.send_message(protocol.BATCH, {"cell_id": cell_id, "index": self.index, "rows": rows, "data": data})

    def _on_user_error(self, **_: Any) -> None:
        """A request that could not even be made: a fault of ours. Counted, and never in a hot loop."""
        if self.run is not None:
            self.run.user_errors += 1
        gevent.sleep(BACKOFF_S[1])

    # -- messages of the master

    def _on_mix(self, environment: Any, msg: Any) -> None:  # noqa: ARG002
        try:
            mix = decode_mix(msg.data)
        except Exception:
            log.exception("the prompts of mix %r cannot be used", msg.data.get("mix"))
            self._mixes.pop(str(msg.data.get("mix")), None)  # the next cell of this mix is refused
        else:
            self._mixes[mix.mix] = mix

    def _on_cell(self, environment: Any, msg: Any) -> None:  # noqa: ARG002
        error = None
        cell = from_json(Cell, msg.data["cell"])
        try:
            self._prepare(cell, from_json(LoadJob, msg.data["job"]), int(msg.data["workers"]), msg.data["sha256"])
        except Exception as e:
            log.exception("cell %s cannot be run", cell.cell_id)
            error = f"worker {self.index}: {type(e).__name__}: {e}"
        ready = {"cell_id": cell.cell_id, "index": self.index, "error": error, "time_ns": time.time_ns()}
        self.runner.send_message(protocol.READY, ready)

    def _prepare(self, cell: Cell, job: LoadJob, workers: int, sha256: str) -> None:
        mix = self._mixes.get(cell.mix)
        if mix is None or mix.sha256 != sha256:
            raise ValueError(f"the prompts of mix {cell.mix!r} did not arrive whole")
        if self.job is None or job.client != self.job.client:
            self._reader.close()
            self._reader = Reader(pace_s=job.client.pace_s, read_timeout_s=job.client.read_timeout_s)
        if job != self.job:
            self._builders = [
                RequestBuilder(url, api=job.api, model=job.model_name, client=job.client) for url in job.base_urls
            ]
        self.job, self.workers = job, workers
        client = job.client
        self._facts = RequestFacts(client.stream, keep_text=client.keep_text, keep_chunks=client.keep_chunks)
        run = CellRun(cell, mix, self.index)
        for builder in self._builders:  # a sampling that cannot be sent is told now, not once per request
            builder.body(mix.prompts[0].messages, cell.sampling)
        self._collect()
        reader = self._reader
        self._before = {"conns": reader.connections_opened, "batches": self._batches.batches, "resent": reader.resent}
        reader.stalls_ms.clear()
        self._proof.start()
        self.run = run
        gevent.spawn(self._end_of_cell, run)

    def _collect(self) -> None:
        """Collects garbage between cells; after the first time the collector stays off.

        What is alive now is frozen, so a collection looks only at what came since the last one: a few ms instead of 50.
        """
        if self._collector_is_off:
            gc.collect()
            gc.freeze()
        else:
            self._collector.__enter__()
            self._collector_is_off = True

    def _on_window(self, environment: Any, msg: Any) -> None:  # noqa: ARG002
        run = self.run
        if run is None or run.cell.cell_id != msg.data["cell_id"]:
            return
        stripe = msg.data["stripes"].get(str(self.index))
        run.set_window(msg.data["start_ns"], msg.data["end_ns"], stripe and tuple(stripe), time.time_ns())
        self._changed.set()
        self._gate.set()

    def _on_abort(self, environment: Any, msg: Any) -> None:  # noqa: ARG002
        if self.run is not None and self.run.cell.cell_id == msg.data["cell_id"]:
            self.run = None
            self._changed.set()
            self._reader.abort_active("cell aborted")

    # -- the end of a cell

    def _end_of_cell(self, run: CellRun) -> None:
        """Waits for the end of the window, drains, sends the last rows and the counts."""
        while self.run is run and (left_ns := run.end_ns - time.time_ns()) > 0:
            self._changed.clear()
            self._changed.wait(min(left_ns / 1e9, 3600.0))
        if self.run is not run:
            return
        run.close()
        deadline_ns = run.end_ns + int(run.cell.drain_s * 1e9)
        while self._in_flight and time.time_ns() < deadline_ns:
            gevent.sleep(DEADLINE_POLL_S)
        if self._in_flight:
            self._reader.abort_active("in flight at the drain deadline")
            while self._in_flight:
                gevent.sleep(DEADLINE_POLL_S)
        drain_end_ns = time.time_ns()
        self._parser.drain()
        self._batches.flush()
        reader, before = self._reader, self._before
        proof = self._proof.facts()
        counts = {
            **run.counts(),
            **{k: v for k, v in proof.items() if k != "stalls_ms"},
            "stalls_ms": proof["stalls_ms"] + list(reader.stalls_ms[:1000]),
            "batches": self._batches.batches - before["batches"],
            "conns_opened": reader.connections_opened - before["conns"],
            "resent": reader.resent - before["resent"],
            "parser_errors": self._parser.errors,
            "parser_most_waiting": self._parser.most_waiting,
            "drain_end_ns": drain_end_ns,
        }
        self.runner.send_message(protocol.FINAL, {"cell_id": run.cell.cell_id, "index": self.index, "counts": counts})
