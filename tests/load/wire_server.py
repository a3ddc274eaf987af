"""A TCP server whose answers are written byte by byte by the test. Plain threads, no gevent."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from typing import Any, Self

Script = Callable[["Peer"], None]


class Peer:
    """One connection as the script sees it."""

    def __init__(self, sock: Any, number: int) -> None:
        self.sock, self.number, self.request = sock, number, b""

    def send(self, *parts: bytes, pause_s: float = 0.0) -> None:
        for i, part in enumerate(parts):
            if i and pause_s:
                time.sleep(pause_s)
            self.sock.sendall(part)

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            if not isinstance(self.sock, ssl.SSLSocket):
                self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()

    def wait_closed(self, timeout_s: float = 5.0) -> bool:
        """True once the client has closed."""
        self.sock.settimeout(timeout_s)
        try:
            return self.sock.recv(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    def read_request(self) -> bool:
        data = b""
        while b"\r\n\r\n" not in data:
            part = self.sock.recv(65536)
            if not part:
                return False
            data += part
        head, _, body = data.partition(b"\r\n\r\n")
        length = next((int(h[15:]) for h in head.lower().split(b"\r\n") if h.startswith(b"content-length:")), 0)
        while len(body) < length:
            part = self.sock.recv(65536)
            if not part:
                return False
            body += part
        self.request = head + b"\r\n\r\n" + body
        return True


class WireServer:
    """Calls `script(peer)` for each request; the script may close or reset the connection."""

    def __init__(self, script: Script, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        self.script, self.tls = script, tls
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        self.port = self._listener.getsockname()[1]
        self.connections = self.requests = 0
        self._peers: list[Peer] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for peer in self._peers:
            peer.close()
        self._thread.join(5)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.connections += 1
                peer = Peer(sock, self.connections)
                self._peers.append(peer)
                threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: Peer) -> None:
        with contextlib.suppress(OSError, ValueError):
            if self.tls is not None:
                peer.sock = self.tls.wrap_socket(peer.sock, server_side=True)
            while peer.sock.fileno() >= 0 and peer.read_request():
                self.requests += 1
                self.script(peer)
