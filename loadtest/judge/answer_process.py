"""Runs one generated answer with its unit tests and ends. Started by path with `python -I`, imports nothing of ours.

argv: number of the file descriptor that takes the result. stdin: JSON {code, tests, cpu_s, memory_bytes}. Everything
is limited before the first line of the answer runs. This keeps honest mistakes away from the machine; it is no
sandbox against an attack.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
import types
from pathlib import Path
from typing import Any

NOBODY = 65534
NEW_USER, NEW_NET = 0x10000000, 0x40000000
"""CLONE_NEWUSER and CLONE_NEWNET of <linux/sched.h>."""
FILE_BYTES = 1 << 20


def cut_network() -> bool:
    """An empty network name space, without even loopback; False where the kernel does not allow it."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        flags = NEW_NET if os.geteuid() == 0 else NEW_NET | NEW_USER
        return bool(libc.unshare(flags) == 0)
    except (OSError, AttributeError):
        return False


def refuse_sockets(event: str, _: tuple[Any, ...]) -> None:
    """Audit hook for systems that have no name spaces."""
    if event in ("socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo"):
        raise PermissionError("no network in unit tests")


def drop_rights() -> None:
    """Root becomes nobody, if nobody can read the standard library."""
    if os.geteuid() != 0:
        return
    library = Path(os.__file__).resolve()
    if all(place.stat().st_mode & 0o005 == 0o005 for place in library.parents):
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def limit(cpu_s: int, memory_bytes: int) -> None:
    """CPU time, memory, file size, open files; no core dump."""
    for kind, most in (
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))


def run(code: str, tests: str) -> str:
    """What went wrong, or "passed"."""
    module = types.ModuleType("answer")
    sys.modules["answer"] = module  # dataclasses and pickle look their module up
    try:
        exec(compile(code, "answer.py", "exec"), module.__dict__)  # noqa: S102 - what this process is for
        exec(compile(tests, "tests.py", "exec"), module.__dict__)  # noqa: S102
    except SystemExit:
        return "SystemExit: the answer ended the process"
    except MemoryError:
        return "MemoryError: over the memory limit"
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:200]}".rstrip(": ")
    return "passed"


def main() -> None:
    """Read the job, limit this process, run, report."""
    report = os.fdopen(int(sys.argv[1]), "w", encoding="utf-8", errors="replace")
    job = json.load(sys.stdin)
    network = cut_network()
    if not network:
        sys.addaudithook(refuse_sockets)
    drop_rights()
    limit(job["cpu_s"], job["memory_bytes"])
    reason = run(job["code"], job["tests"])
    report.write(json.dumps({"reason": reason, "network": "cut off" if network else "refused"}))
    report.flush()
    os._exit(0)  # threads of the answer must not keep the process


if __name__ == "__main__":
    main()
