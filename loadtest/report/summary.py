"""summary.md: the verdict in words, the decision per config, the table the field uses, and why cells do not count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loadtest.judge.verdict import Check, Verdict
from loadtest.model import NOT_MEASURED
from loadtest.report.tables import Row
from loadtest.report.units import P95_CLAIM_N, P99_CLAIM_N, duration, in_unit, number, share, tail

SIMULATED = (
    "**SIMULATED**: made with the simulated server. It checks the process; it says nothing about any real server."
)
SYNTHETIC = (
    "**SYNTHETIC ACCEPTANCE**: the server was told which drafts to accept. No figure here may decide a deployment."
)
BUNDLED = (
    "Figures on the bundled sample prompts check the process; "
    "a verdict for a business needs its own, larger prompt set."
)
MAX_CHECKS = 200
"""Rows of the criteria table at most; verdict.json has all."""


def render(run: dict[str, Any], rows: Sequence[Row], verdict: Verdict) -> bytes:
    """The whole page as UTF-8 Markdown."""
    lines = [f"# {verdict.status}: {verdict.run_id}", ""]
    lines += [s for s in banners(verdict) for s in (s, "")]
    lines += [verdict.sentence, ""]
    lines += _decisions(verdict)
    lines += ["## Results by data set and scheme", "", *_results(rows, verdict), ""]
    lines += ["## Criteria", "", *_checks(verdict.checks), ""]
    lines += _reasons(verdict)
    lines += ["## Where this comes from", "", *_origin(run), ""]
    return "\n".join(lines).encode()


def banners(verdict: Verdict) -> list[str]:
    """What must be said above everything else."""
    return ([SIMULATED] if verdict.simulated else []) + ([SYNTHETIC] if verdict.synthetic_acceptance else [])


def cell(text: str) -> str:
    """Text that cannot break out of a Markdown table cell."""
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    return [
        "| " + " | ".join(header) + " |",
        "|" + "---|" * len(header),
        *("| " + " | ".join(cell(c) for c in row) + " |" for row in rows),
    ]


RESULT_HEADER = (
    "data set", "scheme/gamma", "sampling", "load", "n (ok / sent)", "A/D", "1+A/S", "coverage", "S, D, A",
    "E2E p50", "E2E p95", "output tok/s", "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99", "quality",
)  # fmt: skip


def result_cells(row: Row, quality: str) -> list[str]:
    """One line of the results table as text; a cell without a measurement says so in every figure."""
    head = [row.mix, f"{row.config} ({row.scheme})", row.sampling, row.load]
    if not row.measured:
        why = row.reason or ", ".join(sorted(set(row.states)))
        return [*head, NOT_MEASURED + (f": {why}" if why else ""), *[NOT_MEASURED] * 12]
    lat, n = row.latency, {m: int(v["n"] or 0) for m, v in row.latency.items()}
    if row.method == "none":
        spec = ["no drafts"] * 4
    elif row.acceptance_source is None:
        spec = [NOT_MEASURED] * 4
    else:
        spec = [
            share(row.acceptance_rate),
            number(row.acceptance_length),
            share(row.coverage),
            f"{row.steps:.0f}, {row.drafts:.0f}, {row.accepted:.0f}",
        ]
    return [
        *head,
        f"{row.ok} / {row.sent}",
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


def quality_of(verdict: Verdict) -> dict[tuple[str, str, str], str]:
    """(config, mix, sampling) -> the answer to "is the output right?"."""
    out: dict[tuple[str, str, str], str] = {}
    for d in verdict.decisions:
        question = next((q for q in d.questions if q.key == "output"), None)
        if question is not None:
            out[d.config, d.mix, d.sampling] = question.answer
    return out


RESULTS_NOTE = (
    "Repeats are pooled (sums first, divided last; percentiles from all rows together). Every figure is a point "
    "estimate over the n of its line; intervals stand with the criteria below. A/D = accepted over drafted tokens, "
    "1+A/S = mean acceptance length of drafted steps (not tokens per step), coverage = share of output tokens from "
    "drafted steps. Chunk gaps are not token times and are not in this table. Quality: is the output right?"
)


def quality_cell(row: Row, quality: dict[tuple[str, str, str], str]) -> str:
    """The answer to "is the output right?" for one line; the baseline is what it is compared with."""
    return "reference" if row.is_baseline else quality.get((row.config, row.mix, row.sampling), NOT_MEASURED)


def _results(rows: Sequence[Row], verdict: Verdict) -> list[str]:
    quality = quality_of(verdict)
    return [RESULTS_NOTE, "", *table(RESULT_HEADER, [result_cells(r, quality_cell(r, quality)) for r in rows])]


def _decisions(verdict: Verdict) -> list[str]:
    if not verdict.decisions:
        return []
    lines = ["## Decision for each config", ""]
    rows = []
    for d in verdict.decisions:
        label = d.decision + (f" {d.up_to}" if d.up_to else "")
        answers: dict[str, str] = {q.key: q.answer for q in d.questions}
        words = [answers.get(k, "not known") for k in ("output", "candidates", "pays", "slo")]
        rows.append([d.config, d.mix, d.sampling, label, *words, d.sentence])
    header = (
        "config",
        "mix",
        "sampling",
        "decision",
        "output right?",
        "candidates?",
        "pays?",
        "SLOs hold?",
        "in words",
    )
    return [*lines, *table(header, rows), ""]


def _checks(checks: Sequence[Check]) -> list[str]:
    if not checks:
        return ["No criterion was given, so nothing can pass."]
    order = {"FAIL": 0, "INCONCLUSIVE": 1, "PASS": 2}
    ranked = sorted(checks, key=lambda c: order[c.status])
    rows = [
        [
            c.status + ("" if c.gating else " (shown only)"),
            c.slo,
            scope_text(c),
            f"{c.metric} {c.stat} {'≤' if c.direction == 'lower' else '≥'} {in_unit(c.limit, c.unit)}",
            in_unit(c.estimate, c.unit, "no figure"),
            f"{in_unit(c.lower, c.unit, '−∞')} to {in_unit(c.upper, c.unit, '∞')} at {c.confidence:.0%}",
            f"{c.n}" + (f" (n_eff {c.n_eff})" if c.n_eff is not None and c.n_eff != c.n else ""),
            c.reason,
        ]
        for c in ranked[:MAX_CHECKS]
    ]
    lines = table(("status", "criterion", "where", "limit", "estimate", "bounds", "n", "why"), rows)
    if len(ranked) > MAX_CHECKS:
        lines.append(f"\n{len(ranked) - MAX_CHECKS} more in verdict.json; worst first here.")
    return lines


def scope_text(check: Check) -> str:
    """Where a criterion was applied, in one line."""
    s = check.scope
    if s is None:
        return "no cell selected"
    repeat = "repeats pooled" if s.repeat is None else f"r{s.repeat}"
    return " / ".join(x for x in (s.config, s.mix, s.sampling, s.load, s.stratum, repeat) if x)


def _reasons(verdict: Verdict) -> list[str]:
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for r in verdict.reasons:
        grouped.setdefault((r.code, r.why, r.do), []).append(f"the run: {r.seen} (limit: {r.limit})")
    for c in verdict.cells:
        for r in c.reasons:
            grouped.setdefault((r.code, r.why, r.do), []).append(f"{c.cell_id}: {r.seen} (limit: {r.limit})")
    if not grouped:
        return []
    lines = ["## What to know before trusting the figures", ""]
    for (code, why, do), seen in grouped.items():
        lines.append(f"* **{code}** ({len(seen)}): {cell(why)} {cell(do)}")
        lines += [f"  * {cell(s)}" for s in seen[:5]]
        if len(seen) > 5:
            lines.append(f"  * and {len(seen) - 5} more in verdict.json")
    return [*lines, ""]


def _origin(run: dict[str, Any]) -> list[str]:
    host = run.get("host", {})
    return [
        f"* run `{run['run_id']}`, plan sha256 `{run['plan_sha256']}`, loadtest {run['tool_version']}",
        f"* load from {host.get('cpu') or 'an unnamed CPU'}, {host.get('cores')} cores, Python {host.get('python')}",
        f"* {BUNDLED}",
        "* recompute: `loadtest merge RUN` from raw files, `loadtest gate RUN` from Parquet, or SQL over `requests/`",
    ]
