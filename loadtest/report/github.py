"""For GitHub Actions: a step summary under its size limit and at most three annotations."""

from __future__ import annotations

from loadtest.judge.verdict import Verdict
from loadtest.report.criteria import bounds_text, by_criterion_and_config, estimate_text, limit_text, ranked, scope_text
from loadtest.report.summary import banners, cell, table
from loadtest.report.units import shorten

MAX_BYTES = 1_000_000
"""GitHub refuses a step summary over 1024 KiB; a refused summary would hide the verdict."""
MAX_ANNOTATIONS = 3
"""GitHub shows ten per step and drops the rest; three worst criteria say enough."""
MAX_LINES = 20
MAX_TEXT = 300
"""Characters of one reason at most."""


def step_summary(verdict: Verdict) -> bytes:
    """Verdict line, one table of the worst criteria, where the rest is."""
    gating = [c for c in verdict.checks if c.gating]
    counts = {s: sum(c.status == s for c in gating) for s in ("FAIL", "INCONCLUSIVE", "PASS")}
    worst = [g.worst for g in by_criterion_and_config(verdict.checks)[:MAX_LINES]]
    rows = [
        [c.status, c.slo, scope_text(c), limit_text(c), estimate_text(c), bounds_text(c), shorten(c.reason, MAX_TEXT)]
        for c in worst
    ]
    lines = [
        f"## {'SIMULATED ' if verdict.simulated else ''}{verdict.status}: {cell(verdict.run_id)}",
        "",
        *(line for b in banners(verdict) for line in (b, "")),
        cell(shorten(verdict.sentence, 4 * MAX_TEXT)),
        "",
        f"{counts['FAIL']} failed, {counts['INCONCLUSIVE']} inconclusive, {counts['PASS']} passed checks.",
        f"The worst of each criterion and config, {MAX_LINES} lines at most:",
        "",
        *table(("status", "criterion", "where", "limit", "estimate", "bounds", "why"), rows),
        "",
        "All figures: report.html, summary.md, verdict.json and the Parquet files among the artifacts.",
        "",
    ]
    content = "\n".join(lines).encode()
    return content if len(content) <= MAX_BYTES else content[:MAX_BYTES].rsplit(b"\n", 1)[0] + b"\n\ncut to fit\n"


def annotation_lines(verdict: Verdict) -> list[str]:
    """`::error` lines for the worst checks, at most three."""
    simulated = "SIMULATED " if verdict.simulated else ""
    bad = [c for c in ranked(c for c in verdict.checks if c.gating) if c.status != "PASS"]
    return [
        f"::error title={_property(f'{simulated}{c.status} {c.slo}')}::"
        f"{_message(shorten(f'{scope_text(c)}: {c.reason}', MAX_TEXT))}"
        for c in bad[:MAX_ANNOTATIONS]
    ]


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
