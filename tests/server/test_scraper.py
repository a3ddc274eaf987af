"""The scraper process over HTTP, its control channel and its files."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from loadtest.errors import InputError, ServerError
from loadtest.server.counters import Snapshot, subtract
from loadtest.server.scraper import start_scraper
from loadtest.server.scrapes import SCRAPE_OK, SCRAPE_SCHEMA
from loadtest.server.spec_counters import NO_VLLM_SERIES, spec_delta

METRICS = Path(__file__).parent.parent / "data" / "server" / "metrics"


def text(name):
    return (METRICS / f"{name}.txt").read_bytes()


def read_rows(folder):
    """All rows that are readable, also of a stream without an end."""
    rows = []
    with (folder / "server.arrows").open("rb") as file:
        reader = pa.ipc.open_stream(file)
        assert reader.schema == SCRAPE_SCHEMA
        while True:
            try:
                rows += reader.read_next_batch().to_pylist()
            except StopIteration:
                return rows


@pytest.fixture
def scrape(tmp_path):
    """scrape(urls, edges, **spec) -> (answers, rows, cell folder): one recording with the named edges."""

    def run(urls, edges=("window_start", "window_end"), settle_s=0.0, **spec):
        cell = tmp_path / "cells" / "c"
        cell.mkdir(parents=True)
        with (
            start_scraper(urls, tmp_path / "server", **{"period_s": 30.0, **spec}) as scraper,
            scraper.connect() as ctl,
        ):
            answers = [ctl.ask({"op": "open", "cell_id": "c", "dir": str(cell)})]
            for name in edges:
                answers.append(ctl.ask({"op": "edge", "name": name, "settle_s": settle_s}))
            answers.append(ctl.ask({"op": "close"}))
        return answers, read_rows(cell), cell

    return run


def spec_of(rows, **kwargs):
    before, after = Snapshot(), Snapshot()
    for row in rows:
        if row["edge"] in ("window_start", "window_end"):
            (before if row["edge"] == "window_start" else after).add_row(row)
    return spec_delta(subtract(before, after), after, **kwargs)


def test_edges_of_a_real_page_reach_the_file_and_give_the_counters(web, reply, scrape):
    web.pages["/metrics"] = lambda n: reply(text("ngram-metrics-before" if n < 2 else "ngram-metrics-after"))
    answers, rows, cell = scrape([web.url + "/metrics"])
    assert [a["ok"] for a in answers] == [True] * 4
    assert answers[1]["series"] > 100
    spec = spec_of(rows, model="gemma")
    assert (spec.drafts, spec.draft_tokens, spec.accepted) == (129, 513, 353)
    assert spec.accepted_per_pos == (110, 96, 75, 72)
    assert (cell / "metrics" / "window_end.0.txt").read_bytes() == text("ngram-metrics-after")
    kinds = {r["metric"]: r["kind"] for r in rows}
    assert kinds["vllm:spec_decode_num_drafts_total"] == "counter"
    assert kinds["vllm:time_to_first_token_seconds_bucket"] == "histogram"
    assert kinds["process_cpu_seconds_total"] == "counter"
    assert not any(m.startswith("python_") for m in kinds)
    start, end = answers[1]["t_ns"], answers[2]["t_ns"]
    assert {r["t_ns"] for r in rows if r["edge"] == "window_start"} == {start}
    assert start < end


def test_gzip_with_and_without_its_header(web, reply, scrape):
    web.pages["/m"] = reply(gzip.compress(text("two-engines-after")), headers={"Content-Encoding": "gzip"})
    web.pages["/bare"] = reply(gzip.compress(text("two-engines-after")))
    answers, rows, _ = scrape([web.url + "/m", web.url + "/bare"])
    assert answers[1]["errors"] == []
    spec = spec_of(rows)
    assert (spec.endpoints, spec.engines, spec.drafts) == (2, 4, 0)


def test_a_redirect_on_the_same_host_is_followed_with_headers(web, reply, scrape, monkeypatch):
    monkeypatch.setenv("METRICS_TOKEN", "secret-7")
    web.pages["/metrics"] = reply(status=307, headers={"Location": "/metrics/"})
    web.pages["/metrics/"] = reply(text("two-engines-after"))
    answers, _, cell = scrape([web.url + "/metrics"], headers_env={"X-Token": "METRICS_TOKEN"})
    assert answers[1]["ok"]
    assert next(h["X-Token"] for path, h in web.seen if path == "/metrics/") == "secret-7"
    written = [p.read_bytes() for p in cell.parent.parent.rglob("*") if p.is_file()]
    assert not any(b"secret-7" in content for content in written)


def test_a_gateway_page_is_an_error_that_says_where_to_point(web, reply, scrape):
    web.pages["/metrics"] = reply(b'# TYPE x counter\nx_total{model="m"} 12.0\n')
    answers, rows, _ = scrape([web.url + "/metrics"])
    assert answers[1]["errors"] == [f"{web.url}/metrics: {NO_VLLM_SERIES}"]
    assert {r["metric"] for r in rows} == {SCRAPE_OK}


def test_a_redirect_to_another_host_is_not_followed(web, reply, scrape):
    web.pages["/metrics"] = reply(status=302, headers={"Location": "http://localhost:1/metrics"})
    answers, _, _ = scrape([web.url + "/metrics"])
    assert "redirects to another host (http://localhost:1/metrics)" in answers[1]["errors"][0]


def test_errors_are_recorded_and_never_zero(web, reply, scrape):
    web.pages["/500"] = reply(b"Internal Server Error", 500)
    web.pages["/slow"] = reply(text("two-engines-after"), delay_s=4.0)
    web.pages["/loop"] = reply(status=302, headers={"Location": "/loop"})
    web.pages["/bad-gzip"] = reply(b"\x1f\x8b not gzip")
    urls = [web.url + p for p in ("/500", "/slow", "/loop", "/bad-gzip")] + ["http://127.0.0.1:9/metrics"]
    answers, rows, cell = scrape(urls, timeout_s=2.0)
    errors = answers[1]["errors"]
    assert "HTTP 500: Internal Server Error" in errors[0]
    assert "no complete answer within 2 s" in errors[1]
    assert "redirects" in errors[2]
    assert "gzip" in errors[3].lower()
    assert "ClientConnectorError" in errors[4]
    assert not answers[1]["ok"]
    assert answers[3]["errors"] >= 10
    assert {(r["metric"], r["value"]) for r in rows} == {(SCRAPE_OK, 0.0)}
    assert all(r["error"] for r in rows)
    assert b"Internal Server Error" in (cell / "metrics" / "window_start.0.error.txt").read_bytes()
    spec = spec_of(rows)
    assert (spec.drafts, spec.accepted, spec.complete) == (None, None, False)


def test_one_slow_endpoint_does_not_delay_the_others(web, make_web, reply, tmp_path):
    slow = make_web()
    web.pages["/metrics"] = reply(text("two-engines-after"))
    slow.pages["/metrics"] = reply(text("two-engines-after"), delay_s=30)
    cell = tmp_path / "cell"
    cell.mkdir()
    urls = [web.url + "/metrics", slow.url + "/metrics"]
    with start_scraper(urls, tmp_path / "s", period_s=0.1, timeout_s=20) as scraper:
        assert scraper.ask({"op": "open", "cell_id": "c", "dir": str(cell)}) == {"ok": True}
        time.sleep(1.5)
        answer = scraper.ask({"op": "close"})
    assert answer["scrapes"] >= 5
    rows = [r for r in read_rows(cell) if r["metric"] == SCRAPE_OK]
    assert {r["endpoint"] for r in rows} == {urls[0]}
    asked = [r["t_request_ns"] for r in rows]
    grid = [round((t - asked[0]) / 1e8) for t in asked]
    assert len(set(grid)) == len(grid), "an absolute grid has one scrape per point"


def test_infinities_stay_out_and_nan_is_null(web, reply, scrape):
    web.pages["/metrics"] = reply(text("openmetrics"), headers={"Content-Type": "application/openmetrics-text"})
    _, rows, _ = scrape([web.url + "/metrics"])
    values = {r["metric"]: r["value"] for r in rows if r["edge"] == "window_end"}
    assert values["vllm:kv_cache_usage_perc"] is None
    assert "vllm:time_to_first_token_seconds_sum" not in values
    assert values["vllm:spec_decode_num_drafts_total"] == 1200


def test_settle_waits_until_idle_and_two_equal_scrapes(web, reply, scrape):
    page = 'vllm:num_requests_running{{engine="0"}} {r}\nvllm:generation_tokens_total{{engine="0"}} {n}\n'
    busy = [page.format(r=r, n=n).encode() for r, n in [(2, 5), (1, 6), (1, 6), (0, 6), (0, 7), (0, 8), (0, 8)]]
    web.pages["/metrics"] = lambda n: reply(busy[min(n, len(busy) - 1)])
    answers, rows, _ = scrape([web.url + "/metrics"], edges=["idle_end"], settle_s=10)
    assert answers[1]["settled"] is True
    values = {r["metric"]: r["value"] for r in rows if r["edge"] == "idle_end"}
    assert values["vllm:generation_tokens_total"] == 8
    assert len(web.seen) >= len(busy)


def test_settle_gives_up_at_its_deadline_and_says_so(web, reply, scrape):
    web.pages["/metrics"] = reply(b'vllm:num_requests_running{engine="0"} 1\n')
    answers, rows, _ = scrape([web.url + "/metrics"], edges=["idle_end"], settle_s=0.6)
    assert (answers[1]["ok"], answers[1]["settled"]) == (True, False)
    assert answers[1]["errors"] == ["not idle after 0.6 s: 1 requests run or wait"]
    assert any(r["edge"] == "idle_end" for r in rows)


def test_wrong_requests_get_an_answer(web, reply, tmp_path):
    web.pages["/metrics"] = reply(text("two-engines-after"))
    with start_scraper([web.url + "/metrics"], tmp_path) as scraper, scraper.connect() as control:
        assert "unknown op 'dance'" in control.ask({"op": "dance"})["error"]
        assert "send open first" in control.ask({"op": "edge", "name": "x"})["error"]
        assert "KeyError" in control.ask({"op": "open"})["error"]
        assert not control.ask({"op": "open", "dir": str(tmp_path / "absent")})["ok"]
        assert control.ask({"op": "close"}) == {"ok": True, "scrapes": 0, "errors": 0}
        assert control.ask({"op": "quit"}) == {"ok": True}
        assert scraper.process.wait(10) == 0
    assert not Path(scraper.socket).parent.exists()


def test_a_second_recording_in_the_same_folder_keeps_the_first(web, reply, tmp_path):
    web.pages["/metrics"] = reply(text("two-engines-after"))
    with start_scraper([web.url + "/metrics"], tmp_path, period_s=30) as scraper:
        for _ in range(2):
            assert scraper.ask({"op": "open", "dir": str(tmp_path)})["ok"]
            assert scraper.ask({"op": "edge", "name": "idle_start"})["ok"]
    assert len(read_rows(tmp_path)) > 0
    assert (tmp_path / "server.old-1.arrows").stat().st_size > 0


def test_what_was_scraped_is_readable_after_a_kill(web, reply, tmp_path):
    web.pages["/metrics"] = reply(text("ngram-metrics-after"))
    scraper = start_scraper([web.url + "/metrics"], tmp_path, period_s=0.1)
    try:
        assert scraper.ask({"op": "open", "dir": str(tmp_path)})["ok"]
        assert scraper.ask({"op": "edge", "name": "window_start"})["ok"]
        scraper.process.kill()
        scraper.process.wait()
        rows = read_rows(tmp_path)
        assert {r["edge"] for r in rows} >= {"window_start"}
        with pytest.raises(ServerError, match="does not answer"):
            scraper.ask({"op": "close"})
    finally:
        scraper.stop()


def test_the_scraper_ends_with_its_parent(web, reply, tmp_path):
    web.pages["/metrics"] = reply(text("two-engines-after"))
    code = (
        "import sys, time; from pathlib import Path; from loadtest.server.scraper import start_scraper\n"
        "s = start_scraper([sys.argv[1]], Path(sys.argv[2])); print(s.process.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, web.url + "/metrics", str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    pid = int(parent.stdout.readline())
    control = Path(json.loads((tmp_path / "scraper.json").read_text())["socket"])
    assert control.exists()
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 15
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive(pid)
    assert not control.parent.exists(), "nor does its folder stay behind"


def test_ending_with_an_open_control_line_is_no_trouble(web, reply, tmp_path):
    web.pages["/metrics"] = reply(text("two-engines-after"))
    scraper = start_scraper([web.url + "/metrics"], tmp_path)
    with scraper.connect() as control:
        assert "known:" in control.ask({"op": "hello"})["error"]
        scraper.stop()
    assert scraper.log.read_text() == ""


def alive(pid):
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False


def test_a_missing_environment_variable_is_named(tmp_path):
    os.environ.pop("NO_SUCH_TOKEN", None)
    with pytest.raises(InputError, match="NO_SUCH_TOKEN for header X-Token is not set"):
        start_scraper(["http://127.0.0.1:9/metrics"], tmp_path, {"X-Token": "NO_SUCH_TOKEN"})


def test_the_socket_path_fits_whatever_the_temporary_folder(web, reply, tmp_path, monkeypatch):
    deep = tmp_path / ("d" * 90)
    deep.mkdir()
    monkeypatch.setenv("TMPDIR", str(deep))
    monkeypatch.setattr("tempfile.tempdir", None)
    with start_scraper([web.url + "/metrics"], deep / "server") as scraper:
        assert len(scraper.socket.encode()) <= 107
        assert json.loads((deep / "server" / "scraper.json").read_text())["socket"] == scraper.socket
