"""docs/plan.schema.json and the key tables of docs/plan-file.md, made from the models.

Write both with `python -m loadtest.plan.reference` in the project's folder.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from loadtest.plan.load_table import Load, Measure, RampStep, Trace
from loadtest.plan.schema import Cache, Client, Config, Launch, Mix, Part, Plan, Sampling, Target
from loadtest.plan.slo import SloEntry
from loadtest.plan.units import format_duration

BEGIN, END = "<!-- keys: begin (generated) -->", "<!-- keys: end -->"
SECTIONS: tuple[tuple[str, type[BaseModel]], ...] = (
    ("Top level", Plan),
    ("`[target]`", Target),
    ("`[[config]]`", Config),
    ("`config.launch`", Launch),
    ("`[[mix]]`", Mix),
    ("`mix.parts`", Part),
    ("`[load]`", Load),
    ("`load.ramp`", RampStep),
    ("`load.trace`", Trace),
    ("`[[sampling]]`", Sampling),
    ("`[[slo]]`", SloEntry),
    ("`[client]`", Client),
    ("`[cache]`", Cache),
)


def plan_schema() -> str:
    """The JSON schema of a plan (draft 2020-12), for editors."""
    schema = Plan.model_json_schema(mode="validation")
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "loadtest plan",
    }
    return json.dumps(head | {k: v for k, v in schema.items() if k != "title"}, ensure_ascii=False, indent=1) + "\n"


def key_tables() -> str:
    """A Markdown table of every section's keys."""
    lines: list[str] = []
    for title, model in SECTIONS:
        lines += ["", f"### {title}", "", "| key | type | default | meaning |", "|---|---|---|---|"]
        properties = model.model_json_schema(mode="validation")["properties"]
        for name, field in model.model_fields.items():
            key = field.alias or name
            lines.append(f"| `{key}` | {_type(properties[key])} | {_default(field)} | {field.description} |")
    return "\n".join(lines[1:]) + "\n"


def with_tables(page: str) -> str:
    """The page with its generated part made anew. ValueError where the marks are missing."""
    if BEGIN not in page or END not in page:
        raise ValueError(f"the page needs the lines {BEGIN} and {END}")
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{key_tables()}\n{END}{rest.partition(END)[2]}"


def write_docs(docs: Path) -> None:
    """Write plan.schema.json and bring plan-file.md up to date."""
    (docs / "plan.schema.json").write_text(plan_schema(), encoding="utf-8")
    page = docs / "plan-file.md"
    page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")


def _type(schema: dict[str, Any]) -> str:
    """A JSON schema as a few words."""
    if "$ref" in schema:
        return "table"
    if "anyOf" in schema:
        kinds = dict.fromkeys(_type(option) for option in schema["anyOf"] if option.get("type") != "null")
        return " or ".join(kinds)
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return " or ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    kind = schema.get("type")
    if kind == "array":
        item = schema["items"]
        return "list of tables" if "$ref" in item else f"list of {_type(item)}s"
    if kind == "string" and "(us|" in schema.get("pattern", ""):
        return "duration"
    words = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}
    return words.get(str(kind), "table")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None or isinstance(value, BaseModel) or value in ([], {}):
        return ""
    if isinstance(value, Measure):
        return f'`"{format_duration(value.duration_s or 0)}"`'
    if isinstance(value, float) and any(type(m).__name__ == "PlainSerializer" for m in field.metadata):
        return f'`"{format_duration(value)}"`'
    return f"`{re.sub(r'[.]0$', '', json.dumps(value))}`"


if __name__ == "__main__":
    write_docs(Path("docs"))
