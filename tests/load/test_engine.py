"""The streaming client over real sockets: every way an answer can end, and that nothing is lost or sent twice."""

from __future__ import annotations

import gc
import json
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest
from raw_kit import chunked, head
from wire_server import Peer, WireServer

from loadtest.load import tls
from loadtest.load.engine import Connection, IdleParser, Reader, quiet_collector
from loadtest.load.exchange import RawExchange
from loadtest.load.parse import RequestFacts, parse_exchange

TLS = Path(__file__).parents[1] / "data" / "load" / "tls"
REQUEST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"


def event(text: str | None, finish: str | None = None, total: int | None = None) -> bytes:
    choices = [] if text is None else [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]
    return b"data: %b\n\n" % json.dumps({"choices": choices, "usage": {"completion_tokens": total}}).encode()


EVENTS = (event("", None, 0), event("a", None, 1), event("b", "length", 3), event(None, None, 3), b"data: [DONE]\n\n")
ANSWER = chunked(*EVENTS)


@pytest.fixture
def reader() -> Iterator[Reader]:
    made = Reader(pace_s=0.0005, read_timeout_s=5.0)
    yield made
    made.close()


def parsed(raw: RawExchange) -> dict[str, Any]:
    return parse_exchange(raw, RequestFacts())


def is_whole(raw: RawExchange) -> bool:
    row = parsed(raw)
    return (row["outcome"], row["output_text"], row["completion_tokens"], row["chunk_tokens"]) == (
        "ok",
        "ab",
        3,
        [1, 2],
    )


def test_one_connection_serves_many_requests_with_kernel_stamps(reader: Reader) -> None:
    with WireServer(lambda peer: peer.send(ANSWER[:300], ANSWER[300:], pause_s=0.003)) as server:
        connection = Connection(reader, server.url)
        raws = [connection.exchange(REQUEST) for _ in range(5)]

        assert all(is_whole(raw) for raw in raws)
        assert (server.connections, reader.connections_opened, reader.resent) == (1, 1, 0)
    assert [raw.new_connection for raw in raws] == [True] + [False] * 4
    if reader.stamped:
        assert raws[-1].clock() == "kernel"
        row = parsed(raws[-1])
        assert 0 <= row["client_lag_us"] < 1_000_000
        assert row["first_byte_ns"] >= row["send_ns"]


def test_an_answer_cut_at_any_byte_is_the_same(reader: Reader) -> None:
    """Two reads that meet anywhere: in the head, a chunk size, a CRLF, the last chunk."""
    cuts = iter(range(1, len(ANSWER)))

    def script(peer: Peer) -> None:
        at = next(cuts)
        peer.send(ANSWER[:at], ANSWER[at:], pause_s=0.0015)

    with WireServer(script) as server:
        connection = Connection(reader, server.url)
        for at in range(1, len(ANSWER)):
            assert is_whole(connection.exchange(REQUEST)), at
        assert server.connections == 1


BODY = b"".join(EVENTS)
CHUNKS = ANSWER[: -len(b"0\r\n\r\n")]
KEEP = "transfer-encoding: chunked"
_FALSE = EVENTS[0] + b"\r\n0\r\n\r\n"  # looks like a last chunk at the end of a read, but lies inside a chunk
_SIZE = len(_FALSE) + len(BODY) - len(EVENTS[0])
FALSE_END = [head(extra=KEEP) + b"%x\r\n%b" % (_SIZE, _FALSE), BODY[len(EVENTS[0]) :] + b"\r\n0\r\n\r\n"]


