"""A master and two workers in network namespaces of their own: nothing shared but the network between them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import locust_kit as kit
import pytest

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="`ip` is missing: install iproute2"),
]

HUB, PORTS = "10.231.0.1", {"whole": 5557, "cut": 5558}
HOSTS = ("a", "b", "c")
PREFIX = f"lt{os.getpid()}"
PLAN = """
schema = 1
[target]
model = "scripted"
CONFIGS
[[mix]]
name = "mini"
parts = [{ dataset = "mini.jsonl", warmup = "warm.jsonl" }]
[load]
concurrency = [4]
warmup = "300ms"
measure = "MEASURE"
drain = "2s"
repeats = 1
[[sampling]]
name = "greedy"
temperature = 0.0
max_tokens = 8
"""


@dataclass
class Lab:
    """The hub (server and master) and two workers' hosts, each joined to the hub by a cable of its own."""

    folder: Path
    log: Path
    url: str

    def requests(self) -> list[dict[str, Any]]:
        return [kit.json.loads(line) for line in self.log.read_text().splitlines()]


def ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True, text=True, timeout=20)


def inside(name: str, *argv: str) -> list[str]:
    return ["ip", "netns", "exec", PREFIX + name, *argv]


def start(folder: Path, name: str, *argv: str, key: str = "sk-hub") -> subprocess.Popen[bytes]:
    folder.mkdir(exist_ok=True)
    env = {k: v for k, v in os.environ.items() if not k.startswith("LOADTEST_")} | {"OPENAI_API_KEY": key}
    with (folder / "out.log").open("ab") as out:
        command = inside(name, sys.executable, *argv)
        return subprocess.Popen(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out)


def end(process: subprocess.Popen[bytes]) -> None:
    kit.end_tree(process.pid)
    process.wait()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("hosts")
    with ExitStack() as stack:
        for name in ("hub", *HOSTS):
            ip("netns", "add", PREFIX + name)
            stack.callback(ip, "netns", "del", PREFIX + name)
            ip("-n", PREFIX + name, "link", "set", "lo", "up")
        ip("-n", PREFIX + "hub", "addr", "add", f"{HUB}/32", "dev", "lo")
        for n, name in enumerate(HOSTS, 1):
            ip("-n", PREFIX + name, "link", "add", "up0", "type", "veth", "peer", "name", f"to-{name}")
            ip("-n", PREFIX + name, "link", "set", f"to-{name}", "netns", PREFIX + "hub")
            for host, device, last in ((name, "up0", 2), ("hub", f"to-{name}", 1)):
                ip("-n", PREFIX + host, "addr", "add", f"10.231.{n}.{last}/30", "dev", device)
                ip("-n", PREFIX + host, "link", "set", device, "up")
            ip("-n", PREFIX + name, "route", "add", f"{HUB}/32", "via", f"10.231.{n}.1")
        log = folder / "server.jsonl"
        log.touch()
        argv = inside("hub", sys.executable, str(kit.SERVER), "--log", str(log), "--host", "0.0.0.0")
        server = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        stack.callback(end, server)
        assert server.stdout is not None
        with server.stdout:
            port = int(server.stdout.readline())
        yield Lab(folder, log, f"http://{HUB}:{port}")


def run_plan(lab: Lab, name: str, configs: int, measure: str) -> subprocess.Popen[bytes]:
    folder = lab.folder / name
    folder.mkdir()
    lines = [f'[[config]]\nname = "c{i}"\nurl = "{lab.url}"\n' + "baseline = true\n" * (i == 0) for i in range(configs)]
    (folder / "plan.toml").write_text(PLAN.replace("CONFIGS", "".join(lines)).replace("MEASURE", measure))
    for file, words in (("mini.jsonl", "measured"), ("warm.jsonl", "warm")):
        (folder / file).write_text("".join(f'{{"prompt": "{words} {name} {i}"}}\n' for i in range(20)))
    argv = ["-m", "loadtest", "run", "plan.toml", "--no-gate", "--expect-workers", "2", "--bind", HUB]
    return start(folder, "hub", *argv, "--port", str(PORTS[name]))


def run_worker(lab: Lab, host: str, name: str) -> subprocess.Popen[bytes]:
    argv = ["-m", "loadtest", "worker", "--master", HUB, "--port", str(PORTS[name])]
    return start(lab.folder / f"{name}-{host}", host, *argv, key=f"sk-{host}")


