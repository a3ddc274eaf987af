"""Appends scrapes to `server.arrows` and keeps the raw text of the edges.

Readable after a crash up to the last scrape.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from loadtest.server.counters import series_key
from loadtest.server.fetch import Fetched
from loadtest.server.metrics import VLLM_PREFIX, Sample
from loadtest.server.scrapes import SCRAPE_OK, SCRAPE_SCHEMA

KEPT_PREFIXES = (VLLM_PREFIX, "process_")
"""Samples worth a row: the engine's own, and the process's CPU, memory and start time."""


class Recording:
    """The recording of one cell. One batch per scrape, flushed to the operating system at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scrapes = 0
        self.errors = 0
        path = folder / "server.arrows"
        if path.exists():  # a cell that is run again: what was measured is kept
            path.rename(_free_name(folder))
        self._file = path.open("wb", buffering=0)
        options = pa.ipc.IpcWriteOptions(compression="zstd")  # most columns repeat: about a twentieth of the size
        self._writer = pa.ipc.new_stream(self._file, SCRAPE_SCHEMA, options=options)

    def add(self, got: Fetched, edge: str | None = None) -> None:
        """Append the rows of one scrape of one endpoint."""
        self.scrapes += 1
        self.errors += not got.ok
        rows = list(_rows(got, edge))
        columns: list[Any] = list(zip(*rows, strict=True))
        arrays = [pa.array(column, type=f.type) for column, f in zip(columns, SCRAPE_SCHEMA, strict=True)]
        self._writer.write_batch(pa.record_batch(arrays, schema=SCRAPE_SCHEMA))

    def keep_text(self, got: Fetched, edge: str, number: int) -> None:
        """Keep the body as `metrics/<edge>.<k>.txt`; that of a failed scrape as `<edge>.<k>.error.txt`."""
        folder = self.folder / "metrics"
        folder.mkdir(exist_ok=True)
        if got.ok:
            (folder / f"{edge}.{number}.txt").write_bytes(got.body)
        else:
            (folder / f"{edge}.{number}.error.txt").write_bytes(f"{got.error}\n\n".encode() + got.body)

    def close(self) -> None:
        """End the stream."""
        self._writer.close()
        self._file.close()


def _free_name(folder: Path) -> Path:
    number = 1
    while (path := folder / f"server.old-{number}.arrows").exists():
        number += 1
    return path


def _rows(got: Fetched, edge: str | None) -> Iterator[tuple[Any, ...]]:
    """Tuples in the order of SCRAPE_SCHEMA; the first says whether the scrape worked."""
    head = (got.t_ns, got.t_request_ns, got.mono_ns, got.endpoint, edge)
    error = got.error
    if error is None and got.page and got.page.broken_lines:
        error = f"{got.page.broken_lines} broken lines, the first: {got.page.broken[0]}"
    yield (*head, SCRAPE_OK, "gauge", "{}", None, None, float(got.ok), error)
    if not got.ok or got.page is None:
        return
    for sample in got.page.samples:
        if sample.name.startswith(KEPT_PREFIXES) and not math.isinf(sample.value):
            yield _row(head, got.endpoint, sample, sample.kind)
    if edge is not None:  # a series' birth is only needed to see resets between two edges
        for sample in got.page.created:
            if sample.name.startswith(KEPT_PREFIXES) and math.isfinite(sample.value):
                yield _row(head, got.endpoint, sample, "gauge")


def _row(head: tuple[Any, ...], endpoint: str, sample: Sample, kind: str) -> tuple[Any, ...]:
    key = series_key(endpoint, sample)
    value = None if math.isnan(sample.value) else sample.value
    labels = json.dumps(dict(key.labels), ensure_ascii=False, sort_keys=True) if key.labels else "{}"
    return (*head, sample.name, kind, labels, key.engine, key.model, value, None)
