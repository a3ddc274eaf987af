"""No process outlives the run: a process ends when the one that started it is gone. No locust, no gevent here."""

from __future__ import annotations

import ctypes
import os
import resource
import signal

from loadtest.load.protocol import ENV_PARENT

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent(parent_pid: int) -> None:
    """Has the kernel kill this process as soon as its parent is gone, however that ended (Linux).

    A worker holds nothing that is worth saving: its rows are with the master, or lost with it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:  # it died before the kernel knew
        os.kill(os.getpid(), signal.SIGKILL)


def parent_at_start() -> int:
    """Process id whose end ends the run: what the starter said of itself, else who the parent is now."""
    said = os.environ.get(ENV_PARENT, "")
    return int(said) if said.isdigit() else os.getppid()


def raise_file_limit() -> int:
    """Lifts the soft limit on open files to the hard one: each user holds a socket. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return hard
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):  # some systems call it unlimited and take no such number
        return soft
    return hard
