"""The worker's side of a run: gets cells from the master, feeds the users, sends rows back. Import after locust.

Everything here runs on the gevent hub of the process that measures, so it does little and never blocks: parsing and
batching happen in idle time, files and histograms belong to the master.
"""

from __future__ import annotations

import gc
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
from loadtest.load.arrivals import OPEN_KINDS, Arrivals
from loadtest.load.batches import BatchSender
from loadtest.load.cellrun import CellRun, MixPrompts, Ticket, decode_mix
from loadtest.load.engine import IdleParser, quiet_collector
from loadtest.load.lifeline import raise_file_limit
from loadtest.load.parse import parse_exchange
from loadtest.load.selfproof import SelfProof
from loadtest.load.sending import BACKOFF_S, Answer, Sender, UserSlot
from loadtest.model import Cell, LoadJob, from_json

log = logging.getLogger(__name__)

DEADLINE_POLL_S = 0.005
READ_AT_ONCE_STREAMS = 64
"""Up to so many streams per worker every read is done at once, without a pace: it costs half as much CPU again per
chunk (31 instead of 22 us), which is nothing at this load, and steps of a few milliseconds are still told apart."""


class RequestFailedError(Exception):
    """What Locust's own page shows as the failure of a request."""


class Worker:
    """One per measuring process. `serve(slot)` is called by each user in a loop and does one request."""

    def __init__(self, environment: Any, index: int) -> None:
        self.environment, self.runner, self.index = environment, environment.runner, index
        raise_file_limit()
        self.run: CellRun | None = None
        self._gate = Event()
        self._changed = Event()
        self._mixes: dict[str, MixPrompts] = {}
        self._collector = quiet_collector()
        self._collector_is_off = False
        self._batches = BatchSender(self._send_batch)
        self._parser: IdleParser[Answer] = IdleParser(self._finished)
        self.sender = Sender(index, self._parser.put)
        self._arrivals: Arrivals | None = None
        self._proof = SelfProof()
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

    def serve(self, user: UserSlot) -> None:
        """Waits until a request is due and sends it; called by each user in a loop."""
        run, ticket = self._next()
        if self.sender.send(run, ticket, user).send_ns is None:
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

    # -- answers

    def _finished(self, answer: Answer) -> None:
        """Parses one answer, in idle time. Whatever is in it, the request becomes a row."""
        self._keep(answer.run, {**answer.columns, **parse_exchange(answer.raw, answer.facts)})

    def _keep(self, run: CellRun, row: dict[str, Any]) -> None:
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
                request_type=self.sender.job.api if self.sender.job is not None else "",
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
        builders = self.sender.set_job(job, workers)
        run = CellRun(cell, mix, self.index)
        for builder in builders:  # a sampling that cannot be sent is told now, not once per request
            builder.body(mix.prompts[0].messages, cell.sampling)
        self._collect()
        reader = self.sender.reader
        few = cell.load_kind not in OPEN_KINDS and cell.load_value / workers <= READ_AT_ONCE_STREAMS
        reader.pace_s = 0.0 if few or not reader.stamped else job.client.pace_s
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
        first = not run.open
        run.set_window(msg.data["start_ns"], msg.data["end_ns"], stripe and tuple(stripe), time.time_ns())
        self._changed.set()
        self._gate.set()
        if first and run.cell.load_kind in OPEN_KINDS:
            self._arrivals = Arrivals(run, self.sender, lambda row: self._keep(run, row))
            gevent.spawn(self._arrivals.drive)

    def _on_abort(self, environment: Any, msg: Any) -> None:  # noqa: ARG002
        if self.run is not None and self.run.cell.cell_id == msg.data["cell_id"]:
            self.run = None
            self._changed.set()
            self.sender.reader.abort_active("cell aborted")

    # -- the end of a cell

    def _busy(self) -> bool:
        return bool(self.sender.in_flight or (self._arrivals is not None and self._arrivals.busy))

    def _end_of_cell(self, run: CellRun) -> None:
        """Waits for the end of the window, drains, sends the last rows and the counts."""
        while self.run is run and (left_ns := run.end_ns - time.time_ns()) > 0:
            self._changed.clear()
            self._changed.wait(min(left_ns / 1e9, 3600.0))
        if self.run is not run:
            return
        run.close()
        deadline_ns = run.end_ns + int(run.cell.drain_s * 1e9)
        while self._busy() and time.time_ns() < deadline_ns:
            gevent.sleep(DEADLINE_POLL_S)
        while self._busy():  # again and again: one may just have connected
            self.sender.reader.abort_active("in flight at the drain deadline")
            gevent.sleep(DEADLINE_POLL_S)
        drain_end_ns = time.time_ns()
        if self._arrivals is not None:
            self._arrivals.close()
            self._arrivals = None
        self._parser.drain()
        self._batches.flush()
        reader, before = self.sender.reader, self._before
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
