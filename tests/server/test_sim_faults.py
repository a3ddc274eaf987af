"""Faults that the simulated server can be asked for, seen from a raw socket; and its options and command line."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from loadtest.errors import InputError, StartError
from loadtest.server.sim.faults import FaultPlan, parse_fault
from loadtest.server.sim.options import sim_argv, sim_options
from loadtest.server.sim.process import simulated_server


def exchange(port: int, timeout_s: float = 10.0, **extra: Any) -> tuple[bytes, str]:
    """Everything that one connection gets for one request, and how it ended: eof, reset or timeout."""
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 40,
        "ignore_eos": True,
        "stream": True,
        **extra,
    }
    data = json.dumps(body).encode()
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as connection:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: sim\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        connection.sendall(head % len(data) + data)
        received = b""
        try:
            while part := connection.recv(65536):
                received += part
        except ConnectionResetError:
            return received, "reset"
        except TimeoutError:
            return received, "timeout"
    return received, "eof"


def test_error_is_an_event_in_a_200_stream(data_dir: Path) -> None:
    """Half of the tokens, then vLLM's error line and [DONE], without finish_reason or usage: as captured."""
    with simulated_server(fail=["error:100"], speed=10) as server:
        raw, end = exchange(server.port)
        assert (raw.split(b"\r\n")[0], end) == (b"HTTP/1.1 200 OK", "eof")
        captured = (data_dir / "sim/enginedeath-midstream.sse").read_text().strip().split("\n\n")[-2:]
        events = [line for line in raw.decode().splitlines() if line.startswith("data: ")]
        assert events[-2:] == captured
        assert len(events) >= 2 + 20
        assert b'"length"' not in raw
        assert b"prompt_tokens" not in raw
        raw, _ = exchange(server.port, stream=False)
        assert raw.startswith(b"HTTP/1.1 500")


def test_cut_ends_the_connection_without_done() -> None:
    """A clean FIN in mid-stream: no last HTTP chunk, no [DONE]."""
    with simulated_server(fail=["cut:100"], speed=10) as server:
        raw, end = exchange(server.port)
    assert end == "eof"
    assert raw.count(b"data: ") >= 20
    assert b"[DONE]" not in raw
    assert not raw.endswith(b"0\r\n\r\n")


def test_reset_is_a_tcp_reset() -> None:
    """RST in mid-stream."""
    with simulated_server(fail=["reset:100"], speed=10) as server:
        raw, end = exchange(server.port)
    assert end == "reset"
    assert b"[DONE]" not in raw


def test_stall_goes_silent_and_keeps_the_connection() -> None:
    """Some tokens, then nothing, without an end."""
    with simulated_server(fail=["stall:100"], speed=10) as server:
        raw, end = exchange(server.port, timeout_s=1.0)
    assert end == "timeout"
    assert raw.count(b"data: ") >= 20
    assert b"[DONE]" not in raw


def test_empty_is_a_whole_stream_without_a_token() -> None:
    """Only the role chunk and [DONE]."""
    with simulated_server(fail=["empty:100"]) as server:
        raw, end = exchange(server.port)
    events = [line for line in raw.decode().splitlines() if line.startswith("data: ")]
    assert (end, len(events), events[-1]) == ("eof", 2, "data: [DONE]")
    assert '"content":""' in events[0]


def test_http500_hits_exactly_its_share() -> None:
    """25 % of 16 requests, evenly spread, fail before any stream; the others are untouched."""
    with simulated_server(fail=["http500:25"], speed=20) as server:
        codes = [int(exchange(server.port)[0].split()[1]) for _ in range(16)]
    assert codes == [200, 200, 200, 500] * 4


def test_engine_death_ends_streams_and_then_the_server() -> None:
    """Running streams get the error event and [DONE]; the process ends with a code and says why."""
    with simulated_server(fail=["engine-death:0.6"]) as server:
        raw, _ = exchange(server.port, max_tokens=4000)
        assert raw.startswith(b"HTTP/1.1 200")
        assert b'data: {"error": {"message": "EngineCore encountered an issue.' in raw
        assert b"data: [DONE]" in raw
        assert server.process.wait(10) == 1
        assert "engine died" in server.log.read_text()
        with pytest.raises(ConnectionRefusedError):
            exchange(server.port)


def test_faulty_requests_leave_nothing_running() -> None:
    """After cut and reset streams the engine is idle again, and the server answers."""
    with simulated_server(fail=["cut:50"], speed=10) as server:
        for _ in range(4):
            exchange(server.port)
        deadline = time.monotonic() + 5
        idle = b'vllm:num_requests_running{engine="0",model_name="sim-model"} 0.0'
        while True:
            with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
                connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
                page = b"".join(iter(lambda: connection.recv(65536), b""))
            if idle in page or time.monotonic() > deadline:
                break
        assert idle in page
        assert b'finished_reason="length",model_name="sim-model"} 2.0' in page
        assert server.log.read_text().count("\n") == 1  # no tracebacks


