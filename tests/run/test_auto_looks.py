"""`measure = "auto"`: looks at a running cell. Level, saving, and what is in flight."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from loadtest.auto import ROWS, AutoWatch, Tail, Watched, frame_of, in_order
from loadtest.judge.claims import Values, quantile_claim
from loadtest.judge.live import criteria_of, look, never_early
from loadtest.judge.orderstats import certify
from loadtest.judge.staged import Series, pooled_claim, staged_claim, walk
from loadtest.load.records import RAW_SCHEMA
from loadtest.model import Cell, SamplingSpec, Slo, to_json
from loadtest.run_folder import RunFolder

E2E = Slo(name="e2e p95", metric="e2e", stat="p95", max=100_000.0)
ERRORS = Slo(name="errors", metric="error_rate", stat="rate", max=0.05)
NOW_NS = 1_000_000_000_000


def series(slow: np.ndarray) -> Series:
    values = np.where(slow, 9.0, 1.0)
    return Series(values, values, 5.0, 0.95)


def row(seq: int, e2e_us: int | None = 10_000, worker: int = 0, **changes: Any) -> dict[str, Any]:
    """A finished request that was sent 1 ms after the one before."""
    return {
        "seq": seq,
        "worker": worker,
        "phase": "measure",
        "prompt_id": "p",
        "stratum": "code",
        "turn": 0,
        "send_ns": NOW_NS + seq * 1_000_000,
        "outcome": "ok",
        "e2e_us": e2e_us,
        **changes,
    }


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=ROWS)


def looked(rows: list[dict[str, Any]], *slos: Slo, budget: int = 400, after_ms: float = 1e6) -> list[str | None]:
    """The status of each criterion on these rows, so many milliseconds after the first was sent."""
    known, pending = in_order(table(rows))
    found = look(frame_of(known, "c"), "c", slos, budget, pending, NOW_NS + int(after_ms * 1e6))
    return [f.staged.status for f in found]


# -- level and saving


def test_wrong_passes_stay_below_the_level_and_clear_cells_end_early() -> None:
    """True share exactly at the limit: at most 5 % pass. None over: a good half of the budget is saved."""
    rng = np.random.default_rng(1)
    runs, budget = 1200, 300
    wrong = [walk(series(rng.random(budget) < 0.05), 0.95, budget, last=True).status for _ in range(runs)]
    clear = [walk(series(rng.random(budget) < 0.002), 0.95, budget, last=True) for _ in range(200)]

    assert wrong.count("PASS") / runs <= 0.05 + 1.645 * np.sqrt(0.05 * 0.95 / runs)
    assert wrong.count("FAIL") / runs <= 0.05 + 1.645 * np.sqrt(0.05 * 0.95 / runs)
    assert np.mean([c.status == "PASS" for c in clear]) > 0.97
    assert np.mean([c.n for c in clear]) <= 0.5 * budget


def test_the_same_looks_at_a_fixed_level_would_pass_wrongly() -> None:
    """Why the gate must not judge such a cell by a fixed number of requests: twice the error and more."""
    rng = np.random.default_rng(2)
    wrong = 0
    for _ in range(600):
        over = np.cumsum(rng.random(300) < 0.05)
        wrong += any(certify(n, int(over[n - 1]), 0.95, 0.95) for n in range(74, 301, 8))
    assert wrong / 600 > 0.10


def test_a_cell_that_was_not_ended_early_spends_all_that_is_left_at_its_end() -> None:
    """181 requests with 4 over are just enough for a P95 at once; by early looks alone they would not be."""
    slow = np.zeros(181, dtype=bool)
    slow[[20, 60, 100, 140]] = True
    assert walk(series(slow), 0.95, 400, last=False).status is None
    assert walk(series(slow), 0.95, 400, last=True).status == "PASS"


def test_a_budget_too_small_for_looks_leaves_the_one_at_the_end() -> None:
    assert walk(series(np.zeros(60, dtype=bool)), 0.95, 30, last=False).looks == ()
    assert walk(series(np.zeros(60, dtype=bool)), 0.95, 30, last=True).status == "PASS"


# -- what is in flight


def test_slow_requests_in_flight_cannot_drop_out_of_a_look() -> None:
    """Every tenth request hangs. By those that have ended the P95 looks fine; by send order it is not decided."""
    ended = [row(seq) for seq in range(400) if seq % 10]
    assert certify(len(ended), 0, 0.95, 0.95)
    assert looked(ended, E2E, after_ms=400) != ["PASS"]


def test_in_flight_for_longer_than_the_limit_is_over_the_limit() -> None:
    """The same rows an hour later: what hangs is over an E2E limit by now, and for errors still open."""
    ended = [row(seq) for seq in range(400) if seq % 10]
    assert looked(ended, E2E, ERRORS, after_ms=450) == ["FAIL", None]
    assert looked(ended, E2E, after_ms=90) == [None]  # every request is younger than the limit of 100 ms


def test_in_flight_is_held_against_either_decision() -> None:
    """Unknown TTFT of one in twelve: neither PASS nor FAIL, though both would come with a one-sided guess."""
    ttft = Slo(name="ttft", metric="ttft", stat="p95", max=100_000.0)
    rows = [row(seq, ttft_us=10_000) for seq in range(400) if seq % 12]
    assert looked(rows, ttft) == [None]
    assert looked([row(seq, ttft_us=10_000 if seq % 12 else 900_000) for seq in range(400)], ttft) == ["FAIL"]
    assert looked([row(seq, ttft_us=10_000) for seq in range(400)], ttft) == ["PASS"]


def test_a_stratum_is_not_judged_past_a_request_whose_kind_is_not_known_yet() -> None:
    named = Slo(name="s", metric="e2e", stat="p95", max=100_000.0, where={"stratum": "code"})
    rows = [row(seq) for seq in range(400)]
    assert looked(rows, named) == ["PASS"]
    assert looked([r for r in rows if r["seq"] != 20], named) == [None]
    assert looked(rows, Slo(name="s", metric="e2e", stat="p95", max=1.0, where={"stratum": "chat"})) == [None]


def test_rows_of_two_workers_count_up_to_the_first_number_that_may_not_be_sent() -> None:
    """Worker 0 sends even numbers and is ahead: the rows end where worker 1 has not shown a later number."""
    rows = [row(seq, worker=0) for seq in range(0, 40, 2)] + [row(seq, worker=1) for seq in (1, 3, 7)]
    known, pending = in_order(table(rows))
    assert sorted(known["seq"].to_pylist()) == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert pending == {5}


def test_warm_up_rows_do_not_count() -> None:
    """Number 0 of the warm-up is not number 0 of the window, which is missing and was sent before number 1."""
    known, pending = in_order(table([row(0, phase="warmup"), row(1), row(2)]))
    assert sorted(known["seq"].to_pylist()) == [0, 1, 2]
    assert pending == {0}


# -- which criteria


def test_criteria_of_a_cell_are_those_of_the_gate() -> None:
    """The implicit error budget counts where no criterion on errors does; acceptance does not apply to a baseline."""
    facts = {"config": "b", "method": "none", "mix": "code", "sampling": "greedy", "load": "c8", "is_baseline": True}
    floor = Slo(name="a/d", metric="draft_acceptance_rate", stat="pooled", min=0.3)
    other = Slo(name="other", metric="e2e", stat="p99", max=1.0, where={"mix": "chat"})

    assert [s.metric for s in criteria_of(facts, [E2E, floor, other])] == ["e2e", "error_rate"]
    assert [s.name for s in criteria_of(facts, [ERRORS])] == ["errors"]
    assert never_early([E2E, ERRORS, floor]) == [floor]


# -- the claim of the gate


def test_requests_after_the_deciding_look_may_take_a_pass_away() -> None:
    """The looks passed on the first requests, then the server broke: no PASS may hide it."""
    rows = [row(seq) for seq in range(150)] + [row(seq, 900_000) for seq in range(150, 400)]
    frame = frame_of(table(rows), "c").cell("c")
    values = np.asarray(frame["e2e_us"])
    fixed = quantile_claim(Values(values, values, len(rows), 0), 100_000.0, 0.95, 0.95, "us", "e2e")
    assert fixed.status == "FAIL"
    claim = staged_claim(frame, E2E, 400, True, fixed)
    assert claim.status == "INCONCLUSIVE"
    assert "contradict" in claim.reason
    assert claim.upper is None


def test_claim_of_an_early_pass_gives_the_limit_as_its_only_bound() -> None:
    rows = [row(seq) for seq in range(200)]
    frame = frame_of(table(rows), "c").cell("c")
    values = np.asarray(frame["e2e_us"])
    fixed = quantile_claim(Values(values, values, len(rows), 0), 100_000.0, 0.95, 0.95, "us", "e2e")
    claim = staged_claim(frame, E2E, 400, True, fixed)
    assert (claim.status, claim.upper, claim.lower, claim.estimate) == ("PASS", 100_000.0, None, 10_000.0)
    assert "look" in claim.reason
    assert pooled_claim([claim, claim], fixed).status == "PASS"
    assert pooled_claim([claim, staged_claim(frame, E2E, 9_000, True, fixed)], fixed).status == "INCONCLUSIVE"


# -- the file while it is being written


def test_a_stream_is_read_while_it_grows(tmp_path: Path) -> None:
    """Whole batches only, each once, whatever part of the next one is there already."""
    whole = pa.BufferOutputStream()
    full = [{**dict.fromkeys(RAW_SCHEMA.names), **row(i), **_required(i)} for i in range(30)]
    with pa.ipc.new_stream(whole, RAW_SCHEMA) as writer:
        for k in range(0, 30, 10):
            writer.write_batch(pa.RecordBatch.from_pylist(full[k : k + 10], schema=RAW_SCHEMA))
    data = whole.getvalue().to_pybytes()
    path = tmp_path / "worker-0.arrows"
    tail, seen = Tail(path), []
    for end in range(0, len(data) + 1, 97):
        path.write_bytes(data[:end])
        seen += [seq for batch in tail.batches() for seq in batch["seq"].to_pylist()]
    path.write_bytes(data)
    seen += [seq for batch in tail.batches() for seq in batch["seq"].to_pylist()]
    assert seen == list(range(30))
    assert tail.batches() == []


def _required(i: int) -> dict[str, Any]:
    return {"user": 0, "request_id": f"0-0-{i}", "prompt_sha256": "", "clock": "kernel", "token_source": "usage"}


def test_what_a_killed_try_left_is_not_looked_at(tmp_path: Path) -> None:
    """A resumed run finds the killed try's folder: its rows and its stop.json say nothing about the new try."""
    sampling = SamplingSpec(name="greedy", temperature=0.0, max_tokens=8)
    cell = Cell(0, "000-b", "b", "none", None, "m", sampling, "closed", 1.0, 1, 7, "", 0.0, None, 400, 5.0, auto=True)
    folder = tmp_path / "cells" / cell.cell_id
    folder.mkdir(parents=True)
    facts = {"schema": 1, "configs": [], "cells": [to_json(cell)], "slos": to_json([E2E, ERRORS])}
    (tmp_path / "run.json").write_text(json.dumps(facts))
    full = [{**dict.fromkeys(RAW_SCHEMA.names), **row(i), **_required(i)} for i in range(300)]
    with (folder / "worker-0.arrows").open("wb") as file, pa.ipc.new_stream(file, RAW_SCHEMA) as writer:
        writer.write_batch(pa.RecordBatch.from_pylist(full, schema=RAW_SCHEMA))
    (folder / "cell.json").write_text(json.dumps({"started_ns": NOW_NS}))
    watch = AutoWatch(RunFolder(tmp_path), (cell,), since_ns=NOW_NS + 1)

    watch.poll()
    assert not (folder / "stop.json").exists()
    (folder / "unfinished.json").write_text("{}")
    watch.poll()
    (folder / "unfinished.json").unlink()
    (folder / "cell.json").write_text(json.dumps({"started_ns": NOW_NS + 2}))
    watch.poll()
    assert json.loads((folder / "stop.json").read_text())["budget"] == 400


def test_a_look_is_cheap() -> None:
    """10,000 rows, two criteria: well below the ten seconds that a machine under load may take for it."""
    cell = Cell(
        index=0, cell_id="c", config="b", method="none", gamma=None, mix="m", sampling=SamplingSpec("g", 0.0, 16),
        load_kind="closed", load_value=8, repeat=1, order_seed=1, salt="", warmup_s=0.0, measure_s=None,
        measure_requests=9000, drain_s=1.0, auto=True,
    )  # fmt: skip
    watched = Watched(cell, Path(), [E2E, ERRORS])
    watched.batches = table([row(seq) for seq in range(10_000)]).to_batches()
    began = time.process_time()
    assert [found.staged.status for found in watched.looks(NOW_NS * 2)] == ["PASS", "PASS"]
    assert time.process_time() - began < 2.0


@pytest.mark.parametrize("limit", [0.0, 1.0])
def test_limits_that_no_number_of_requests_can_show_are_never_early(limit: float) -> None:
    if limit == 0.0:
        slo = Slo(name="none", metric="error_rate", stat="rate", max=limit)
    else:
        slo = Slo(name="all", metric="goodput", stat="goodput", min=limit, limits={"e2e": 1.0})
    assert never_early([slo]) == [slo]
