"""What of the Locust side needs no Locust run: order and phases of a cell, batches, folders, the page's guard."""

from __future__ import annotations

import json
import subprocess
import sys
from enum import IntEnum
from pathlib import Path

import locust_kit as kit
import pytest

from loadtest.errors import EXIT_CRASH, LoadError
from loadtest.load import cellrun, files
from loadtest.load.block import count
from loadtest.load.cellrun import CellRun, decode_mix, encode_prompts, mix_digest
from loadtest.load.launch import LOCUSTFILE, locust_argv, locust_env
from loadtest.load.scrapelink import ScrapeLink
from loadtest.model import ClientSpec, Message, Prompt, to_json

MEASURED = tuple(Prompt(f"m{i}", "s", (Message("user", f"measured {i}"),)) for i in range(5))
WARM = (Prompt("w0", "s", (Message("user", "warm"),)),)


def mix(warmup: tuple[Prompt, ...] = WARM) -> cellrun.MixPrompts:
    prompts, pool = encode_prompts(MEASURED), encode_prompts(warmup)
    sha = mix_digest(prompts, pool, [1.0])
    return decode_mix({"mix": "mini", "sha256": sha, "prompts": prompts, "warmup": pool, "weights": [1.0]})


def test_two_workers_take_all_numbers_once() -> None:
    runs = [CellRun(kit.make_cell(), mix(), worker) for worker in (0, 1)]
    taken = []
    for offset, run in enumerate(runs):
        run.set_window(0, 100, (offset, 2), 0)
        taken += [t for _ in range(10) if (t := run.take(50)) is not None]
    assert sorted(t.seq for t in taken) == list(range(20))
    alone = CellRun(kit.make_cell(), mix(), 0)
    alone.set_window(0, 100, (0, 1), 0)
    same = {t.seq: t.messages for _ in range(20) if (t := alone.take(50)) is not None}
    assert {t.seq: t.messages for t in taken} == same


def test_phase_is_by_send_time_and_no_warmup_prompt_is_ever_measured() -> None:
    run = CellRun(kit.make_cell(), mix(), 0)
    assert run.take(1) is None  # the gate is not open yet
    run.set_window(100, 200, (0, 1), 0)
    warm, measured = run.take(99), run.take(100)
    assert warm is not None
    assert measured is not None
    assert (warm.prompt.prompt_id, warm.request_id) == ("w0", "0-0-w0")
    assert measured.prompt.prompt_id.startswith("m")
    assert run.phase(warm, 99) == run.phase(warm, 101) == "warmup"
    assert run.phase(measured, 100) == run.phase(measured, 199) == "measure"
    assert run.phase(measured, 200) == "drain"


def test_the_load_goes_on_after_the_window_until_its_last_request_has_ended() -> None:
    """The only worker sees that by itself; one of several waits for the master's word."""
    alone = CellRun(kit.make_cell(), mix(), 0)
    alone.set_window(100, 200, (0, 1), 0)
    alone.flying["0-0-0"] = 199
    late = alone.take(200)
    assert late is not None
    assert alone.phase(late, 200) == "drain"
    del alone.flying["0-0-0"]
    alone.flying[late.request_id] = 200
    assert alone.take(201) is None
    one_of_two = CellRun(kit.make_cell(), mix(), 0)
    one_of_two.set_window(100, 200, (0, 2), 0)
    assert not one_of_two.holds()
    assert one_of_two.take(200) is not None
    one_of_two.close()
    assert one_of_two.take(201) is None


def test_without_a_pool_the_warmup_is_salted_apart() -> None:
    run = CellRun(kit.make_cell(), mix(()), 0)
    run.set_window(100, 200, (0, 1), 0)
    warm = run.take(1)
    assert warm is not None
    assert warm.messages[0].content.startswith("[warmup-s1-0]")


def test_a_sequential_cell_sends_each_number_once_and_ends() -> None:
    run = CellRun(kit.make_cell(load_kind="sequential", measure_requests=5, measure_s=None), mix(), 0)
    run.set_window(0, 100, (0, 1), 0)
    tickets = [run.take(1) for _ in range(6)]
    assert [t and t.seq for t in tickets] == [0, 1, 2, 3, 4, None]
    assert {t.prompt.prompt_id for t in tickets if t} == {"m0", "m1", "m2", "m3", "m4"}


