"""Sums over the request rows of one cell, table by table. Holds no rows, so memory does not grow with their number."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from loadtest.merge.acceptance import overrun_tokens
from loadtest.merge.arrival import arrived_tokens
from loadtest.merge.quantiles import CountedMicroseconds, DistinctStrings, ExactQuantiles

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]

DROPPED = "dropped"
"""Start of `error` in the row of an arrival that was dropped."""

LATENCIES = ("ttft", "tpot", "e2e")
_MAX_NAMES = 20  # distinct models or fingerprints that are listed; more than one is a finding already


def ints(table: pa.Table, name: str, null: int = 0) -> IntArray:
    """A whole-number column as int64, nulls replaced."""
    column = table.column(name).combine_chunks()
    return np.asarray(pc.fill_null(column.cast(pa.int64()), null).to_numpy(zero_copy_only=False))


def known(table: pa.Table, name: str) -> BoolArray:
    """Where a column is not null."""
    return np.asarray(table.column(name).combine_chunks().is_valid().to_numpy(zero_copy_only=False))


def equal(table: pa.Table, name: str, value: str) -> BoolArray:
    """Where a text column has this value."""
    return np.asarray(pc.fill_null(pc.equal(table.column(name), value), False).to_numpy())


def dropped_rows(table: pa.Table) -> BoolArray:
    """Open-loop arrivals over the cap: never given to a connection, so no request.

    A request whose connection failed has no send_ns either, but it was tried and counts as sent and failed.
    """
    return np.asarray(pc.fill_null(pc.starts_with(table.column("error"), DROPPED), False).to_numpy())


def lists(table: pa.Table, name: str) -> tuple[IntArray, pa.Array]:
    """(offsets, flat values) of a list column; a null list is an empty one."""
    column = table.column(name).combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]), column.flatten()


def flat_ints(values: pa.Array, null: int = 0) -> IntArray:
    """Flat list values as an integer array of their own width."""
    return np.asarray((pc.fill_null(values, null) if values.null_count else values).to_numpy(zero_copy_only=False))


@dataclass(slots=True)
class BlockSums:
    """Sums over rows that carry a speculation block."""

    rows: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    completion: int = 0
    overrun: int = 0
    overrun_known_rows: int = 0
    histogram_rows: int = 0
    histogram: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))


class RowSums:
    """Everything that cells.parquet needs from the rows. Window rows are those of phase `measure`."""

    def __init__(self, window: tuple[int, int] | None, spill_dir: Path | None = None) -> None:
        self.window = window
        self.counts: Counter[str] = Counter()
        self.worker_rows: Counter[int] = Counter()
        self.worker_sent: Counter[int] = Counter()
        self.tokens: Counter[str] = Counter()
        self.token_rows: Counter[str] = Counter()
        self.window_block = BlockSums()
        self.cell_block = BlockSums()
        self.breaches: Counter[str] = Counter()
        self.warnings: Counter[str] = Counter()
        self.models: set[str] = set()
        self.fingerprints: set[str] = set()
        self.in_flight_ns = 0.0
        self.arrived = 0.0
        self.arrival_rows: Counter[str] = Counter()
        self.explainable_tokens = 0.0
        self.explainable_unbounded = 0
        self.latency = {name: ExactQuantiles(spill_dir) for name in LATENCIES}
        self.gaps = CountedMicroseconds(spill_dir)
        self.lag = ExactQuantiles(spill_dir)
        self.lateness = ExactQuantiles(spill_dir)
        self.ids = DistinctStrings(spill_dir)

    def add(self, table: pa.Table) -> None:
        """Takes a table of RAW_SCHEMA with one chunk for each column."""
        stamped = known(table, "send_ns")
        sent = stamped | ~dropped_rows(table)
        measure = equal(table, "phase", "measure")
        ok, censored = equal(table, "outcome", "ok"), equal(table, "outcome", "censored")
        window, good = measure & sent, measure & sent & ok
        self._count(table, sent, window, good, censored)
        self._add_tokens(table, good, ok)
        self._add_latency(table, good, window)
        self._add_block(table, self.cell_block, known(table, "spec_steps"), check=True)
        # Only of `ok` rows N is known: the block of another would put S and A over a lesser N.
        self._add_block(table, self.window_block, known(table, "spec_steps") & good, check=False)
        if self.window is not None:
            self._add_window(table, self.window, stamped, ok | censored)

    def _count(self, table: pa.Table, sent: BoolArray, window: BoolArray, good: BoolArray, censored: BoolArray) -> None:
        workers = ints(table, "worker")
        for number, n in zip(*np.unique(workers, return_counts=True), strict=True):
            self.worker_rows[int(number)] += int(n)
        for number, n in zip(*np.unique(workers[sent], return_counts=True), strict=True):
            self.worker_sent[int(number)] += int(n)
        first = window & known(table, "first_token_ns")
        add = {
            "rows": len(sent),
            "sent": window.sum(),
            "dropped": (~sent).sum(),
            "ok": good.sum(),
            "censored": (window & censored).sum(),
            "not_kernel": (window & ~equal(table, "clock", "kernel")).sum(),
            "first_tokens": first.sum(),
            "first_merged": (first & (ints(table, "first_chunk_merged") == 1)).sum(),
            "chunks": ints(table, "chunks")[good].sum(),
            "window_chunks": ints(table, "chunks")[window].sum(),
            "connect_failures": (
                window & (equal(table, "outcome", "connection_error") | equal(table, "outcome", "connect_timeout"))
            ).sum(),
            "coalesced": ints(table, "coalesced_reads")[window].sum(),
        }
        for name, value in add.items():
            self.counts[name] += int(value)
        ids = table.column("request_id").combine_chunks()
        if isinstance(ids, pa.ChunkedArray):
            ids = pa.concat_arrays(ids.chunks)
        _, offsets, data = ids.buffers()
        if data is not None:
            starts = np.frombuffer(offsets, np.int32)[ids.offset : ids.offset + len(ids) + 1]
            self.ids.add(starts, np.frombuffer(data, np.uint8))
        for name, held in (("response_model", self.models), ("server_fingerprint", self.fingerprints)):
            if len(held) < _MAX_NAMES:
                held.update(v for v in table.column(name).unique().to_pylist() if v is not None)
        for entry in pc.value_counts(table.column("warning").drop_null()).to_pylist():
            for part in filter(None, entry["values"].split(";")):
                self.warnings[part.strip()] += entry["counts"]

    def _add_tokens(self, table: pa.Table, good: BoolArray, ok: BoolArray) -> None:
        for name in ("prompt_tokens", "cached_tokens", "completion_tokens"):
            there = good & known(table, name)
            self.tokens[name] += int(ints(table, name)[there].sum())
            self.token_rows[name] += int(there.sum())
        reported = known(table, "completion_tokens")
        completion = ints(table, "completion_tokens")
        self.tokens["cell_completion"] += int(completion[reported].sum())
        self.token_rows["cell_completion"] += int(reported.sum())
        # A request that we cut or lost may have gone on at the server, up to its max_tokens; a refusal (4xx) did not.
        status = ints(table, "http_status")
        open_end = known(table, "send_ns") & ~ok & ~((status >= 400) & (status < 500))
        limit_known = known(table, "max_tokens")
        beyond = np.maximum(ints(table, "max_tokens") - completion, 0)
        self.token_rows["open_end"] += int(open_end.sum())
        self.explainable_tokens += float(beyond[open_end & limit_known].sum())
        self.explainable_unbounded += int((open_end & ~limit_known).sum())

    def _add_latency(self, table: pa.Table, good: BoolArray, window: BoolArray) -> None:
        for name, held in self.latency.items():
            column = table.column(f"{name}_us").cast(pa.float64()).to_numpy()
            held.add(column[good])
        self.lag.add(ints(table, "client_lag_us")[window & known(table, "client_lag_us")].astype(np.float64))
        self.lateness.add(ints(table, "lateness_us")[window & known(table, "lateness_us")].astype(np.float64))
        offsets, flat = lists(table, "chunk_offset_us")
        stamps = flat_ints(flat)
        if len(stamps) < 2:
            return
        gaps = np.diff(stamps)
        keep = np.ones(len(gaps), dtype=bool)
        inner = offsets[1:-1]
        keep[inner[(inner > 0) & (inner < len(stamps))] - 1] = False  # the step from one request to the next
        if not good.all():
            keep &= np.repeat(good, np.diff(offsets))[:-1]
        self.gaps.add(gaps[keep])

    def _add_window(self, table: pa.Table, window: tuple[int, int], sent: BoolArray, counted: BoolArray) -> None:
        start, end = window
        send, stop = ints(table, "send_ns"), np.where(known(table, "end_ns"), ints(table, "end_ns"), end)
        overlap = np.minimum(stop, end) - np.maximum(send, start)
        self.in_flight_ns += float(np.clip(overlap[sent], 0, None).sum())
        arrival = arrived_tokens(table, window, sent & counted)
        self.arrived += arrival.tokens
        self.arrival_rows.update(arrival.rows)

    def _add_block(self, table: pa.Table, sums: BlockSums, rows: BoolArray, *, check: bool) -> None:
        if not rows.any():
            return
        picked = table if rows.all() else table.filter(pa.array(rows))
        steps, drafted, accepted = (ints(picked, n) for n in ("spec_steps", "draft_tokens", "accepted_tokens"))
        sums.rows += len(steps)
        sums.steps += int(steps.sum())
        sums.drafted += int(drafted.sum())
        sums.accepted += int(accepted.sum())
        sums.completion += int(ints(picked, "completion_tokens").sum())
        offsets, flat = lists(picked, "acceptance_histogram")
        counts = flat_ints(flat)
        lengths = np.diff(offsets)
        index = np.arange(len(counts)) - np.repeat(offsets[:-1], lengths)
        if len(counts):
            total = np.bincount(index, weights=counts).astype(np.int64)
            grown = np.zeros(max(len(total), len(sums.histogram)), np.int64)
            grown[: len(sums.histogram)] += sums.histogram
            grown[: len(total)] += total
            sums.histogram = grown
        sums.histogram_rows += int((lengths > 0).sum())
        if check:
            has = lengths > 0
            sum_h, sum_jh = _segment_sums(counts, offsets), _segment_sums(counts * index, offsets)
            self.breaches["sum of the histogram is not the number of steps"] += int((has & (sum_h != steps)).sum())
            self.breaches["the histogram implies another number of accepted tokens"] += int(
                (has & (sum_jh != accepted)).sum()
            )
            self.breaches["more accepted than drafted"] += int((accepted > drafted).sum())
            tokens, gamma = ints(picked, "completion_tokens", -1), ints(picked, "num_spec_tokens", -1)
            beyond = (steps + accepted - tokens > 2 * (gamma + 1)) & (tokens >= 0) & (gamma >= 0)
            self.breaches["more tokens than the answer has: the block of several requests?"] += int(beyond.sum())
            self.breaches["more drafted steps than draft tokens"] += int((steps > drafted).sum())
            return
        over = _overrun(picked, steps, accepted)
        sums.overrun += int(over[over > 0].sum())
        sums.overrun_known_rows += int((over >= 0).sum())

    def close(self) -> None:
        """Frees temporary files."""
        for quantiles in (*self.latency.values(), self.lag, self.lateness):
            quantiles.close()
        self.gaps.close()
        self.ids.close()


def _segment_sums(values: IntArray, offsets: IntArray) -> IntArray:
    total = np.concatenate([np.zeros(1, np.int64), np.cumsum(values, dtype=np.int64)])
    return np.asarray(total[offsets[1:]] - total[offsets[:-1]])


def _overrun(table: pa.Table, steps: IntArray, accepted: IntArray) -> IntArray:
    """Overrun of each request of the table, -1 where unknown."""
    step_at, step_flat = lists(table, "step_accepted")
    chunk_at, chunk_flat = lists(table, "chunk_tokens")
    step_values, chunk_values = flat_ints(step_flat), flat_ints(chunk_flat, -1)
    n_steps, n_chunks = np.diff(step_at), np.diff(chunk_at)

    def pick(values: IntArray, index: IntArray, there: BoolArray, missing: int) -> IntArray:
        if not len(values):
            return np.full(len(index), missing, np.int64)
        return np.where(there, values[np.clip(index, 0, len(values) - 1)], missing).astype(np.int64)

    value = overrun_tokens(
        chunks=n_chunks,
        first_chunk=pick(chunk_values, chunk_at[:-1], n_chunks > 0, -1),
        last_chunk=pick(chunk_values, chunk_at[1:] - 1, n_chunks > 0, -1),
        chunk_sum=_segment_sums(chunk_values, chunk_at),
        completion=ints(table, "completion_tokens", -1),
        steps=steps,
        accepted=accepted,
        last_step=pick(step_values, step_at[1:] - 1, n_steps > 0, -1),
    )
    per_step = (n_steps == steps) & (_segment_sums(step_values, step_at) == accepted)
    return np.where(per_step | (steps == 0), value, -1)
