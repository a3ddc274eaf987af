"""Figures as words: one place that knows units."""

from __future__ import annotations

import math


def figure(value: float | None, unit: str) -> str:
    """A value with its unit, three significant digits: "412 ms", "2.1 s", "0.31 %", "1,240/s", "2.45"."""
    if value is None or math.isnan(value):
        return "not known"
    if math.isinf(value):
        return "never"
    if unit == "us":
        for size, name in ((1e6, "s"), (1e3, "ms")):
            if abs(value) >= size:
                return f"{_digits(value / size)} {name}"
        return f"{_digits(value)} us"
    if unit == "share":
        return f"{_digits(100 * value)} %"
    if unit == "per_s":
        return f"{_digits(value)}/s"
    if unit == "times":
        return f"{_digits(value)}x"
    return _digits(value)


def _digits(value: float) -> str:
    """Three significant digits, never fewer than the whole part has; no exponent."""
    if value == 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(confidence: float) -> str:
    """0.95 as "95 %"."""
    return f"{_digits(100 * confidence)} %"


def count(n: int, noun: str) -> str:
    """A number with its noun: "1 request", "1,200 requests"."""
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def bounds_words(
    lower: float | None, upper: float | None, limit: float, confidence: float, unit: str, direction: str
) -> str:
    """Bounds and limit: "95 % bounds 1 to 2 ms, limit <= 3 ms"."""
    sign = "<=" if direction == "lower" else ">="
    between = f"{figure(lower, unit)} to {figure(upper, unit)}"
    return f"{percent(confidence)} bounds {between}, limit {sign} {figure(limit, unit)}"
