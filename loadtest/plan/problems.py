"""From pydantic's findings to lines that a person can act on: key path, the value seen, what is allowed."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from loadtest.plan.slo import did_you_mean

Loc = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: where, and what in words."""

    loc: Loc
    text: str


def explain(error: ErrorDetails, model: type[BaseModel]) -> Problem:
    """A problem in words from one pydantic error of `model`."""
    loc: Loc = tuple(part for part in error["loc"] if not _is_union_tag(part))
    kind, seen = error["type"], error["input"]
    if kind == "extra_forbidden":
        keys = known_keys(model_at(model, loc[:-1]))
        hint = did_you_mean(loc[-1], keys)
        return Problem(loc, f"unknown key{hint} Allowed: {', '.join(keys)}")
    if kind == "missing":
        return Problem(loc, "missing; this key is required")
    if kind == "value_error":
        return Problem(loc, str(error["ctx"]["error"]))
    if kind == "literal_error":
        return Problem(loc, f"{shown(seen)} is not allowed; write {error['ctx']['expected']}")
    if kind == "string_pattern_mismatch":
        what = "letters, digits, '.', '_' and '-', at most 64, the first one a letter or digit"
        if "." not in error["ctx"]["pattern"]:
            what = "the name of an environment variable: letters, digits and '_'"
        return Problem(loc, f"{shown(seen)} is not allowed; write {what}")
    text = error["msg"][0].lower() + error["msg"][1:]
    return Problem(loc, f"{shown(seen)}: {text.replace('input should', 'should')}")


def listing(problems: Sequence[Problem], source: str, raw: Mapping[str, Any]) -> str:
    """All problems of one file as one text, in the order of the file's keys."""
    lines = list(dict.fromkeys(f"{path_of(p.loc, raw)}: {p.text}" for p in problems))
    if len(lines) == 1:
        return f"{source}: {lines[0]}"
    return "\n".join([f"{source}: {len(lines)} errors", *(f"  {line}" for line in lines)])


def path_of(loc: Loc, raw: Mapping[str, Any]) -> str:
    """`config[1] ("ngram-4").launch.port`: TOML keys, list places from 0, the name of a table where it has one."""
    text, here = "", typing.cast("Any", raw)
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
            here = here[part] if isinstance(here, list) and part < len(here) else None
            if isinstance(here, dict) and isinstance(here.get("name"), str):
                text += f' ("{here["name"]}")'
        else:
            text += f".{part}" if text else part
            here = here.get(part) if isinstance(here, dict) else None
    return text or "the file"


def shown(value: object) -> str:
    """A value as it looks in TOML, cut where it is long."""
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
    if isinstance(value, str):
        text = f'"{value}"'
    return text if len(text) <= 80 else f"{text[:77]}..."


def known_keys(model: type[BaseModel] | None) -> list[str]:
    """The TOML keys of a model."""
    if model is None:
        return []
    return [field.alias or name for name, field in model.model_fields.items()]


def model_at(model: type[BaseModel], loc: Loc) -> type[BaseModel] | None:
    """The model that describes the table at `loc`; None below free tables."""
    here: Any = model
    for part in loc:
        if isinstance(part, int):
            here = _unwrap(here, item=True)
            continue
        here = _unwrap(here)
        if not _is_model(here):
            return None
        by_key = {f.alias or n: f for n, f in here.model_fields.items()}
        if part not in by_key:
            return None
        here = by_key[part].annotation
    here = _unwrap(here)
    return here if _is_model(here) else None


def _unwrap(kind: Any, *, item: bool = False) -> Any:
    """The type inside Annotated and Optional, and with `item` that of a list's items."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _unwrap(args[0], item=item)
    if origin in (typing.Union, types.UnionType):
        return _unwrap(next(a for a in args if a is not type(None)), item=item)
    if item and origin is list:
        return args[0]
    return kind


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _is_union_tag(part: str | int) -> bool:
    """Pydantic adds the branch of a union ("int", "list[str]") to the path; it is no key of the file."""
    return part in ("str", "int", "float", "bool", "list[str]", "[key]")
