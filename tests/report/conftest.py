"""One small run, merged and judged once; tests that write get a copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from loadtest.judge.verdict import Verdict
from loadtest.merge.read import RunData, open_run
from loadtest.report.manager import write_reports
from loadtest.report.tables import Row, build_rows
from tests.report.world import build, judged


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunData, Verdict]:
    """The simulated run of world.py with all of its reports written."""
    run_dir = build(tmp_path_factory.mktemp("world") / "run")
    data, verdict = judged(run_dir)
    write_reports(run_dir, data, verdict)
    return data, verdict


@pytest.fixture(scope="session")
def real_world(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunData, Verdict]:
    """The same run as if a real server had served it."""
    return judged(build(tmp_path_factory.mktemp("real") / "run", simulated=False))


@pytest.fixture(scope="session")
def rows(world: tuple[RunData, Verdict]) -> dict[str, Row]:
    """Lines of the results table by config."""
    return {r.config: r for r in build_rows(world[0])}


@pytest.fixture
def copy(world: tuple[RunData, Verdict], tmp_path: Path) -> RunData:
    """A run folder of its own, with reports."""
    shutil.copytree(world[0].path, tmp_path / "run")
    return open_run(tmp_path / "run")
