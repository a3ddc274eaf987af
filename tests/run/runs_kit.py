"""Whole `loadtest` commands as processes of their own, with plans that mix simulated servers and a stub of vLLM."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

FAKE = Path(__file__).parents[1] / "data" / "server" / "fake_vllm.py"
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 5}


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def sim(name: str, speculative: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """A config of the simulated server, ten times as fast as it models."""
    table = {"speed": 10.0, **options}
    return {"name": name, "sim": table} | ({"speculative": speculative} if speculative else {})


def stub(
    name: str, mode: str, port: int, speculative: dict[str, Any] | None = None, env: dict[str, str] | None = None
) -> dict[str, Any]:
    """A config whose `vllm serve` is the stub in `mode`."""
    return {
        "name": name,
        "launch": {
            "port": port,
            "command": [sys.executable, str(FAKE)],
            "env": {"MODE": mode, **(env or {})},
            "ready_timeout": "2s" if mode == "hang" else "30s",
            "stop_timeout": "300ms",
        },
        "speculative": speculative or NGRAM,
    }


def write_plan(folder: Path, configs: list[dict[str, Any]], *, measure: Any = "1s", **tables: Any) -> Path:
    """plan.toml and its prompts in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    prompts = [{"id": f"p{i}", "prompt": f"Write sentence number {i}.", "category": "chat"} for i in range(8)]
    (folder / "chat.jsonl").write_text("".join(json.dumps(p) + "\n" for p in prompts))
    plan = {
        "schema": 1,
        "name": "stubs",
        "target": {"model": "models/gemma3-270m", "served_model_name": "gemma", "max_model_len": 2048},
        "config": configs,
        "mix": [{"name": "chat", "parts": [{"dataset": "chat.jsonl"}]}],
        "load": {"concurrency": [2], "warmup": "0s", "measure": measure, "drain": "5s", "repeats": 1},
        "sampling": [{"name": "greedy", "temperature": 0.0, "max_tokens": 16}],
        "slo": [{"metric": "e2e", "stat": "p50", "limit": "30s"}],
        **tables,
    }
    path = folder / "plan.toml"
    path.write_text("".join(f"{key} = {toml(value)}\n" for key, value in plan.items()))
    return path


def toml(value: Any) -> str:
    """A TOML value on one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(toml(v) for v in value) + "]"
    return json.dumps(value)


def command(*args: object) -> list[str]:
    """Argument list of `loadtest …`."""
    return [sys.executable, "-m", "loadtest.cli", *map(str, args)]


def run(*args: object, timeout_s: float = 110.0, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """`loadtest …` to its end."""
    environ = {**os.environ, **(env or {})}
    return subprocess.run(command(*args), capture_output=True, text=True, timeout=timeout_s, check=False, env=environ)


def run_folder(out: Path) -> Path:
    """The one run below a folder."""
    (found,) = out.iterdir()
    return found


def failed(folder: Path, config: str) -> dict[str, Any]:
    """failed.json of the config's server start."""
    (file,) = folder.glob(f"servers/??-{config}/failed.json")
    value: dict[str, Any] = json.loads(file.read_text())
    return value


def family(pid: int) -> list[psutil.Process]:
    """A process and all that descends from it, those that changed their session included."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def gone(processes: list[psutil.Process], seconds: float = 30.0) -> list[psutil.Process]:
    """Those that still run after so many seconds; a zombie that nobody reaped does not run."""
    deadline = time.monotonic() + seconds
    while left := [p for p in processes if _runs(p)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return left


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def wait_for(condition: Any, seconds: float = 40.0) -> bool:
    """Whether the condition became true within so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
