"""What the plan asked against what the server discloses, field by field. Pure.

proven            a source that knows says the same
not_contradicted  indirect evidence fits, or nobody asked for a value
contradicted      a source says otherwise
unknown           no source says anything
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal

from loadtest.model import ConfigSpec, TargetSpec

Status = Literal["proven", "not_contradicted", "contradicted", "unknown"]

SIMULATED_FIELDS = (
    "served_model_name",
    "speculative.method",
    "speculative.num_speculative_tokens",
    "system_fingerprint",
)
"""What can be compared on a simulated server; it has no weights, no draft and no dtype."""


@dataclass(frozen=True, slots=True)
class Source:
    """One disclosure: its name (`/server_info`, `server.log`, `/metrics`, `/v1/models`) and its values."""

    name: str
    values: Mapping[str, Any]


def asked_for(config: ConfigSpec, target: TargetSpec, model_name: str) -> dict[str, Any]:
    """The fields that can be proven, flat: `speculative.method`, `model`, and so on."""
    asked: dict[str, Any] = {"served_model_name": model_name, "speculative.method": config.method}
    if config.gamma is not None:
        asked["speculative.num_speculative_tokens"] = config.gamma
    for key, value in (config.speculative or {}).items():
        asked[f"speculative.{key}"] = value
    if config.sim is None:  # an invented server has no model, dtype or draft to compare
        asked["model"] = target.model
        asked |= {k: v for k, v in (("max_model_len", target.max_model_len), ("dtype", target.dtype)) if v is not None}
    return asked


def prove(asked: Mapping[str, Any], sources: Sequence[Source], simulated: bool = False) -> dict[str, dict[str, Any]]:
    """`{field: {asked, value, source, status}}`; a source that contradicts is told before one that agrees."""
    return {field: _prove_one(field, wanted, sources, simulated) for field, wanted in asked.items()}


def _prove_one(field: str, wanted: Any, sources: Sequence[Source], simulated: bool) -> dict[str, Any]:
    told = [] if simulated and field not in SIMULATED_FIELDS else sources
    judged = [(s.name, *found) for s in told if (found := _judge(field, wanted, s.values)) is not None]
    for status in ("contradicted", "proven", "not_contradicted"):
        for name, value, verdict in judged:
            if verdict == status:
                return {"asked": wanted, "value": value, "source": name, "status": status}
    return {"asked": wanted, "value": None, "source": None, "status": "unknown"}


def _judge(field: str, wanted: Any, values: Mapping[str, Any]) -> tuple[Any, Status] | None:
    """(value seen, status) by one source; None where it says nothing about the field."""
    section, _, key = field.rpartition(".")
    if section == "speculative":
        return _judge_speculative(key, wanted, values)
    if field not in values:
        return None
    seen = values[field]
    if field == "dtype" and wanted == "auto":
        return seen, "not_contradicted"
    if field == "served_model_name":
        names = seen if isinstance(seen, list) else [seen]
        return seen, "proven" if wanted in names else "contradicted"
    return seen, _same(wanted, seen)


def _judge_speculative(key: str, wanted: Any, values: Mapping[str, Any]) -> tuple[Any, Status] | None:
    if "speculative" in values:
        spec = values["speculative"]
        if spec is None:
            return "none", "proven" if key == "method" and wanted == "none" else "contradicted"
        if key not in spec:
            return None
        seen = spec[key]
        if key == "method" and isinstance(wanted, str) and wanted.endswith("mtp") and seen == "mtp":
            return seen, "proven"  # vLLM has one name for the methods of the MTP family
        return seen, _same(wanted, seen)
    if key == "method" and "spec_families_present" in values:
        present = bool(values["spec_families_present"])
        text = "speculation series are there" if present else "no speculation series"
        return text, "not_contradicted" if present == (wanted != "none") else "contradicted"
    if key == "num_speculative_tokens" and values.get("k_from_positions") is not None:
        return values["k_from_positions"], _same(wanted, values["k_from_positions"])
    return None


def _same(wanted: Any, seen: Any) -> Status:
    if wanted == seen:
        return "proven"
    if isinstance(wanted, str) and isinstance(seen, str):
        if os.path.realpath(wanted) == os.path.realpath(seen):
            return "proven"
        if PurePath(wanted).name == PurePath(seen).name:
            return "not_contradicted"  # the same folder mounted elsewhere, as far as its name tells
        if wanted.replace("/", "--") in seen:
            return "not_contradicted"  # a hub name resolved to its cache folder
    return "contradicted"
