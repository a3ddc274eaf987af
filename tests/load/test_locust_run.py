"""Whole headless Locust runs against a scripted server that keeps its own log: one run, many assertions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import locust_kit as kit
import numpy as np
import pyarrow as pa
import pytest

from loadtest.load import hdr
from loadtest.load.recorder import chunk_gaps_us
from loadtest.load.records import RAW_SCHEMA
from loadtest.load.schedule import schedule_s
from loadtest.model import ClientSpec

USERS = 6
CELLS = [
    kit.make_cell(0, load_value=float(USERS)),
    kit.make_cell(1, measure_s=None, measure_requests=60, warmup_s=0.0, load_value=3.0),
    kit.make_cell(2, mix="hang", measure_s=0.5, drain_s=0.3, load_value=4.0),
    kit.make_cell(3, load_kind="poisson", load_value=60.0, warmup_s=0.3, measure_s=1.0),
]


@dataclass
class Run:
    workers: int
    code: int
    folders: list[Path]
    asked: list[tuple[int, dict[str, Any]]]
    log: list[dict[str, Any]]
    text: str

    def rows(self, cell: int) -> list[dict[str, Any]]:
        return kit.read_rows(self.folders[cell])

    def done(self, cell: int) -> dict[str, Any]:
        return kit.load(self.folders[cell] / "done.json")

    def log_of(self, cell: int) -> list[dict[str, Any]]:
        return [r for r in self.log if r["id"].startswith(f"{cell}-")]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Run]]:
    """The same job with one and with two workers, at the same time, each with a server of its own."""
    with ExitStack() as stack:
        started = {}
        for workers in (1, 2):
            folder = tmp_path_factory.mktemp(f"workers-{workers}")
            scraper = kit.FakeScraper()
            stack.callback(scraper.close)
            server = stack.enter_context(kit.scripted_server(folder))
            client = ClientSpec(workers=workers)
            job = kit.make_job(folder, server.url, CELLS, client=client, scraper_socket=scraper.path)
            process = kit.start_locust(job, env={"OPENAI_API_KEY": "sk-test-key"})
            stack.callback(process.wait)
            stack.callback(kit.end_tree, process.pid)
            started[workers] = (job, process, scraper, server)
        found = {}
        for workers, (job, process, scraper, server) in started.items():
            code = process.wait(60)
            folders = [Path(job.run_dir) / "cells" / c.cell_id for c in CELLS]
            found[workers] = Run(workers, code, folders, scraper.asked, server.requests(), kit.log_of(job))
        yield found


@pytest.fixture(params=[1, 2])
def run(request: pytest.FixtureRequest, runs: dict[int, Run]) -> Run:
    return runs[request.param]


def test_all_cells_are_finished_and_the_run_says_so(run: Run) -> None:
    assert run.code == 0, run.text
    for folder in run.folders:
        assert {"cell.json", "provenance.json", "done.json", "live.hlog"} <= {p.name for p in folder.iterdir()}
        assert len(list(folder.glob("worker-*.arrows"))) == run.workers
    assert "Traceback" not in run.text


def test_every_request_of_the_servers_log_is_one_row(run: Run) -> None:
    """Both ways, by request id: nothing lost, nothing invented, nothing twice."""
    for cell in range(len(CELLS)):
        ids = [r["request_id"] for r in run.rows(cell)]
        assert Counter(ids) == Counter(r["id"] for r in run.log_of(cell))
        assert len(set(ids)) == len(ids) > 0


def test_phases_follow_the_send_time(run: Run) -> None:
    for cell in range(len(CELLS)):
        done = run.done(cell)
        start, end = done["window_start_ns"], done["window_end_ns"]
        for row in run.rows(cell):
            warm_prompt = row["prompt_id"].endswith(tuple(f".warmup-{i}" for i in range(9)))
            if row["phase"] == "measure":
                assert start <= (row["intended_ns"] or row["send_ns"]) < end
                assert not warm_prompt
            elif row["phase"] == "warmup":
                assert warm_prompt
                assert row["send_ns"] < start + 50_000_000  # decided before the window, sent at once
            else:
                assert (row["intended_ns"] or row["send_ns"]) >= end
    phases = Counter(r["phase"] for r in run.rows(0))
    assert phases["warmup"] > USERS
    assert phases["measure"] > 10 * USERS


def test_the_warmup_hands_over_without_draining(run: Run) -> None:
    """Some request that was sent in the warm-up is still in flight when the window begins."""
    start = run.done(0)["window_start_ns"]
    assert any(r["send_ns"] < start < r["end_ns"] for r in run.rows(0))


def test_a_window_by_requests_ends_soon_after_the_last_one(run: Run) -> None:
    rows = [r for r in run.rows(1) if r["phase"] == "measure"]
    done = run.done(1)
    assert len(rows) >= 60
    assert (done["window_end_ns"] - done["window_start_ns"]) / 1e9 < 10  # far from max_measure_s
    assert done["notes"] == []


def test_what_is_in_flight_at_the_drain_deadline_is_censored(run: Run) -> None:
    measured = [r for r in run.rows(2) if r["phase"] == "measure"]
    assert len(measured) == 4
    assert {r["outcome"] for r in measured} == {"censored"}
    assert all(r["first_token_ns"] and r["chunks"] == 2 for r in measured)  # what had arrived is kept
    assert all(r["e2e_us"] is None for r in measured)


def test_open_loop_arrivals_come_as_scheduled_for_any_number_of_workers(run: Run) -> None:
    """Arrival k sends prompt k at its own absolute time; the schedule depends on the cell's seed alone."""
    measured = {r["seq"]: r for r in run.rows(3) if r["phase"] == "measure"}
    start = run.done(3)["window_start_ns"]
    expected = list(takewhile(lambda t: t < 1.0, schedule_s(CELLS[3], warmup=False)))
    assert len(expected) > 30
    assert sorted(measured) == list(range(len(expected)))
    assert all(r["intended_ns"] >= start + 10**9 for r in run.rows(3) if r["phase"] == "drain")
    for seq, row in measured.items():
        assert row["intended_ns"] == start + round(expected[seq] * 1e9)
        assert row["lateness_us"] >= -1000  # a clock step at most
        assert row["e2e_intended_us"] == pytest.approx(row["e2e_us"] + row["lateness_us"], abs=2)
    assert np.median([r["lateness_us"] for r in measured.values()]) < 20_000  # 0.1 ms on a quiet machine


