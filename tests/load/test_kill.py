"""kill -9 of a worker, the master or the orchestrator, a stopped worker: nothing left over, nothing called complete."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import locust_kit as kit
import psutil
import pytest

from loadtest.model import ClientSpec, LoadJob

LONG = 60.0
"""Far longer than the tests let a cell live."""


@dataclass
class Victim:
    """A job whose second cell is being measured, and its processes."""

    job: LoadJob
    process: subprocess.Popen[bytes]
    master: int = 0
    workers: list[int] = field(default_factory=list)
    killed_ns: int = 0

    def folder(self, cell: int) -> Path:
        return Path(self.job.run_dir) / "cells" / self.job.cells[cell].cell_id

    def in_mid_cell(self) -> bool:
        files = list(self.folder(1).glob("worker-*.arrows"))
        return len(files) == self.job.client.workers and len(kit.read_rows(self.folder(1))) > 20

    def all_gone(self) -> bool:
        return not any(kit.alive(p) for p in [self.process.pid, self.master, *self.workers])


def make_victim(folder: Path, url: str, *, parent: bool = False) -> Victim:
    folder.mkdir()
    cells = [kit.make_cell(0, warmup_s=0.0, measure_s=0.3), kit.make_cell(1, warmup_s=0.2, measure_s=LONG)]
    job = kit.make_job(folder, url, cells, client=ClientSpec(workers=2))
    if not parent:
        process = kit.start_locust(job)
        return Victim(job, process, process.pid)
    script = (
        "import sys, time; sys.path.insert(0, sys.argv[1]); import json, locust_kit as kit; from pathlib import Path;"
        "from loadtest.model import LoadJob, from_json;"
        "p = kit.start_locust(from_json(LoadJob, json.loads(Path(sys.argv[2]).read_text())));"
        "print(p.pid, flush=True); time.sleep(100)"
    )
    job_file = folder / "given.json"
    job_file.write_text(kit.json.dumps(kit.to_json(job)))
    argv = [sys.executable, "-c", script, str(Path(__file__).parent), str(job_file)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=False)
    assert process.stdout is not None
    with process.stdout:
        return Victim(job, process, int(process.stdout.readline()))


@pytest.fixture(scope="module")
def victims(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Victim]]:
    """Five runs at once, one for each way to end early, all in mid-cell when the signal comes."""
    folder = tmp_path_factory.mktemp("kill")
    with kit.scripted_server(folder) as server:
        found = {
            "worker": make_victim(folder / "worker", server.url),
            "stopped": make_victim(folder / "stopped", server.url),
            "told": make_victim(folder / "told", server.url),
            "master": make_victim(folder / "master", server.url),
            "orchestrator": make_victim(folder / "orchestrator", server.url, parent=True),
        }
        try:
            for victim in found.values():
                assert kit.until(victim.in_mid_cell, 30), kit.log_of(victim.job)
                victim.workers = [p.pid for p in psutil.Process(victim.master).children()]
                assert len(victim.workers) == 2
            for name, victim in found.items():
                target = victim.workers[0] if name in ("worker", "stopped") else victim.process.pid
                victim.killed_ns = time.time_ns()
                os.kill(target, {"stopped": signal.SIGSTOP, "told": signal.SIGTERM}.get(name, signal.SIGKILL))
            yield found
        finally:
            for victim in found.values():
                kit.end_tree(victim.master)
                victim.process.kill()
                victim.process.wait()


def test_no_process_outlives_the_run(victims: dict[str, Victim]) -> None:
    for name, victim in victims.items():
        assert kit.until(victim.all_gone, 15), f"{name}: {kit.log_of(victim.job)}"


def test_a_finished_cell_stays_and_the_cut_one_is_not_finished(victims: dict[str, Victim]) -> None:
    for victim in victims.values():
        assert kit.until(victim.all_gone, 15)
        assert (victim.folder(0) / "done.json").is_file()
        assert not (victim.folder(1) / "done.json").exists()


def test_rows_up_to_about_a_second_before_are_readable(victims: dict[str, Victim]) -> None:
    for name, victim in victims.items():
        rows = kit.read_rows(victim.folder(1))
        last_ns = max(r["end_ns"] for r in rows)
        assert (victim.killed_ns - last_ns) / 1e9 < 2.0, name  # half a second of batching, and a slow machine


@pytest.mark.parametrize(("name", "causes"), [("worker", {"gone", "dead"}), ("stopped", {"stopped"})])
def test_a_lost_worker_ends_the_run_with_an_error(victims: dict[str, Victim], name: str, causes: set[str]) -> None:
    victim = victims[name]
    assert victim.process.wait(15) == 1
    told = kit.load(victim.folder(1) / "unfinished.json")
    assert told["workers_missing"] == [0, 1]  # neither could give its final count
    (cause,) = told["workers_lost"].values()
    assert cause.removeprefix("its process is ") in causes
    assert "is lost" in told["reason"]
    assert "is lost" in kit.log_of(victim.job)


def test_a_lost_orchestrator_ends_the_run(victims: dict[str, Victim]) -> None:
    victim = victims["orchestrator"]
    assert kit.until(victim.all_gone, 15)
    assert "gone" in kit.load(victim.folder(1) / "unfinished.json")["reason"]


def test_a_terminated_master_ends_in_order(victims: dict[str, Victim]) -> None:
    victim = victims["told"]
    assert victim.process.wait(15) == 1
    assert "SIGTERM" in kit.load(victim.folder(1) / "unfinished.json")["reason"]


def test_resume_measures_only_the_cut_cell_and_keeps_what_was_there(victims: dict[str, Victim]) -> None:
    victim = victims["master"]
    assert kit.until(victim.all_gone, 15)
    before = (victim.folder(0) / "done.json").read_bytes()
    old_rows = kit.read_rows(victim.folder(1))
    run_dir = Path(victim.job.run_dir)
    again = kit.make_job(run_dir, victim.job.base_urls[0], [victim.job.cells[0], kit.make_cell(1, measure_s=0.3)])
    assert kit.run_locust(again) == 0, kit.log_of(again)
    assert (victim.folder(0) / "done.json").read_bytes() == before
    assert kit.load(victim.folder(1) / "done.json")["workers_missing"] == []
    assert kit.read_rows(victim.folder(1).with_name(f"{victim.folder(1).name}.unfinished-1")) == old_rows
