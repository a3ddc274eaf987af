"""Files of one cell folder: atomic JSON, begin and resume. No locust, no gevent here."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import orjson

from loadtest.errors import LoadError
from loadtest.model import SCHEMA_VERSION, Cell, LoadJob, to_json


def write_json(path: Path, value: Any) -> None:
    """Writes `value` so that `path` holds either the old or the whole new content, also after a power cut."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as f:
        f.write(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS) + b"\n")
        f.flush()
        os.fsync(f.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def cell_folder(job: LoadJob, cell: Cell) -> Path:
    """Folder of a cell inside its run."""
    return Path(job.run_dir) / "cells" / cell.cell_id


def is_finished(job: LoadJob, cell: Cell) -> bool:
    """A cell is finished when its `done.json` exists; that file is written last and atomically."""
    return (cell_folder(job, cell) / "done.json").is_file()


def read_stop(folder: Path) -> dict[str, Any] | None:
    """`stop.json` of an `auto` cell: the orchestrator asks for the end of the window; None: not (yet).

    The file comes by one rename, so it is whole. Only its looks are kept; the window's end is the master's own.
    """
    try:
        value = orjson.loads((folder / "stop.json").read_bytes())
    except FileNotFoundError:
        return None
    return value if isinstance(value, dict) else {}


def begin_cell(job: LoadJob, cell: Cell) -> Path:
    """Makes the cell's folder with `cell.json` first and the server's provenance.

    What an earlier, killed try left behind is moved to `<cell id>.unfinished-<k>` whole; nothing is overwritten.
    """
    folder = cell_folder(job, cell)
    if folder.exists():
        if is_finished(job, cell):
            raise LoadError(f"{folder} is already finished; it is never measured again")
        k = 1
        while (aside := folder.with_name(f"{folder.name}.unfinished-{k}")).exists():
            k += 1
        folder.rename(aside)
    folder.mkdir(parents=True)
    record = {
        "schema": SCHEMA_VERSION,
        "cell": to_json(cell),
        "config": to_json(job.config),
        "job": {k: v for k, v in to_json(job).items() if k not in ("cells", "config")},
        "server": {"base_urls": list(job.base_urls), "fingerprint": job.server_fingerprint},
        "started_ns": time.time_ns(),
        "simulated": job.simulated,
    }
    write_json(folder / "cell.json", record)
    if job.provenance_file and Path(job.provenance_file).is_file():
        shutil.copyfile(job.provenance_file, folder / "provenance.json")
    return folder
