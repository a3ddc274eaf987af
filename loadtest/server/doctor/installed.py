"""The vLLM behind a launch command, asked in a subprocess: `--version` and `serve --help=all`.

The command may have a prefix (`ssh host vllm serve`, `docker exec box vllm serve`): the questions go the same way.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePath

from loadtest.plan.commandline import remote_words

TIMEOUT_S = 180.0
"""`vllm --version` imports torch: 10 s on two busy cores, more from a cold network disk."""
REMOTE = ("ssh", "docker", "podman", "nerdctl", "kubectl", "srun", "singularity", "apptainer", "enroot")
"""Programs that run the rest of the command elsewhere: files and GPUs here say nothing about it."""

_VERSION = re.compile(r"(?<![\w.])(\d+\.\d+(?:\.\d+)?(?:[._+-]?[A-Za-z0-9.+]+)*)\s*$", re.MULTILINE)
_FLAG = re.compile(r"(?:^|,)\s*(--[A-Za-z][A-Za-z0-9-]*)", re.MULTILINE)
_METHODS = re.compile(r"--spec-method\s+\{([^}]*)\}")


@dataclass(frozen=True, slots=True)
class Installed:
    """What a command answered. `problem` says why there is no version or no list of flags."""

    command: tuple[str, ...]
    version: str | None = None
    flags: frozenset[str] = frozenset()
    methods: tuple[str, ...] = ()
    """Speculative methods that it lists; empty where its help does not tell."""
    problem: str | None = None

    @property
    def remote(self) -> bool:
        """Whether it runs in a container or on another machine."""
        return is_remote(self.command)

    def knows(self, flag: str) -> bool:
        """Whether its help lists a flag, or its shared entry `--x, --no-x`."""
        return flag in self.flags or flag.replace("_", "-") in self.flags


def is_remote(command: Sequence[str]) -> bool:
    """Whether a command goes to a container or another machine."""
    return PurePath(command[0]).name in REMOTE


def ask_installed(command: Sequence[str], env: Mapping[str, str] | None = None) -> Installed:
    """Ask the vLLM of a launch command. Never raises."""
    serve = list(command)
    environ = {**os.environ, **(env or {})}
    with ThreadPoolExecutor(2) as pool:
        version = pool.submit(_ask, _version_argv(serve), environ)
        help_page = pool.submit(_help, serve, environ)
        told, page = version.result(), help_page.result()
    flags = frozenset(_FLAG.findall(page.text)) if page.problem is None else frozenset()
    found = _VERSION.findall(told.text) if told.problem is None else []
    methods = _METHODS.search(page.text)
    problem = page.problem or (None if flags else "its help lists no flags")
    return Installed(
        command=tuple(command),
        version=found[-1] if found else None,
        flags=flags,
        methods=tuple(m.strip() for m in methods[1].split(",") if m.strip() not in ("", "None")) if methods else (),
        problem=problem,
    )


@dataclass(frozen=True, slots=True)
class _Told:
    text: str
    problem: str | None


def _version_argv(serve: list[str]) -> list[str]:
    """`vllm serve` -> `vllm --version`; a command without `serve` at its end gets the flag appended."""
    head = serve[:-1] if serve[-1] == "serve" and len(serve) > 1 else serve
    return [*head, "--version"]


def _help(serve: list[str], env: Mapping[str, str]) -> _Told:
    """All flags; versions before `--help=all` know `--help`."""
    first = _ask([*serve, *remote_words(serve, ["--help=all"])], env)
    if first.problem is None and _FLAG.search(first.text):
        return first
    second = _ask([*serve, "--help"], env) if first.problem is None or "code" in first.problem else first
    return second if second.problem is None else first


def _ask(argv: list[str], env: Mapping[str, str]) -> _Told:
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, env=dict(env),
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return _Told("", f"{argv[0]!r} did not answer within {TIMEOUT_S:g} s")
    except OSError as error:
        return _Told("", f"{argv[0]!r} cannot be run: {error.strerror or error}")
    if done.returncode != 0:
        told = (done.stderr or done.stdout).strip().splitlines()
        return _Told(done.stdout, f"ended with code {done.returncode}" + (f": {told[-1][:200]}" if told else ""))
    return _Told(done.stdout, None)
