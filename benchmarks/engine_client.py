"""The streaming client without Locust: n greenlets in a closed loop, parsed in idle time, rows kept.

Run by fidelity.py in a process of its own: `python engine_client.py URL STREAMS REQUESTS OUT.json [PACE_S]`.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path

import gevent

from loadtest.load.engine import Connection, IdleParser, Reader, quiet_collector
from loadtest.load.parse import RequestFacts, parse_exchange
from loadtest.load.request import RequestBuilder
from loadtest.model import ClientSpec, Message, SamplingSpec


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    url, streams, requests, out = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    client = ClientSpec(pace_s=float(sys.argv[5]) if len(sys.argv) > 5 else 0.002)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536), hard))
    builder = RequestBuilder(url, api="chat", model="schedule", client=client, environ={})
    body = builder.body([Message("user", "Write a long answer. " * 20)], SamplingSpec("greedy", 0.0, 4096))
    facts = RequestFacts()
    rows: list[dict[str, object]] = []

    def handle(item: tuple[str, int, object]) -> None:
        request_id, turn, raw = item
        rows.append({**parse_exchange(raw, facts), "request_id": request_id, "turn": turn})

    reader = Reader(client.pace_s, client.read_timeout_s)
    parser = IdleParser(handle)

    def user(number: int) -> None:
        connection = Connection(reader, url)
        for turn in range(requests):
            request_id = f"bench-{number}-{turn}"
            raw = connection.exchange(builder.frame(body, request_id), total_timeout_s=client.total_timeout_s)
            parser.put((request_id, turn, raw))
            reader.pump()
        connection.close()

    with quiet_collector():
        before = cpu_s()
        gevent.joinall([gevent.spawn(user, i) for i in range(streams)], raise_error=True)
        parser.stop()
        used = cpu_s() - before
    if parser.errors:
        raise SystemExit(f"{parser.errors} answers were not parsed; last: {parser.last_error!r}")
    result = {
        "rows": rows,
        "cpu_s": used,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "connections": reader.connections_opened,
        "stalls_ms": reader.stalls_ms,
        "most_waiting": parser.most_waiting,
        "pid": os.getpid(),
    }
    out.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
