"""Who listens where."""

from __future__ import annotations

import contextlib
import errno
import socket
import time

import psutil


def is_free(host: str, port: int) -> bool:
    """Whether a server could bind here now. Port 0 is always free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections in TIME_WAIT do not count
        try:
            probe.bind((host, port))
        except OSError as error:
            # an address that is not ours (the command runs elsewhere) can only be asked
            return error.errno != errno.EADDRINUSE and not _answers(host, port)
    return True


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=2.0).close()
    except OSError:
        return False
    return True


def wait_free(host: str, port: int, seconds: float) -> bool:
    """Whether the port became free within so many seconds."""
    deadline = time.monotonic() + seconds
    while not is_free(host, port):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.1)
    return True


def owner(port: int) -> str:
    """`name pid n` of the process that listens on a port, as far as we may see it; else "an unknown process"."""
    with contextlib.suppress(psutil.Error, OSError, RuntimeError):
        for connection in psutil.net_connections("tcp"):
            if (
                connection.status == psutil.CONN_LISTEN
                and getattr(connection.laddr, "port", None) == port
                and connection.pid
            ):
                return f"{psutil.Process(connection.pid).name()} pid {connection.pid}"
    return "an unknown process"