def cells(lab: Lab, name: str) -> list[Path]:
    return sorted((lab.folder / name).glob("reports/*/cells/*"))


def text(lab: Lab, name: str) -> str:
    logs = "".join(p.read_text() for p in (lab.folder / name).glob("reports/*/jobs/*.log"))
    return (lab.folder / name / "out.log").read_text() + logs


@dataclass
class Runs:
    """Two runs at the same time: one that is left alone, and one whose second host is cut off in mid-run."""

    lab: Lab
    masters: dict[str, subprocess.Popen[bytes]]
    workers: dict[str, list[subprocess.Popen[bytes]]]


@pytest.fixture(scope="module")
def runs(lab: Lab) -> Iterator[Runs]:
    workers = {name: [run_worker(lab, h, name) for h in hosts] for name, hosts in (("whole", "ab"), ("cut", "ac"))}
    masters = {"cut": run_plan(lab, "cut", 1, "60s"), "whole": run_plan(lab, "whole", 2, "1s")}
    try:
        yield Runs(lab, masters, workers)
    finally:
        for process in (*masters.values(), *workers["whole"], *workers["cut"]):
            end(process)


def test_a_host_that_is_cut_off_in_mid_run_is_noticed(runs: Runs) -> None:
    lab, (stays, goes) = runs.lab, runs.workers["cut"]
    assert kit.until(lambda: any(len(kit.read_rows(c)) > 50 for c in cells(lab, "cut")), 40), text(lab, "cut")
    began = time.monotonic()
    ip("-n", PREFIX + "hub", "link", "set", "to-c", "down")
    assert runs.masters["cut"].wait(40) == 1, text(lab, "cut")
    assert time.monotonic() - began < 30  # heartbeat after 3 to 4 s, then the farewell
    assert stays.wait(15) == 0, text(lab, "cut-a")
    assert kit.until(lambda: not kit.psutil.Process(goes.pid).children(), 20), text(lab, "cut-c")
    assert goes.poll() is None  # its process has ended; it looks for a master until its patience is over
    (cell,) = cells(lab, "cut")
    assert not (cell / "done.json").exists()
    told = kit.load(cell / "unfinished.json")
    assert "no heartbeat for 3 s" in told["reason"]
    assert len(told["workers_lost"]) == 1


def test_two_server_starts_with_the_same_workers_and_every_request_is_a_row(runs: Runs) -> None:
    """The workers are there before the master, serve both starts, and end when the run does."""
    lab = runs.lab
    assert runs.masters["whole"].wait(60) == 0, text(lab, "whole")
    assert [w.wait(15) for w in runs.workers["whole"]] == [0, 0], text(lab, "whole-a") + text(lab, "whole-b")
    found = cells(lab, "whole")
    assert len(found) == 2
    rows = [r for cell in found for r in kit.read_rows(cell)]
    asked = [r for r in lab.requests() if " whole " in r["prompt"]]
    assert Counter(r["request_id"] for r in rows) == Counter(r["id"] for r in asked)
    assert {r["worker"] for r in rows} == {0, 1}
    assert {r["auth"] for r in asked} == {"Bearer sk-a", "Bearer sk-b"}  # each host's own key
    for cell in found:
        done = kit.load(cell / "done.json")
        assert (done["workers_expected"], done["workers_missing"]) == (2, [])
        for worker in done["workers"].values():
            low, high = worker["clock_skew_ms"]
            assert low <= 0 <= high  # one machine, one clock
            assert high - low < 500
    assert not [p for host in "ab" for p in (lab.folder / f"whole-{host}").iterdir() if p.name != "out.log"]
    assert text(lab, "whole-a").count("Locust ended with code 0") == 2
    assert "the run is over" in text(lab, "whole-a")
    assert "sk-" not in text(lab, "whole") + "".join((c / "cell.json").read_text() for c in found)


def test_a_worker_that_finds_no_master_says_so_and_fails(tmp_path: Path) -> None:
    with kit.socket.socket() as s:  # bound, not listening: nobody answers and nobody else can
        s.bind(("127.0.0.1", 0))
        argv = [sys.executable, "-m", "loadtest", "worker", "--master", "127.0.0.1"]
        argv += ["--port", str(s.getsockname()[1]), "--patience", "500ms"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert "no master answered" in done.stderr