@pytest.mark.parametrize(
    ("wire", "reused"),
    [
        ([head(extra=f"content-length: {len(BODY)}"), BODY], True),
        ([CHUNKS, b"0\r\nx-checksum: 1\r\ny: 2\r\n\r\n"], True),
        ([CHUNKS, b"0\r\nx-long: " + b"l" * 3000 + b"\r\n\r\n"], True),
        ([CHUNKS, b"0;last=1\r\n\r\n"], True),
        ([CHUNKS, b"000\r\n\r\n"], True),
        ([CHUNKS + b"0", b"\r", b"\n", b"\r", b"\n"], True),
        ([head(extra=KEEP) + b"%x;ext=1\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)], True),
        (FALSE_END, True),
        ([chunked(*(e.replace(b"\n\n", b"\r\n\r\n") for e in EVENTS))], True),
        ([head(extra=KEEP + "\r\nconnection: close") + ANSWER.partition(b"\r\n\r\n")[2]], False),
        ([b"HTTP/1.0 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(BODY), BODY)], False),
        ([b"HTTP/1.1 100 Continue\r\n\r\n", ANSWER], True),
        ([ANSWER + b"stray"], False),
    ],
)
def test_every_way_to_end_an_answer(reader: Reader, wire: list[bytes], reused: bool) -> None:
    """The end is found, the connection is kept or given up as it must be."""
    with WireServer(lambda peer: peer.send(*wire, pause_s=0.002)) as server:
        connection = Connection(reader, server.url)
        first, second = connection.exchange(REQUEST), connection.exchange(REQUEST)

        assert (first.end, second.end) == ("complete", "complete")
        assert is_whole(first), parsed(first)
        assert is_whole(second)
        assert (server.connections == 1) == reused


def test_a_body_that_ends_with_the_connection(reader: Reader) -> None:
    def script(peer: Peer) -> None:
        peer.send(head() + BODY)
        peer.close()

    with WireServer(script) as server:
        connection = Connection(reader, server.url)
        raws = [connection.exchange(REQUEST) for _ in range(2)]

    assert all(is_whole(raw) and raw.end == "complete" for raw in raws)


def test_http_500_keeps_the_connection(reader: Reader) -> None:
    body = b'{"error":{"message":"busy","code":500}}'
    wire = b"HTTP/1.1 500 Error\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    with WireServer(lambda peer: peer.send(wire)) as server:
        connection = Connection(reader, server.url)
        rows = [parsed(connection.exchange(REQUEST)) for _ in range(3)]

        assert [(r["outcome"], r["error"]) for r in rows] == [("http_error", "HTTP 500: 500: busy")] * 3
        assert server.connections == 1


def test_cut_and_reset_keep_what_arrived(reader: Reader) -> None:
    def script(peer: Peer) -> None:
        peer.send(chunked(*EVENTS[:2], last=False))
        time.sleep(0.02)
        peer.reset() if peer.number == 2 else peer.close()

    with WireServer(script) as server:
        connection = Connection(reader, server.url)
        closed, reset = connection.exchange(REQUEST), connection.exchange(REQUEST)

    assert (closed.end, reset.end) == ("closed", "reset")
    assert [parsed(r)["outcome"] for r in (closed, reset)] == ["truncated", "connection_error"]
    assert all(parsed(r)["output_text"] == "a" for r in (closed, reset))


def test_connection_closed_while_idle_is_replaced_quietly(reader: Reader) -> None:
    def script(peer: Peer) -> None:
        peer.send(ANSWER)
        peer.close()

    with WireServer(script) as server:
        connection = Connection(reader, server.url)
        for _ in range(3):
            assert is_whole(connection.exchange(REQUEST))
            gevent.sleep(0.05)  # the reader sees the end of the idle connection
        assert (server.requests, server.connections, reader.resent) == (3, 3, 0)


def test_request_lost_to_a_closing_idle_connection_is_sent_once_more(reader: Reader) -> None:
    """The server closes just as the request arrives: nothing of the answer came, so a new connection is right."""

    def script(peer: Peer) -> None:
        if peer.number == 1 and peer.request.endswith(b"2"):
            peer.close()
        else:
            peer.send(ANSWER)

    with WireServer(script) as server:
        connection = Connection(reader, server.url)
        first, second = connection.exchange(REQUEST[:-2] + b"11"), connection.exchange(REQUEST[:-2] + b"22")

        assert is_whole(first)
        assert is_whole(second)
        assert (first.resent, second.resent, reader.resent, server.connections) == (False, True, 1, 2)
    assert parsed(second)["warning"] == "resent"


@pytest.mark.parametrize("answered", [b"", ANSWER[:200]])
def test_nothing_else_is_ever_sent_twice(reader: Reader, answered: bytes) -> None:
    """A new connection that is closed, and a reused one after a first byte: failures, not retries."""

    def script(peer: Peer) -> None:
        if answered and server.requests == 1:
            peer.send(ANSWER)
            return
        peer.send(answered)
        time.sleep(0.01)
        peer.close()

    with WireServer(script) as server:
        connection = Connection(reader, server.url)
        raws = [connection.exchange(REQUEST) for _ in range(2 if answered else 1)]

        assert raws[-1].end == "closed"
        assert parsed(raws[-1])["outcome"] == ("truncated" if answered else "connection_error")
        assert (server.requests, reader.resent) == (len(raws), 0)


def test_silence_is_a_read_timeout_and_slowness_a_total_timeout(reader: Reader) -> None:
    def script(peer: Peer) -> None:
        peer.send(chunked(*EVENTS[:2], last=False))
        part = chunked(EVENTS[1], last=False).partition(b"\r\n\r\n")[2]
        for _ in range(100 if b"drip" in peer.request else 0):
            time.sleep(0.05)
            peer.send(part)
        peer.wait_closed()

    with WireServer(script) as server:
        started = time.monotonic()
        silent = Connection(reader, server.url).exchange(REQUEST, read_timeout_s=0.3)
        slow = Connection(reader, server.url).exchange(
            REQUEST.replace(b": x", b": drip"), read_timeout_s=2.0, total_timeout_s=0.5
        )

        assert time.monotonic() - started < 4
    assert (silent.end, slow.end) == ("read_timeout", "total_timeout")
    assert [parsed(r)["outcome"] for r in (silent, slow)] == ["read_timeout", "total_timeout"]
    assert parsed(slow)["chunks"] >= 3


def test_no_server_is_a_connection_error(reader: Reader) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    raw = Connection(reader, f"http://127.0.0.1:{port}").exchange(REQUEST)

    assert (raw.end, raw.send_ns) == ("connection_error", None)
    assert f"127.0.0.1:{port}" in (raw.error or "")
    assert parsed(raw)["outcome"] == "connection_error"


def test_a_full_backlog_is_a_connect_timeout(reader: Reader) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        fill = [socket.socket() for _ in range(4)]
        for s in fill:
            s.setblocking(False)
            s.connect_ex(("127.0.0.1", port))
        raw = Connection(reader, f"http://127.0.0.1:{port}", connect_timeout_s=0.3).exchange(REQUEST)
        for s in fill:
            s.close()

    assert (raw.end, parsed(raw)["outcome"]) == ("connect_timeout", "connect_timeout")


def test_bytes_that_are_no_http(reader: Reader) -> None:
    with WireServer(lambda peer: peer.send(b"SSH-2.0-OpenSSH_9.6\r\n")) as server:
        raw = Connection(reader, server.url).exchange(REQUEST)

    assert (raw.end, parsed(raw)["outcome"]) == ("bad_http", "bad_payload")


def test_bad_chunk_size(reader: Reader) -> None:
    with WireServer(lambda peer: peer.send(head(extra=KEEP) + b"zz\r\ndata: x\r\n0\r\n\r\n")) as server:
        raw = Connection(reader, server.url).exchange(REQUEST)

    assert parsed(raw)["outcome"] == "bad_payload"


def test_killed_user_leaves_a_censored_row_and_no_half_read_connection(reader: Reader) -> None:
    closed = []

    def script(peer: Peer) -> None:
        if peer.number == 1:
            peer.send(chunked(*EVENTS[:2], last=False))
            closed.append(peer.wait_closed())
        else:
            peer.send(ANSWER)

    with WireServer(script) as server:
        connection = Connection(reader, server.url)
        user = gevent.spawn(connection.exchange, REQUEST)
        gevent.sleep(0.1)
        user.kill()
        partial = connection.partial()

        assert partial is not None
        row = parsed(partial)
        assert (row["outcome"], row["output_text"], row["e2e_us"]) == ("censored", "a", None)
        assert reader.active == 0
        assert is_whole(connection.exchange(REQUEST))
        assert connection.partial() is None
        assert (server.connections, closed) == (2, [True])


def test_drain_deadline_ends_all_requests_in_flight(reader: Reader) -> None:
    def script(peer: Peer) -> None:
        peer.send(chunked(*EVENTS[:2], last=False))
        peer.wait_closed()

    with WireServer(script) as server:
        users = [gevent.spawn(Connection(reader, server.url).exchange, REQUEST) for _ in range(5)]
        gevent.sleep(0.1)

        assert (reader.active, reader.abort_active()) == (5, 5)
        gevent.joinall(users, timeout=2)
        rows = [parsed(u.value) for u in users]
    assert [(r["outcome"], r["chunks"], r["error"]) for r in rows] == [("censored", 1, "drain deadline")] * 5


def test_large_request_and_large_answer(reader: Reader) -> None:
    """Neither fits into a socket buffer."""
    body = json.dumps(
        {"choices": [{"message": {"content": "x" * 3_000_000}}], "usage": {"completion_tokens": 9}}
    ).encode()
    wire = head(content_type="application/json", extra=f"content-length: {len(body)}") + body
    big = b"POST / HTTP/1.1\r\nContent-Length: 3000000\r\n\r\n" + b"p" * 3_000_000

    def script(peer: Peer) -> None:
        time.sleep(0.05)
        peer.send(wire)

    with WireServer(script) as server:
        raw = Connection(reader, server.url).exchange(big)
        assert server.requests == 1
    row = parse_exchange(raw, RequestFacts(stream=False))
    assert (row["outcome"], row["output_bytes"]) == ("ok", 3_000_000)


def test_early_answer_to_a_request_that_is_not_read(reader: Reader) -> None:
    """A 413 that comes before the request is taken is the answer, not a broken pipe."""

    def early(peer: Peer) -> None:
        peer.send(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        time.sleep(0.3)
        peer.close()

    with WireServer(early) as server:
        big = b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\n12345" + b"p" * 8_000_000
        raw = Connection(reader, server.url).exchange(big)

    assert parsed(raw)["http_status"] == 413


def test_watcher_per_socket_where_there_is_no_epoll() -> None:
    reader = Reader(read_timeout_s=5.0, epoll=False)
    with WireServer(lambda peer: peer.send(ANSWER[:200], ANSWER[200:], pause_s=0.002)) as server:
        connection = Connection(reader, server.url)
        raws = [connection.exchange(REQUEST) for _ in range(3)]

        assert all(is_whole(raw) for raw in raws)
        assert server.connections == 1
    reader.close()


def test_reads_without_a_stamp_fall_back_to_the_user_clock_and_are_marked(reader: Reader) -> None:
    with WireServer(lambda peer: peer.send(ANSWER[:200], ANSWER[200:], pause_s=0.005)) as server:
        connection = Connection(reader, server.url)
        connection.exchange(REQUEST)
        connection._socket.setsockopt(socket.SOL_SOCKET, 35, 0)
        raw = connection.exchange(REQUEST)

    assert is_whole(raw)
    assert (raw.clock(), parsed(raw)["client_lag_us"]) == ("user", None)
    assert reader.user_stamps >= 2


def _tls_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")
    return context


def test_https_with_kernel_stamps(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "cert.pem"))
    tls._context.cache_clear()

    def script(peer: Peer) -> None:
        peer.send(ANSWER[:200], ANSWER[200:], pause_s=0.003)

    with WireServer(script, tls=_tls_context()) as server:
        connection = Connection(reader, server.url)
        raws = [connection.exchange(REQUEST) for _ in range(3)]
        assert [is_whole(raw) for raw in raws] == [True] * 3, raws[0].error
        assert server.connections == 1
    if reader.stamped:
        assert raws[-1].clock() == "kernel"
    tls._context.cache_clear()


def test_untrusted_certificate_is_a_connection_error(reader: Reader) -> None:
    tls._context.cache_clear()
    with WireServer(lambda peer: peer.send(ANSWER), tls=_tls_context()) as server:
        raw = Connection(reader, server.url).exchange(REQUEST)

    assert raw.end == "connection_error"
    assert "CERTIFICATE_VERIFY_FAILED" in (raw.error or "")


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_ipv6(reader: Reader) -> None:
    try:
        server = WireServer(lambda peer: peer.send(ANSWER), host="::1")
    except OSError:
        pytest.skip("no IPv6 loopback here")
    with server:
        assert is_whole(Connection(reader, f"http://[::1]:{server.port}/v1").exchange(REQUEST))


def test_many_streams_at_once(reader: Reader) -> None:
    """64 users, 4 requests each: every row whole, one connection per user."""
    parts = [ANSWER[i : i + 150] for i in range(0, len(ANSWER), 150)]
    rows: list[dict[str, Any]] = []
    parser: IdleParser[RawExchange] = IdleParser(lambda raw: rows.append(parsed(raw)))
    with WireServer(lambda peer: peer.send(*parts, pause_s=0.005)) as server, quiet_collector():

        def user() -> None:
            connection = Connection(reader, server.url)
            for _ in range(4):
                parser.put(connection.exchange(REQUEST))
                reader.pump()

        gevent.joinall([gevent.spawn(user) for _ in range(64)], raise_error=True, timeout=30)
        parser.stop()
        assert (server.requests, server.connections) == (256, 64)
    assert [r["outcome"] for r in rows] == ["ok"] * 256
    assert parser.errors == 0


def test_idle_parser_handles_all_and_counts_what_fails() -> None:
    seen = []

    def handle(item: int) -> None:
        if item == 3:
            raise ValueError("three")
        seen.append(item)

    parser = IdleParser(handle, limit=5)
    for i in range(8):
        parser.put(i)
    assert len(parser) == 5  # above the limit the oldest are handled at once
    gevent.sleep(0.05)
    parser.put(8)
    parser.stop()

    assert seen == [0, 1, 2, 4, 5, 6, 7, 8]
    assert (parser.handled, parser.errors, parser.most_waiting) == (9, 1, 6)
    assert isinstance(parser.last_error, ValueError)


def test_quiet_collector_may_be_used_again_and_restores() -> None:
    gc.unfreeze()
    gc.collect()
    immortal = gc.get_freeze_count()  # 0 on 3.11; 3.12 counts its immortal objects as frozen after each collection
    quiet = quiet_collector()
    for _ in range(2):
        with quiet:
            assert not gc.isenabled()
            assert gc.get_freeze_count() > immortal
        assert gc.isenabled()
    assert gc.get_freeze_count() == immortal
