"""Servers that are started: readiness, diagnosis, and that nothing of them is ever left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from loadtest.errors import ConfigContradictionError, EndpointError, ServerError, StartError
from loadtest.model import ConfigSpec, TargetSpec
from loadtest.server import ports
from loadtest.server.launch import ServerProcess
from loadtest.server.provenance import collect, require_no_contradiction

FAKE = Path(__file__).parent.parent / "data" / "server" / "fake_vllm.py"
SPEC = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 5}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Case:
    """One fake server in `folder`; `pids` are those of the server and of its detached child."""

    def __init__(self, folder, mode, speculative=SPEC, child=False, **launch):
        self.folder = folder
        self.pid_file = folder / "pids.json"
        env = {"MODE": mode, "PIDS": str(self.pid_file), **({"CHILD": "1"} if child else {})}
        self.config = ConfigSpec(
            name="ngram-4" if speculative else "baseline",
            method=speculative["method"] if speculative else "none",
            gamma=speculative["num_speculative_tokens"] if speculative else None,
            speculative=speculative,
            launch={
                "port": free_port(),
                "command": [sys.executable, str(FAKE)],
                "env": env,
                "ready_timeout_s": 20.0,
                "stop_timeout_s": 0.3,
                **launch,
            },
        )
        self.target = TargetSpec(model="models/gemma3-270m", served_name="gemma", max_model_len=2048)
        self.server = ServerProcess(self.config, self.target, folder)

    @property
    def pids(self):
        return json.loads(self.pid_file.read_text())

    def port_is_free(self):
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind(("127.0.0.1", self.config.launch["port"]))
        return True


@pytest.fixture
def case(tmp_path):
    made = []

    def make(*args, **kwargs):
        made.append(Case(tmp_path, *args, **kwargs))
        return made[-1]

    yield make
    for one in made:
        one.server.stop()


def gone(pids, seconds=10.0):
    """Whether none of the processes runs any more."""
    deadline = time.monotonic() + seconds
    while any(runs(p) for p in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def runs(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_good_server_becomes_ready_and_stops_with_its_detached_child(case):
    one = case("ok", child=True)
    lines = []
    one.server.start(lines.append)
    port = one.config.launch["port"]
    assert one.server.base_urls == (f"http://127.0.0.1:{port}",)
    assert one.server.metrics_urls == (f"http://127.0.0.1:{port}/metrics",)
    assert (one.server.model_name, one.server.fingerprint) == ("gemma", "ngram-4")
    assert one.server.pid == one.pids[0]
    assert one.server.exit_code() is None
    assert lines
    assert " s | " in lines[0]
    pids = one.pids
    assert all(runs(p) for p in pids)
    one.server.stop()
    assert gone(pids, 1.0)
    assert one.port_is_free()
    one.server.stop()
    log = one.server.log_file.read_text()
    assert log.startswith("$ ")
    assert "--speculative-config" in log.splitlines()[0]


def test_a_server_that_ignores_sigterm_is_killed_after_its_grace(case):
    one = case("ignores_term")
    one.server.start()
    pids = one.pids
    began = time.monotonic()
    one.server.stop()
    assert time.monotonic() - began >= 0.3
    assert gone(pids, 1.0)
    status = json.loads((one.folder / "server.status.json").read_text())
    assert status["exit_code"] == -signal.SIGKILL
    assert len(status["killed"]) == 1


@pytest.mark.parametrize(
    ("mode", "reason", "words"),
    [
        ("dies", "engine_start_failed", "Engine core initialization failed"),
        ("oom", "out_of_memory", "CUDA out of memory. Tried to allocate 224.00 MiB"),
        ("bad_flag", "unknown_argument", "--fingerprint-mode"),
    ],
)
def test_a_start_that_dies_is_diagnosed_and_leaves_no_child(case, mode, reason, words):
    one = case(mode, child=True)
    with pytest.raises(StartError, match="ended with exit code") as caught:
        one.server.start()
    assert words in str(caught.value)
    failed = json.loads((one.folder / "failed.json").read_text())
    assert failed["reason"] == reason
    assert words in failed["diagnosis"]
    assert failed["exit_code"] in (1, 2)
    assert failed["log_tail"]
    assert failed["argv"][1] == str(FAKE)
    assert gone(one.pids, 1.0)


def test_a_start_that_hangs_is_given_up_and_ended(case):
    one = case("hang", child=True, ready_timeout_s=2.0)
    with pytest.raises(StartError, match="not ready after 2 s") as caught:
        one.server.start()
    assert "Loading safetensors checkpoint shards" in str(caught.value)
    assert json.loads((one.folder / "failed.json").read_text())["reason"] == "hang"
    assert gone(one.pids, 1.0)


def test_a_server_of_another_model_is_refused(case):
    one = case("other_model")
    with pytest.raises(StartError, match="serves 'something-else', not 'gemma'"):
        one.server.start()
    assert gone(one.pids, 1.0)


def test_a_command_that_does_not_exist(case):
    one = case("ok", command=["/no/such/vllm", "serve"])
    with pytest.raises(StartError, match="cannot be run") as caught:
        one.server.start()
    assert "launch.command" in str(caught.value)
    assert json.loads((one.folder / "failed.json").read_text())["reason"] == "command_not_found"


def test_a_taken_port_names_the_port_and_its_owner(case):
    one = case("ok")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", one.config.launch["port"]))
        taken.listen()
        with pytest.raises(StartError) as caught:
            one.server.start()
    assert f"port {one.config.launch['port']} on 127.0.0.1 is taken by" in str(caught.value)
    assert f"pid {os.getpid()}" in str(caught.value)
    assert json.loads((one.folder / "failed.json").read_text())["reason"] == "port_in_use"
    assert not one.pid_file.exists(), "nothing was started"


def test_a_server_that_dies_later_is_diagnosed_and_its_child_goes_too(case):
    one = case("dies_later", child=True)
    one.server.start()
    one.server.check_alive()
    pids = one.pids
    assert gone(pids, 15.0)
    deadline = time.monotonic() + 10
    while one.server.exit_code() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert one.server.exit_code() == 1
    with pytest.raises(ServerError, match=r"ended with exit code 1 while it was measured\. Diagnosis: the engine died"):
        one.server.check_alive()
    assert json.loads((one.folder / "failed.json").read_text())["reason"] == "engine_dead"
    one.server.stop()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_orphan_when_the_orchestrator_dies(tmp_path, number):
    port, pid_file = free_port(), tmp_path / "pids.json"
    code = (
        "import sys, time; from pathlib import Path; from loadtest.model import *\n"
        "from loadtest.server.launch import ServerProcess\n"
        "fake, port, folder, pids = sys.argv[1:]\n"
        "launch = {'port': int(port), 'command': [sys.executable, fake], 'stop_timeout_s': 0.3,\n"
        "          'env': {'MODE': 'ignores_term', 'CHILD': '1', 'PIDS': pids}}\n"
        "s = ServerProcess(ConfigSpec('b', 'none', None, launch=launch), TargetSpec('m'), Path(folder))\n"
        "s.start(); print(s._guardian.pid, flush=True); time.sleep(60)"
    )
    argv = [sys.executable, "-c", code, str(FAKE), str(port), str(tmp_path), str(pid_file)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as parent:
        guardian = int(parent.stdout.readline())
        pids = [guardian, *json.loads(pid_file.read_text())]
        assert all(runs(p) for p in pids)
        parent.send_signal(number)
        parent.wait(10)
    assert gone(pids, 15.0)


def test_provenance_of_a_started_server_is_proven(case):
    one = case("ok")
    one.server.start()
    found = collect(one.config, one.target, one.server, one.folder)
    assert found["contradictions"] == []
    require_no_contradiction(found)
    proven = {k for k, f in found["facts"].items() if f["status"] == "proven"}
    assert proven >= {
        "served_model_name",
        "model",
        "max_model_len",
        "system_fingerprint",
        *(f"speculative.{k}" for k in SPEC),
    }
    assert found["k_from_positions"] == 4
    assert found["spec_families_present"] is True
    assert found["versions"]["vllm"] == "0.32.0"
    assert found["versions"]["python"] == "3.11.7"
    assert (found["simulated"], found["synthetic_acceptance"], found["lossy_modes"]) == (False, False, [])
    assert found["host"]["cores"] >= 1
    json.dumps(found, allow_nan=False)


def test_another_config_than_asked_is_contradicted_field_by_field(case):
    one = case("other_config")
    one.server.start()
    found = collect(one.config, one.target, one.server, one.folder)
    assert found["contradictions"] == ["speculative.num_speculative_tokens"]
    assert found["facts"]["speculative.method"]["status"] == "proven"
    with pytest.raises(ConfigContradictionError, match=r"asked 4, .*server_info says 7"):
        require_no_contradiction(found)


def test_a_baseline_that_speculates_is_contradicted(case):
    one = case("other_config", speculative=None)
    one.server.start()
    found = collect(one.config, one.target, one.server, one.folder)
    assert found["contradictions"] == ["speculative.method"]


def test_a_healthy_server_with_a_dead_engine_is_found_before_the_load(case):
    one = case("dead_engine")
    one.server.start()
    with pytest.raises(EndpointError, match="looks healthy but did not answer a request of one token: HTTP 500"):
        collect(one.config, one.target, one.server, one.folder)


def test_the_simulated_server_starts_by_the_same_door(tmp_path):
    config = ConfigSpec("eagle", "eagle3", 3, speculative={"method": "eagle3", "model": "/no/draft"}, sim={})
    target = TargetSpec("/m/target", served_name="target", dtype="bfloat16")
    server = ServerProcess(config, target, tmp_path)
    try:
        server.start()
        found = collect(config, target, server, tmp_path)
        pid = server.pid
    finally:
        server.stop()
    assert found["simulated"] is True
    assert found["contradictions"] == []
    assert found["facts"]["speculative.num_speculative_tokens"]["status"] == "proven"
    assert found["facts"]["speculative.model"]["status"] == "unknown"
    assert found["k_from_positions"] == 3
    assert gone([pid], 1.0)


def test_a_port_still_taken_after_the_stop_is_an_error(case, monkeypatch):
    """Somebody else takes the port in the moment the server leaves it."""
    monkeypatch.setattr("loadtest.server.launch.PORT_FREE_TIMEOUT_S", 0.3)
    one = case("ok")
    one.server.start()
    one.server._end()
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", one.config.launch["port"]))
        taken.listen()
        with pytest.raises(ServerError, match="is still taken after ngram-4 was stopped"):
            one.server.stop()


def test_gpu_memory_still_taken_after_the_stop_is_an_error(case, monkeypatch, tmp_path):
    smi, used = tmp_path / "bin" / "nvidia-smi", tmp_path / "used"
    smi.parent.mkdir()
    smi.write_text(f"#!/bin/sh\ncat {used}\n")
    smi.chmod(0o755)
    used.write_text("100\n")
    monkeypatch.setenv("PATH", f"{smi.parent}:{os.environ['PATH']}")
    monkeypatch.setattr("loadtest.server.launch.GPU_FREE_TIMEOUT_S", 0.3)
    one = case("ok")
    one.server.start()
    used.write_text("90000\n")
    with pytest.raises(ServerError, match="90000 MiB of GPU memory are in use after ngram-4 was stopped, 100 MiB"):
        one.server.stop()
    assert gone(one.pids, 1.0)


def test_a_taken_port_has_an_owner():
    assert ports.is_free("127.0.0.1", free_port())
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not ports.is_free("127.0.0.1", port)
        assert not ports.wait_free("127.0.0.1", port, 0.2)
        assert f"pid {os.getpid()}" in ports.owner(port)


def test_a_port_that_is_bound_but_not_listened_on_yet_is_taken(case):
    """vLLM binds with SO_REUSEADDR and SO_REUSEPORT minutes before it listens."""
    one = case("ok")
    with socket.socket() as early:
        early.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        early.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        early.bind(("127.0.0.1", one.config.launch["port"]))
        with pytest.raises(StartError, match="is taken by an unknown process"):
            one.server.start()


def test_connections_in_time_wait_do_not_take_a_port():
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = server.accept()
        accepted.close()  # the side that closes first keeps TIME_WAIT
        client.close()
    assert ports.wait_free("127.0.0.1", port, 2.0)


def test_two_runs_cannot_start_on_one_port(case):
    first = case("ok")
    port = first.config.launch["port"]
    held = ports.lock(port)
    assert held is not None
    try:
        with pytest.raises(StartError, match=f"port {port} on 127.0.0.1 is taken by another run of loadtest"):
            first.server.start()
    finally:
        os.close(held)
    again = ports.lock(port)
    assert again is not None, "a failed start leaves no lock"
    os.close(again)


def test_the_lock_lasts_as_long_as_the_server(case):
    one = case("ok")
    one.server.start()
    assert ports.lock(one.config.launch["port"]) is None
    one.server.stop()
    held = ports.lock(one.config.launch["port"])
    assert held is not None
    os.close(held)


def test_a_second_listener_on_the_port_of_our_server_is_refused(case):
    """It comes between the look at the port and the listening, as two servers that load at the same time do."""
    one = case("late")
    port = one.config.launch["port"]
    other = socket.socket()
    other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)

    def hang_up():
        with contextlib.suppress(OSError):
            while True:
                other.accept()[0].close()

    thread = threading.Thread(target=hang_up)

    def intrude(_line):
        if not thread.ident:
            other.bind(("127.0.0.1", port))
            other.listen()
            thread.start()

    try:
        with pytest.raises(StartError, match=f"port {port} on 127.0.0.1 is shared with pid {os.getpid()}"):
            one.server.start(intrude)
    finally:
        other.shutdown(socket.SHUT_RDWR)
        other.close()
        thread.join()
    assert gone(one.pids, 1.0)
