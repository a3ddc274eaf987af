"""Reads the Arrow IPC streams that a run leaves, batch by batch, whatever state a crash left them in.

A stream that is cut inside a batch gives every row before the cut and a text that says where it is torn. A stream that
is cut exactly between two batches reads as clean (measured), so callers also compare row counts with `done.json`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

T = TypeVar("T")

_END_MARKER = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_WORKER_FILE = re.compile(r"worker-(\d+)(?:-(\d+))?\.arrows")


@dataclass(slots=True)
class RawFile:
    """One IPC stream. `rows`, `torn` and `closed` are final once `batches` is exhausted."""

    path: Path
    schema: pa.Schema
    """Every batch comes out in this schema; nullable columns that the file lacks are null."""
    rows: int = 0
    torn: str | None = None
    """What is wrong with the file's end (or with the file), None if nothing is."""
    closed: bool = False
    """The writer ended the stream itself. False after a kill, which alone loses nothing."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Every batch up to the tear. Never raises for a damaged file: sets `torn`."""
        self.rows, self.torn, self.closed = 0, None, False
        try:
            size = self.path.stat().st_size
            with pa.OSFile(str(self.path), "rb") as source:
                reader = pa.ipc.open_stream(source)
                for raw in self._read(reader):
                    raw.validate()
                    batch = conform(raw, self.schema)
                    self.rows += batch.num_rows
                    yield batch
                self._check_end(source.tell(), size)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OSError, ValueError) as error:
            first_line = (str(error).splitlines() or [type(error).__name__])[0]
            self.torn = f"{self.path.name}: torn after {self.rows} rows ({first_line})"

    @staticmethod
    def _read(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        with contextlib.suppress(StopIteration):
            while True:
                yield reader.read_next_batch()

    def _check_end(self, position: int, size: int) -> None:
        # A tail of zeros, as some file systems leave after a power cut, reads as an end mark with bytes behind it.
        if position < size:
            self.torn = f"{self.path.name}: {size - position} stray bytes after {self.rows} rows"
            return
        with self.path.open("rb") as file:
            file.seek(max(0, size - len(_END_MARKER)))
            self.closed = file.read() == _END_MARKER


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with exactly the columns of `schema`, in its order.

    Raises ValueError where a column that may not be null is missing; ArrowInvalid where a value does not fit.
    """
    if batch.schema.equals(schema):
        return batch
    columns = []
    for field in schema:
        index = batch.schema.get_field_index(field.name)
        if index >= 0:
            column = batch.column(index)
            columns.append(column if column.type == field.type else column.cast(field.type))
        elif field.nullable:
            columns.append(pa.nulls(batch.num_rows, field.type))
        else:
            raise ValueError(f"column {field.name} is missing; the file has {batch.schema.names}")
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def worker_files(cell_dir: Path) -> list[tuple[int, Path]]:
    """(worker number, path) of every `worker-<n>.arrows` and `worker-<n>-<segment>.arrows`, in writing order."""
    found = []
    for path in cell_dir.glob("worker-*.arrows"):
        match = _WORKER_FILE.fullmatch(path.name)
        if match:
            found.append((int(match[1]), int(match[2] or 0), path))
    return [(worker, path) for worker, _, path in sorted(found)]


def tables(files: list[RawFile], max_rows: int, max_bytes: int) -> Iterator[tuple[RawFile, pa.Table]]:
    """Batches of each file glued to tables of about `max_rows` rows or `max_bytes` bytes, whichever comes first."""
    for file in files:
        parts: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in file.batches():
            if batch.num_rows == 0:
                continue
            parts.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
            if rows >= max_rows or size >= max_bytes:
                yield file, pa.Table.from_batches(parts, file.schema).combine_chunks()
                parts, rows, size = [], 0, 0
        if parts:
            yield file, pa.Table.from_batches(parts, file.schema).combine_chunks()


def ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items, each made in a thread while the one before is worked on (reading and gluing free the GIL)."""
    with ThreadPoolExecutor(1, "merge-read") as pool:
        coming = pool.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = pool.submit(next, items, None)
            yield item
