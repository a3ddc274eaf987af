"""What the master keeps of one cell: one Arrow IPC stream per worker, and HDR histograms of the window.

`put` is cheap and runs on the hub; decoding, disk and histograms run one batch at a time in the hub's thread pool.
Import after locust.
"""

from __future__ import annotations

import logging
import os
import time
from io import BufferedWriter
from pathlib import Path
from typing import Any

import gevent
import numpy as np
import pyarrow as pa
from gevent.queue import Queue

from loadtest.errors import LoadError
from loadtest.load import hdr
from loadtest.load.drift import COUNTS, LIVE_EVERY_S, Drift, write_live
from loadtest.load.records import RAW_SCHEMA

log = logging.getLogger(__name__)

# What pyarrow loads at first use (pyarrow.compute; pandas where it is installed: 0.5 s) is loaded now, not in a window.
pa.array([0, None]).filter(pa.array([True, False])).drop_null().to_numpy()

METRICS = ("ttft", "tpot", "e2e", "chunk_gap", "client_lag")
"""Histograms in microseconds: `ttft` to `chunk_gap` of the ok rows of the window, `client_lag` of all its rows."""


SEGMENT_BYTES = 256 << 20
SEGMENT_S = 600.0
"""A file is closed and the next one begun after so much: what a crash can tear is one segment, and the files of a long
cell can be read and moved away while it runs."""


class Recorder:
    """Appends record batches to `worker-<n>.arrows`, then `worker-<n>-<k>.arrows`; keeps the cell's live figures."""

    def __init__(
        self,
        folder: Path,
        window_s: float = 3600.0,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        segment_s: float = SEGMENT_S,
    ) -> None:
        self.folder = folder
        self.drift = Drift(window_s)
        self._segment_bytes, self._segment_s = segment_bytes, segment_s
        self._live_due = 0.0
        self.histograms = {metric: hdr.new_histogram() for metric in METRICS}
        self.overflow = dict.fromkeys(METRICS, 0)
        self.rows: dict[int, int] = {}
        """Rows on disk per worker."""
        self.measured = 0
        """Rows of phase measure, whatever became of them."""
        self.sums = {"spec_steps": 0, "draft_tokens": 0, "accepted_tokens": 0, "blocks": 0}
        self.outcomes: dict[str, int] = {}
        self.error: str | None = None
        self._files: dict[int, tuple[BufferedWriter, Any, float]] = {}  # file, its stream, when it was begun
        self._segments: dict[int, int] = {}
        self._queue: Queue[tuple[int, bytes] | None] = Queue()
        self._pool = gevent.get_hub().threadpool
        self._greenlet = gevent.spawn(self._loop)

    def put(self, worker: int, rows: int, data: bytes) -> None:  # noqa: ARG002
        """Takes the bytes of one record batch of a worker."""
        self._queue.put((worker, data))

    def finish(self) -> None:
        """Waits until everything is written and closes the files. Raises LoadError when a batch was not written."""
        self._queue.put(None)
        self._greenlet.join()
        self._pool.spawn(self._close).get()
        if self.error is not None:
            raise LoadError(f"rows cannot be written below {self.folder}: {self.error}")

    def write_hlog(self, start_ns: int, end_ns: int) -> None:
        """Writes `live.hlog`: one interval, one tag per metric."""
        self._pool.spawn(
            hdr.write_hlog, self.folder / "live.hlog", hdr.one_interval(self.histograms, start_ns, end_ns)
        ).get()

    def _loop(self) -> None:
        while (item := self._queue.get()) is not None:
            try:
                self._pool.spawn(self._store, *item).get()
            except Exception as e:
                log.exception("a batch of worker %d was not written", item[0])
                self.error = self.error or f"worker-{item[0]}.arrows: {e!r}"

    def _store(self, worker: int, data: bytes) -> None:
        batch = pa.ipc.read_record_batch(pa.py_buffer(data), RAW_SCHEMA)
        file, writer = self._file(worker)
        writer.write_batch(batch)
        file.flush()
        self.rows[worker] = self.rows.get(worker, 0) + batch.num_rows
        self._count(batch)
        if (now := time.monotonic()) >= self._live_due:
            self._live_due = now + LIVE_EVERY_S
            write_live(self.folder / "live.json", self.drift.live(self.measured))

    def _file(self, worker: int) -> tuple[BufferedWriter, Any]:
        """The open segment of a worker; one that is full is closed and synced, and the next one begun."""
        if worker in self._files:
            file, writer, began = self._files[worker]
            if file.tell() < self._segment_bytes and time.monotonic() - began < self._segment_s:
                return file, writer
            writer.close()
            file.flush()
            os.fsync(file.fileno())
            file.close()
            self._segments[worker] += 1
        k = self._segments.setdefault(worker, 0)
        file = (self.folder / (f"worker-{worker}-{k}.arrows" if k else f"worker-{worker}.arrows")).open("xb")
        writer = pa.ipc.new_stream(file, RAW_SCHEMA)
        self._files[worker] = (file, writer, time.monotonic())
        return file, writer

    def _count(self, batch: Any) -> None:
        phase = np.asarray(batch["phase"].to_pylist(), dtype=object)
        outcome = np.asarray(batch["outcome"].to_pylist(), dtype=object)
        window = phase == "measure"
        ok = window & (outcome == "ok")
        self.measured += int(window.sum())
        for name in outcome[window]:
            self.outcomes[name] = self.outcomes.get(name, 0) + 1
        latencies = {metric: _values(batch[f"{metric}_us"], ok) for metric in ("ttft", "tpot", "e2e")}
        for metric, values in latencies.items():
            self._record(metric, values)
        self._record("client_lag", _values(batch["client_lag_us"], window))
        self._record("chunk_gap", chunk_gaps_us(batch["chunk_offset_us"].filter(pa.array(ok))))
        block = ok & np.asarray(batch["spec_steps"].is_valid())
        self.sums["blocks"] += int(block.sum())
        counts = {name: int(_values(batch[name], block).sum()) for name in COUNTS}
        for name, n in counts.items():
            self.sums[name] += n
        if ok.any():
            self.drift.add(latencies, counts, int(ok.sum()))

    def _record(self, metric: str, values: np.ndarray[Any, Any]) -> None:
        if values.size:
            self.overflow[metric] += hdr.record(self.histograms[metric], np.rint(values))

    def _close(self) -> None:
        for file, writer, _ in self._files.values():
            writer.close()
            file.close()
        self._files.clear()
        self.drift.close()
        (self.folder / "live.json").unlink(missing_ok=True)


def _values(column: Any, keep: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The values of a column that are kept and not null."""
    return np.asarray(column.filter(pa.array(keep)).drop_null())


def chunk_gaps_us(offsets: Any) -> np.ndarray[Any, Any]:
    """Time between neighbouring token-carrying chunks of each row, of a list column of offsets (nulls: no gaps)."""
    kept = offsets.drop_null()
    values = np.asarray(kept.flatten(), dtype=np.int64)
    if values.size < 2:
        return np.empty(0, dtype=np.int64)
    gaps = np.diff(values)
    lengths = np.asarray(kept.value_lengths(), dtype=np.int64)
    ends = np.cumsum(lengths[lengths > 0])[:-1]  # the difference at index end - 1 crosses from one row to the next
    return np.delete(gaps, ends - 1)
