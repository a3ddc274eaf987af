"""The benchmark's own arithmetic: what counts as load, what is true, what a process tree used, what the page shows."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import bench_report
import memory_bench
import peer_tools
import peers
import schedule
from usage import Usage, watch

MS = 1_000_000
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results.json"


def told(arrival_ms: float, sent_ms: list[float], tokens: int, how: str = "ok") -> schedule.Truth:
    return schedule.Truth("-", 1, how, int(arrival_ms * MS), tokens, tuple(int(t * MS) for t in sent_ms))


def test_a_tools_own_checks_are_no_load() -> None:
    check = told(0, [50, 70], 2)
    load = [told(1000 + i, [1050 + i, 1070 + i], 2) for i in range(3)]
    assert peers.of_load([check, *load, told(9000, [], 0)]) == load
    assert peers.of_load([]) == []


def test_true_figures_leave_out_the_first_chunk_and_what_failed() -> None:
    """Six tokens in two chunks of three: three tokens in 20 ms after the first chunk."""
    figures = peers.true_figures([told(100, [150, 170], 6), told(100, [190], 3, how="closed")], k=3)
    assert figures["ttft_p50"] == figures["ttft_p99"] == pytest.approx(50)
    assert figures["tpot_p50"] == pytest.approx(20 / 3)


def test_late_chunks_of_the_server_mark_a_row() -> None:
    usage = Usage([(0, 0.0, 2**20), (200 * MS, 0.2, 3 * 2**20)])
    requests = [told(100, [150, 170, 201], 3)]
    row = peers.judge(requests, usage, {"ttft_p50": 75.0, "ttft_p99": 50.0, "tpot_p50": None, "tpot_p99": 25.5}, k=1)
    assert row["machine_busy"]
    assert row["server_late_pct"] == 50
    assert (row["ttft_p50_ratio"], row["tpot_p50_ratio"], row["tpot_p99_ratio"]) == (1.5, None, 1.0)
    assert row["peak_rss_mb"] == 3
    assert row["startup_cpu_s"] == 0.1


def test_cpu_time_of_ended_children_is_kept() -> None:
    burn = "import time; end = time.process_time() + 0.25\nwhile time.process_time() < end: pass"
    parent = f"import subprocess, sys, time; subprocess.run([sys.executable, '-c', {burn!r}]); time.sleep(0.4)"
    usage = watch(subprocess.Popen([sys.executable, "-c", parent], start_new_session=True), timeout_s=60)
    assert usage.returncode == 0
    assert usage.samples[-1][1] >= 0.25
    assert len(usage.processes) == 2


def test_a_tool_that_goes_on_after_its_results_is_ended() -> None:
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    assert watch(process, 60, lambda: True).returncode == 0
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    assert watch(process, 0.2).returncode == -9
    assert time.monotonic() - began < 30


def test_growth_finds_memory_that_rises_with_the_requests() -> None:
    arrivals = np.arange(0, 40_000, dtype=np.int64) * MS
    samples = [(t * MS, 0.0, int((100 + t / 1000) * 2**20)) for t in range(0, 40_000, 100)]
    told_growth = memory_bench.growth(samples, arrivals)
    assert told_growth["rss_mb_per_million"] == pytest.approx(1000, rel=0.01)
    assert told_growth["rss_mb_at_10k"] == pytest.approx(110, abs=0.2)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="the benchmark's server needs gcc")
def test_a_client_runs_against_the_schedule_and_is_read(tmp_path: Path) -> None:
    """The plain aiohttp client: figures near the schedule's (a busy machine makes them larger, never smaller)."""
    log, tool = tmp_path / "truth.log", peer_tools.TOOLS["aiohttp"]
    with schedule.server(log, k=3, n=30, t0=20, step=10) as url:
        job = peer_tools.Job(url, 2, 3, 3, 30, tmp_path, 0.12)
        usage, output = peers.start(tool, job, [])
    assert usage.returncode == 0, output
    requests = schedule.read_requests(log)
    assert len(requests) == job.requests
    assert {r.request_id for r in requests} == {"-"}
    reported = tool.parse(job)
    assert reported["ttft_p50"] >= 20
    assert reported["tpot_p50"] == pytest.approx(90 / 29, rel=0.5)


def test_the_page_is_what_the_results_say(tmp_path: Path) -> None:
    """The committed results fill the tables; what is around the marks stays."""
    page = tmp_path / "README.md"
    page.write_text(f"before\n{bench_report.BEGIN}\nold\n{bench_report.END}\nafter\n")
    bench_report.write(json.loads(RESULTS.read_text()), page)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith(f"{bench_report.END}\nafter\n")
    assert "old" not in text
    assert "| 1024 |" in text
    page.write_text("no marks")
    with pytest.raises(ValueError, match="lacks the marks"):
        bench_report.write({}, page)


def test_every_tool_is_pinned_or_ours() -> None:
    for name, spec in peer_tools.peers_setup.specs().items():
        assert name in peer_tools.TOOLS
        assert all("==" in package for package in [*spec.get("first", []), *spec["packages"]])
