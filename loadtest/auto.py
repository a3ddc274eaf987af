"""`measure = "auto"`: watches a running cell's rows and asks for the end of its window when nothing is open any more.

Runs in the orchestrator, far from the process that measures: it reads what the Locust master has written, takes the
judge's looks (`judge/staged.py`), and answers with `cells/<id>/stop.json`, which the master waits for. The master
then ends the window at an absolute time that all workers know ahead. The gate judges the final rows once more.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loadtest.judge.frame import CODES, NUMBERS, Frame, load_frame
from loadtest.judge.live import Looked, criteria_of, look, never_early
from loadtest.load.records import RAW_SCHEMA
from loadtest.merge.read_raw import worker_files
from loadtest.model import Cell, Slo
from loadtest.run_folder import RunFolder, write_json

IDLE_FACTOR = 10.0
"""Between two evaluations lies this many times what one costs: at most a tenth of a core, however many the rows."""
MIN_WINDOW_S = 2.0
"""A window is no shorter: the server is scraped once a second, and without a scrape inside nobody vouches for it."""
COLUMNS = [
    name
    for name in RAW_SCHEMA.names
    if name in {*NUMBERS, *CODES, "worker", "turn", "first_chunk_merged", "error", "outcome", "phase"}
]
ROWS = pa.schema([RAW_SCHEMA.field(name) for name in COLUMNS])


class Tail:
    """Reads an Arrow IPC stream while it grows; only whole batches come out."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0

    def batches(self) -> list[pa.RecordBatch]:
        """The batches that were written since the last call, with the columns that the judge needs."""
        with self.path.open("rb") as file:
            file.seek(self._read)
            fresh = pa.BufferReader(file.read())
        out: list[pa.RecordBatch] = []
        while True:
            at = fresh.tell()
            try:
                message = pa.ipc.read_message(fresh)
            except (EOFError, pa.ArrowInvalid, OSError):  # the end, or a batch that is being written
                self._read += at
                return out
            if message.type == "record batch":
                out.append(pa.ipc.read_record_batch(message, RAW_SCHEMA).select(COLUMNS))


@dataclass(slots=True)
class Watched:
    """One cell under way."""

    cell: Cell
    folder: Path
    criteria: list[Slo]
    tails: dict[Path, Tail] = field(default_factory=dict)
    batches: list[pa.RecordBatch] = field(default_factory=list)
    next_s: float = 0.0

    def read(self) -> bool:
        """Takes in new rows; whether there were any."""
        before = len(self.batches)
        for _, path in worker_files(self.folder):
            self.batches += self.tails.setdefault(path, Tail(path)).batches()
        return len(self.batches) > before

    def age_s(self) -> float:
        """Time since the first measured request."""
        first = [pc.min(b["send_ns"].filter(pc.equal(b["phase"], "measure"))).as_py() for b in self.batches]
        known = [t_ns for t_ns in first if t_ns is not None]
        return (time.time_ns() - min(known)) / 1e9 if known else 0.0

    def looks(self, now_ns: int) -> list[Looked]:
        """All criteria on the rows so far."""
        if not self.batches:
            return []
        known = pa.Table.from_batches(self.batches, ROWS)
        rows, pending = in_order(known)
        frame = frame_of(rows, self.cell.cell_id)
        return look(frame, self.cell.cell_id, self.criteria, self.cell.measure_requests or 0, pending, now_ns)


