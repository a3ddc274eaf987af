"""plan.toml and slo.toml into checked models. All errors of a file are told at once, as one PlanError."""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from loadtest.errors import PlanError
from loadtest.model import Slo
from loadtest.plan.checks import Entries, entry_checks, plan_checks, warnings_of
from loadtest.plan.problems import Problem, explain, listing
from loadtest.plan.schema import Config, Mix, Plan, Sampling
from loadtest.plan.slo import SloEntry

LIST_TABLES: dict[str, type[BaseModel]] = {"config": Config, "mix": Mix, "sampling": Sampling, "slo": SloEntry}


class SloFile(BaseModel):
    """A file of criteria on its own: nothing but `[[slo]]` tables (and `schema = 1` if you like)."""

    model_config = ConfigDict(extra="forbid", strict=True)

    schema_version: int = Field(default=1, alias="schema", ge=1, le=1)
    slo: list[SloEntry] = Field(min_length=1)


def load_plan(path: Path | str) -> Plan:
    """The plan in `path`. Raises PlanError with every problem of the file: key path, value seen, what is allowed."""
    path = Path(path)
    return _checked(read_toml(path), str(path), path.resolve().parent)


def plan_from_json(data: Mapping[str, Any], source: str = "plan") -> Plan:
    """A plan from what `Plan.to_json` gave (`run.json`). Data sets are not looked for. Raises PlanError."""
    return _checked(dict(data), source, None)


def load_slos(path: Path | str) -> list[Slo]:
    """The criteria of a stand-alone slo.toml, or of a plan. Raises PlanError."""
    path = Path(path)
    raw = read_toml(path)
    if "config" in raw or "mix" in raw:
        return [entry.to_slo() for entry in load_plan(path).slo]
    try:
        entries = SloFile.model_validate(raw).slo
    except ValidationError as error:
        problems = [explain(e, SloFile) for e in error.errors()]
        raise PlanError(listing(problems, str(path), raw)) from None
    slos = [entry.to_slo() for entry in entries]
    names = [slo.name for slo in slos]
    twice = [Problem(("slo", i), f'"{n}" stands there twice') for i, n in enumerate(names) if n in names[:i]]
    if twice:
        raise PlanError(listing(twice, str(path), raw))
    return slos


def read_toml(path: Path) -> dict[str, Any]:
    """The file's tables. PlanError for a file that is missing, not UTF-8 or not TOML."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise PlanError(f"{path}: no such file; `loadtest init` writes a starter plan") from None
    except OSError as error:
        raise PlanError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        return tomllib.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise PlanError(
            f"{path}: line {line} is not UTF-8 (byte 0x{data[error.start]:02x}); save the file as UTF-8"
        ) from None
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise PlanError(f"{path}: not valid TOML: {error}") from None


def _checked(raw: dict[str, Any], source: str, folder: Path | None) -> Plan:
    try:
        plan = Plan.model_validate(raw)
    except ValidationError as error:
        # The tables that are sound are checked all the same, so that one look at the text is enough.
        problems = [explain(e, Plan) for e in error.errors()]
        problems += entry_checks(_sound_entries(raw), folder)
        raise PlanError(listing(problems, source, raw)) from None
    plan._folder = folder
    entries: Entries = {table: list(enumerate(getattr(plan, table))) for table in LIST_TABLES}
    problems = entry_checks(entries, folder) + plan_checks(plan)
    if folder is None:  # from run.json: the prompts are in the run folder already
        problems = [p for p in problems if p.loc[-1] not in ("dataset", "warmup", "file")]
    if problems:
        raise PlanError(listing(problems, source, raw))
    plan._warnings = tuple(warnings_of(plan))
    return plan


def _sound_entries(raw: Mapping[str, Any]) -> Entries:
    """The entries of the list tables that are valid on their own, with their places in the file."""
    sound: Entries = {}
    for table, model in LIST_TABLES.items():
        given = raw.get(table)
        sound[table] = []
        for place, entry in enumerate(given if isinstance(given, list) else []):
            with contextlib.suppress(ValidationError):
                sound[table].append((place, model.model_validate(entry)))
    return sound
