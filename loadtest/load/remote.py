"""Workers on other hosts: where they come to, and how they hear that the run is over. No locust, no gevent here.

Between two Locust starts (the next server is loading) nobody listens at the master's port; a worker looks there until
somebody does. What it finds tells it what to do: Locust's ZeroMQ speaks first, and so does our farewell.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from loadtest.errors import InputError

DEFAULT_PORT = 5557
"""Locust's own."""
FIRST_WAIT_S = 600.0
"""For all workers at the first server: a cluster may have to pull the image first."""
NEXT_WAIT_S = 120.0
"""At a later one: they were there before, and a new process is up in seconds."""
FAREWELL = b"loadtest: the run is over\n"
ZMTP = b"\xff"
"""First byte of ZeroMQ's greeting (ZMTP 3.1, section 3.1)."""
FAREWELL_S = 6.0
"""Workers look twice a second; one on a slow host needs seconds from the end of Locust to its next look."""
LOOK_TIMEOUT_S = 2.0

Found = Literal["master", "farewell", "nobody"]


@dataclass(frozen=True, slots=True)
class Remote:
    """What `--expect-workers`, `--bind` and `--port` say."""

    workers: int
    host: str
    port: int = DEFAULT_PORT

    def check(self) -> None:
        """Raises InputError where the port cannot be bound now: better before a server is started."""
        try:
            with _listen(self.host, self.port):
                pass
        except OSError as e:
            raise InputError(
                f"--bind {self.host} --port {self.port}: {e}; give an address of this host that the workers reach, "
                "and a free port"
            ) from e


def is_loopback(host: str) -> bool:
    """Whether an address or name means this host only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def look(host: str, port: int) -> Found:
    """Who answers at the master's port now."""
    try:
        with socket.create_connection((host, port), timeout=LOOK_TIMEOUT_S) as s:
            first = s.recv(len(FAREWELL))
    except OSError:
        return "nobody"
    if first.startswith(FAREWELL[:9]):
        return "farewell"
    return "master" if first.startswith(ZMTP) else "nobody"


def say_farewell(remote: Remote, told: Callable[[str], None] = lambda _: None) -> int:
    """Tells the workers that the run is over, as they come by within a few seconds. -> how many heard it.

    A worker that is not there hears nothing; it ends by itself after its own patience.
    """
    try:
        listener = _listen(remote.host, remote.port)
    except OSError as e:
        told(f"the workers could not be told that the run is over ({e}); they end by themselves")
        return 0
    heard = 0
    deadline = time.monotonic() + FAREWELL_S
    with listener:
        while heard < remote.workers and (left := deadline - time.monotonic()) > 0:
            listener.settimeout(left)
            try:
                peer, _ = listener.accept()
                with peer:
                    peer.settimeout(LOOK_TIMEOUT_S)
                    peer.sendall(FAREWELL)
                    heard += 1
            except OSError:
                continue
    return heard


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server(("" if host == "*" else host, port), family=family)
