"""`before` and `after` of a config: what makes a server that someone else runs ready, and gives it back.

Each command is an argument list that we run, one after the other, without a shell. Output goes to `<which>.log` in the
folder of the server start; a time limit holds for each.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal

from loadtest.errors import CommandError
from loadtest.model import ConfigSpec

PR_SET_PDEATHSIG = 1
TAIL_BYTES = 500


def run_commands(which: Literal["before", "after"], config: ConfigSpec, folder: Path) -> None:
    """Run the config's commands. Raises CommandError at the first that fails, with its exit code and last output.

    They get our environment and `LOADTEST_CONFIG` (the config's name). A command ends with us, whatever ends us.
    """
    log = folder / f"{which}.log"
    for argv in getattr(config, which):
        with log.open("ab") as out:
            out.write(f"$ {shlex.join(argv)}\n".encode())
            out.flush()
            began = out.tell()
            problem = _run(argv, out.fileno(), config)
        if problem:
            with log.open("rb") as read:
                read.seek(began)
                told = " ".join(read.read()[-TAIL_BYTES:].decode(errors="replace").split())
            raise CommandError(
                f"{config.name}: the `{which}` command {shlex.join(argv)!r} {problem}. "
                + (f'It said: "{told}". ' if told else "It said nothing. ")
                + f"Correct it in the plan, or what it works on (log: {log})"
            )


def _run(argv: tuple[str, ...], out: int, config: ConfigSpec) -> str | None:
    """What went wrong with one command, or None."""
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

    def die_with_us() -> None:
        if libc:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    env = {**os.environ, "LOADTEST_CONFIG": config.name}
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, start_new_session=True,
            preexec_fn=die_with_us,
        )  # fmt: skip
    except OSError as error:
        return f"cannot be run: {error.strerror or error}"
    began = time.monotonic()
    try:
        code = process.wait(config.command_timeout_s)
    except subprocess.TimeoutExpired:
        return f"did not end within {config.command_timeout_s:g} s and was killed"
    finally:
        if process.poll() is None:  # time-out or Ctrl-C: what the command started goes too
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return None if code == 0 else f"ended with code {code} after {time.monotonic() - began:.1f} s"
