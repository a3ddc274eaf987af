"""Durations and limits as people write them ("500ms", "20s", "1.5%", "4/s"), and the types that the models use."""

from __future__ import annotations

import math
import re
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from loadtest.plan.metrics import RATIO_STAT, Metric, is_sound_limit

LONGEST_S = 366 * 86_400.0
"""Times are kept as 64-bit nanoseconds since 1970, which end in 2262; nobody waits a year."""
SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_NUMBER = r"(\d+(?:\.\d+)?|\.\d+)"
DURATION_PATTERN = rf"^\s*{_NUMBER}\s*(us|µs|ms|s|m|min|h)\s*$"
_DURATION = re.compile(DURATION_PATTERN)
_PERCENT = re.compile(rf"^\s*{_NUMBER}\s*%\s*$")
_PER_SECOND = re.compile(rf"^\s*{_NUMBER}\s*(?:tok|req|tokens|requests)?/s\s*$")

_EXAMPLE = 'write a number with its unit (us, ms, s, m, h), for example "500ms", "20s" or "2m"'


def parse_duration(value: object) -> float:
    """Seconds of "500ms", "20s", "2m", "1.5h". ValueError for anything else, a number without a unit included."""
    match = _DURATION.match(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is not a duration; {_EXAMPLE}")
    seconds = float(match.group(1)) * SECONDS[match.group(2)]
    if seconds > LONGEST_S:
        raise ValueError(f"{value!r} is too long: a year at most; {_EXAMPLE}")
    return seconds


def format_duration(seconds: float) -> str:
    """A text that `parse_duration` reads back: the largest unit that leaves a short number."""
    if seconds >= 3600 and (seconds / 3600).is_integer():
        return f"{seconds / 3600:.0f}h"
    if seconds >= 120 and (seconds / 60).is_integer():
        return f"{seconds / 60:.0f}m"
    if seconds == 0 or seconds >= 1:
        return f"{_plain(seconds)}s"
    return f"{_plain(seconds * 1e3)}ms"


def _plain(number: float) -> str:
    return f"{number:.6f}".rstrip("0").rstrip(".")


def _positive(seconds: float) -> float:
    if seconds <= 0:
        raise ValueError("0 is not allowed here; write a duration above 0")
    return seconds


_SCHEMA = {"type": "string", "pattern": DURATION_PATTERN, "examples": ["500ms", "20s", "2m"]}
_SERIALIZED = PlainSerializer(format_duration, return_type=str)

Duration = Annotated[float, BeforeValidator(parse_duration), _SERIALIZED, WithJsonSchema(_SCHEMA)]
"""A duration of 0 or more: text in the file, seconds in the model."""

PositiveDuration = Annotated[
    float, BeforeValidator(lambda v: _positive(parse_duration(v))), _SERIALIZED, WithJsonSchema(_SCHEMA)
]
"""A duration above 0."""


def parse_limit(value: object, metric: Metric, stat: str) -> float:
    """The limit in the metric's own unit. ValueError for a missing or wrong unit, NaN, infinity, < 0, a share > 1."""
    number = _number_of(value, metric, stat)
    if not is_sound_limit(metric, stat, number):
        allowed = "between 0 and 1" if metric.unit == "share" and stat != RATIO_STAT else "finite and not negative"
        raise ValueError(f"{value!r} is no limit for {metric.name}; it must be {allowed}")
    return number


def _number_of(value: object, metric: Metric, stat: str) -> float:
    plain = None if isinstance(value, bool) or not isinstance(value, int | float) else float(value)
    text = value if isinstance(value, str) else ""
    if stat == RATIO_STAT:
        if plain is None:
            raise ValueError(f"{value!r} is no ratio; write a plain number, for example 1.02")
        return plain
    if metric.unit == "us":
        # A bare number has no meaning here, but NaN and infinity deserve their own words.
        if plain is not None and not math.isfinite(plain):
            return plain
        return parse_duration(value) * 1e6
    if plain is not None:
        return plain
    if metric.unit == "share" and (match := _PERCENT.match(text)):
        return float(match.group(1)) / 100
    if metric.unit == "per_s" and (match := _PER_SECOND.match(text)):
        return float(match.group(1))
    example = {"share": '0.01 or "1%"', "per_s": '100 or "100/s"'}.get(metric.unit, "1.5")
    raise ValueError(f"{value!r} is no limit for {metric.name}; write for example {example}")