class AutoWatch:
    """Looks at the cells of one Locust start, one after the other. `poll` is called over and over."""

    def __init__(
        self,
        run: RunFolder,
        cells: Sequence[Cell],
        note: Callable[[str], None] = lambda _: None,
        *,
        since_ns: int = 0,
    ) -> None:
        """`since_ns`: when this Locust start began; a cell folder from before it is that of a killed try."""
        self._note, self._run, self._since_ns = note, run, since_ns
        baselines = {c.name for c in run.configs() if c.is_baseline}
        chats = {name for name, file in run.facts.get("prompt_files", {}).items() if _has_turns(run.path / file)}
        slos = run.slos()
        self._waiting: list[Watched] = []
        self.whole: dict[str, str] = {}
        """Cell id -> why it takes its whole budget."""
        for cell in cells:
            if not cell.auto or cell.measure_requests is None:
                continue
            criteria = criteria_of(_facts(cell, cell.config in baselines), slos)
            if left := never_early(criteria):
                self.whole[cell.cell_id] = f"{left[0].name!r} is decided by no number of requests over a limit"
            elif cell.mix in chats:
                self.whole[cell.cell_id] = "later turns come out of order, so no first n requests are complete"
            else:
                self._waiting.append(Watched(cell, run.cell_dir(cell), criteria))
        for reason in sorted(set(self.whole.values())):
            count = sum(r == reason for r in self.whole.values())
            note(f"measure = auto: {count} cells take their whole budget: {reason}")

    def poll(self) -> None:
        """Looks at the cell that is being measured, if it is time; writes `stop.json` once it is decided.

        Rows that cannot be read end the looks, never the measurement: the cells then take their whole budgets.
        """
        try:
            self._poll()
        except (pa.ArrowException, OSError, ValueError, KeyError) as e:
            self._note(f"measure = auto: no more looks, cells take their whole budget: {type(e).__name__}: {e}")
            self._waiting = []

    def _poll(self) -> None:
        begun = [w for w in self._waiting if self._run.begun_ns(w.cell, self._since_ns) is not None]
        over = [w for w in begun if _over(w.folder)]
        self._waiting = [w for w in self._waiting if w not in over]
        current = next((w for w in begun if w not in over), None)
        if current is None or time.monotonic() < current.next_s:
            return
        if not current.read() and not current.batches:
            return
        began = time.monotonic()
        looks = current.looks(time.time_ns())
        current.next_s = time.monotonic() + IDLE_FACTOR * (time.monotonic() - began)
        if looks and current.age_s() >= MIN_WINDOW_S and all(found.staged.status is not None for found in looks):
            stop: dict[str, Any] = {
                "t_ns": time.time_ns(),
                "budget": current.cell.measure_requests,
                "criteria": [found.to_json() for found in looks],
            }
            write_json(current.folder / "stop.json", stop)
            used = max(found.staged.n for found in looks)
            verdicts = {found.staged.status for found in looks}
            word = "fails" if "FAIL" in verdicts else "passes"
            self._note(
                f"{current.cell.cell_id} {word} after {used} of at most {current.cell.measure_requests} requests"
            )


def in_order(rows: pa.Table) -> tuple[pa.Table, frozenset[int]]:
    """(measured rows without a gap from request 0 on, `seq` of those among them that are still under way).

    Worker k of n sends the numbers k, k + n, …, each after the one before. A number that is missing below a worker's
    highest is under way; its row here has nulls for everything not known and, as `send_ns`, the time by which it was
    sent. Where it is not clear whose a missing number is, the rows end before it.
    """
    phase = np.asarray(rows["phase"].to_pylist(), dtype=object)
    rows = rows.filter(pa.array(phase != "warmup"))
    seq, worker = rows["seq"].to_numpy(), rows["worker"].to_numpy()
    send = np.asarray(rows["send_ns"].to_numpy(), dtype=np.float64)
    workers = np.unique(worker)
    stride = len(workers)
    own = {int(w): seq[worker == w] for w in workers}
    if any(len(np.unique(numbers % stride)) > 1 for numbers in own.values()):
        stride = 0  # not all workers have told of themselves yet: nothing missing can be assigned
    by_offset = {int(numbers[0] % stride): w for w, numbers in own.items()} if stride else {}
    highest = {w: int(numbers.max()) for w, numbers in own.items()}
    there = set(seq.tolist())
    end, missing = 0, {}
    while True:
        if end not in there:
            owner = by_offset.get(end % stride) if stride else None
            if owner is None or end > highest[owner]:
                break
            later = (worker == owner) & (seq > end) & np.isfinite(send)
            missing[end] = int(send[later].min()) if later.any() else None
        end += 1
    known = rows.filter(pa.array(seq < end))
    return pa.concat_tables([known, _under_way(missing)]), frozenset(missing)


def _under_way(sent_by: dict[int, int | None]) -> pa.Table:
    blank = {"worker": -1, "phase": "measure", "prompt_id": "", "stratum": "", "turn": 0, "outcome": "ok"}
    rows = [{**blank, "seq": seq, "send_ns": t_ns} for seq, t_ns in sent_by.items()]
    return pa.Table.from_pylist(rows, schema=ROWS)


def frame_of(rows: pa.Table, cell_id: str) -> Frame:
    """The rows of one cell as the judge reads those of a merged run."""
    return load_frame(_Rows(rows.append_column("cell_id", pa.array([cell_id] * rows.num_rows, pa.string()))))


@dataclass(frozen=True, slots=True)
class _Rows:
    table: pa.Table

    @property
    def run(self) -> dict[str, Any]:
        return {}

    @property
    def cells(self) -> pa.Table:
        return pa.table({})

    def requests(self, columns: list[str] | None = None, filter: Any = None) -> pa.Table:  # noqa: A002, ARG002
        return self.table.select(columns) if columns else self.table


def _facts(cell: Cell, is_baseline: bool) -> dict[str, Any]:
    return {
        "config": cell.config,
        "method": cell.method,
        "mix": cell.mix,
        "sampling": cell.sampling.name,
        "load": cell.load,
        "is_baseline": is_baseline,
    }


def _over(folder: Path) -> bool:
    return any((folder / name).exists() for name in ("stop.json", "done.json", "unfinished.json"))


def _has_turns(file: Path) -> bool:
    if not file.is_file():
        return False
    with file.open(encoding="utf-8") as lines:
        return any(json.loads(line).get("later_turns") for line in lines if line.strip())