def test_an_edge_that_arrives_too_late_is_told() -> None:
    run = CellRun(kit.make_cell(), mix(), 0)
    run.set_window(0, 10**12, (0, 1), 0)
    run.set_window(0, 5 * 10**9, (0, 1), 5_030_000_000)
    assert run.counts()["late_window_ms"] == pytest.approx(30)


def test_damaged_prompts_are_refused() -> None:
    with pytest.raises(LoadError, match="arrived damaged"):
        decode_mix({"mix": "mini", "sha256": "0" * 64, "prompts": b"{}", "warmup": b"", "weights": [1.0]})


def run_python(code: str, *, rc: int = 0, told: str = "") -> str:
    """Runs `code` in a process of its own: importing Locust patches the standard library of the process for good.

    `told`: what its standard error must say; without it there may be no traceback.
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == rc, done.stderr
    assert told in done.stderr if told else "Traceback" not in done.stderr, done.stderr
    return done.stdout


def test_a_value_that_fits_no_column_costs_no_row() -> None:
    out = run_python(
        """
import locust, json
from loadtest.load.batches import BatchSender
import pyarrow as pa
from loadtest.load.records import RAW_SCHEMA
blank = {"seq": 1, "worker": 0, "user": 0, "phase": "measure", "request_id": "a", "prompt_id": "p", "stratum": "s",
         "turn": 0, "prompt_sha256": "x", "clock": "user", "outcome": "ok", "token_source": "none"}
sent = []
sender = BatchSender(lambda data, rows: sent.append((data, rows)))
sender.add(blank)
sender.add(blank | {"request_id": "b", "output_text": "half \\ud83d", "chunks": 2**40})
sender.flush()
rows = [r for data, _ in sent for r in pa.ipc.read_record_batch(pa.py_buffer(data), RAW_SCHEMA).to_pylist()]
print(json.dumps([[r["request_id"], r["outcome"], r["error"], r["output_text"]] for r in rows]))
"""
    )
    good, bad = json.loads(out)
    assert good == ["a", "ok", None, None]
    assert bad[:2] == ["b", "bad_payload"]
    assert "output_text" in bad[2]
    assert "chunks" in bad[2]


def test_batches_keep_their_order_when_the_way_to_the_master_is_blocked() -> None:
    """`flush`, and the final message after it, wait for the batch that is being sent."""
    out = run_python(
        """
import locust, gevent, json
from gevent.event import Event
from loadtest.load.batches import BatchSender
blank = {"worker": 0, "user": 0, "phase": "measure", "request_id": "a", "prompt_id": "p", "stratum": "s",
         "turn": 0, "prompt_sha256": "x", "clock": "user", "outcome": "ok", "token_source": "none"}
begun, way, order = Event(), Event(), []
def send(data, rows):
    if not begun.is_set():  # the first one is held up, the others are not
        begun.set()
        way.wait()
    order.append(rows)
def end():
    sender.flush()
    order.append("final")
sender = BatchSender(send)
sender.add(blank | {"seq": 0})
begun.wait()  # the sender's own loop is in `send`
sender.add(blank | {"seq": 1})
sender.add(blank | {"seq": 2})
ending = gevent.spawn(end)
gevent.sleep(0.1)
early = list(order)
way.set()
ending.join()
print(json.dumps([early, order]))
"""
    )
    assert json.loads(out) == [[], [1, 2, "final"]]


def test_a_step_of_the_wall_clock_does_not_end_a_worker_but_a_silent_master_does() -> None:
    """The clock jumps an hour ahead between two heartbeats, then an hour back for good."""
    out = run_python(
        """
import locust, gevent, time
from types import SimpleNamespace
from loadtest.load import selfproof
real, offset = time.time, [0.0]
time.time = lambda: real() + offset[0]
selfproof.MASTER_SILENCE_S = 2.0
master = SimpleNamespace(last_heartbeat_timestamp=time.time())
selfproof.watch_master(master)
gevent.sleep(0.2)
offset[0] = 3600.0
gevent.sleep(1.3)  # a look has seen the new clock and the old heartbeat
master.last_heartbeat_timestamp = time.time()
offset[0] = -3600.0
print("alive", flush=True)
gevent.sleep(30)
print("still there", flush=True)
""",
        rc=EXIT_CRASH,
        told="the master is silent",
    )
    assert out == "alive\n"


@pytest.mark.parametrize(
    ("value", "is_count"),
    [
        (0, 0),
        (7, 7),
        (300, 300),
        (301, None),
        (-1, None),
        (10**30, None),
        (7.0, 7),
        (7.5, None),
        (-0.5, None),
        (301.0, None),
        (float("nan"), None),
        (float("inf"), None),
        (True, None),
        (False, None),
        ("7", None),
        (None, None),
        ([7], None),
        (IntEnum("Seven", {"SEVEN": 7})(7), 7),
    ],
)
def test_a_count_is_a_whole_number_in_range(value: object, is_count: int | None) -> None:
    assert count(value, 300) == is_count
    assert type(count(value, 300)) in (int, type(None))


def test_foreign_pages_and_names_are_refused() -> None:
    out = run_python(
        """
