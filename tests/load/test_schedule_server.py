"""The benchmark's server and the client against each other: rows equal the server's own log, failures are all seen."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import gevent
import pytest

from loadtest.load.engine import Connection, Reader
from loadtest.load.parse import RequestFacts, parse_exchange
from loadtest.load.request import RequestBuilder
from loadtest.model import ClientSpec, Message, SamplingSpec

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import schedule

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="the benchmark's server needs gcc")
USERS, TURNS, TOKENS, EVERY = 8, 4, 10, 4
OUTCOMES = {
    "none": "ok",
    "error": "stream_error",
    "cut": "truncated",
    "reset": "connection_error",
    "stall": "read_timeout",
    "http500": "http_error",
    "empty": "empty",
}


@pytest.mark.parametrize("fail", OUTCOMES)
def test_rows_equal_the_servers_log(tmp_path: Path, fail: str) -> None:
    """Every fourth request fails: each is typed, the others are exact, and connections live as long as they can."""
    reader = Reader(read_timeout_s=0.6)
    rows = {}
    log = tmp_path / "truth.log"
    with schedule.server(log, k=3, n=TOKENS, t0=5, step=5, fail=fail, every=EVERY) as url:
        builder = RequestBuilder(url, api="chat", model="m", client=ClientSpec(), environ={})
        body = builder.body([Message("user", "hi")], SamplingSpec("greedy", 0.0, TOKENS))

        def user(number: int) -> None:
            connection = Connection(reader, url)
            for turn in range(TURNS):
                request_id = f"{number}-{turn}"
                raw = connection.exchange(builder.frame(body, request_id), total_timeout_s=20)
                rows[request_id] = parse_exchange(raw, RequestFacts())

        gevent.joinall([gevent.spawn(user, i) for i in range(USERS)], raise_error=True)
    truth = schedule.read_log(log)
    reader.close()

    failed = USERS * TURNS // EVERY if fail != "none" else 0
    assert rows.keys() == truth.keys()
    assert sum(r["outcome"] == OUTCOMES[fail] != "ok" for r in rows.values()) == failed
    for request_id, row in rows.items():
        told = truth[request_id]
        assert (row["outcome"] == "ok") == (told.how == "ok"), (row, told)
        if told.how == "ok":
            assert (row["completion_tokens"], row["chunks"]) == (told.tokens, len(told.sent_ns))
            assert row["chunk_tokens"] == [3, 3, 3, 1]
        elif told.sent_ns:
            assert row["chunks"] == len(told.sent_ns)
    broken = failed if fail in ("cut", "reset", "stall") else 0
    assert max(t.connection for t in truth.values()) <= USERS + broken
