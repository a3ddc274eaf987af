"""Commands around a config, and caches that are emptied between cells."""

from __future__ import annotations

import json
import sys
import time

import psutil
import pytest

from loadtest.errors import CommandError, EndpointError
from loadtest.model import ConfigSpec
from loadtest.server.caches import require_reset
from loadtest.server.commands import run_commands
from loadtest.server.scraper import start_scraper

METRICS = b"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 0\n"


def config(*commands, timeout_s=10.0):
    return ConfigSpec("c", "none", None, before=commands, command_timeout_s=timeout_s)


def test_commands_run_in_order_and_are_logged(tmp_path):
    run_commands("before", config(("echo", "one two"), (sys.executable, "-c", "print('three')")), tmp_path)
    assert (tmp_path / "before.log").read_text() == (
        f"$ echo 'one two'\none two\n$ {sys.executable} -c 'print('\"'\"'three'\"'\"')'\nthree\n"
    )
    run_commands("after", config(), tmp_path)
    assert not (tmp_path / "after.log").exists()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("/no/such/program",), "cannot be run: No such file or directory"),
        (("sh", "-c", "echo wrong context; exit 9"), 'ended with code 9 after 0.0 s. It said: "wrong context"'),
        (("false",), "It said nothing"),
    ],
)
def test_a_command_that_fails_says_so_and_stops_the_rest(tmp_path, argv, words):
    with pytest.raises(CommandError) as caught:
        run_commands("before", config(argv, ("touch", str(tmp_path / "never"))), tmp_path)
    assert words in str(caught.value)
    assert not (tmp_path / "never").exists()


def test_a_command_that_hangs_is_killed_with_its_children(tmp_path):
    pid = tmp_path / "pid"
    began = time.monotonic()
    with pytest.raises(CommandError, match=r"did not end within 0\.5 s and was killed"):
        run_commands("before", config(("sh", "-c", f"sleep 60 & echo $! > {pid}; wait"), timeout_s=0.5), tmp_path)
    assert time.monotonic() - began < 20
    child = int(pid.read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_the_prefix_cache_is_emptied_before_each_recording(web, reply, tmp_path):
    web.pages["/metrics"] = reply(METRICS)
    web.pages["/reset_prefix_cache"] = lambda number: reply(b"", 200 if number < 2 else 500)
    resets = [f"{web.url}/reset_prefix_cache"]
    with start_scraper([f"{web.url}/metrics"], tmp_path, reset_urls=resets) as scraper:
        for cell in ("one", "two", "three"):
            (tmp_path / cell).mkdir()
            answer = scraper.ask({"op": "open", "cell_id": cell, "dir": str(tmp_path / cell)})
            if cell == "three":
                assert answer["ok"] is False
                assert "nothing is recorded" in answer["error"]
                assert "HTTP 500" in answer["error"]
                assert scraper.ask({"op": "edge", "name": "idle_start"})["ok"] is False, "the cell cannot count"
                continue
            assert answer["ok"], answer
            first = next(path for path, _ in reversed(web.seen) if path != "/metrics")
            assert first == "/reset_prefix_cache"
            assert scraper.ask({"op": "close"})["ok"]
    assert not (tmp_path / "three" / "server.arrows").exists()


def test_a_server_without_the_reset_is_refused_before_anything_is_measured(web, reply):
    with pytest.raises(EndpointError, match=r"VLLM_SERVER_DEV_MODE=1.*restart") as caught:
        require_reset([web.url])
    assert "HTTP 404" in str(caught.value)
    web.pages["/reset_prefix_cache"] = reply(json.dumps({}).encode())
    require_reset([web.url])
