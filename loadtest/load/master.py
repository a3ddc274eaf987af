"""The master's view of its workers: who is there, who is lost, what they sent. Import after locust.

The same code serves a run without worker processes: Locust's LocalRunner hands the messages over in the process.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gevent
import psutil
from gevent.event import Event
from locust.runners import STATE_MISSING, MasterRunner

from loadtest import __version__
from loadtest.errors import LoadError
from loadtest.load import clocks, protocol
from loadtest.load.cellrun import mix_digest
from loadtest.load.clocks import ClockBounds
from loadtest.load.lifeline import parent_at_start
from loadtest.load.recorder import Recorder
from loadtest.load.selfproof import SelfProof, pid_space, process_state
from loadtest.model import Cell, ConfigSpec, LoadJob, to_json

log = logging.getLogger(__name__)

WORKERS_TIMEOUT_S = 60.0
"""Forked workers say hello within a second; workers on other hosts are started by hand."""
POLL_S = 0.01
EXIT_GRACE_S = 3.0
"""A worker that was told to quit is gone within 0.1 s; after this long it is killed."""


class CellAbortedError(LoadError):
    """The cell cannot be finished; the text says why."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker as it introduced itself."""

    index: int
    client_id: str
    pid: int
    host: str
    version: str
    pid_space: str


