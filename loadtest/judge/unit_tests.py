"""Runs the unit tests of code prompts on the answers of a run (`loadtest quality`) and writes quality.parquet.

This executes what a model wrote, so it happens only when a person asks for it. Each distinct answer runs once, in a
process of its own: empty folder, no network, limits on CPU, memory and time (`answer_process.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from loadtest.errors import InputError, RunFolderError
from loadtest.judge import answer_process
from loadtest.judge.quality import FILE, SCHEMA
from loadtest.merge.read import RunData
from loadtest.model import Prompt, from_json

CPU_S = 10
TIMEOUT_S = 30.0
"""Wall clock: a busy machine may give an answer a third of a core."""
MEMORY_BYTES = 1 << 30
_FENCE = re.compile(r"^```[ \t]*([\w+#.-]*)[^\n]*\n(.*?)(?:^```|\Z)", re.MULTILINE | re.DOTALL)
_PYTHON = ("python", "py", "python3")
_THINKING = re.compile(r"<think>.*?</think>", re.DOTALL)

Answer = tuple[str, str, str]
"""mix, prompt id, hash of the output"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one answer; passed None: it could not be tested."""

    passed: bool | None
    reason: str
    network: str = ""


def code_of(text: str) -> str | None:
    """The code in an answer: its longest Python block, else its longest block, else a text that compiles; or None."""
    text = _THINKING.sub("", text)
    blocks: list[tuple[str, str]] = [(label.lower(), body) for label, body in _FENCE.findall(text)]
    chosen = [body for label, body in blocks if label in _PYTHON] or [body for _, body in blocks]
    if chosen:
        return max(chosen, key=len)
    try:
        compile(text, "answer.py", "exec")
    except (SyntaxError, ValueError):
        return None
    return text if text.strip() else None


