"""For GitHub Actions: a step summary under its size limit and at most three annotations."""

from __future__ import annotations

from loadtest.judge.verdict import Verdict
from loadtest.report.summary import banners, scope_text, table

MAX_BYTES = 1_000_000
"""GitHub refuses a step summary over 1024 KiB; a refused summary would hide the verdict."""
MAX_ANNOTATIONS = 3
"""GitHub shows ten per step and drops the rest; three worst criteria say enough."""
WORST_CELLS = 20


def step_summary(verdict: Verdict) -> bytes:
    """Verdict line, one table of the worst criteria, where the rest is."""
    order = {"FAIL": 0, "INCONCLUSIVE": 1, "PASS": 2}
    checks = sorted((c for c in verdict.checks if c.gating), key=lambda c: order[c.status])
    counts = {s: sum(c.status == s for c in checks) for s in order}
    rows = [[c.status, c.slo, scope_text(c), c.reason] for c in checks[:WORST_CELLS]]
    lines = [
        f"## {verdict.status}: {verdict.run_id}",
        "",
        *banners(verdict),
        verdict.sentence,
        "",
        f"{counts['FAIL']} failed, {counts['INCONCLUSIVE']} inconclusive, {counts['PASS']} passed criteria.",
        "",
        *table(("status", "criterion", "where", "why"), rows),
        "",
        "All figures: report.html, verdict.json and the Parquet files among the artifacts.",
    ]
    content = "\n".join(lines).encode()
    return content if len(content) <= MAX_BYTES else content[:MAX_BYTES].rsplit(b"\n", 1)[0] + b"\n\ncut to fit\n"


def annotation_lines(verdict: Verdict) -> list[str]:
    """`::error` lines for the worst criteria, at most three."""
    bad = [c for s in ("FAIL", "INCONCLUSIVE") for c in verdict.checks if c.gating and c.status == s]
    return [
        f"::error title={_property(f'{c.status} {c.slo}')}::{_message(f'{scope_text(c)}: {c.reason}')}"
        for c in bad[:MAX_ANNOTATIONS]
    ]


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
