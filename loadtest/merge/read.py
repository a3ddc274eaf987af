"""Opens a merged run for the judge, the report and anybody else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from loadtest.errors import RunFolderError
from loadtest.merge.plan_cells import read_run
from loadtest.merge.schema import CELLS_SCHEMA, REQUESTS_SCHEMA
from loadtest.model import SCHEMA_VERSION


@dataclass(frozen=True, slots=True)
class RunData:
    """A merged run."""

    run: dict[str, Any]
    """run.json."""
    cells: pa.Table
    """cells.parquet in CELLS_SCHEMA: every cell of the plan, measured or not, in order of measurement."""
    path: Path

    def requests(self, columns: list[str] | None = None, filter: pc.Expression | None = None) -> pa.Table:  # noqa: A002 - pyarrow's word
        """Rows of requests/, for example `data.requests(["ttft_us"], pc.field("cell_id") == cell_id)`.

        `columns` None means all. An empty table where nothing was measured. KeyError for an unknown column.
        """
        unknown = set(columns or []) - set(REQUESTS_SCHEMA.names)
        if unknown:
            raise KeyError(f"requests/ has no column {sorted(unknown)}; see docs/parquet.md")
        files = sorted(str(p) for p in (self.path / "requests").glob("config=*/mix=*/load=*/*.parquet"))
        dataset = ds.dataset(files, schema=REQUESTS_SCHEMA, format="parquet")
        return dataset.to_table(columns=columns, filter=filter)

    def cell_requests(self, cell_id: str, columns: list[str]) -> pa.Table:
        """Rows of one cell; opens that cell's file only, so that a long run is read in bounded memory."""
        found = sorted(str(p) for p in (self.path / "requests").glob(f"config=*/mix=*/load=*/part-{cell_id}.parquet"))
        return ds.dataset(found, schema=REQUESTS_SCHEMA, format="parquet").to_table(columns=columns)


def open_run(run_dir: Path) -> RunData:
    """The merged run in `run_dir`.

    Raises RunFolderError for a folder that is no run, was not merged, or was merged by another schema version.
    """
    run_dir = Path(run_dir)
    run = read_run(run_dir)
    file = run_dir / "cells.parquet"
    if not file.is_file() or not (run_dir / "requests").is_dir():
        raise RunFolderError(f"{run_dir} is not merged yet: run `loadtest merge {run_dir}`")
    try:
        schema = pq.read_schema(file)
        cells = pq.read_table(file)
    except (pa.ArrowInvalid, OSError) as error:
        raise RunFolderError(f"{file} cannot be read ({error}): run `loadtest merge {run_dir}` again") from error
    version = (schema.metadata or {}).get(b"loadtest.schema", b"none").decode()
    if version != str(SCHEMA_VERSION):
        raise RunFolderError(
            f"{file} has schema {version}; this version reads {SCHEMA_VERSION}: run `loadtest merge {run_dir}` again"
        )
    return RunData(run, _conform(cells, file), run_dir)


def _conform(cells: pa.Table, file: Path) -> pa.Table:
    """The table in today's CELLS_SCHEMA; columns that were added since are null."""
    out = []
    for field in CELLS_SCHEMA:
        if field.name in cells.column_names:
            out.append(cells.column(field.name).cast(field.type))
        elif field.nullable:
            out.append(pa.nulls(cells.num_rows, field.type))
        else:
            raise RunFolderError(f"{file} lacks the column {field.name}: merge the run again")
    return pa.Table.from_arrays(out, schema=CELLS_SCHEMA.with_metadata(cells.schema.metadata))
