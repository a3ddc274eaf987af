"""However a run ends, no process of it is left, and what was measured is kept."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
import runs_kit as kit


def started(root: Path, measure: str) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """A run in mid-cell and all its processes: orchestrator, guardian, server, scraper, Locust master and worker."""
    out = root / "out"
    argv = kit.command("run", kit.write_plan(root / "plan", [kit.sim("baseline")], measure=measure), "--out", out)
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert kit.wait_for(lambda: list(out.glob("*/cells/*/worker-*.arrows"))), "no cell began"
        return process, kit.family(process.pid)
    except BaseException:
        process.kill()
        raise


def test_kill_minus_nine_of_the_orchestrator_leaves_no_process(tmp_path: Path) -> None:
    process, everyone = started(tmp_path, "100s")
    words = [" ".join(p.cmdline()) for p in everyone]
    for part in ("server.guardian", "server.sim", "server.scraper", "load.locust_process"):
        assert any(part in w for w in words), f"{part} does not run: {words}"
    process.kill()
    process.communicate()
    left = kit.gone(everyone)
    assert left == [], [p.cmdline() for p in left]


def test_a_run_goes_on_after_kill_minus_nine(tmp_path: Path) -> None:
    """Nothing that the dead server left (its port, its state) is taken for the new one's."""
    process, everyone = started(tmp_path, "2s")
    process.kill()
    process.communicate()
    assert kit.gone(everyone) == []
    folder = kit.run_folder(tmp_path / "out")
    assert kit.run("gate", folder).returncode == 2, "an unmerged run has no verdict"
    done = kit.run("run", "--resume", folder, "--no-gate", timeout_s=60.0)
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "run.json").read_text())["state"] == "complete"
    (aside,) = folder.glob("cells/*.unfinished-1")
    assert list(aside.glob("worker-*.arrows")), "what was measured before the kill is kept"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_all_in_order_and_the_run_can_go_on(tmp_path: Path, number: int) -> None:
    process, everyone = started(tmp_path, "2s" if number == signal.SIGINT else "100s")
    process.send_signal(number)
    told, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "what was measured is kept" in told
    assert kit.gone(everyone, 10.0) == []
    folder = kit.run_folder(tmp_path / "out")
    assert json.loads((folder / "run.json").read_text())["state"] == "interrupted"
    assert not list(folder.glob("servers/*/failed.json")), "the server did nothing wrong"
    if number == signal.SIGINT:
        done = kit.run("run", "--resume", folder, "--no-gate")
        assert done.returncode == 0, done.stderr
        assert json.loads((folder / "run.json").read_text())["state"] == "complete"
        assert len(list(folder.glob("cells/*.unfinished-1"))) == 1, "the cut cell is kept"
        assert (folder / "servers" / "00-baseline" / "server.log.1").exists(), "and so is its server's log"