import locust, json
from loadtest.load.webui import refusal
def ask(host, path="/swarm", bound="127.0.0.1", **headers):
    return refusal(bound, host, path, {k.replace("_", "-"): v for k, v in headers.items()}) is None
print(json.dumps([
    ask("127.0.0.1:8089", Origin="http://127.0.0.1:8089"), ask("localhost:8089"), ask("[::1]:8089"),
    ask("127.0.0.1:8089", "/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate"),
    ask("lab:8089", bound="0.0.0.0", Origin="http://lab:8089"),
    ask("127.0.0.1:8089", Origin="http://evil.example"), ask("evil.example:8089"), ask("127.0.0.1:8089", Origin="null"),
    ask("127.0.0.1:8089", "/stop", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate"),
    ask("lab:8089", bound="0.0.0.0", Origin="http://evil.example"),
]))
"""
    )
    assert json.loads(out) == [True] * 5 + [False] * 5


def test_an_unfinished_cell_is_moved_aside_each_time(tmp_path: Path) -> None:
    job = kit.make_job(tmp_path, "http://127.0.0.1:1", [kit.make_cell()])
    (cell,) = job.cells
    for attempt in range(3):
        folder = files.begin_cell(job, cell)
        (folder / "mark").write_text(str(attempt))
        assert json.loads((folder / "cell.json").read_text())["cell"] == to_json(cell)
        assert (folder / "provenance.json").is_file()
    aside = [tmp_path / "cells" / f"{cell.cell_id}.unfinished-{k}" / "mark" for k in (1, 2)]
    assert [p.read_text() for p in aside] == ["0", "1"]
    files.write_json(folder / "done.json", {})
    with pytest.raises(LoadError, match="already finished"):
        files.begin_cell(job, cell)


def test_a_scraper_that_is_gone_is_an_error_of_the_edge_not_of_the_cell(tmp_path: Path) -> None:
    link = ScrapeLink(str(tmp_path / "none"))
    assert "none" in str(link.open("c", "d"))
    edge = link.edge("window_start")
    assert edge["ok"] is False
    assert "FileNotFoundError" in edge["errors"][0]
    assert ScrapeLink(None).edge("idle_start")["ok"] is None  # not measured


def test_the_command_line_names_a_packaged_file_and_the_job(tmp_path: Path) -> None:
    job = kit.make_job(tmp_path, "http://127.0.0.1:1", [kit.make_cell()], client=ClientSpec(workers=3))
    with pytest.raises(FileNotFoundError, match="no job file"):
        locust_argv(tmp_path / "job.json", job)
    (tmp_path / "job.json").write_text("{}")
    argv = locust_argv(tmp_path / "job.json", job)
    assert argv[argv.index("-f") + 1] == str(LOCUSTFILE)
    assert LOCUSTFILE.is_file()
    assert argv[argv.index("--processes") + 1] == "3"
    assert "--headless" in argv
    page = locust_argv(tmp_path / "job.json", job, web_ui=True)
    assert page[page.index("--web-host") + 1] == "127.0.0.1"
    assert "--headless" not in page
    assert locust_env(tmp_path / "job.json", {})["LOADTEST_JOB"] == str((tmp_path / "job.json").resolve())


def test_arrivals_over_the_cap_are_dropped_and_counted_never_delayed(tmp_path: Path) -> None:
    """A server that hangs holds three requests; what is due meanwhile becomes rows that were never sent."""
    with kit.scripted_server(tmp_path) as server:
        job = kit.make_job(tmp_path, server.url, [])
        cell = kit.make_cell(load_kind="constant", load_value=20.0, mix="hang", warmup_s=0.0)
        (tmp_path / "job.json").write_text(json.dumps([to_json(job), to_json(cell)]))
        out = run_python(
            f"""
import locust, gevent, json, time
from gevent.event import Event
from loadtest.load import arrivals, cellrun
from loadtest.load.sending import Sender
from loadtest.model import Cell, LoadJob, Message, Prompt, from_json
job, cell = json.load(open({str(tmp_path / "job.json")!r}))
prompts = (Prompt("h", "s", (Message("user", "HANG"),)),)
run = cellrun.CellRun(from_json(Cell, cell), cellrun.MixPrompts("hang", "", prompts, prompts, (1.0,)), 0)
start = time.time_ns() + 10**8
run.set_window(start, start + 5 * 10**8, (0, 1), 0)
answers, dropped = [], []
sender = Sender(0, answers.append)
sender.set_job(from_json(LoadJob, job), 1)
driver = arrivals.Arrivals(run, sender, dropped.append, cap=3, halt=Event())
gevent.sleep(0.01)  # libev's clock is as old as the imports
gevent.spawn_later(0.6, run.close)  # the last arrival of the window is due at 0.1 + 0.45 s
driver.drive()
late = (time.time_ns() - run.end_ns) / 1e9
gevent.sleep(0.05)
sender.reader.abort_active("over")
gevent.sleep(0.05)
told = [[r["seq"], r["outcome"], r["error"], r["phase"], r.get("send_ns")] for r in dropped]
print(json.dumps([len(answers), told, run.dropped, run.sent, driver.busy, late]))
"""
        )
        asked = server.requests()
    sent, dropped, counted, run_sent, busy, late_s = json.loads(out)
    assert sent == run_sent == len(asked) == 3
    assert busy == 0
    assert late_s < 0.5  # the hanging server did not hold the schedule up
    assert counted == len(dropped) >= 7  # ten arrivals were due in half a second
    told = "dropped: 3 requests in flight at this worker"
    assert dropped[:7] == [[seq, "censored", told, "measure", None] for seq in range(3, 10)]
    assert {phase for *_, phase, _ in dropped[7:]} <= {"drain"}


def test_an_arrival_that_cannot_be_made_is_counted_and_holds_nothing_up(tmp_path: Path) -> None:
    """A failure before the send leaves nothing in flight: the cap is not reached, the cell ends with its window."""
    with kit.scripted_server(tmp_path) as server:
        job = kit.make_job(tmp_path, server.url, [])
        cell = kit.make_cell(load_kind="constant", load_value=20.0, mix="bad", warmup_s=0.0)
        (tmp_path / "job.json").write_text(json.dumps([to_json(job), to_json(cell)]))
        out = run_python(
            f"""
import locust, gevent, json, time
from dataclasses import replace
from gevent.event import Event
from loadtest.load import arrivals, cellrun
from loadtest.load.sending import Sender
from loadtest.model import Cell, LoadJob, Message, Prompt, from_json
job, cell = json.load(open({str(tmp_path / "job.json")!r}))
cell = from_json(Cell, cell)
cell = replace(cell, sampling=replace(cell.sampling, extra_body={{"seed": 1}}))  # refused when the body is built
prompts = (Prompt("b", "s", (Message("user", "never sent"),)),)
run = cellrun.CellRun(cell, cellrun.MixPrompts("bad", "", prompts, prompts, (1.0,)), 0)
start = time.time_ns() + 10**8
run.set_window(start, start + 3 * 10**8, (0, 1), 0)
sender = Sender(0, print)
sender.set_job(from_json(LoadJob, job), 1)
driver = arrivals.Arrivals(run, sender, print, cap=3, halt=Event())
gevent.sleep(0.01)  # libev's clock is as old as the imports
driver.drive()
gevent.sleep(0.05)
late = (time.time_ns() - run.end_ns) / 1e9
print(json.dumps([run.counts()["user_errors"], run.sent, run.dropped, run.flying, run.holds(), driver.busy, late]))
""",
            told="request 0-0-0 could not be made",
        )
        asked = server.requests()
    errors, *rest, late_s = json.loads(out)
    assert errors >= 6  # due every 50 ms of 0.3 s, and no cap of 3 is reached by what is over
    assert rest == [0, 0, {}, False, 0]
    assert asked == []
    assert late_s < 1  # nothing in flight, so the load ended by itself with the window
