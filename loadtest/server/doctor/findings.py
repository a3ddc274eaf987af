"""One answer of the doctor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "lost", "stop"]
"""`lost`: the run works, but a figure will be missing or weaker. `stop`: the run, or a config of it, will fail."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, what was seen, and what to do about it ("" where nothing needs doing)."""

    level: Level
    check: str
    seen: str
    todo: str = ""
    config: str | None = None
    """The config it concerns; None: all."""
