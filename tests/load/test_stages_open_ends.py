"""One run with two workers: drain under load, ramps, traces and conversations, against the server's own log."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import locust_kit as kit
import numpy as np
import pytest

from loadtest.load.schedule import schedule_s
from loadtest.model import Cell, ClientSpec

USERS = 6
TRACE = [0.0, 0.05, 0.05, 0.3, 0.31, 0.7]
STALL_S = 1.5


def cell(index: int, **changes: Any) -> Cell:
    name = f"{index:03d}-base-{changes.get('mix', 'mini')}-greedy-x-r1"
    return kit.make_cell(index, **({"cell_id": name, "warmup_s": 0.2, "measure_s": 1.0} | changes))


CELLS = [
    cell(0, mix="mixed", load_value=float(USERS), drain_s=5.0),
    cell(1, mix="partly", load_value=float(USERS), measure_s=0.5, drain_s=1.0),
    cell(2, mix="mixed", load_kind="constant", load_value=25.0, drain_s=5.0),
    cell(3, load_kind="ramp", load_value=40.0, ramp=((10.0, 70.0, 1.0),)),
    cell(4, load_kind="trace", load_value=6.0, trace_file="prompts/arrivals.txt"),
    cell(5, mix="talk", load_value=4.0, think_time_s=0.05, drain_s=5.0),
    cell(6, load_kind="constant", load_value=40.0, warmup_s=0.2, measure_s=3.0, drain_s=5.0),
]


class Run:
    def __init__(self, folder: Path, log: list[dict[str, Any]]) -> None:
        self.folder, self.log = folder, log

    def rows(self, index: int, phase: str | None = None) -> list[dict[str, Any]]:
        rows = kit.read_rows(self.folder / "cells" / CELLS[index].cell_id)
        return [r for r in rows if phase in (None, r["phase"])]

    def done(self, index: int) -> dict[str, Any]:
        return kit.load(self.folder / "cells" / CELLS[index].cell_id / "done.json")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("ends")
    with kit.scripted_server(folder) as server:
        client = ClientSpec(workers=2, keep_text=False, keep_chunks=False)
        job = kit.make_job(folder, server.url, CELLS, client=client)
        (folder / "prompts" / "arrivals.txt").write_text("".join(f"{t}\n" for t in TRACE))
        process = kit.start_locust(job)
        try:
            last = folder / "cells" / CELLS[6].cell_id
            assert kit.until(lambda: any(r["phase"] == "measure" for r in kit.read_rows(last)), 40), kit.log_of(job)
            os.kill(server.pid, signal.SIGSTOP)
            time.sleep(STALL_S)
            os.kill(server.pid, signal.SIGCONT)
            assert process.wait(40) == 0, kit.log_of(job)
        finally:
            kit.end_tree(process.pid)
            process.wait()
        yield Run(folder, server.requests())


def in_flight(rows: list[dict[str, Any]], t_ns: int) -> int:
    return sum(r["send_ns"] < t_ns <= r["end_ns"] for r in rows)


def test_every_request_of_every_cell_is_one_row(run: Run) -> None:
    for index in range(len(CELLS)):
        asked = [r["id"] for r in run.log if r["id"].startswith(f"{index}-")]
        assert Counter(r["request_id"] for r in run.rows(index)) == Counter(asked)
        assert sum(w["sent"] for w in run.done(index)["workers"].values()) == len(asked)


@pytest.mark.parametrize("index", [0, 2])
def test_the_last_measured_requests_end_under_load(run: Run, index: int) -> None:
    """Slow requests outlive the window; the users (or the arrivals) go on until the last of them has ended."""
    rows, done = run.rows(index), run.done(index)
    measured, drain = run.rows(index, "measure"), run.rows(index, "drain")
    last_ns = max(r["end_ns"] for r in measured)
    assert last_ns > done["window_end_ns"] + 100_000_000  # a SLOW one takes 300 ms
    assert len(drain) >= 4
    assert {r["outcome"] for r in drain + measured} == {"ok"}
    assert max(r["send_ns"] for r in drain) > last_ns - 60_000_000
    if index == 0:
        late = [r["end_ns"] for r in measured if r["end_ns"] > done["window_end_ns"]]
        assert min(in_flight(rows, t) for t in late) >= USERS - 2  # two may be between two requests
    assert done["drain_end_ns"] < done["window_end_ns"] + 3_000_000_000  # the load stopped, long before the deadline


def test_at_the_drain_deadline_all_that_is_in_flight_is_censored(run: Run) -> None:
    rows, done = run.rows(1), run.done(1)
    cut = [r for r in rows if r["outcome"] == "censored"]
    assert cut
    deadline_ns = done["window_end_ns"] + 1_000_000_000
    assert all(abs(r["end_ns"] - deadline_ns) < 500_000_000 for r in cut)
    assert {r["phase"] for r in rows if r["send_ns"] >= done["window_end_ns"]} == {"drain"}


def test_a_ramp_follows_its_slope(run: Run) -> None:
    expected = list(takewhile(lambda t: t < 1.0, schedule_s(CELLS[3], warmup=False)))
    start = run.done(3)["window_start_ns"]
    measured = {r["seq"]: r["intended_ns"] for r in run.rows(3, "measure")}
    assert measured == {k: start + round(t * 1e9) for k, t in enumerate(expected)}
    many = [t for seed in range(200) for t in takewhile(lambda t: t < 1.0, schedule_s(_seeded(seed), warmup=False))]
    assert len(many) / 200 == pytest.approx(40, rel=0.05)
    assert sum(t < 0.5 for t in many) / len(many) == pytest.approx(25 / 80, rel=0.05)  # (10 + 40) / 2 * 0.5 s of 40


def _seeded(seed: int) -> Cell:
    return cell(3, load_kind="ramp", load_value=40.0, ramp=((10.0, 70.0, 1.0),), order_seed=seed)


def test_a_trace_is_replayed_as_it_is(run: Run) -> None:
    start = run.done(4)["window_start_ns"]
    measured = sorted(run.rows(4, "measure"), key=lambda r: r["seq"])
    assert [r["intended_ns"] - start for r in measured] == [round(t * 1e9) for t in TRACE]
    assert {r["worker"] for r in measured} == {0, 1}
    assert np.median([r["lateness_us"] for r in measured]) < 20_000


def test_turns_carry_the_real_answers_and_follow_each_other(run: Run) -> None:
    asked = {r["id"]: r for r in run.log}
    talks: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for row in run.rows(5):
        if row["phase"] != "warmup":
            talks[row["worker"], row["seq"]].append(row)
    whole = 0
    for rows in talks.values():
        rows.sort(key=lambda r: r["turn"])
        assert [r["turn"] for r in rows] == list(range(len(rows)))
        assert len({r["user"] for r in rows}) == len({r["prompt_id"] for r in rows}) == 1
        for before, after in pairwise(rows):
            assert after["send_ns"] >= before["end_ns"]
            said = asked[after["request_id"]]["messages"]
            assert [m["role"] for m in said] == ["user", "assistant"] * after["turn"] + ["user"]
            assert said[-2]["content"] == "tttttt"  # the six tokens of the scripted answer
            assert said[:-2] == asked[before["request_id"]]["messages"]
        if rows[0]["prompt_id"] == "talk-3":  # FAIL: the conversation ends there
            assert [r["outcome"] for r in rows] == ["http_error"]
        whole += len(rows) == 3
    assert whole > 5
    assert {r["output_text"] for r in run.rows(5)} == {None}  # keep_text = false: parsed for the next turn alone
    workers = run.done(5)["workers"].values()
    assert sum(w["conversations"] for w in workers) == len(talks)
    assert sum(w["conversations_cut"] for w in workers) == sum(r[0]["prompt_id"] == "talk-3" for r in talks.values())
    assert sum(w["thinking_s"] for w in workers) > 0.1


def test_a_stalled_server_shows_at_p99_in_the_open_loop(run: Run) -> None:
    """1.5 s of a window of 3 s: what was due meanwhile waited, and the schedule did not."""
    measured = run.rows(6, "measure")
    assert len(measured) == 120
    assert np.quantile([r["e2e_intended_us"] for r in measured], 0.99) > 1_300_000
    waited = [r for r in measured if r["e2e_intended_us"] > 100_000]
    assert 30 <= len(waited) <= 80  # 60 arrivals in 1.5 s
    assert np.quantile([r["lateness_us"] for r in measured], 0.5) < 20_000
