"""Raw files of a run in, Parquet and `.hlog` out. Reads raw files only, so it may run at any time and again.

One cell after the other and each in pieces: memory depends on the size of a piece, not on the number of requests.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from loadtest import __version__
from loadtest.errors import RunFolderError
from loadtest.load.hdr import hlog_header, hlog_line, one_interval
from loadtest.load.records import RAW_SCHEMA
from loadtest.merge import cells as columns
from loadtest.merge import latency
from loadtest.merge.client import client_columns
from loadtest.merge.plan_cells import PlannedCell, auto_columns, planned_cells, read_run
from loadtest.merge.quantiles import QUANTILES
from loadtest.merge.read_raw import RawFile, ahead, tables, worker_files
from loadtest.merge.rows import RowSums, ints, known
from loadtest.merge.schema import CELLS_SCHEMA
from loadtest.merge.server_view import ServerView
from loadtest.merge.write import RequestWriter, ServerWriter, cell_keys, publish, request_path
from loadtest.model import SCHEMA_VERSION
from loadtest.server.scrapes import SCRAPE_SCHEMA

Progress = Callable[[str], None]

PIECE_ROWS = 32_768
PIECE_BYTES = 48 << 20
"""A piece is a row group: large enough to compress and to scan well, small enough to hold several copies of it."""

_TEMPORARY = ".merge-"


@dataclass(slots=True)
class MergeSummary:
    """What a merge did. `warnings` are findings about the raw files, in words."""

    run_dir: Path
    rows: int = 0
    states: Counter[str] = field(default_factory=Counter)
    warnings: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def text(self) -> str:
        """For the command line."""
        states = ", ".join(f"{n} {state.replace('_', ' ')}" for state, n in sorted(self.states.items()))
        lines = [f"merged {self.rows} requests of {sum(self.states.values())} cells ({states}) in {self.seconds:.1f} s"]
        return "\n".join(lines + [f"warning: {w}" for w in self.warnings])


def merge_run(run_dir: Path, progress: Progress | None = None) -> MergeSummary:
    """Writes requests/, server.parquet, cells.parquet and latency.hlog into the run folder.

    Works on unfinished runs; raw files are never changed. What an earlier merge wrote is replaced when the new files
    are complete. Raises RunFolderError for a folder that is no run of this schema version.
    """
    run_dir = Path(run_dir)
    began = time.monotonic()
    run = read_run(run_dir)
    summary = MergeSummary(run_dir)
    with _exclusive(run_dir), _temporary(run_dir) as temporary:
        _Merge(run_dir, run, temporary, summary, progress or (lambda _: None)).write()
        publish(temporary, run_dir, ["requests", "server.parquet", "latency.hlog", "cells.parquet"])
    summary.seconds = time.monotonic() - began
    return summary


class _Merge:
    def __init__(
        self, run_dir: Path, run: dict[str, Any], temporary: Path, summary: MergeSummary, progress: Progress
    ) -> None:
        self.run_dir, self.run, self.temporary = run_dir, run, temporary
        self.summary, self.progress = summary, progress
        self.run_id = str(run.get("run_id") or run_dir.name)
        self.metadata = {
            "loadtest.schema": str(SCHEMA_VERSION),
            "loadtest.tool_version": __version__,
            "loadtest.run_id": self.run_id,
            "loadtest.plan_sha256": str(run.get("plan_sha256") or ""),
        }

    def write(self) -> None:
        (self.temporary / "requests").mkdir()
        planned, notes = planned_cells(self.run_dir, self.run)
        self.summary.warnings += notes
        start_s = float(self.run.get("started_ns") or 0) / 1e9
        rows = []
        with (
            ServerWriter(self.temporary / "server.parquet", self.metadata) as server,
            (self.temporary / "latency.hlog").open("w", encoding="ascii") as hlog,
        ):
            hlog.write(hlog_header(start_s))
            for number, cell in enumerate(planned, 1):
                self.progress(f"merge {number}/{len(planned)} {cell.cell.cell_id}: {cell.state.replace('_', ' ')}")
                row, lines = self._cell(cell, server, start_s)
                rows.append(row)
                hlog.writelines(lines)
                self.summary.states[cell.state] += 1
        table = pa.Table.from_pylist(rows, schema=CELLS_SCHEMA.with_metadata(self.metadata))
        pq.write_table(table, self.temporary / "cells.parquet", compression="zstd")

    def _cell(self, planned: PlannedCell, server: ServerWriter, start_s: float) -> tuple[dict[str, Any], list[str]]:
        row: dict[str, Any] = {
            **cell_keys(self.run_id, planned.cell),
            "is_baseline": planned.is_baseline,
            "simulated": planned.simulated or bool(self.run.get("simulated")),
            "synthetic_acceptance": bool(planned.provenance.get("synthetic_acceptance")),
            "state": planned.state,
            "state_reason": planned.reason,
            "contradictions": [str(c) for c in planned.provenance.get("contradictions") or []],
            "provenance_equal": _comparable(planned.provenance),
            **auto_columns(planned),
        }
        if planned.folder is None:
            return row, []
        files = columns.CellFiles(done=planned.done, provenance=planned.provenance)
        files.notes += [str(n) for n in (planned.done or {}).get("notes") or []]
        view = self._server(planned, server, files)
        rows = RowSums(files.window, self.temporary)
        try:
            self._requests(planned, view, rows, files)
            row |= self._figures(view, rows, files)
            row["contradictions"] += _strangers(planned.provenance, row["server_fingerprints"])
            histograms, over = latency.histograms_of(rows)
        finally:
            rows.close()
        row |= self._hdr_check(planned, row, histograms, over, files)
        self.summary.rows += rows.counts["rows"]
        self.summary.warnings += [f"{planned.cell.cell_id}: {text}" for text in files.torn]
        start_ns, end_ns = files.window or (int(start_s * 1e9),) * 2
        tagged = {f"{planned.cell.cell_id}.{metric}": h for metric, h in histograms.items()}
        return row, [hlog_line(entry, start_s) for entry in one_interval(tagged, start_ns, end_ns)]

    def _server(self, planned: PlannedCell, server: ServerWriter, files: columns.CellFiles) -> ServerView:
        view = ServerView()
        path = planned.path / "server.arrows"
        if not path.is_file():
            files.notes.append("no server.arrows: nothing was scraped")
            return view
        raw = RawFile(path, SCRAPE_SCHEMA)
        for _, table in tables([raw], PIECE_ROWS, PIECE_BYTES):
            for batch in table.to_batches():
                view.add(batch)
            server.write(table, self.run_id, planned.cell.cell_id)
        if raw.torn:
            files.torn.append(raw.torn)
        return view

    def _requests(self, planned: PlannedCell, view: ServerView, rows: RowSums, files: columns.CellFiles) -> None:
        raws = [RawFile(path, RAW_SCHEMA) for _, path in worker_files(planned.path)]
        digest = hashlib.sha256(json.dumps(planned.provenance, sort_keys=True).encode()).hexdigest()
        metadata = {**self.metadata, "loadtest.provenance_sha256": digest if planned.provenance else ""}
        keys = cell_keys(self.run_id, planned.cell)
        with RequestWriter(request_path(self.temporary, planned.cell), keys, metadata) as writer:
            for _, table in ahead(tables(raws, PIECE_ROWS, PIECE_BYTES)):
                rows.add(table)
                state = view.state_at(ints(table, "send_ns"))
                sent = known(table, "send_ns")
                writer.write(table, {name: np.where(sent, values, np.nan) for name, values in state.items()})
        files.torn += [raw.torn for raw in raws if raw.torn]
        files.unclosed += [raw.path.name for raw in raws if not raw.torn and not raw.closed]

    def _figures(self, view: ServerView, rows: RowSums, files: columns.CellFiles) -> dict[str, Any]:
        model = next(iter(rows.models)) if len(rows.models) == 1 else None
        server, window, spec, whole = columns.server_columns(view, files, model)
        return {
            **columns.count_columns(rows, files),
            **columns.latency_columns(rows),
            **columns.worker_columns(rows, files),
            **client_columns(rows, files),
            **columns.acceptance_columns(rows, spec, window),
            **columns.reconciliation_columns(rows, whole["deltas"], whole["spec"]),
            **server,
        }

    def _hdr_check(
        self,
        planned: PlannedCell,
        row: dict[str, Any],
        histograms: dict[str, Any],
        over: int,
        files: columns.CellFiles,
    ) -> dict[str, Any]:
        """Both histograms, ours of the rows and the master's live one, against the exact quantiles."""
        live, trouble = latency.read_live(planned.path / "live.hlog")
        files.notes += [trouble] if trouble else []
        errors = []
        for metric, histogram in histograms.items():
            exact = {q: row[f"{metric}_{q}_us"] for q in QUANTILES}
            errors.append(latency.max_relative_error(histogram, exact))
            if metric in live:
                errors.append(latency.max_relative_error(live[metric], exact))
                if live[metric].total_count != histogram.total_count:
                    files.notes.append(
                        f"live.hlog holds {live[metric].total_count} of {metric}, the rows {histogram.total_count}"
                    )
        told = sum(int(n) for n in ((files.done or {}).get("hdr_overflow") or {}).values())
        return {
            "hdr_max_rel_error": max((e for e in errors if e is not None), default=None),
            "hdr_overflow": max(told, over),
        }