def test_fault_plan_spreads_evenly() -> None:
    """3 % of 200 requests are 6, never two in a row; of two faults that meet the first wins."""
    plan = FaultPlan((parse_fault("cut:3"),))
    hits = [k for k in range(200) if plan.next()]
    assert len(hits) == 6
    assert min(b - a for a, b in pairwise(hits)) > 30
    both = FaultPlan((parse_fault("error:100"), parse_fault("cut:100")))
    assert both.next() == "error"
    assert FaultPlan((parse_fault("engine-death:3"),)).death_s == 3


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: sim_options(method="medusa"), ["medusa", "eagle3"]),
        (lambda: sim_options(gamma=4), ["gamma 4", "needs a method"]),
        (lambda: sim_options(method="ngram", gamma=0), ["gamma 0", "1 to 64"]),
        (lambda: sim_options(per_request_metrics="detailed"), ["per-request-metrics", "requires speculation"]),
        (lambda: sim_options(method="ngram", per_request_metrics="all"), ["all", "summary"]),
        (lambda: sim_options(speed=0), ["speed 0", "positive"]),
        (lambda: sim_options(max_num_seqs=0), ["max-num-seqs 0", "at least 1"]),
        (lambda: sim_options(colour="red"), ["colour", "known"]),
        (lambda: sim_options(fail=["crash:5"]), ["crash", "engine-death"]),
        (lambda: sim_options(fail=["cut:500"]), ["cut:500", "percentage"]),
        (lambda: sim_options(fail=["cut"]), ["'cut'", "cut:5"]),
        (lambda: sim_options(acceptance="/no/such/file"), ["/no/such/file", "JSON"]),
        (lambda: sim_options(acceptance='{"poetry": {"conditional": [1]}}'), ["poetry", "non_english"]),
        (lambda: sim_options(acceptance='{"code": {"conditional": [1.5]}}'), ["code", "between 0 and 1"]),
        (lambda: sim_options(acceptance='{"code": [0.5]}'), ["code", "coverage"]),
    ],
)
def test_bad_options_are_explained(call: Callable[[], object], words: list[str]) -> None:
    """The error names the option, the value seen and what is allowed."""
    with pytest.raises(InputError) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value


def test_acceptance_overrides_reach_the_answers(tmp_path: Path) -> None:
    """From a file and inline: full acceptance of every draft, or none; "*" gives way to a named stratum."""
    file = tmp_path / "acceptance.json"
    file.write_text('{"*": {"conditional": [0.0]}, "chat": {"coverage": 1, "conditional": [1.0]}}')
    options = sim_options(method="ngram", acceptance=str(file))
    assert options.acceptance["code"].survival(2) == (0.0, 0.0)
    assert options.acceptance["chat"].survival(2) == (1.0, 1.0)
    with simulated_server(method="ngram", acceptance=str(file), speed=10) as server:
        raw, _ = exchange(server.port, stream=False, temperature=0, max_tokens=41)
        spec = json.loads(raw.split(b"\r\n\r\n", 1)[1])["metrics"]["speculative_decoding"]
    assert spec["per_step_accepted"] == [4] * 8
    assert spec["draft_acceptance_rate"] == 1.0


def test_option_tables_become_arguments() -> None:
    """Lists repeat, mappings become JSON, booleans flags, None nothing."""
    table = {"method": "ngram", "max_num_seqs": 8, "fail": ["cut:1", "error:2"], "timing_metrics": False, "model": None}
    assert sim_argv(table) == [
        "--method", "ngram", "--max-num-seqs", "8", "--fail", "cut:1", "--fail", "error:2", "--no-timing-metrics",
    ]  # fmt: skip
    assert sim_argv({"acceptance": {"code": {"conditional": [1]}}})[1] == '{"code": {"conditional": [1]}}'


def test_a_failed_start_says_why() -> None:
    """A bad option and a taken port end the process with the cause in its output."""
    with pytest.raises(StartError, match=r"code 2.*gamma 99"), simulated_server(method="ngram", gamma=99):
        pass
    with simulated_server() as server:  # noqa: SIM117 - the second needs the first one's port
        with pytest.raises(StartError, match=r"cannot listen on 127\.0\.0\.1"), simulated_server(port=server.port):
            pass


def test_help_shows_an_example() -> None:
    """`python -m loadtest.server.sim --help`."""
    done = subprocess.run(
        [sys.executable, "-m", "loadtest.server.sim", "--help"], capture_output=True, text=True, check=True
    )
    assert "Example:" in done.stdout
    assert "loadtest sim --port 8000 --method eagle3" in done.stdout
    assert "SIMULATED" in done.stdout


def test_usage_errors_exit_with_2() -> None:
    """An unknown method is a usage error, not a traceback."""
    argv = [sys.executable, "-m", "loadtest.server.sim", "--method", "medusa"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "medusa" in done.stderr
    assert "Traceback" not in done.stderr
