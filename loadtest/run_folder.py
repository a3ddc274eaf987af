"""A run on disk: made once, found again, never measured twice. What each file holds: docs/architecture.md."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest import __version__
from loadtest.errors import LoadtestError, RunFolderError
from loadtest.load.remote import Remote
from loadtest.model import SCHEMA_VERSION, Cell, ClientSpec, ConfigSpec, Slo, TargetSpec, from_json, to_json
from loadtest.plan.cells import server_starts
from loadtest.report.files import write_durably
from loadtest.server.host import cpu_model


@dataclass(frozen=True, slots=True)
class ServerStart:
    """One start of one server: the consecutive cells of one config, in order."""

    number: int
    config: ConfigSpec
    cells: tuple[Cell, ...]

    @property
    def name(self) -> str:
        """`<nn>-<config>`, the name of its files under jobs/ and servers/."""
        return f"{self.number:02d}-{self.config.name}"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths and contents of one run."""

    path: Path
    remote: Remote | None = None
    """Workers of other hosts, for this measurement; None: Locust forks its own."""
    web_port: int | None = None
    """Locust's web page on loopback while it measures."""

    @property
    def facts(self) -> dict[str, Any]:
        """run.json. Raises RunFolderError where it is missing, broken or of another schema version."""
        file = self.path / "run.json"
        try:
            facts: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RunFolderError(
                f"{self.path} is no run folder: it has no run.json. Give the path after `run:`"
            ) from None
        except ValueError as e:
            raise RunFolderError(f"{file} cannot be read as JSON ({e}); the run cannot be continued") from e
        if facts.get("schema") != SCHEMA_VERSION:
            raise RunFolderError(
                f"{file} has schema {facts.get('schema')!r}; this version reads {SCHEMA_VERSION}. "
                f"Use loadtest {facts.get('tool_version')}, which wrote it"
            )
        return facts

    def update(self, **changes: Any) -> None:
        """Change keys of run.json durably."""
        write_json(self.path / "run.json", {**self.facts, **changes})

    def configs(self) -> list[ConfigSpec]:
        """All configs of the run, sweep expanded."""
        return [from_json(ConfigSpec, c) for c in self.facts["configs"]]

    def cells(self) -> list[Cell]:
        """All cells in order of measurement."""
        return [from_json(Cell, c) for c in self.facts["cells"]]

    def slos(self) -> list[Slo]:
        """The criteria that the plan named."""
        return [from_json(Slo, s) for s in self.facts["slos"]]

    def target(self) -> TargetSpec:
        """What every config serves."""
        return from_json(TargetSpec, self.facts["target"])

    def client(self) -> ClientSpec:
        """How the client sends."""
        return from_json(ClientSpec, self.facts["client"])

    def starts(self) -> list[ServerStart]:
        """Server starts in order: a new one wherever the config or the repeat changes, or for each cell if asked."""
        configs = {c.name: c for c in self.configs()}
        groups = server_starts(self.cells(), list(configs.values()))
        return [ServerStart(i, configs[name], cells) for i, (name, cells) in enumerate(groups)]

    def cell_dir(self, cell: Cell) -> Path:
        """Folder of one cell."""
        return self.path / "cells" / cell.cell_id

    def is_done(self, cell: Cell) -> bool:
        """Whether the cell was measured to its end."""
        return (self.cell_dir(cell) / "done.json").exists()

    def begun_ns(self, cell: Cell, since_ns: int) -> int | None:
        """When the cell's present try began (UNIX ns); None before it did.

        What an earlier, killed try left began before `since_ns`; the load moves it aside when it comes to the cell.
        """
        try:
            facts = json.loads((self.cell_dir(cell) / "cell.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):  # being moved aside just now
            return None
        started_ns = int(facts.get("started_ns") or 0)
        return started_ns if started_ns >= since_ns else None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run for this process; the lock goes with the process, however it dies."""
        with (self.path / ".lock").open("w") as f:
            try:
                fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LoadtestError(
                    f"{self.path} is being measured by another process; wait for it or stop it"
                ) from None
            yield


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON so that a crash leaves the old or the new file, never half of one."""
    write_durably(path, json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False).encode())


def host_facts() -> dict[str, Any]:
    """Where the load came from."""
    return {
        "hostname": socket.gethostname(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cpu": cpu_model() or "",
        "cores": os.cpu_count(),
    }


def new_folder(root: Path, name: str) -> Path:
    """Make `root/<UTC time>-<name>/` with its sub-folders; its name is the run id. Never an existing folder.

    Raises RunFolderError where nothing can be made there.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "run"
    for attempt in range(100):
        path = root / (f"{stamp}-{slug}" if attempt == 0 else f"{stamp}-{slug}-{attempt}")
        try:
            path.mkdir(parents=True)
            break
        except FileExistsError:
            continue
        except OSError as e:
            raise RunFolderError(f"{root} cannot hold a run folder: {e.strerror or e}; give another --out") from e
    else:
        raise LoadtestError(f"no free run folder below {root} for {stamp}-{slug}")
    for sub in ("cells", "jobs", "servers", "prompts"):
        (path / sub).mkdir()
    return path


def write_facts(
    path: Path,
    plan_file: Path,
    *,
    plan: dict[str, Any],
    target: TargetSpec,
    client: ClientSpec,
    configs: list[ConfigSpec],
    cells: list[Cell],
    slos: list[Slo],
    prompt_files: dict[str, str],
    mix_weights: dict[str, tuple[float, ...]],
    warnings: list[str],
) -> RunFolder:
    """Write the copy of the plan and, last and whole, run.json into a new folder."""
    shutil.copyfile(plan_file, path / "plan.toml")
    canonical = json.dumps(plan, sort_keys=True, ensure_ascii=False, allow_nan=False).encode()
    write_json(
        path / "run.json",
        {
            "schema": SCHEMA_VERSION,
            "tool_version": __version__,
            "run_id": path.name,
            "plan": plan,
            "plan_sha256": hashlib.sha256(canonical).hexdigest(),
            "seeds": {"plan": plan["seed"], "salt_nonce": path.name},
            "target": to_json(target),
            "client": to_json(client),
            "configs": to_json(configs),
            "cells": to_json(cells),
            "slos": to_json(slos),
            "prompt_files": prompt_files,
            "mix_weights": to_json(mix_weights),
            "warnings": warnings,
            "host": host_facts(),
            "simulated": any(c.sim is not None for c in configs),
            "started_ns": time.time_ns(),
            "ended_ns": None,
            "state": "created",
        },
    )
    return RunFolder(path)
