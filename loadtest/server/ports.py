"""Who listens where, and who may.

vLLM binds its port with SO_REUSEADDR and SO_REUSEPORT long before it listens: two servers can share one port without
an error, and the kernel then deals connections out between them. So a port is locked between our own runs, looked at
before the start, and its listeners are compared with our process tree when the server is ready.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil


def lock(port: int) -> int | None:
    """File descriptor of an exclusive lock on the port among this user's runs; None when another run holds it.

    A process that inherits the descriptor keeps the lock until it ends, whatever becomes of us.
    """
    path = Path(tempfile.gettempdir()) / f"loadtest-{os.getuid()}-port-{port}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def is_free(host: str, port: int) -> bool:
    """Whether nobody has the port now, not even bound without listening. Port 0 is always free."""
    if (plain := _bind_error(host, port, reuse=False)) is None:
        return True
    if plain != errno.EADDRINUSE:  # an address that is not ours (the command runs elsewhere) can only be asked
        return not _answers(host, port)
    if _bind_error(host, port, reuse=True) is not None:
        return False
    # only reusable: connections in TIME_WAIT, which do not matter, or a server that has bound and will listen
    known = _connections()
    return not port or known is None or any(c.laddr.port == port for c in known if c.laddr)


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
    for pid in listeners(port):
        if pid is not None:
            with contextlib.suppress(psutil.Error):
                return f"{psutil.Process(pid).name()} pid {pid}"
    return "an unknown process"


def listeners(port: int) -> set[int | None]:
    """Processes that listen on a port; None among them stands for one that we may not see."""
    return {c.pid for c in _connections() or () if c.status == psutil.CONN_LISTEN and c.laddr.port == port}


def strangers(port: int, root_pid: int) -> set[int | None]:
    """Listeners on a port outside the process tree of `root_pid`, where that tree listens too; else empty.

    A tree that does not listen here by itself (a server behind ssh or in a container) cannot be told from others.
    """
    found = listeners(port)
    try:
        root = psutil.Process(root_pid)
        tree = {root_pid, *(p.pid for p in root.children(recursive=True))}
    except psutil.Error:
        return set()
    return found - tree if found & tree else set()


def _connections() -> list[Any] | None:
    """All TCP connections; None where the system does not tell (macOS without root)."""
    try:
        return list(psutil.net_connections("tcp"))
    except (psutil.Error, OSError, RuntimeError):
        return None


def _bind_error(host: str, port: int, *, reuse: bool) -> int | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        if reuse:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.errno
    return None


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=2.0).close()
    except OSError:
        return False
    return True
