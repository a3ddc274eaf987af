"""The table the field uses, as text: one line per data set, scheme, sampling and load. Every renderer shows these."""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.judge.verdict import Verdict
from loadtest.model import NOT_MEASURED
from loadtest.report.tables import Row
from loadtest.report.units import DAGGER_NOTE, P95_CLAIM_N, P99_CLAIM_N, duration, number, share, tail

HEADER = (
    "data set", "scheme/gamma", "sampling", "load", "n (ok / sent)", "A/D", "1+A/S", "coverage", "S, D, A",
    "E2E p50", "E2E p95", "output tok/s", "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99", "quality",
)  # fmt: skip
KEYS = 4
"""Columns in front that name the line; the others are figures."""
REFERENCE = "reference"
"""Quality of what the others are compared with."""
QUESTIONS = ("output right?", "candidates?", "pays?", "SLOs hold?")
"""Headings of the four answers of a decision."""

NOTE = (
    "Repeats are pooled (sums first, divided last; percentiles from all rows together). Every figure is a point "
    f"estimate over the n of its line; intervals stand with the criteria. {DAGGER_NOTE} A/D = accepted over drafted "
    "tokens; 1+A/S = mean acceptance length of drafted steps, not tokens per step; coverage = share of output tokens "
    "from drafted steps, a little over 100 % where the last step's cut tokens could not be taken out. Chunk gaps are "
    "not token times and are not in this table. Quality: is the output right?"
)

_OPEN = (
    "open loop: how the server does at so many requests per second, whatever it answers; a stall shows in full in the "
    "latency from the scheduled start (e2e_intended). It does not say how many users can be served at once."
)
LOAD_KINDS = {
    "closed": "closed loop: how the server does with so many users at once. A slower server is asked less often, so a "
    "stall hides the requests that would have come meanwhile: no statement about an arrival rate.",
    "poisson": _OPEN,
    "constant": _OPEN,
    "trace": _OPEN,
    "ramp": _OPEN,
    "sequential": "one request at a time, not streamed: the time of whole requests only. No TTFT, no TPOT, and not "
    "the throughput of a server under load.",
}
"""What a load of each kind can tell and what it cannot."""


def load_kinds(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """(labels of the loads, what they can and cannot tell) for the kinds of load in these rows."""
    labels: dict[str, dict[str, None]] = {}
    for row in rows:
        labels.setdefault(LOAD_KINDS[row.load_kind], {})[row.load] = None
    return [(", ".join(loads), what) for what, loads in labels.items()]


def cells(row: Row, quality: str) -> list[str]:
    """One line as text; a cell without a measurement says so in every figure."""
    head = [row.mix, row.label, row.sampling, row.load]
    if not row.measured:
        return [*head, *[NOT_MEASURED] * (len(HEADER) - KEYS)]
    lat, n = row.latency, {m: int(v["n"] or 0) for m, v in row.latency.items()}
    if row.method == "none":
        spec = ["no drafts"] * 4
    elif row.acceptance_source is None:
        spec = [NOT_MEASURED] * 4
    else:
        sums = (row.steps, row.drafts, row.accepted)
        spec = [
            share(row.acceptance_rate),
            number(row.acceptance_length),
            share(row.coverage),
            ", ".join(NOT_MEASURED if v is None else f"{v:.0f}" for v in sums),
        ]
    return [
        *head,
        counts(row),
        *spec,
        duration(lat["e2e"]["p50"]),
        tail(lat["e2e"]["p95"], n["e2e"], P95_CLAIM_N),
        number(row.output_tok_s, NOT_MEASURED),
        duration(lat["ttft"]["p50"]),
        tail(lat["ttft"]["p99"], n["ttft"], P99_CLAIM_N),
        duration(lat["tpot"]["p50"]),
        tail(lat["tpot"]["p99"], n["tpot"], P99_CLAIM_N),
        quality,
    ]


def counts(row: Row) -> str:
    """`ok / sent`, and how many repeats are behind it where some are missing."""
    text = " / ".join(NOT_MEASURED if v is None else str(v) for v in (row.ok, row.sent))
    return text if row.repeats == len(row.states) else f"{text} ({row.repeats} of {len(row.states)} repeats)"


def unmeasured(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """(where, why) of every line that lacks a repeat; lines with the same reason stand together."""
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for r in rows:
        if r.repeats < len(r.states):
            why = r.reason or ", ".join(sorted({s for s in r.states if s != "done"}))
            found.setdefault((r.config, r.mix, r.sampling, why), []).append(r.load)
    merged: dict[tuple[str, str], list[str]] = {}
    for (config, mix, sampling, why), loads in found.items():
        merged.setdefault((config, why), []).append(f"{mix} ({sampling}) at {', '.join(loads)}")
    return [(f"{config} on {'; '.join(where)}", why) for (config, why), where in merged.items()]


def quality_of(verdict: Verdict) -> dict[tuple[str, str, str], str]:
    """(config, mix, sampling) -> the answer to "is the output right?", and the unit tests that pass, if they ran."""
    out: dict[tuple[str, str, str], str] = {}
    for d in verdict.decisions:
        question = next((q for q in d.questions if q.key == "output"), None)
        if question is not None:
            out[d.config, d.mix, d.sampling] = question.answer
    for t in verdict.unit_tests:
        key = t.config, t.mix, t.sampling
        told = f"{share(t.passed / t.prompts)} of {t.prompts} prompts pass their tests"
        out[key] = f"{out.get(key, REFERENCE)}; {told}"
    return out


def quality_cell(row: Row, quality: dict[tuple[str, str, str], str]) -> str:
    """The answer to "is the output right?" for one line; the baseline is what it is compared with."""
    missing = REFERENCE if row.is_baseline else NOT_MEASURED
    return quality.get((row.config, row.mix, row.sampling), missing)
