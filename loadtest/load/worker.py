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

from loadtest import __version__
from loadtest.load import protocol
from loadtest.load.arrivals import Arrivals
from loadtest.load.batches import BatchSender
from loadtest.load.cellrun import CellRun, MixPrompts, Ticket, checked, decode_mix
from loadtest.load.conversation import converse
from loadtest.load.engine import IdleParser, quiet_collector
from loadtest.load.lifeline import raise_file_limit
from loadtest.load.parse import parse_exchange
from loadtest.load.schedule import OPEN_KINDS, decode_trace
from loadtest.load.selfproof import SelfProof, pid_space
from loadtest.load.sending import BACKOFF_S, Answer, Sender, UserSlot, require_reachable
from loadtest.load.uistats import UiStats
from loadtest.model import Cell, LoadJob, from_json

log = logging.getLogger(__name__)

DEADLINE_POLL_S = 0.005
SWEEP_S = 600.0
"""In a long cell garbage is collected this often (a few ms: all that was there at its start is frozen). Our own
requests leave none behind, a plug-in may."""
READ_AT_ONCE_STREAMS = 64
"""Up to so many streams per worker every read is done at once, without a pace: it costs half as much CPU again per
chunk (31 instead of 22 us), which is nothing at this load, and steps of a few milliseconds are still told apart."""


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
        self._trace: tuple[float, ...] = ()
        self._halt = Event()
        """Ends the pauses of conversations; a new one for each cell."""
        self._stats = UiStats(environment)
        self._proof = SelfProof()
        self._before: dict[str, int] = {}
        for name, listener in (
            (protocol.CLOCK, self._on_clock),
            (protocol.MIX, self._on_mix),
            (protocol.CELL, self._on_cell),
            (protocol.WINDOW, self._on_window),
            (protocol.STOP, self._on_stop),
            (protocol.ABORT, self._on_abort),
        ):
            self.runner.register_message(name, listener)
        environment.events.user_error.add_listener(self._on_user_error)
        hello = {"index": index, "pid": os.getpid(), "host": socket.gethostname(), "version": __version__}
        self.runner.send_message(protocol.HELLO, hello | {"pid_space": pid_space()})

    # -- users

    def serve(self, user: UserSlot) -> None:
        """Waits until a request is due, sends it and what follows it; called by each user in a loop."""
        run, ticket = self._next()
        if converse(self.sender, run, ticket, user, self._halt).send_ns is None:
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
        row: dict[str, Any] = {}
        try:
            row = {**answer.columns, **parse_exchange(answer.raw, answer.facts)}
        finally:  # a conversation waits for it, whatever happens
            if answer.reply is not None:
                answer.reply.set((row.get("outcome"), row.get("output_text") or ""))
        if self.sender.job is not None and not self.sender.job.client.keep_text:
            row["output_text"] = row["reasoning_text"] = None  # parsed for the conversation's next turn alone
        self._keep(answer.run, row, conversation=answer.reply is not None)

    def _keep(self, run: CellRun, row: dict[str, Any], *, conversation: bool = False) -> None:
        run.note(row)
        self._batches.add(row)
        api = self.sender.job.api if self.sender.job is not None else ""
        self._stats.fire(run, row, api, conversation=conversation)

    def _send_batch(self, data: bytes, rows: int) -> None:
        cell_id = self.run.cell.cell_id if self.run is not None else ""
        self.runner.send_message(protocol.BATCH, {"cell_id": cell_id, "index": self.index, "rows": rows, "data": data})

    def _on_user_error(self, **_: Any) -> None:
        """A request that could not even be made: a fault of ours. Counted, and never in a hot loop."""
        if self.run is not None:
            self.run.user_errors += 1
        gevent.sleep(BACKOFF_S[1])

    # -- messages of the master

    def _on_clock(self, environment: Any, msg: Any) -> None:  # noqa: ARG002
        looked = {"index": self.index, "asked_ns": msg.data["asked_ns"], "time_ns": time.time_ns()}
        self.runner.send_message(protocol.LOOKED, looked)

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
            self._trace = decode_trace(checked(msg.data["trace"], msg.data["trace_sha256"])) if cell.trace_file else ()
            self._prepare(cell, from_json(LoadJob, msg.data["job"]), int(msg.data["workers"]), msg.data["sha256"])
        except Exception as e:
            log.exception("cell %s cannot be run", cell.cell_id)
            error = f"worker {self.index}: {type(e).__name__}: {e}"
        has_key = bool(os.environ.get(msg.data["job"]["client"]["api_key_env"], "").strip())
        ready = {"cell_id": cell.cell_id, "index": self.index, "error": error, "has_key": has_key}
        self.runner.send_message(protocol.READY, ready)

    def _prepare(self, cell: Cell, job: LoadJob, workers: int, sha256: str) -> None:
        mix = self._mixes.get(cell.mix)
        if mix is None or mix.sha256 != sha256:
            raise ValueError(f"the prompts of mix {cell.mix!r} did not arrive whole")
        if job.bind_host is not None and job != self.sender.job:
            for url in job.base_urls:
                require_reachable(url, job.client.connect_timeout_s)
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
        self.run, self._halt = run, Event()
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
        self._proof.window = (run.start_ns, run.end_ns)
        self._changed.set()
        self._gate.set()
        if first and run.cell.load_kind in OPEN_KINDS:
            cap = self.sender.job.client.max_in_flight if self.sender.job is not None else 1
            self._arrivals = Arrivals(
                run, self.sender, lambda row: self._keep(run, row), cap=cap, halt=self._halt, trace=self._trace
            )
            self._arrivals.start()

    def _on_stop(self, environment: Any, msg: Any) -> None:  # noqa: ARG002
        """Every measured request has ended, at all workers: the load may stop."""
        if self.run is not None and self.run.cell.cell_id == msg.data["cell_id"]:
            self._close(self.run)

    def _close(self, run: CellRun) -> None:
        run.close()
        self._halt.set()

    def _on_abort(self, environment: Any, msg: Any) -> None:  # noqa: ARG002
        if self.run is not None and self.run.cell.cell_id == msg.data["cell_id"]:
            self._close(self.run)
            self.run = None
            self._changed.set()
            self.sender.reader.abort_active("cell aborted")

    # -- the end of a cell

    def _busy(self) -> bool:
        return bool(self.sender.in_flight or (self._arrivals is not None and self._arrivals.busy))

    def _end_of_cell(self, run: CellRun) -> None:
        """Waits for the end of the window, drains under load, sends the last rows and the counts."""
        while self.run is run and (left_ns := run.end_ns - time.time_ns()) > 0:
            self._changed.clear()
            if not self._changed.wait(min(left_ns / 1e9, SWEEP_S)) and left_ns > SWEEP_S * 1e9:
                gevent.idle()
                gc.collect()
        if self.run is not run:
            return
        deadline_ns = run.end_ns + int(run.cell.drain_s * 1e9)
        told = False
        while self.run is run and not run.closed and time.time_ns() < deadline_ns:
            if not told and not run.holds():
                told = True
                self.runner.send_message(protocol.DRAINED, {"cell_id": run.cell.cell_id, "index": self.index})
            gevent.sleep(DEADLINE_POLL_S)
        if self.run is not run:
            return
        self._close(run)
        load_end_ns = time.time_ns()
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
            "load_end_ns": load_end_ns,
            "drain_end_ns": drain_end_ns,
        }
        self.runner.send_message(protocol.FINAL, {"cell_id": run.cell.cell_id, "index": self.index, "counts": counts})
