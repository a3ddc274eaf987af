"""Rooms import left to right only, and gevent stays in the load room."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "loadtest"
PURE_LOAD = {"records", "hdr", "sse", "parse"}
PURE_SERVER = {"scrapes", "metrics", "counters", "spec_counters"}
ALLOWED: dict[str, set[str]] = {
    "model": set(),
    "errors": set(),
    "plan": {"model", "errors", "plan"},
    "load": {"model", "errors", "plan", "load"},
    "server": {"model", "errors", "plan", "server"},
    "merge": {"model", "errors", "plan", "merge"}
    | {f"load.{m}" for m in PURE_LOAD}
    | {f"server.{m}" for m in PURE_SERVER},
    "judge": {"model", "errors", "plan", "merge", "judge"},
    "report": {"model", "errors", "plan", "load.hdr", "merge", "judge", "report"},
}


def imports_of(path: Path) -> set[str]:
    """Full names of all modules that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import hides its room"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module or ""}
    return found


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_left_to_right(path: Path) -> None:
    """A room that reaches to its right could not be run again alone."""
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if room not in ALLOWED:
        assert room in {
            "__init__",
            "__main__",
            "cli",
            "commands",
            "run",
            "run_folder",
            "progress",
            "session",
            "auto",
            "capacity",
        }, f"new top-level module {room}"
        return
    for name in imports_of(path):
        if not name.startswith("loadtest.") or name == "loadtest.__version__":
            continue
        target = name.removeprefix("loadtest.")
        assert any(target == a or target.startswith(a + ".") for a in ALLOWED[room]), f"{path} imports {name}"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_gevent_and_locust_stay_in_the_load_room(path: Path) -> None:
    """locust patches the standard library when imported: asyncio and arrow code must never see that."""
    if path.relative_to(PACKAGE).parts[0] == "load":
        return
    assert not {n.split(".")[0] for n in imports_of(path)} & {"locust", "gevent", "geventhttpclient"}


def test_the_command_line_never_loads_gevent() -> None:
    """The pure modules of the load room are used by merge and CLI; none may pull gevent in."""
    code = (
        "import sys, loadtest.cli, loadtest.commands, loadtest.run, loadtest.merge.merge, loadtest.judge.gate,"
        " loadtest.report.manager;"
        "bad = {m.split('.')[0] for m in sys.modules} & {'gevent', 'locust'}; sys.exit(f'loaded: {bad}' if bad else 0)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr
