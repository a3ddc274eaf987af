"""Helpers for tests of whole Locust runs: a server process, a job, the run's files."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from loadtest.load.launch import locust_argv, locust_env
from loadtest.model import Cell, ClientSpec, ConfigSpec, LoadJob, SamplingSpec, to_json

SERVER = Path(__file__).with_name("scripted_server.py")


@dataclass(frozen=True)
class Scripted:
    url: str
    log: Path
    pid: int

    def requests(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@contextmanager
def scripted_server(folder: Path, *args: str) -> Iterator[Scripted]:
    log = folder / "server.jsonl"
    log.touch()
    process = subprocess.Popen(
        [sys.executable, str(SERVER), "--log", str(log), *args], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield Scripted(f"http://127.0.0.1:{int(process.stdout.readline())}", log, process.pid)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def make_cell(index: int = 0, **changes: Any) -> Cell:
    facts: dict[str, Any] = {
        "index": index,
        "cell_id": f"{index:03d}-base-mini-greedy-c4-r1",
        "config": "base",
        "method": "none",
        "gamma": None,
        "mix": "mini",
        "sampling": SamplingSpec("greedy", 0.0, 16),
        "load_kind": "closed",
        "load_value": 4.0,
        "repeat": 1,
        "order_seed": 7,
        "salt": "s1",
        "warmup_s": 0.4,
        "measure_s": 1.2,
        "measure_requests": None,
        "drain_s": 2.0,
    }
    return Cell(**(facts | changes))


MIXES = {
    "mini": [f"measured {i}" for i in range(40)],
    "hang": ["HANG here", "HANG there"],
    "mixed": ["SLOW a", "quick b", "quick c", "quick d"],
    "partly": ["HANG a", *(f"quick {i}" for i in range(20))],
    "talk": ["ask 0", "ask 1", "ask 2", "FAIL 3"],
}
LATER = {"talk": ["and then?", "why?"]}
"""Further user turns of every prompt of a mix."""
WARMUP = ["warm 0", "warm 1"]


def make_job(run_dir: Path, url: str, cells: list[Cell], **changes: Any) -> LoadJob:
    folder = run_dir / "prompts"
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for name, prompts in [*MIXES.items(), *((f"{mix}.warmup", WARMUP) for mix in MIXES)]:
        lines = [
            {"prompt_id": f"{name}-{i}", "stratum": f"s{i % 2}", "messages": [{"role": "user", "content": text}]}
            | {"later_turns": LATER.get(name, [])}
            for i, text in enumerate(prompts)
        ]
        files[name] = f"prompts/{name}.jsonl"
        (run_dir / files[name]).write_text("".join(json.dumps(x) + "\n" for x in lines))
    provenance = run_dir / "provenance.json"
    provenance.write_text('{"simulated": false}')
    facts: dict[str, Any] = {
        "run_id": "r",
        "run_dir": str(run_dir),
        "config": ConfigSpec("base", "none", None, urls=(url,)),
        "base_urls": (url,),
        "model_name": "scripted",
        "api": "chat",
        "client": ClientSpec(workers=1),
        "cells": tuple(cells),
        "prompt_files": files,
        "mix_weights": dict.fromkeys(MIXES, (1.0,)),
        "scraper_socket": None,
        "provenance_file": str(provenance),
    }
    return LoadJob(**(facts | changes))


class FakeScraper:
    """Answers the control protocol on a Unix socket and keeps what was asked."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fs-", dir="/tmp"))
        self.path = str(self.folder / "s")
        self.asked: list[tuple[int, dict[str, Any]]] = []
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(self.path)
        self._server.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                with connection, connection.makefile("rwb") as lines:
                    for line in lines:
                        self.asked.append((time.time_ns(), json.loads(line)))
                        lines.write(b'{"ok": true, "t_ns": %d, "errors": [], "series": 1}\n' % time.time_ns())
                        lines.flush()

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(2)
        shutil.rmtree(self.folder)


def start_locust(job: LoadJob, *, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    run_dir = Path(job.run_dir)
    job_file = run_dir / "job.json"
    job_file.write_text(json.dumps(to_json(job)))
    with (run_dir / "locust.log").open("ab") as out:
        return subprocess.Popen(
            locust_argv(job_file, job),
            env=locust_env(job_file) | (env or {}),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )


def run_locust(job: LoadJob, timeout_s: float = 40.0, env: dict[str, str] | None = None) -> int:
    process = start_locust(job, env=env)
    try:
        return process.wait(timeout_s)
    finally:
        end_tree(process.pid)
        process.wait()


def end_tree(pid: int) -> None:
    try:
        tree = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in tree:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def until(condition: Callable[[], bool], timeout_s: float = 15.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return condition()


def read_rows(cell_folder: Path) -> list[dict[str, Any]]:
    """Rows of all workers, of torn files too: every whole batch counts."""
    rows: list[dict[str, Any]] = []
    for path in sorted(cell_folder.glob("worker-*.arrows")):
        with pa.OSFile(str(path)) as source:
            try:
                reader = pa.ipc.open_stream(source)
                while True:
                    rows += reader.read_next_batch().to_pylist()
            except (StopIteration, pa.ArrowInvalid, OSError):
                continue
    return rows


def load(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text())
    return value


def log_of(job: LoadJob) -> str:
    return (Path(job.run_dir) / "locust.log").read_text(errors="replace")