def _strangers(provenance: dict[str, Any], answered: list[str]) -> list[str]:
    """Responses that name another server than the one that was proven. Nothing is known about unproven servers."""
    own = provenance.get("fingerprint")
    others = [f for f in answered if own is not None and f != own]
    return [f"responses carry the fingerprint {f!r}, the server's own is {own!r}" for f in others]


def _comparable(provenance: dict[str, Any]) -> str | None:
    """What must be equal between configs that are compared, as one JSON text; None without provenance.

    Without the size of the host's memory: a virtual machine can get more of it while it runs.
    """
    if not provenance:
        return None
    held = {k: provenance.get(k) for k in ("versions", "gpus", "model", "serving", "host")}
    if isinstance(host := held["host"], dict):
        held["host"] = {k: v for k, v in host.items() if k != "memory_gib"}
    return json.dumps(held, sort_keys=True)


@contextmanager
def _exclusive(run_dir: Path) -> Iterator[None]:
    """Two merges of one run at a time would remove each other's work; the lock goes with the process."""
    handle = os.open(run_dir, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise RunFolderError(f"{run_dir} is being merged by another process; wait for it") from None
    finally:
        os.close(handle)


@contextmanager
def _temporary(run_dir: Path) -> Iterator[Path]:
    """A folder for unfinished files inside the run (same file system); leftovers of a killed merge are removed."""
    for left in run_dir.glob(f"{_TEMPORARY}*"):
        shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=run_dir))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
