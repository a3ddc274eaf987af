"""Every cell of a run with its state: what the plan asked for and what the folders hold."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtest.errors import RunFolderError
from loadtest.model import SCHEMA_VERSION, Cell, ConfigSpec, from_json
from loadtest.plan.cells import server_starts


@dataclass(slots=True)
class PlannedCell:
    """One cell of the plan (or of a folder that the plan does not name)."""

    cell: Cell
    state: str
    """done | unfinished | failed | not_measured."""
    reason: str | None = None
    folder: Path | None = None
    """None where nothing was measured."""
    done: dict[str, Any] | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    is_baseline: bool = False
    simulated: bool = False

    @property
    def path(self) -> Path:
        """The folder; only for cells that have one."""
        if self.folder is None:
            raise ValueError(f"{self.cell.cell_id} has no folder: {self.state}")
        return self.folder


def read_run(run_dir: Path) -> dict[str, Any]:
    """run.json of a run folder. Raises RunFolderError where there is none that this version can read."""
    file = run_dir / "run.json"
    if not run_dir.is_dir():
        raise RunFolderError(
            f"{run_dir} is no folder; give the path of a run, as `loadtest run` prints it after `run:`"
        )
    if not file.is_file():
        raise RunFolderError(f"{run_dir} is no run folder: it has no run.json; give the path after `run:`")
    try:
        run = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise RunFolderError(f"{file} cannot be read as JSON: {error}") from error
    if not isinstance(run, dict) or run.get("schema") != SCHEMA_VERSION:
        seen = run.get("schema") if isinstance(run, dict) else type(run).__name__
        raise RunFolderError(
            f"{file} has schema {seen!r}; this version reads {SCHEMA_VERSION}: use the loadtest that wrote it"
        )
    return run


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object; None where the file is missing or broken."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def planned_cells(run_dir: Path, run: dict[str, Any]) -> tuple[list[PlannedCell], list[str]]:
    """All cells in order of measurement, and notes about folders that do not fit."""
    baselines = {c["name"] for c in run.get("configs") or [] if c.get("is_baseline")}
    cells = [from_json(Cell, c) for c in run.get("cells") or []]
    failures = _failures(run_dir, cells, [from_json(ConfigSpec, c) for c in run.get("configs") or []])
    named = {c.cell_id for c in cells}
    notes = []
    root = run_dir / "cells"
    for folder in sorted(root.iterdir()) if root.is_dir() else []:
        if not folder.is_dir() or folder.name in named:
            continue
        if ".unfinished-" in folder.name:
            notes.append(f"cells/{folder.name} is an earlier try that was cut short; kept, not merged")
            continue
        told = read_json(folder / "cell.json")
        if told is None:
            notes.append(f"cells/{folder.name} is not in the plan and has no readable cell.json; not merged")
            continue
        cells.append(from_json(Cell, told["cell"]))
        notes.append(f"cells/{folder.name} is not in the plan of run.json; merged all the same")
    return [_planned(run_dir, cell, cell.config in baselines, failures) for cell in cells], notes


def auto_columns(planned: PlannedCell) -> dict[str, Any]:
    """How a window with `measure = "auto"` ended; nothing for other windows.

    A cell without `done.json` may have been told to stop: then it counts as stopped, which is the careful side.
    """
    if not planned.cell.auto or planned.folder is None:
        return {}
    told = (planned.done or {}).get("auto")
    stop = told.get("stop") if isinstance(told, dict) else read_json(planned.folder / "stop.json")
    return {
        "auto_budget": planned.cell.measure_requests,
        "auto_stopped": stop is not None,
        "auto_looks": None if stop is None else json.dumps(stop.get("criteria"), ensure_ascii=False, sort_keys=True),
    }


def _planned(run_dir: Path, cell: Cell, is_baseline: bool, failures: dict[str, str]) -> PlannedCell:
    folder = run_dir / "cells" / cell.cell_id
    failed = failures.get(cell.cell_id)
    if not folder.is_dir():
        if failed is not None:
            return PlannedCell(cell, "failed", failed, is_baseline=is_baseline)
        return PlannedCell(cell, "not_measured", "the run did not come to this cell", is_baseline=is_baseline)
    told = read_json(folder / "cell.json") or {}
    done = read_json(folder / "done.json")
    provenance = read_json(folder / "provenance.json") or {}
    reason = None
    if done is None:
        broken = (folder / "done.json").exists()
        reason = "done.json cannot be read" if broken else "no done.json: the cell was cut short"
        cause = (read_json(folder / "unfinished.json") or {}).get("reason")
        if cause and not broken:
            reason += f": {cause}"
        if failed is not None:
            reason += f"; {failed}"
    return PlannedCell(
        cell,
        "unfinished" if done is None else "done",
        reason,
        folder,
        done,
        provenance,
        is_baseline,
        simulated=bool(told.get("simulated") or provenance.get("simulated")),
    )


_FAILED_AT = {
    "command": "a command of the config failed",
    "start": "the server did not start",
    "proof": "the server did not prove its config",
    "measure": "the measurement broke off",
}


def _failures(run_dir: Path, cells: list[Cell], configs: list[ConfigSpec]) -> dict[str, str]:
    """Cell id -> what became of its server start, from servers/<nn>-<config>/failed.json."""
    out: dict[str, str] = {}
    for number, (config, group) in enumerate(server_starts(cells, configs)):
        told = read_json(run_dir / "servers" / f"{number:02d}-{config}" / "failed.json")
        if told is None:
            continue
        text = "; ".join(str(told[k]) for k in ("reason", "diagnosis") if told.get(k))
        at = _FAILED_AT.get(str(told.get("phase", "start")), "the server failed")
        out |= {cell.cell_id: f"{at}: {text or 'no reason recorded'}" for cell in group}
    return out
