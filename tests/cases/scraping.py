"""Served /metrics pages and the real scraper processes that record them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from loadtest.server.scraper import ScraperProcess


@dataclass(frozen=True)
class Reply:
    """What the page server answers."""

    body: bytes | str = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "text/plain; version=0.0.4"})


Page = str | bytes | Reply


@dataclass
class Pages:
    """One sequence of replies per endpoint: [(before, after), …]. `other` are further paths of the same server."""

    ends: Sequence[tuple[Page, Page]]
    other: Mapping[str, Reply] = field(default_factory=dict)


class PageServer:
    """Serves `/<k>/metrics` for endpoint k; what it says is set by the test."""

    def __init__(self) -> None:
        self.replies: dict[str, Reply] = {}
        self.asked: list[tuple[str, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.asked.append((self.path, self.headers.get("Accept", "")))
                reply = outer.replies.get(self.path, Reply(b"not found", 404))
                body = reply.body.encode() if isinstance(reply.body, str) else reply.body
                self.send_response(reply.status)
                length = {"Content-Length": str(len(body))}
                for name, value in {**length, **reply.headers}.items():
                    self.send_header(name, value.replace("{server}", outer.url))
                self.end_headers()
                self.wfile.write(body)

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


class Scrapers:
    """Real scraper processes, one per number of endpoints, started when first needed."""

    def __init__(self, start: Callable[[list[str]], ScraperProcess]) -> None:
        self.server = PageServer()
        self._start = start
        self._running: dict[int, ScraperProcess] = {}

    def record(self, cell_dir: Path, pages: Pages) -> tuple[int, int]:
        """Records all four edges into the cell's folder; -> (window_start_ns, window_end_ns) as the scraper says."""
        n = len(pages.ends)
        if n not in self._running:
            self._running[n] = self._start([f"{self.server.url}/{k}/metrics" for k in range(n)])
        self.server.replies = dict(pages.other)
        cell_dir.mkdir(parents=True, exist_ok=True)
        times = []
        with self._running[n].connect() as control:
            self._serve([before for before, _ in pages.ends])
            assert control.ask({"op": "open", "cell_id": cell_dir.name, "dir": str(cell_dir)})["ok"]
            for edge in ("idle_start", "window_start", "window_end", "idle_end"):
                if edge == "window_end":
                    self._serve([after for _, after in pages.ends])
                times.append(control.ask({"op": "edge", "name": edge})["t_ns"])
            assert control.ask({"op": "close"})["ok"]
        return times[1], times[2]

    def _serve(self, pages: Sequence[Page]) -> None:
        for k, page in enumerate(pages):
            self.server.replies[f"/{k}/metrics"] = page if isinstance(page, Reply) else Reply(page)

    def close(self) -> None:
        for process in self._running.values():
            process.stop()
        self.server.close()


def zeroed(page: str) -> str:
    """The same page before anything happened: every counter 0, no `_created`."""
    lines = []
    for line in page.splitlines():
        if line.startswith("#") or "_created" in line or not line.strip():
            continue
        head, _, _ = line.rpartition("}") if "}" in line.split(" # ")[0] else line.partition(" ")
        lines.append(f"{line.split(' # ')[0].rpartition('}')[0]}}} 0" if "}" in line else f"{head} 0")
    types = [line for line in page.splitlines() if line.startswith("# TYPE")]
    return "\n".join([*types, *lines]) + "\n"
