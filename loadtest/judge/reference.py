"""docs/inconclusive.md, docs/slo-file.md and docs/verdict.schema.json, made from the code.

Write all three with `python -m loadtest.judge.reference` in the project's folder.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from pathlib import Path
from typing import Any, Literal

from loadtest.judge import orderstats
from loadtest.judge.comparable import PAIR_CHECKS, RUN_REASONS
from loadtest.judge.gate import IMPLICIT_ERROR_BUDGET
from loadtest.judge.trust import CHECKS
from loadtest.judge.verdict import Verdict
from loadtest.plan.metrics import GOODPUT_METRICS, METRICS, SELECTORS, stats_of

BEGIN, END = "<!-- tables: begin (generated) -->", "<!-- tables: end -->"
_UNITS = {
    "us": 'a duration, "500ms"',
    "share": '0 to 1 or "1%"',
    "per_s": "per second",
    "tokens": "a number",
    "ratio": "a number",
}


def reasons_page() -> str:
    """docs/inconclusive.md."""
    lines = [
        "# Why a verdict is inconclusive",
        "",
        "Generated from `loadtest/judge/trust.py` and `comparable.py` by `python -m loadtest.judge.reference`.",
        "",
        "The gate fails closed: while any of these reasons holds for a cell, none of its criteria can pass, and a",
        "fact that is missing where it is needed counts against the cell. A FAIL stands unless the reason taints the",
        "figure, because the fault could then have caused it. Hints change no verdict.",
        "",
        "A criterion is inconclusive without any of these reasons where its confidence interval holds the limit:",
        'the sentence then says about how many more requests would decide it ("P99 not claimable (n=…)" below',
        f"{orderstats.n_needed(0, 0.99, 0.95)} independent requests at 95 % confidence).",
        "",
        "## Cells",
        "",
    ]
    for check in CHECKS:
        taints = "nothing" if not check.taints else ", ".join(sorted(check.taints))
        lines += _reason(check.code, check.limit, check.why, check.do, check.blocking, f"* Taints: {taints}")
    lines += ["## Comparisons", ""]
    for pair in PAIR_CHECKS:
        lines += _reason(pair.code, pair.limit, pair.why, pair.do, pair.blocking)
    lines += ["## The run", ""]
    for reason in RUN_REASONS.values():
        lines += _reason(reason.code, reason.limit, reason.why, reason.do, reason.blocking)
    return "\n".join(lines).rstrip() + "\n"


def _reason(code: str, limit: str, why: str, do: str, blocking: bool, *more: str) -> list[str]:
    mark = "" if blocking else " (hint)"
    return [f"### `{code}`{mark}", "", f"* Limit: {limit}", f"* Why: {why}", f"* What to do: {do}", *more, ""]


def slo_tables() -> str:
    """The generated part of docs/slo-file.md."""
    lines = ["| metric | stat | bound | unit of the bound | meaning |", "|---|---|---|---|---|"]
    for metric in METRICS.values():
        bound = "`max`" if metric.direction == "lower" else "`min`"
        unit = _UNITS[metric.unit]
        lines.append(f"| `{metric.name}` | {stats_of(metric)} | {bound} | {unit} | {metric.what} |")
    budget = f"{100 * IMPLICIT_ERROR_BUDGET:g} %"
    lines += [
        "",
        f"* `where` selectors, values are globs: {', '.join(f'`{s}`' for s in SELECTORS)}",
        f"* `limits` of `goodput` may name: {', '.join(f'`{m}`' for m in GOODPUT_METRICS)}",
        f"* Where no criterion on `error_rate` selects a cell, at most {budget} of its requests may fail",
        "",
        "Requests needed before a quantile can be claimed at 95 % confidence, by number over the limit:",
        "",
        "| over the limit | 0 | 1 | 2 | 5 | 10 | 20 |",
        "|---|---|---|---|---|---|---|",
    ]
    for label, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999)):
        counts = " | ".join(f"{orderstats.n_needed(t, q, 0.95):,}" for t in (0, 1, 2, 5, 10, 20))
        lines.append(f"| {label} | {counts} |")
    return "\n".join(lines) + "\n"


def with_tables(page: str) -> str:
    """The page with its generated part made anew. ValueError where the marks are missing."""
    if BEGIN not in page or END not in page:
        raise ValueError(f"the page needs the lines {BEGIN} and {END}")
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{slo_tables()}\n{END}{rest.partition(END)[2]}"


def verdict_schema() -> str:
    """JSON schema (draft 2020-12) of verdict.json, from the dataclasses."""
    definitions: dict[str, Any] = {}
    root = _object(Verdict, definitions)
    root["properties"]["exit_code"] = {"enum": [0, 98, 99]}
    root["required"].append("exit_code")
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "loadtest verdict"}
    return json.dumps({**head, **root, "$defs": definitions}, ensure_ascii=False, indent=1) + "\n"


def _object(kind: type, definitions: dict[str, Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    properties = {f.name: _schema(hints[f.name], definitions) for f in dataclasses.fields(kind)}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _schema(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return {"enum": list(args)}
    if origin is tuple:
        return {"type": "array", "items": _schema(args[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(args[1], definitions)}
    if origin is types.UnionType:
        return {"anyOf": [_schema(arg, definitions) for arg in args]}
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if hint.__name__ not in definitions:
            definitions[hint.__name__] = {}
            definitions[hint.__name__] = _object(hint, definitions)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    words = {str: "string", float: "number", int: "integer", bool: "boolean", type(None): "null"}
    return {"type": words[hint]}


def write_docs(docs: Path) -> None:
    """Write the two generated files and bring slo-file.md up to date."""
    (docs / "inconclusive.md").write_text(reasons_page(), encoding="utf-8")
    (docs / "verdict.schema.json").write_text(verdict_schema(), encoding="utf-8")
    page = docs / "slo-file.md"
    page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write_docs(Path("docs"))
