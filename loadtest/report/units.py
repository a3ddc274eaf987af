"""The one place that turns figures into text. None is never shown as a number."""

from __future__ import annotations

import math

UNDEFINED = "undefined"
"""Measured, but the figure has no value: A/D with D = 0, TPOT of one token."""

P99_CLAIM_N = 299
"""Requests below which no P99 can be claimed at 95 % (exact binomial: 0.99^299 < 0.05)."""
P95_CLAIM_N = 59
"""The same for P95."""


def duration(us: float | None, missing: str = UNDEFINED) -> str:
    """Microseconds with three significant digits and a unit: 950 µs, 12.3 ms, 1.23 s."""
    if us is None or not math.isfinite(us):
        return missing
    for limit, factor, unit in ((1e3, 1.0, "µs"), (1e6, 1e3, "ms"), (math.inf, 1e6, "s")):
        if abs(us) < limit:
            return f"{_three(us / factor)} {unit}"
    raise AssertionError("unreachable: the last limit is infinite")


def share(value: float | None, missing: str = UNDEFINED) -> str:
    """0 to 1 as a percentage with one decimal."""
    return missing if value is None or not math.isfinite(value) else f"{value * 100:.1f} %"


def number(value: float | None, missing: str = UNDEFINED) -> str:
    """Three significant digits, whole above 1000."""
    return missing if value is None or not math.isfinite(value) else _three(value)


def in_unit(value: float | None, unit: str, missing: str = UNDEFINED) -> str:
    """A value of `plan.metrics` in its unit."""
    if unit == "us":
        return duration(value, missing)
    if unit == "share":
        return share(value, missing)
    text = number(value, missing)
    return f"{text} /s" if unit == "per_s" and text != missing else text


DAGGER_NOTE = (
    f"† fewer requests than a claim needs (P95: {P95_CLAIM_N}, P99: {P99_CLAIM_N} at 95 %): it may be far off."
)


def tail(us: float | None, n: int, claim_n: int) -> str:
    """A tail quantile over n requests; below `claim_n` with the dagger that DAGGER_NOTE explains."""
    if us is None or not n:
        return UNDEFINED
    return duration(us) if n >= claim_n else f"{duration(us)}†"


def printable(text: str) -> str:
    """On one line and without control characters: an error text of a server must not steer a terminal."""
    return "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text.split()))


def shorten(text: str, limit: int) -> str:
    """At most `limit` characters on one line, cut between words."""
    text = printable(text)
    if len(text) <= limit:
        return text
    cut = text[: limit - 2]
    return (cut.rsplit(" ", 1)[0] if " " in cut else cut) + " …"


def _three(value: float) -> str:
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}"
