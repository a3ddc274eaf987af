"""A scripted HTTP server for the tests of this room."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


@dataclass
class Reply:
    """What the server answers. `delay_s` passes before the first byte."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0


class Web:
    """`pages` maps a path to a reply, or to a function of the request number that gives one."""

    def __init__(self) -> None:
        self.pages: dict[str, Reply | Callable[[int], Reply]] = {}
        self.seen: list[tuple[str, dict[str, str]]] = []
        web = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                number = sum(path == self.path for path, _ in web.seen)
                web.seen.append((self.path, dict(self.headers)))
                reply = web.pages.get(self.path, Reply(b"not found", 404))
                if callable(reply):
                    reply = reply(number)
                time.sleep(reply.delay_s)
                try:
                    self.send_response(reply.status)
                    for name, value in reply.headers.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(reply.body)))
                    self.end_headers()
                    self.wfile.write(reply.body)
                except OSError:
                    self.close_connection = True

            do_POST = do_GET  # noqa: N815 - the name is http.server's

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def make_web() -> Iterator[Callable[[], Web]]:
    """Starts scripted servers; all are closed after the test."""
    webs: list[Web] = []

    def make() -> Web:
        webs.append(Web())
        return webs[-1]

    yield make
    for web in webs:
        web.close()


@pytest.fixture
def web(make_web: Callable[[], Web]) -> Web:
    """One scripted server."""
    return make_web()


@pytest.fixture
def reply() -> type[Reply]:
    """The Reply class: test modules cannot import a conftest."""
    return Reply