def run_answer(code: str, tests: str, *, timeout_s: float = TIMEOUT_S, cpu_s: int = CPU_S) -> Outcome:
    """Run one answer with its tests in a fresh process and an empty folder."""
    folder = tempfile.mkdtemp(prefix="loadtest-answer-")
    read, write = os.pipe()
    os.set_blocking(read, False)
    try:
        if os.geteuid() == 0:
            os.chown(folder, answer_process.NOBODY, answer_process.NOBODY)
        process = subprocess.Popen(
            [sys.executable, "-I", str(Path(answer_process.__file__)), str(write)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={"PATH": os.defpath, "HOME": folder},
            pass_fds=(write,),
            start_new_session=True,
        )
        os.close(write)
        write = -1
        job = {"code": code, "tests": tests, "cpu_s": cpu_s, "memory_bytes": MEMORY_BYTES}
        try:
            process.communicate(json.dumps(job).encode(), timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return Outcome(False, f"out of time: still running after {timeout_s:g} s")
        finally:
            _end(process)
        told = b""
        with contextlib.suppress(BlockingIOError):  # something that got away may still hold the other end
            told = os.read(read, 65536)
        if not told:
            name = signal.Signals(-process.returncode).name if process.returncode < 0 else f"code {process.returncode}"
            return Outcome(False, f"the process ended by itself or over a limit ({name})")
        result = json.loads(told)
        return Outcome(result["reason"] == "passed", result["reason"], result["network"])
    finally:
        os.close(read)
        if write >= 0:
            os.close(write)
        shutil.rmtree(folder, ignore_errors=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what the answer started as well."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_unit_tests(data: RunData, *, jobs: int = 0, progress: Callable[[int, int], None] | None = None) -> str:
    """Test every distinct answer to a prompt with tests; write quality.parquet. Returns a summary for a person.

    jobs: answers run at the same time, 0 = as many as there are cores. Raises InputError where the run has no such
    prompt or no answer to one.
    """
    tests = _tests_of(data.path)
    if not tests:
        raise InputError(f"{data.path}: no prompt of this run has unit tests, so there is nothing to run")
    texts, seen = _answers(data, tests)
    if not seen:
        raise InputError(f"{data.path}: no served answer to a prompt with unit tests; measure a mix that has some")
    runs = {key: (text, tests[key[0]][key[1]][1]) for key, text in sorted(texts.items())}
    once = list(dict.fromkeys(runs.values()))
    outcomes: dict[tuple[str | None, str], Outcome] = {}
    with ThreadPoolExecutor(max_workers=jobs or os.cpu_count() or 1) as pool:
        for job, outcome in zip(once, pool.map(lambda job: _test(*job), once), strict=True):
            outcomes[job] = outcome
            if progress is not None:
                progress(len(outcomes), len(once))
    found = {key: outcomes[job] for key, job in runs.items()}
    rows = [
        {
            "cell_id": cell_id,
            "prompt_id": key[1],
            "output_sha256": key[2],
            "requests": count,
            "passed": found[key].passed,
            "reason": found[key].reason,
        }
        for (cell_id, key), count in sorted(seen.items())
    ]
    _write(data.path / FILE, pa.Table.from_pylist(rows, SCHEMA))
    return _summary(found, len(rows), data.path)


def _tests_of(run_dir: Path) -> dict[str, dict[str, tuple[int, str]]]:
    """By mix and prompt id: (turn that is tested, source of the tests), from the prompts stored in the run."""
    out: dict[str, dict[str, tuple[int, str]]] = {}
    for file in sorted((run_dir / "prompts").glob("*.jsonl")):
        if file.stem.endswith(".warmup"):
            continue
        try:
            prompts = [from_json(Prompt, json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
        except (OSError, ValueError, TypeError) as error:
            raise RunFolderError(f"{file} cannot be read ({error}); the prompts of the run are needed") from error
        tested = {p.prompt_id: (len(p.later_turns), p.unit_tests) for p in prompts if p.unit_tests}
        if tested:
            out[file.stem] = tested
    return out


def _answers(
    data: RunData, tests: dict[str, dict[str, tuple[int, str]]]
) -> tuple[dict[Answer, str | None], Counter[tuple[str, Answer]]]:
    """(text of each distinct answer, number of requests by cell and answer)."""
    texts: dict[Answer, str | None] = {}
    seen: Counter[tuple[str, Answer]] = Counter()
    columns = ["mix", "phase", "outcome", "prompt_id", "turn", "output_sha256", "output_text"]
    for cell_id in data.cells["cell_id"].to_pylist():
        table = data.cell_requests(cell_id, columns)
        table = table.filter(pc.and_(pc.equal(table["phase"], "measure"), pc.equal(table["outcome"], "ok")))
        for row in table.to_pylist():
            told = tests.get(row["mix"], {}).get(row["prompt_id"])
            if told is None or told[0] != row["turn"] or row["output_sha256"] is None:
                continue
            key = (row["mix"], row["prompt_id"], row["output_sha256"])
            seen[cell_id, key] += 1
            texts[key] = texts.get(key) or row["output_text"]
    return texts, seen


def _test(text: str | None, tests: str) -> Outcome:
    if text is None:
        return Outcome(None, "the text was not kept (client.keep_text = false)")
    code = code_of(text)
    return Outcome(False, "no code in the answer") if code is None else run_answer(code, tests)


def _write(path: Path, table: pa.Table) -> None:
    """A crash leaves the old file or the new one."""
    part = path.with_name(path.name + ".part")
    pq.write_table(table, part)
    part.replace(path)


def _summary(found: dict[Answer, Outcome], rows: int, run_dir: Path) -> str:
    counts: Counter[Any] = Counter(o.passed for o in found.values())
    network = Counter(o.network for o in found.values() if o.network)
    lines = [
        f"{len(found)} distinct answers of {rows} in cells: {counts[True]} pass their tests, {counts[False]} do not"
        + (f", {counts[None]} could not be tested" if counts[None] else "")
    ]
    lines += [
        f"  {n} x {why}" for why, n in Counter(_kind(o.reason) for o in found.values() if not o.passed).most_common(5)
    ]
    if network["refused"]:
        lines.append("network: refused inside Python only, since this system gives no name space of its own")
    lines.append(f"wrote {run_dir / FILE}; `loadtest gate {run_dir}` judges with it")
    return "\n".join(lines)


def _kind(reason: str) -> str:
    """The reason without what differs from answer to answer."""
    return reason.split(":")[0]
