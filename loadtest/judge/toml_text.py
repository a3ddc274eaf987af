"""Plain values as TOML: tables, lists of tables, and everything below inline. The standard library only reads it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

_BARE = re.compile(r"^[A-Za-z0-9_-]+$")


def toml_of(content: Mapping[str, Any]) -> str:
    """A TOML document; keys whose value is None are left out. ValueError for what TOML cannot hold."""
    plain, tables = [], []
    for key, value in content.items():
        if value is None:
            continue
        if isinstance(value, Mapping):
            tables.append(f"[{_key(key)}]\n{_pairs(value)}")
        elif isinstance(value, list) and value and all(isinstance(v, Mapping) for v in value):
            tables += [f"[[{_key(key)}]]\n{_pairs(v)}" for v in value]
        else:
            plain.append(f"{_key(key)} = {_value(value)}\n")
    return "\n".join(["".join(plain), *tables])


def _pairs(table: Mapping[str, Any]) -> str:
    return "".join(f"{_key(k)} = {_value(v)}\n" for k, v in table.items() if v is not None)


def _key(key: str) -> str:
    return key if _BARE.match(key) else _text(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    if isinstance(value, Mapping):
        pairs = (f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None)
        return "{ " + ", ".join(pairs) + " }" if value else "{}"
    raise ValueError(f"TOML holds no {value!r}")


def _text(text: str) -> str:
    """A basic string; JSON escapes the same characters, but for DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
