"""Rows of finished requests on their way from a worker to the master, as Arrow record batches. Import after locust."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gevent
import pyarrow as pa
from gevent.lock import BoundedSemaphore

from loadtest.load.protocol import BATCH_INTERVAL_S
from loadtest.load.records import RAW_SCHEMA

# Where pandas is installed, pyarrow imports it at the first conversion (0.5 s): now, not while requests are measured.
pa.array([0])

ROWS_PER_BATCH = 64
"""Building 64 rows of 120 chunks takes 0.8 ms (256 take 2.5 ms, measured): a step this short delays no read by more
than half a pace of the reader."""
IDLE_WAIT_S = 0.25
"""A hub that is never idle must not hold rows back for ever."""


class BatchSender:
    """Collects rows and sends them about twice a second, in small steps and in idle time.

    `send(data, rows)` gets the bytes of one record batch of RAW_SCHEMA (without schema) and its number of rows. It may
    wait: batches go out one after the other, in the order of their rows, and `flush` returns after the last.
    """

    def __init__(self, send: Callable[[bytes, int], None]) -> None:
        self._send = send
        self._rows: list[dict[str, Any]] = []
        self._sending = BoundedSemaphore(1)
        self.batches = 0
        self.rows = 0
        self._greenlet = gevent.spawn(self._loop)

    def add(self, row: dict[str, Any]) -> None:
        """Takes one row: a dict with the columns of RAW_SCHEMA; missing ones are null."""
        self._rows.append(row)

    def flush(self) -> None:
        """Sends everything that waits now; what is on its way already goes first."""
        with self._sending:
            while self._rows:
                self._step()

    def _loop(self) -> None:
        while True:
            gevent.sleep(BATCH_INTERVAL_S)
            for _ in range(len(self._rows) // ROWS_PER_BATCH + 1):
                with gevent.Timeout(IDLE_WAIT_S, False):
                    gevent.idle()
                with self._sending:
                    self._step()

    def _step(self) -> None:
        rows, self._rows = self._rows[:ROWS_PER_BATCH], self._rows[ROWS_PER_BATCH:]
        if not rows:
            return
        try:
            batch = pa.RecordBatch.from_pylist(rows, schema=RAW_SCHEMA)
        except (pa.ArrowException, UnicodeError, OverflowError, TypeError, ValueError):
            batch = pa.RecordBatch.from_pylist([storable(row) for row in rows], schema=RAW_SCHEMA)
        self.batches += 1
        self.rows += len(rows)
        self._send(batch.serialize().to_pybytes(), len(rows))


def storable(row: dict[str, Any]) -> dict[str, Any]:
    """The row itself, or, as `bad_payload`, without the values that do not fit their columns.

    A lone surrogate in a text or a count beyond int32 does not fit. No request may vanish, none may look good.
    """
    bad = []
    for field in RAW_SCHEMA:
        try:
            pa.array([row.get(field.name)], field.type)
        except (pa.ArrowException, UnicodeError, OverflowError, TypeError, ValueError) as e:
            bad.append(f"{field.name}: {e}")
            row = {**row, field.name: None}
    if not bad:
        return row
    error = "; ".join(bad).encode("utf-8", "backslashreplace").decode()
    return {**row, "outcome": "bad_payload", "error": f"value does not fit its column: {error[:500]}"}
