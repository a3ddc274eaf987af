"""The master's line to the scraper: one JSON object per line over a Unix socket, one answer per request.

Import after locust: the socket is gevent's then, and waiting for an answer lets the hub go on.
"""

from __future__ import annotations

import socket
import time
from typing import Any

import orjson

ANSWER_TIMEOUT_S = 30.0
"""A scrape of a loaded server may take seconds; the settled edge has its own time on top."""


class ScrapeLink:
    """Control channel of one scraper. Failures do not end the cell: they are kept per edge and judged later."""

    def __init__(self, path: str | None) -> None:
        self.path = path
        self._socket: socket.socket | None = None
        self._rest = b""

    def open(self, cell_id: str, folder: str) -> str | None:
        """Starts the recording of a cell. Returns what went wrong, or None."""
        answer = self._ask({"op": "open", "cell_id": cell_id, "dir": folder})
        return None if answer.get("ok") else str(answer.get("error", answer))

    def edge(self, name: str, settle_s: float | None = None) -> dict[str, Any]:
        """Scrapes now; {t_ns, ok, errors}. Without a scraper, `ok` is null: not measured."""
        request: dict[str, Any] = {"op": "edge", "name": name}
        if settle_s is not None:
            request["settle_s"] = settle_s
        if self.path is None:
            return {"t_ns": time.time_ns(), "ok": None, "errors": ["no scraper"]}
        answer = self._ask(request, ANSWER_TIMEOUT_S + (settle_s or 0.0))
        errors = list(answer.get("errors") or [])
        if not answer.get("ok"):
            errors.append(str(answer.get("error") or "edge refused"))
        return {"t_ns": answer.get("t_ns") or time.time_ns(), "ok": bool(answer.get("ok")), "errors": errors}

    def close(self) -> str | None:
        """Ends the recording of a cell. Returns what went wrong, or None."""
        answer = self._ask({"op": "close"})
        return None if answer.get("ok") else str(answer.get("error", answer))

    def disconnect(self) -> None:
        """Drops the connection; the next request makes a new one."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._rest = None, b""

    def _ask(self, request: dict[str, Any], timeout_s: float = ANSWER_TIMEOUT_S) -> dict[str, Any]:
        if self.path is None:
            return {"ok": True}
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self._socket.settimeout(timeout_s)
                self._socket.connect(self.path)
            self._socket.settimeout(timeout_s)
            self._socket.sendall(orjson.dumps(request) + b"\n")
            while b"\n" not in self._rest:
                data = self._socket.recv(65536)
                if not data:
                    raise ConnectionError("the scraper closed the control channel")
                self._rest += data
            line, _, self._rest = self._rest.partition(b"\n")
            answer = orjson.loads(line)
            return answer if isinstance(answer, dict) else {"ok": False, "error": f"not an object: {answer!r}"}
        except (OSError, orjson.JSONDecodeError) as e:
            self.disconnect()
            return {"ok": False, "error": f"scraper at {self.path}: {e!r}"}