def test_done_json_counts_what_the_rows_hold(run: Run) -> None:
    for cell in range(len(CELLS)):
        done, rows = run.done(cell), run.rows(cell)
        assert done["workers_expected"] == run.workers
        assert done["workers_missing"] == []
        assert sum(w["sent"] for w in done["workers"].values()) == len(rows)
        for index, worker in done["workers"].items():
            own = [r for r in rows if r["worker"] == int(index)]
            assert worker["rows"] == len(own)
            assert worker["by_phase"] == Counter(r["phase"] for r in own)
            assert worker["by_outcome"] == Counter(r["outcome"] for r in own)
            assert worker["event_errors"] == worker["dropped"] == worker["parser_errors"] == 0
            assert worker["late_window_ms"] == 0
            assert worker["lag_max_us"] == max(r["client_lag_us"] or 0 for r in own)
        assert done["idle_start_ns"] < done["window_start_ns"] < done["window_end_ns"] <= done["drain_end_ns"]
        assert done["drain_end_ns"] <= done["idle_end_ns"] <= done["ended_ns"]
        assert done["clock_offset"]["max_step_us"] < 1e6
    assert any(0 < share < 2 for w in run.done(0)["workers"].values() for share in w["cpu_share"])


def test_one_kept_alive_connection_per_user(run: Run) -> None:
    rows, log = run.rows(0), run.log_of(0)
    assert len({r["user"] for r in rows}) == USERS
    assert len({r["connection"] for r in log}) == USERS
    connection_of = {r["id"]: r["connection"] for r in log}
    assert len({(r["user"], connection_of[r["request_id"]]) for r in rows}) == USERS
    assert sum(w["conns_opened"] for w in run.done(0)["workers"].values()) == USERS


def test_workers_share_the_prompt_order_without_overlap(run: Run) -> None:
    """The numbers that were taken are distinct, and the first ones are all there: the order is striped, not sampled."""
    taken = Counter(r["seq"] for r in run.rows(0) if r["phase"] == "measure")
    assert set(taken.values()) == {1}
    assert set(range(20)) <= set(taken)


def test_requests_are_sent_as_the_cell_says(run: Run) -> None:
    for record in run.log_of(0):
        assert record["model"] == "scripted"
        assert record["auth"] == "Bearer sk-test-key"
        assert record["max_tokens"] == 16
        assert record["prompt"].startswith("[s1-")  # salted
        assert record["stream"]
    assert "sk-test-key" not in (run.folders[0] / "cell.json").read_text() + run.text


def test_the_scraper_is_asked_at_the_edges_in_order(run: Run) -> None:
    ops = [q["op"] if q["op"] != "edge" else q["name"] for _, q in run.asked]
    assert ops == ["open", "idle_start", "window_start", "window_end", "idle_end", "close"] * len(CELLS)
    for cell, folder in enumerate(run.folders):
        edges = {q["name"]: t for t, q in run.asked[cell * 6 : cell * 6 + 6] if q["op"] == "edge"}
        done, rows = run.done(cell), run.rows(cell)
        assert edges["idle_start"] < min(r["send_ns"] for r in rows)
        assert edges["window_start"] >= done["window_start_ns"]
        assert edges["window_end"] >= done["window_end_ns"]
        assert edges["idle_end"] > max(r["end_ns"] for r in rows)
        assert run.asked[cell * 6][1]["dir"] == str(folder.resolve())
        assert done["edges"]["window_end"]["ok"] is True


def test_the_next_cell_follows_at_once(run: Run) -> None:
    for before, after in ((0, 1), (1, 2), (2, 3)):
        gap_s = (run.done(after)["idle_start_ns"] - run.done(before)["ended_ns"]) / 1e9
        assert gap_s < 2.0  # usually 0.1


def test_live_histograms_agree_with_the_rows(run: Run) -> None:
    entries = {e.tag: e.histogram for e in hdr.read_hlog(run.folders[0] / "live.hlog")}
    ok = [r for r in run.rows(0) if r["phase"] == "measure" and r["outcome"] == "ok"]
    offsets = pa.array([r["chunk_offset_us"] for r in ok], RAW_SCHEMA.field("chunk_offset_us").type)
    exact = {
        "ttft": [r["ttft_us"] for r in ok],
        "tpot": [r["tpot_us"] for r in ok],
        "e2e": [r["e2e_us"] for r in ok],
        "chunk_gap": np.concatenate([np.diff(r["chunk_offset_us"]) for r in ok]),
    }
    assert np.array_equal(chunk_gaps_us(offsets), exact["chunk_gap"])
    for metric, values in exact.items():
        assert entries[metric].total_count == len(values)
        (p99,) = hdr.percentiles(entries[metric], [99.0])
        assert p99 == pytest.approx(np.quantile(values, 0.99, method="inverted_cdf"), rel=0.002, abs=1)
