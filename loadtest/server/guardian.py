"""Holds a server's whole process tree and never leaves a part of it behind.

Started by `ServerProcess` as `python -m loadtest.server.guardian --status FILE --grace S -- argv…`, in a session of
its own. It ends the tree when its standard input closes (the orchestrator stopped it, or died in whatever way), when
it gets SIGTERM, and when the server itself ends and leaves children (an engine core survives its API server).
As a child subreaper (Linux) it inherits descendants that detached themselves, so none can hide.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.1
LEFTOVER_GRACE_S = 5.0
"""Children of a server that ended by itself get this long to end too; vLLM's own shutdown kills at once."""
NOT_FOUND = 127
"""Exit code for a command that cannot be run, as shells have it."""


class Tree:
    """The server and all its descendants."""

    def __init__(self, argv: list[str]) -> None:
        libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
        if libc:
            libc.prctl(PR_SET_CHILD_SUBREAPER, 1)

        def die_with_guardian() -> None:
            if libc:
                libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

        # a session, hence a process group, of its own: one signal reaches API server, engine cores and workers
        self.child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=die_with_guardian
        )
        self.exit_code: int | None = None
        """Of the server itself; negative for a signal; None while it runs."""

    def reap(self) -> None:
        """Collect ended children, adopted ones included."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.child.pid:
                self.exit_code = self.child.returncode = os.waitstatus_to_exitcode(status)

    def alive(self) -> list[psutil.Process]:
        """All living descendants of this guardian."""
        self.reap()
        return [p for p in psutil.Process().children(recursive=True) if _runs(p)]

    def signal_group(self, number: int) -> None:
        """Send a signal to the server's process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.child.pid, number)

    def wait_gone(self, seconds: float) -> bool:
        """Whether no descendant is left within so many seconds."""
        deadline = time.monotonic() + seconds
        while self.alive():
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_S)
        return True

    def kill(self) -> list[str]:
        """SIGKILL everything; the names of what had to be killed."""
        killed: list[str] = []
        while processes := self.alive():
            for process in processes:
                with contextlib.suppress(psutil.Error):
                    killed.append(f"{process.name()} pid {process.pid}")
                    process.kill()
            time.sleep(POLL_S)
        return sorted(set(killed))


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def guard(argv: list[str], status_file: Path, grace_s: float) -> int:
    """Run `argv` until it ends or is not wanted any more. The exit code of the server, 128 + n for a signal."""
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda n, _frame: asked.append(n))
    try:
        tree = Tree(argv)
    except OSError as error:
        print(f"loadtest: cannot run {argv[0]!r}: {error}", file=sys.stderr, flush=True)
        return NOT_FOUND
    _write(status_file, {"pid": tree.child.pid})
    while tree.exit_code is None and not asked:
        if select.select([sys.stdin], [], [], POLL_S)[0] and not os.read(sys.stdin.fileno(), 1):
            break
        tree.reap()
    stopped = tree.exit_code is None
    if stopped:
        tree.signal_group(signal.SIGTERM)
    killed = [] if tree.wait_gone(grace_s if stopped else min(grace_s, LEFTOVER_GRACE_S)) else tree.kill()
    code = tree.exit_code if tree.exit_code is not None else -signal.SIGKILL
    _write(status_file, {"pid": tree.child.pid, "exit_code": code, "stopped": stopped, "killed": killed})
    return code if code >= 0 else 128 - code


def _write(path: Path, value: object) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(value))
    temporary.rename(path)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description="Holds a server's process tree; started by `loadtest run`.")
    parser.add_argument("--status", type=Path, required=True, help="JSON file: pid, exit_code, stopped, killed")
    parser.add_argument("--grace", type=float, required=True, help="seconds between SIGTERM and SIGKILL")
    parser.add_argument("argv", nargs="+", help="the server's command line, after --")
    args = parser.parse_args()
    sys.exit(guard(args.argv, args.status, args.grace))


if __name__ == "__main__":
    main()
