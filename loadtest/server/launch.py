"""A server that we start, watch and stop: `vllm serve`, or the simulated server. One per config and start."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from loadtest.errors import ServerError, StartError
from loadtest.model import ConfigSpec, TargetSpec
from loadtest.plan.commandline import serve_argv
from loadtest.server import ports
from loadtest.server.diagnose import Diagnosis, diagnose, tail
from loadtest.server.gpu import memory_used_mib
from loadtest.server.probe import auth_headers
from loadtest.server.ready import Progress, wait_ready
from loadtest.server.sim.options import sim_argv

READY_TIMEOUT_S = 600.0
"""vLLM on one H200 took 90 to 120 s; large checkpoints from a network disk take minutes."""
STOP_TIMEOUT_S = 60.0
PORT_FREE_TIMEOUT_S = 10.0
"""After the last process of the tree is gone the kernel frees the port at once; this covers a loaded machine."""
KEY_VARIABLES = ("VLLM_API_KEY", "OPENAI_API_KEY")
GPU_FREE_TIMEOUT_S = 30.0
"""The driver frees the memory of a killed process within seconds."""
GPU_SLACK_MIB = 512.0
"""Other users of the GPU (a desktop, a monitor) move by this much."""
Phase = Literal["proof", "measure"]
"""What a server that was ready is doing for us."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class ServerProcess:
    """Starts the server of a config. After `start`: `base_urls`, `metrics_urls`, `model_name`, `fingerprint`, `pid`.

    The tree is held by a guardian process, so that nothing of it outlives `stop`, our own death included.
    """

    started_by_us = True

    def __init__(self, config: ConfigSpec, target: TargetSpec, folder: Path) -> None:
        self.config = config
        self.target = target
        self.folder = folder
        self.simulated = config.sim is not None
        self.log_file = folder / "server.log"
        self.base_urls: tuple[str, ...] = ()
        self.metrics_urls: tuple[str, ...] = ()
        self.ready_s: float | None = None
        """Seconds from start to ready."""
        options: Mapping[str, Any] = (config.sim if self.simulated else config.launch) or {}
        self._host = str(options.get("host", "127.0.0.1"))
        self._port = int(options.get("port", 0 if self.simulated else 8000))
        launch = config.launch or {}
        self._ready_timeout_s = _seconds(launch, "ready_timeout", READY_TIMEOUT_S)
        self._stop_timeout_s = _seconds(launch, "stop_timeout", STOP_TIMEOUT_S)
        self.argv = self._sim_argv() if self.simulated else serve_argv(config, target)
        self.model_name = _model_name(config, target, self.argv)
        self.fingerprint = _after(self.argv, "--fingerprint-value") or _after(self.argv, "--fingerprint")
        self._guardian: subprocess.Popen[bytes] | None = None
        self._gpu_before_mib: float | None = None
        self._port_lock: int | None = None

    @property
    def pid(self) -> int | None:
        """Of the server itself; None before the start."""
        return self._status().get("pid")

    @property
    def headers(self) -> dict[str, str]:
        """The Authorization header, where a key is in the environment."""
        return auth_headers(*KEY_VARIABLES)

    def exit_code(self) -> int | None:
        """Exit code of the server, None while it runs; over 128 for a signal."""
        return self._guardian.poll() if self._guardian else None

    def start(self, progress: Progress | None = None) -> None:
        """Start and wait until ready. `progress` gets a line like `12 s | <last line of the log>` each second.

        Raises StartError with the diagnosis after writing failed.json; nothing of the server is left then.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        try:
            self._take_port()
            self._gpu_before_mib = None if self.simulated else memory_used_mib()
            self._spawn()
            base = self._base_url()
            wait_ready(
                base,
                self.model_name,
                exit_code=self.exit_code,
                log=self.log_file,
                timeout_s=self._ready_timeout_s,
                progress=progress,
                headers=self.headers,
            )
            self._refuse_shared_port()
        except StartError as error:
            self._end()
            raise self._failed(error, time.monotonic() - began) from None
        except BaseException:
            self._end()
            raise
        self.ready_s = time.monotonic() - began
        self.base_urls = (base,)
        self.metrics_urls = self.config.metrics_urls or (f"{base}/metrics",)

    def stop(self) -> None:
        """SIGTERM, after the stop timeout SIGKILL, for the whole tree. Fine without a start and twice.

        Raises ServerError when the port or the GPU memory is still taken afterwards: the next server would not get
        what this one had.
        """
        if self._guardian is None:
            return
        self._end()
        if self._port and not ports.wait_free(self._host, self._port, PORT_FREE_TIMEOUT_S):
            raise ServerError(
                f"port {self._port} is still taken after {self.config.name} was stopped, by {ports.owner(self._port)}"
            )

        self._wait_gpu_free()

    def diagnosis(self) -> Diagnosis:
        """Why a server that was ready is not there any more, from its log."""
        return diagnose(self._log(), self.exit_code())

    def check_alive(self, phase: Phase = "measure") -> None:
        """Raise ServerError with the diagnosis when a server that was ready has ended, or its engine has.

        Writes failed.json then, with `phase`. vLLM's API server ends some seconds after its engine died.
        """
        code = self.exit_code()
        if code is None:
            return
        found = self.diagnosis()
        doing = "it was measured" if phase == "measure" else "it was asked what it runs"
        told = f"the server ended with exit code {code} while {doing}"
        self._write_failed(found, told, code, self.ready_s, phase)
        raise ServerError(f"{self.config.name}: {told}. Diagnosis: {found} (log: {self.log_file})")

    def _take_port(self) -> None:
        if not self._port:
            return
        advice = "stop it or give another launch.port"
        self._port_lock = ports.lock(self._port)
        if self._port_lock is None:
            raise StartError(f"port {self._port} on {self._host} is taken by another run of loadtest; {advice}")
        if not ports.is_free(self._host, self._port):
            raise StartError(f"port {self._port} on {self._host} is taken by {ports.owner(self._port)}; {advice}")

    def _refuse_shared_port(self) -> None:
        """Two servers on one port would each get a part of the requests, and the numbers would be of neither."""
        guardian = self._guardian
        if guardian and (others := ports.strangers(self._port, guardian.pid)):
            told = ", ".join("an unknown process" if pid is None else f"pid {pid}" for pid in sorted(others, key=str))
            raise StartError(
                f"port {self._port} on {self._host} is shared with {told}, which listens there too; "
                "stop it or give another launch.port"
            )

    def _spawn(self) -> None:
        status = self.folder / "server.status.json"
        for left in (status, self.folder / "server.port"):  # by a run that was killed: it tells of another server
            left.unlink(missing_ok=True)
        command = [sys.executable, "-m", "loadtest.server.guardian", "--status", str(status)]
        command += ["--grace", str(self._stop_timeout_s), "--", *self.argv]
        with self.log_file.open("wb") as log:
            log.write(f"$ {shlex.join(self.argv)}\n".encode())
            log.flush()
            self._guardian = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._environment(),
                start_new_session=True,
                pass_fds=() if self._port_lock is None else (self._port_lock,),
            )

    def _environment(self) -> dict[str, str]:
        env = {**os.environ, **self.target.env, **(self.config.launch or {}).get("env", {})}
        if self._host in LOOPBACK:
            # opens /server_info, which proves the config; only where nobody else can reach the other dev endpoints
            env.setdefault("VLLM_SERVER_DEV_MODE", "1")
        env.setdefault("PYTHONUNBUFFERED", "1")  # so that the log is there when the server dies
        return env

    def _sim_argv(self) -> list[str]:
        options = {"host": self._host, "port": self._port, **(self.config.sim or {})}
        options.setdefault("method", self.config.method)
        if self.config.gamma is not None:
            options.setdefault("gamma", self.config.gamma)
        options.setdefault("model", self.target.served_name or self.target.model)
        options.setdefault("fingerprint", self.config.name)
        if self.target.max_model_len is not None:
            options.setdefault("max_model_len", self.target.max_model_len)
        options["port_file"] = str((self.folder / "server.port").absolute())
        return [sys.executable, "-m", "loadtest.server.sim", *sim_argv(options)]

    def _base_url(self) -> str:
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self._host, self._host)  # noqa: S104 - compared, not bound
        if not self._port:
            self._port = self._read_port()
        return f"http://{host}:{self._port}"

    def _read_port(self) -> int:
        """The port that the simulated server chose by itself."""
        file = self.folder / "server.port"
        deadline = time.monotonic() + self._ready_timeout_s
        while time.monotonic() < deadline:
            if (code := self.exit_code()) is not None:
                raise StartError(f"the simulated server ended with exit code {code}, before it had a port")
            if file.exists() and (text := file.read_text().strip()):
                return int(text)
            time.sleep(0.05)
        raise StartError("the simulated server did not say which port it listens on")

    def _end(self) -> None:
        """Let the guardian end the tree, and wait for it."""
        guardian = self._guardian
        if guardian is not None and guardian.stdin is not None:
            guardian.stdin.close()
            try:
                guardian.wait(self._stop_timeout_s + 30)
            except subprocess.TimeoutExpired:  # SIGKILL reaches the server through its parent-death signal
                guardian.kill()
                guardian.wait()
        if self._port_lock is not None:
            os.close(self._port_lock)
            self._port_lock = None
        (self.folder / "server.port").unlink(missing_ok=True)

    def _wait_gpu_free(self) -> None:
        before, self._gpu_before_mib = self._gpu_before_mib, None
        deadline = time.monotonic() + GPU_FREE_TIMEOUT_S
        while before is not None and (used := memory_used_mib()) is not None and used > before + GPU_SLACK_MIB:
            if time.monotonic() >= deadline:
                raise ServerError(
                    f"{used:g} MiB of GPU memory are in use after {self.config.name} was stopped, "
                    f"{before:g} MiB were before it started; see nvidia-smi for the process that holds them"
                )
            time.sleep(0.5)

    def _failed(self, error: StartError, elapsed_s: float) -> StartError:
        """Write failed.json; the error with the diagnosis."""
        status = self._status()
        died = None if status.get("stopped") else status.get("exit_code", self.exit_code())
        found = None if self._guardian is None else diagnose(self._log(), died, elapsed_s if died is None else None)
        known = found is not None and found.reason not in ("unknown", "hang")
        text = f"{self.config.name}: {error}"
        if found and (known or found.reason == "hang"):
            text += f". Diagnosis: {found}"
        self._write_failed(found, str(error), died, elapsed_s)
        return StartError(f"{text} (log: {self.log_file})")

    def _write_failed(
        self,
        found: Diagnosis | None,
        error: str,
        code: int | None,
        elapsed_s: float | None,
        phase: Phase | Literal["start"] = "start",
    ) -> None:
        failed = {
            "reason": found.reason if found else "port_in_use",
            "phase": phase,
            "diagnosis": str(found) if found else error,
            "error": error,
            "log_tail": tail(self._log()),
            "argv": self.argv,
            "exit_code": code,
            "elapsed_s": None if elapsed_s is None else round(elapsed_s, 3),
        }
        (self.folder / "failed.json").write_text(json.dumps(failed, indent=1, ensure_ascii=False) + "\n")

    def _log(self) -> str:
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def _status(self) -> dict[str, Any]:
        try:
            value: dict[str, Any] = json.loads((self.folder / "server.status.json").read_text())
        except (OSError, ValueError):
            return {}
        return value


def _seconds(options: Mapping[str, Any], key: str, default: float) -> float:
    value = options.get(f"{key}_s", options.get(key))
    return default if value is None else float(value)


def _after(argv: list[str], flag: str) -> str | None:
    """Value of `--flag value` or `--flag=value`."""
    for index, word in enumerate(argv):
        if word == flag and index + 1 < len(argv):
            return argv[index + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None


def _model_name(config: ConfigSpec, target: TargetSpec, argv: list[str]) -> str:
    if config.sim is not None:
        return _after(argv, "--model") or target.model
    return target.served_name or target.model


def is_local(url: str) -> bool:
    """Whether a URL points at this machine by a loopback name."""
    return (urlsplit(url).hostname or "") in LOOPBACK
