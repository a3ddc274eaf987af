"""Request rows as numpy arrays, by cell and in start order: one read of the columns that the judge needs.

Strings become integer codes, nulls become NaN (or -1 for codes), so a million requests need a few hundred MB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from loadtest.merge.rows import dropped_rows

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

NUMBERS = (
    "seq",
    "send_ns",
    "intended_ns",
    "end_ns",
    "first_token_ns",
    "last_token_ns",
    "ttft_us",
    "ttft_visible_us",
    "tpot_us",
    "e2e_us",
    "e2e_intended_us",
    "completion_tokens",
    "chunks",
    "spec_steps",
    "draft_tokens",
    "accepted_tokens",
)
CODES = ("prompt_id", "stratum", "outcome", "phase")


TURNS = 64
"""Turns of a conversation that are told apart when prompts are paired."""


class RunLike(Protocol):
    """What the judge needs of a merged run (`loadtest.merge.read.RunData`)."""

    @property
    def run(self) -> dict[str, Any]:
        """run.json."""

    @property
    def cells(self) -> pa.Table:
        """Rows of CELLS_SCHEMA."""

    def requests(self, columns: list[str] | None = None, filter: Any = None) -> pa.Table:  # noqa: A002 - pyarrow's word
        """Rows of REQUESTS_SCHEMA, of these columns."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of a frame, in start order within each cell. Nothing is copied before a column is asked for."""

    columns: dict[str, Array]
    """All columns of the frame."""
    picked: npt.NDArray[np.int64]
    """Row numbers in the frame."""

    def __len__(self) -> int:
        return len(self.picked)

    def __getitem__(self, name: str) -> Array:
        return self.columns[name][self.picked]

    def take(self, mask: Bools) -> Rows:
        """The rows where mask is true."""
        return Rows(self.columns, self.picked[mask])

    @staticmethod
    def concat(parts: Sequence[Rows]) -> Rows:
        """Rows of several cells of one frame, one after the other."""
        return Rows(parts[0].columns, np.concatenate([p.picked for p in parts]))


@dataclass(frozen=True, slots=True)
class Frame:
    """All rows of a run. `names` gives the strings behind the codes of a column."""

    columns: dict[str, Array]
    spans: dict[str, slice]
    """cell_id -> its rows."""
    names: dict[str, list[str]]

    def cell(self, cell_id: str) -> Rows:
        """Rows of the measured window that were sent; empty where the cell has none."""
        rows = self.all_phases(cell_id)
        return rows.take(rows["measured"])

    def all_phases(self, cell_id: str) -> Rows:
        """Rows of warm-up, window and drain."""
        span = self.spans.get(cell_id, slice(0, 0))
        return Rows(self.columns, np.arange(span.start, span.stop))

    def strata(self, rows: Rows) -> list[str]:
        """Names of the strata present, sorted."""
        present = np.bincount(rows["stratum"] + 1, minlength=1)[1:]
        return sorted(self.names["stratum"][code] for code in np.flatnonzero(present))

    def in_stratum(self, rows: Rows, stratum: str) -> Rows:
        """The rows of one stratum."""
        return rows.take(rows["stratum"] == self.names["stratum"].index(stratum))


def load_frame(data: RunLike) -> Frame:
    """Read the columns that the judge needs, once; sorted by cell and start."""
    table = data.requests(["cell_id", *CODES, *NUMBERS, "turn", "first_chunk_merged", "error"])
    dropped = dropped_rows(table)
    columns: dict[str, Array] = {name: _numbers(table[name]) for name in NUMBERS}
    names: dict[str, list[str]] = {}
    for name in CODES:
        columns[name], names[name] = _codes(table[name])
    cell_codes, cell_names = _codes(table["cell_id"])
    columns["merged"] = _flag(table["first_chunk_merged"])
    turn = np.nan_to_num(_numbers(table["turn"])).astype(np.int64)
    # A later turn of a conversation is a prompt of its own: it pairs with the same turn only.
    columns["pair_key"] = columns["prompt_id"].astype(np.int64) * TURNS + np.minimum(turn, TURNS - 1)
    del table
    columns["ok"] = columns["outcome"] == _code_of(names["outcome"], "ok")
    # A refused connection has no send time, yet it was sent and failed; only a dropped arrival is no request.
    columns["measured"] = (columns["phase"] == _code_of(names["phase"], "measure")) & (
        np.isfinite(columns["send_ns"]) | ~dropped
    )
    start = columns["send_ns"]
    for other in ("intended_ns", "end_ns"):
        start = np.where(np.isnan(start), columns[other], start)
    order = np.lexsort((start, cell_codes))
    if not np.array_equal(order, np.arange(len(order))):
        columns = {k: v[order] for k, v in columns.items()}
        cell_codes = cell_codes[order]
    edges = np.searchsorted(cell_codes, np.arange(len(cell_names) + 1))
    spans = {name: slice(int(edges[i]), int(edges[i + 1])) for i, name in enumerate(cell_names)}
    return Frame(columns, spans, names)


def _numbers(column: pa.ChunkedArray) -> Floats:
    """Nulls become NaN. A double holds UNIX nanoseconds to 256 ns, which start order and slices can bear."""
    return np.asarray(pc.cast(column, pa.float64(), safe=False).to_numpy(), dtype=np.float64)


def _flag(column: pa.ChunkedArray) -> Bools:
    return np.asarray(pc.fill_null(column, False).to_numpy(), dtype=np.bool_)


def _codes(column: pa.ChunkedArray) -> tuple[npt.NDArray[np.int32], list[str]]:
    encoded = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if not pa.types.is_dictionary(encoded.type):
        encoded = encoded.dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.unify_dictionaries().combine_chunks()
    codes = np.asarray(pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False), dtype=np.int32)
    names = encoded.dictionary.to_pylist()
    # Numbered by name, not by first appearance: the order of files must not reach the resampling.
    order = sorted(range(len(names)), key=lambda k: str(names[k]))
    rank = np.empty(len(names) + 1, dtype=np.int32)
    rank[order] = np.arange(len(names), dtype=np.int32)
    rank[-1] = -1
    return rank[codes], [names[k] for k in order]


def _code_of(names: list[str], wanted: str) -> int:
    return names.index(wanted) if wanted in names else -2