class Master:
    """Keeps the workers of one run and hands their rows to the recorder of the current cell."""

    def __init__(self, environment: Any) -> None:
        self.environment, self.runner = environment, environment.runner
        self.distributed = isinstance(self.runner, MasterRunner)
        self.workers: dict[int, WorkerInfo] = {}
        self.lost: dict[int, str] = {}
        self.recorder: Recorder | None = None
        self.finals: dict[int, dict[str, Any]] = {}
        self._drained: set[int] = set()
        self.skew_ms: dict[int, tuple[float, float]] = {}
        self.proof = SelfProof()
        self.ending = False
        self._cell_id: str | None = None
        self._ready: dict[int, str | None] = {}
        self._lack_key: list[str] = []
        self._sent_mixes: dict[str, str] = {}
        self._frozen = False
        self._trouble: str | None = None
        self._wake = Event()
        self._parent = parent_at_start()
        self._pid_space = pid_space()
        self._bounds: dict[int, ClockBounds] = {}
        for name, listener in (
            (protocol.HELLO, self._on_hello),
            (protocol.LOOKED, self._on_looked),
            (protocol.READY, self._on_ready),
            (protocol.BATCH, self._on_batch),
            (protocol.DRAINED, self._on_drained),
            (protocol.FINAL, self._on_final),
        ):
            self.runner.register_message(name, listener)
        self._children = [p.pid for p in psutil.Process().children()] if self.distributed else []
        self._greenlet = gevent.spawn(self._watch)

    # -- waiting

    @property
    def trouble(self) -> str | None:
        """Why no cell can be finished any more (a lost worker, a lost orchestrator), or None."""
        return self._trouble

    def fail(self, reason: str) -> None:
        """Ends whatever waits, with this reason; the first one counts."""
        if self._trouble is None:
            self._trouble = reason
            log.error("%s", reason)
        self._wake.set()

    def wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Waits until the condition holds. False: it did not in time. Raises CellAbortedError on trouble."""
        deadline = time.monotonic() + timeout_s
        while True:
            if self._trouble is not None:
                raise CellAbortedError(self._trouble)
            if condition():
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._wake.wait(min(POLL_S, left))

    def sleep_until(self, t_ns: int) -> None:
        """Waits for a point of time. Raises CellAbortedError on trouble."""
        while (left_ns := t_ns - time.time_ns()) > 0:
            if self._trouble is not None:
                raise CellAbortedError(self._trouble)
            self._wake.wait(min(0.25, left_ns / 1e9))

    # -- workers

    def await_workers(self, expected: int, timeout_s: float = WORKERS_TIMEOUT_S) -> None:
        """Waits for `expected` workers and takes no further ones. Raises LoadError when they do not come."""
        if not self.wait(lambda: len(self.workers) >= expected, timeout_s):
            raise LoadError(
                f"{len(self.workers)} of {expected} workers came within {timeout_s:.0f} s; their log lines say why"
            )
        self._frozen = True

    def send_mix(self, mix: str, prompts: bytes, warmup: bytes, weights: tuple[float, ...]) -> str:
        """Hands a mix to all workers, once. -> its SHA-256."""
        sha256 = mix_digest(prompts, warmup, weights)
        if self._sent_mixes.get(mix) != sha256:
            message = {"mix": mix, "sha256": sha256, "prompts": prompts, "warmup": warmup, "weights": list(weights)}
            self.runner.send_message(protocol.MIX, message)
            self._sent_mixes[mix] = sha256
        return sha256

    def prepare(self, cell: Cell, job: LoadJob, sha256: str, recorder: Recorder, trace: bytes = b"") -> None:
        """Gets all workers ready for a cell. Raises CellAbortedError when one cannot run it."""
        self.recorder, self._cell_id = recorder, cell.cell_id
        self._ready, self.finals, self._drained, self._lack_key = {}, {}, set(), []
        self.compare_clocks()
        self.proof.start()
        config = ConfigSpec(job.config.name, job.config.method, job.config.gamma)  # how it is launched stays here
        small = to_json(job) | {"config": to_json(config), "cells": [], "prompt_files": {}, "mix_weights": {}}
        message = {"cell": to_json(cell), "job": small, "workers": len(self.workers), "sha256": sha256}
        message |= {"trace": trace, "trace_sha256": hashlib.sha256(trace).hexdigest()}
        self.runner.send_message(protocol.CELL, message)
        if not self.wait(lambda: len(self._ready) >= len(self.workers), protocol.READY_TIMEOUT_S):
            silent = sorted(set(self.workers) - set(self._ready))
            raise CellAbortedError(f"workers {silent} did not get ready within {protocol.READY_TIMEOUT_S:.0f} s")
        if errors := [e for e in self._ready.values() if e]:
            raise CellAbortedError("; ".join(errors))
        key = job.client.api_key_env
        if os.environ.get(key, "").strip() and self._lack_key:
            raise CellAbortedError(
                f"{', '.join(self._lack_key)}: {key} is not set there, but it is set here; each worker takes the key "
                "from its own environment"
            )

    def compare_clocks(self) -> None:
        """Asks all workers for the time, several times: `skew_ms` holds bounds of each clock's offset to this one."""
        self._bounds = {index: ClockBounds() for index in self.workers}
        for n in range(1, clocks.ROUNDS + 1):
            self.runner.send_message(protocol.CLOCK, {"asked_ns": time.time_ns()})
            if not self.wait(lambda n=n: all(b.answers >= n for b in self._bounds.values()), clocks.ANSWER_S):  # type: ignore[misc]
                break
        self.skew_ms = {index: bounds.ms() for index, bounds in self._bounds.items() if bounds.answers}

    def send_window(self, cell: Cell, start_ns: int, end_ns: int, stripes: dict[str, list[int]]) -> None:
        """Opens the cell at the workers, or moves an edge of its window."""
        self.runner.send_message(
            protocol.WINDOW,
            {"cell_id": cell.cell_id, "start_ns": start_ns, "end_ns": end_ns, "stripes": stripes},
        )

    def drain(self, cell: Cell, timeout_s: float) -> None:
        """Waits until no worker has a request of the window in flight, then ends the load at all of them.

        Nothing hangs on the answer: each worker ends its load at the drain's deadline by itself.
        """
        self.wait(lambda: self._drained | set(self.finals) >= set(self.workers), timeout_s)
        self.runner.send_message(protocol.STOP, {"cell_id": cell.cell_id})

    def abort_cell(self, cell: Cell, reason: str) -> None:
        """Tells the workers to drop the cell."""
        self.runner.send_message(protocol.ABORT, {"cell_id": cell.cell_id, "reason": reason})

    def users_of(self) -> dict[int, int]:
        """Users per worker index, as the workers reported them to Locust."""
        if not self.distributed:
            return {0: self.runner.user_count}
        clients = self.runner.clients
        return {i: clients[w.client_id].user_count for i, w in self.workers.items() if w.client_id in clients}

    def end_workers(self) -> None:
        """Waits for the forked workers to exit, then kills: none outlives the run. Call after Locust's quit."""
        deadline = time.monotonic() + EXIT_GRACE_S
        while (alive := [p for p in self._children if process_state(p) in (None, "stopped")]) and (
            time.monotonic() < deadline
        ):
            gevent.sleep(POLL_S)
        for pid in alive:
            log.warning("worker process %d did not exit by itself; it is killed", pid)
            os.kill(pid, 9)

    # -- messages of the workers

    def _on_hello(self, environment: Any, msg: Any) -> None:  # noqa: ARG002
        d = msg.data
        info = WorkerInfo(
            int(d["index"]), str(msg.node_id), int(d["pid"]), str(d["host"]), str(d["version"]), str(d["pid_space"])
        )
        if info.version != __version__:
            self.fail(
                f"worker {info.index} on {info.host} runs loadtest {info.version}, the master {__version__}: "
                "install the same version on both"
            )
        elif self.ending:
            log.info("worker on %s came when the run was ending", info.host)
        elif self._frozen:
            self.fail(f"worker {info.index} on {info.host} came in mid-run; start all workers before the first cell")
        else:
            self.workers[info.index] = info

    def _on_ready(self, environment: Any, msg: Any) -> None:  # noqa: ARG002
        d = msg.data
        if d["cell_id"] == self._cell_id:
            index = int(d["index"])
            self._ready[index] = d["error"]
            if not d["has_key"]:
                self._lack_key.append(f"worker {index} on {self.workers[index].host}")
            self._nudge()

    def _on_looked(self, environment: Any, msg: Any) -> None:  # noqa: ARG002
        d, got_ns = msg.data, time.time_ns()
        if (bounds := self._bounds.get(int(d["index"]))) is not None:
            bounds.add(int(d["asked_ns"]), int(d["time_ns"]), got_ns)
            self._nudge()

    def _nudge(self) -> None:
        """Whoever waits looks again."""
        self._wake.set()
        self._wake.clear()

    def _on_batch(self, environment: Any, msg: Any) -> None:  # noqa: ARG002
        d = msg.data
        if self.recorder is not None and d["cell_id"] == self._cell_id:
            self.recorder.put(int(d["index"]), int(d["rows"]), d["data"])
        else:
            log.warning("%d rows of a cell that is over (%s) were dropped", d["rows"], d["cell_id"] or "none")

    def _on_drained(self, environment: Any, msg: Any) -> None:  # noqa: ARG002
        if msg.data["cell_id"] == self._cell_id:
            self._drained.add(int(msg.data["index"]))

    def _on_final(self, environment: Any, msg: Any) -> None:  # noqa: ARG002
        if msg.data["cell_id"] == self._cell_id:
            self.finals[int(msg.data["index"])] = msg.data["counts"]

    # -- liveness

    def _watch(self) -> None:
        while True:
            gevent.sleep(protocol.LIVENESS_INTERVAL_S)
            if self.ending:
                continue
            if os.environ.get(protocol.ENV_JOB) and os.getppid() != self._parent:
                self.fail(f"the process that started this run (pid {self._parent}) is gone: the run ends")
            if not self.distributed:
                continue
            for index, worker in list(self.workers.items()):
                if index not in self.lost and (why := self._loss(worker)) is not None:
                    if not self._frozen and not self._children:  # others may still come from other hosts
                        log.warning("worker %d on %s left before the first cell: %s", index, worker.host, why)
                        del self.workers[index]
                        continue
                    self.lost[index] = why
                    self.fail(f"worker {index} (pid {worker.pid} on {worker.host}) is lost: {why}")
            if not self._frozen and (gone := [p for p in self._children if process_state(p) in ("dead", "gone")]):
                self.fail(f"worker processes {gone} ended before the first cell; their log lines say why")

    def _loss(self, worker: WorkerInfo) -> str | None:
        if worker.pid_space == self._pid_space and (state := process_state(worker.pid)) is not None:
            return f"its process is {state}"
        node = self.runner.clients.get(worker.client_id)
        if node is None:
            return "it left"
        return "no heartbeat for 3 s" if node.state == STATE_MISSING else None
