"""Provenance of all server starts side by side: what must be equal between configs, and where it is not."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.merge.read import RunData
from loadtest.report.workload import workload

MAX_TEXT = 160


@dataclass(frozen=True, slots=True)
class Side:
    """One fact over all servers."""

    key: str
    values: tuple[str, ...]
    """One per server, in order."""
    differs: bool
    expected: bool
    """True where configs are meant to differ (the speculative config, the port)."""


@dataclass(frozen=True, slots=True)
class Sides:
    """The table: one column per server start, one line per fact."""

    servers: tuple[str, ...]
    facts: tuple[Side, ...]


EXPECTED_TO_DIFFER = (
    "config",
    "method",
    "gamma",
    "speculative",
    "fingerprint",
    "spec_families",
    "k_from",
    "port",
    "url",
    "asked",
    "pid",
    "draft",
    "per_request_spec",
)
"""Parts of keys that belong to the config under test, not to what must be equal."""


def side_by_side(run_dir: Path, data: RunData | None = None) -> Sides:
    """Read servers/*/provenance.json of a run, and with `data` what each server was given and gave."""
    found: dict[str, dict[str, str]] = {}
    for folder in sorted((run_dir / "servers").glob("*")):
        file = folder / "provenance.json"
        if file.exists():
            found[folder.name] = _flatten(json.loads(file.read_text(encoding="utf-8")))
    keys = dict.fromkeys(k for facts in found.values() for k in facts)
    sides = []
    for key in keys:
        values = tuple(facts.get(key, "–") for facts in found.values())
        expected = any(part in key.lower() for part in EXPECTED_TO_DIFFER)
        sides.append(Side(key, values, len(set(values)) > 1, expected))
    given = [] if data is None else workload(data, tuple(found))
    sides[2:2] = [Side(fact.key, fact.values, fact.differs, expected=False) for fact in given]
    return Sides(tuple(found), tuple(sides))


def _flatten(value: dict[str, Any]) -> dict[str, str]:
    out: dict[str, str] = {}
    for key in ("config", "method", "simulated", "synthetic_acceptance", "spec_families_present", "k_from_positions"):
        if key in value:
            out[key] = _short(value[key])
    for group in ("versions", "model", "serving", "draft", "caches", "host"):
        for name, fact in (value.get(group) or {}).items():
            out[f"{group}.{name}"] = _short(fact)
    if value.get("gpus") is not None:
        out["gpus"] = _short(value["gpus"])
    for name, fact in (value.get("facts") or {}).items():
        status = fact.get("status", "") if isinstance(fact, dict) else ""
        shown = fact.get("value") if isinstance(fact, dict) else fact
        out[f"facts.{name}"] = f"{_short(shown)} [{status}]" if status else _short(shown)
    return out


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
