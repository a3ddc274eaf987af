"""`locust -f locustfiles/replay.py` by hand: headless in one process, and from the web page with worker processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import locust_kit as kit

from loadtest.load.launch import free_port
from loadtest.merge.merge import merge_run

REPLAY = Path(__file__).parents[2] / "locustfiles" / "replay.py"


LISTENER_THAT_RAISES = """
from loadtest.load.locustfile import *
from locust import events

@events.request.add_listener
def broken(**facts):
    raise ValueError("a broken plug-in")
"""


def locust(folder: Path, *args: str, file: Path = REPLAY) -> subprocess.Popen[bytes]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("LOADTEST_")}
    argv = [sys.executable, "-m", "locust", "-f", str(file), "--master-bind-port", (port := str(free_port()))]
    with (folder / "locust.log").open("ab") as out:
        return subprocess.Popen(
            [*argv, "--master-port", port, *args],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )


def get(url: str, data: dict[str, Any] | None = None, **headers: str) -> tuple[int, str]:
    body = urllib.parse.urlencode(data).encode() if data is not None else None
    request = urllib.request.Request(url, body, {k.replace("_", "-"): v for k, v in headers.items()})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as e:
        with e:
            return e.code, e.read().decode()


def test_headless_in_one_process(tmp_path: Path) -> None:
    """The same files as a planned run; a listener that raises costs no row and is counted."""
    mine = tmp_path / "mylocustfile.py"
    mine.write_text(LISTENER_THAT_RAISES)
    prompts = tmp_path / "my prompts, ü.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"mine {i}"}) + "\n" for i in range(9)))
    with kit.scripted_server(tmp_path) as server:
        args = ["--headless", "-u", "5", "-t", "4s", "--warmup", "300ms", "--host", server.url, "--no-stream"]
        args += ["--dataset", str(prompts), "--max-tokens", "7", "--temperature", "0.5"]
        process = locust(tmp_path, *args, file=mine)
        try:
            assert process.wait(40) == 0, (tmp_path / "locust.log").read_text()
        finally:
            kit.end_tree(process.pid)
            process.wait()
        (run_dir,) = (tmp_path / "reports").glob("manual-*")
        (cell,) = (run_dir / "cells").iterdir()
        rows, done = kit.read_rows(cell), kit.load(cell / "done.json")
        asked = server.requests()
    assert Counter(r["request_id"] for r in rows) == Counter(r["id"] for r in asked)
    assert {r["phase"] for r in rows} >= {"warmup", "measure"}
    assert {r["user"] for r in rows} == set(range(5))
    assert {(r["temperature"], r["max_tokens"], r["stream"]) for r in asked} == {(0.5, 7, False)}
    assert {r["outcome"] for r in rows} == {"ok"}
    assert any("mine" in r["prompt"] for r in asked)
    assert done["workers"]["0"]["rows"] == done["workers"]["0"]["event_errors"] == len(rows)
    assert [done["edges"][e]["ok"] for e in ("idle_start", "window_start", "window_end", "idle_end")] == [True] * 4
    assert (cell / "server.arrows").is_file()  # the scraper ran as a process of its own
    run = kit.load(run_dir / "run.json")
    assert run["state"] == "measured"
    assert run["cells"][0]["cell_id"] == cell.name == "000-manual-my-prompts-manual-c5-r1"
    assert merge_run(run_dir).rows == len(rows)


def test_from_the_web_page_with_worker_processes(tmp_path: Path) -> None:
    """Start, look at our tabs, stop; a foreign page may do none of it."""
    port = free_port()
    page = f"http://127.0.0.1:{port}"
    with kit.scripted_server(tmp_path) as server:
        args = ["--processes", "2", "--web-port", str(port), "--host", server.url, "--run-dir", "mine"]
        process = locust(tmp_path, *args)
        try:
            assert kit.until(lambda: _workers(page) == 2, 20), (tmp_path / "locust.log").read_text()
            swarm = {"user_count": "4", "spawn_rate": "100", "host": server.url, "warmup": "200ms", "mix": "chat"}
            assert get(f"{page}/swarm", swarm, Origin="http://evil.example")[0] == 403
            assert get(f"{page}/stop", {}, Sec_Fetch_Site="cross-site")[0] == 403
            assert get(f"{page}/", Host="evil.example")[0] == 403
            assert server.requests() == []
            status, text = get(f"{page}/swarm", swarm, Origin=page)
            assert (status, json.loads(text)["success"]) == (200, True)
            assert kit.until(lambda: _n(page) > 20, 20), (tmp_path / "locust.log").read_text()
            tables = _tables(page)
            assert get(f"{page}/stop", {}, Origin=page)[0] == 200
            cell = next((tmp_path / "mine" / "cells").iterdir())
            assert kit.until((cell / "done.json").is_file, 10)
            rows = kit.read_rows(cell)
        finally:
            kit.end_tree(process.pid)
            process.wait()
        assert Counter(r["request_id"] for r in rows) == Counter(r["id"] for r in server.requests())
    assert {r["worker"] for r in rows} == {0, 1}
    latency = {r["name"]: r for r in tables["latency"]}
    assert float(latency["e2e"]["p50"]) > float(latency["ttft"]["p50"]) > 0
    speculation = {r["name"]: r["value"] for r in tables["speculation"]}
    assert speculation["draft acceptance rate A/D"] == "0.3750"  # 3 of 8 in every answer
    assert speculation["mean acceptance length 1+A/S"] == "2.500"


def _stats(page: str) -> dict[str, Any]:
    try:
        status, text = get(f"{page}/stats/requests")
    except OSError:
        return {}
    return json.loads(text) if status == 200 else {}


def _workers(page: str) -> int:
    return len(_stats(page).get("workers", []))


def _tables(page: str) -> dict[str, list[dict[str, Any]]]:
    return {t["key"]: t["data"] for t in _stats(page).get("extended_stats", [])}


def _n(page: str) -> int:
    return next((int(r["n"]) for r in _tables(page).get("latency", []) if r["name"] == "e2e"), 0)


def test_a_start_that_cannot_work_says_why_and_fails(tmp_path: Path) -> None:
    tries = {
        "does not answer as an OpenAI server": ["--host", "http://127.0.0.1:9"],
        "is not a duration": ["--host", "http://127.0.0.1:9", "--warmup", "5"],
    }
    started = []
    for n, (told, args) in enumerate(tries.items()):
        (folder := tmp_path / str(n)).mkdir()
        started.append((folder, told, locust(folder, "--headless", "-u", "1", "-t", "30s", *args)))
    for folder, told, process in started:
        try:
            assert process.wait(40) == 1, (folder / "locust.log").read_text()
        finally:
            kit.end_tree(process.pid)
            process.wait()
        assert told in (folder / "locust.log").read_text()
