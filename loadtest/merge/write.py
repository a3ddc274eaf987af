"""Writes the Parquet files of a merged run into a temporary folder; `publish` puts them in place."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from loadtest.merge.schema import CELL_KEY_FIELDS, REQUESTS_SCHEMA, SERVER_SCHEMA, SERVER_STATE_FIELDS
from loadtest.model import Cell

_DELTA = ("seq", "intended_ns", "send_ns", "first_byte_ns", "first_token_ns", "last_token_ns", "end_ns")
_DELTA_LISTS = ("chunk_offset_us", "chunk_tokens", "step_accepted", "step_drafted")
_REPEATING = (
    *(f.name for f in CELL_KEY_FIELDS if pa.types.is_string(f.type)),
    *("phase", "server_fingerprint", "response_model", "prompt_id", "stratum", "clock", "outcome", "error", "warning"),
    *("finish_reason", "token_source", "tpot_basis", "spec_source", "prompt_sha256"),
)  # texts with few values; ids, hashes and outputs are all different, a dictionary of them only costs time

_REQUEST_OPTIONS: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 1,  # level 3 saves 2 % and costs 40 % more time here
    "use_dictionary": list(_REPEATING),
    "column_encoding": {
        **dict.fromkeys(_DELTA, "DELTA_BINARY_PACKED"),
        **{f"{name}.list.element": "DELTA_BINARY_PACKED" for name in _DELTA_LISTS},
    },
}


def cell_keys(run_id: str, cell: Cell) -> dict[str, Any]:
    """Values of CELL_KEY_FIELDS for one cell."""
    return {
        "run_id": run_id,
        "cell_id": cell.cell_id,
        "config": cell.config,
        "method": cell.method,
        "gamma": cell.gamma,
        "mix": cell.mix,
        "sampling": cell.sampling.name,
        "temperature": cell.sampling.temperature,
        "top_p": cell.sampling.top_p,
        "seed": cell.sampling.seed,
        "load_kind": cell.load_kind,
        "load_value": cell.load_value,
        "load": cell.load,
        "repeat": cell.repeat,
    }


def request_path(root: Path, cell: Cell) -> Path:
    """`requests/config=…/mix=…/load=…/part-<cell id>.parquet`; other characters are percent-encoded."""
    parts = [f"{k}={quote(str(v), safe='')}" for k, v in (("config", cell.config), ("mix", cell.mix))]
    return root.joinpath("requests", *parts, f"load={quote(cell.load, safe='')}", f"part-{cell.cell_id}.parquet")


class RequestWriter:
    """One Parquet file of a cell's requests; nothing is written for a cell without rows."""

    def __init__(self, path: Path, keys: dict[str, Any], metadata: dict[str, str]) -> None:
        self._path = path
        self._keys = [(field, keys[field.name]) for field in CELL_KEY_FIELDS]
        self._schema = REQUESTS_SCHEMA.with_metadata(metadata)
        self._writer: pq.ParquetWriter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._writer is not None:
            self._writer.close()

    def write(self, table: pa.Table, state: dict[str, np.ndarray[Any, Any]]) -> None:
        """Adds raw rows with the cell's keys and the server's state at send time (NaN = unknown)."""
        if self._writer is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(self._path, self._schema, **_REQUEST_OPTIONS)
        keys = [pa.repeat(pa.scalar(value, field.type), table.num_rows) for field, value in self._keys]
        states = [pa.array(state[field.name], pa.float64(), from_pandas=True) for field in SERVER_STATE_FIELDS]
        whole = pa.Table.from_arrays([*keys, *table.columns, *states], schema=self._schema)
        self._writer.write_table(whole, row_group_size=max(1, whole.num_rows))


class ServerWriter:
    """server.parquet: all scrapes of all cells."""

    def __init__(self, path: Path, metadata: dict[str, str]) -> None:
        self._schema = SERVER_SCHEMA.with_metadata(metadata)
        self._writer = pq.ParquetWriter(
            path,
            self._schema,
            compression="zstd",
            use_dictionary=[
                "run_id",
                "cell_id",
                "endpoint",
                "edge",
                "metric",
                "kind",
                "labels",
                "engine",
                "model",
                "error",
            ],
            column_encoding=dict.fromkeys(("t_ns", "t_request_ns", "mono_ns"), "DELTA_BINARY_PACKED"),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._writer.close()

    def write(self, table: pa.Table, run_id: str, cell_id: str) -> None:
        """Adds scrapes of one cell."""
        keys = [pa.repeat(pa.scalar(value, pa.string()), table.num_rows) for value in (run_id, cell_id)]
        self._writer.write_table(pa.Table.from_arrays([*keys, *table.columns], schema=self._schema))


def publish(temporary: Path, run_dir: Path, names: list[str]) -> None:
    """Moves finished files and folders into the run; a reader sees the old or the new one of each, whole."""
    for name in names:
        new, target = temporary / name, run_dir / name
        if target.is_dir():
            old = temporary / f"old-{name}"
            target.rename(old)
            new.rename(target)
            shutil.rmtree(old)
        else:
            os.replace(new, target)  # noqa: PTH105 - replaces files and an absent folder alike
