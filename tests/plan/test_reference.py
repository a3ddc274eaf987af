"""The committed reference and JSON schema are what the models say."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from loadtest.plan.loader import load_plan
from loadtest.plan.reference import SECTIONS, key_tables, plan_schema, with_tables
from loadtest.plan.starter import DEMO_PLAN, starter_plan

from .conftest import MIX, NGRAM, TARGET, WritePlan

DOCS = Path(__file__).parents[2] / "docs"
REMEDY = "run `python -m loadtest.plan.reference`"


def test_the_schema_is_current() -> None:
    assert (DOCS / "plan.schema.json").read_text(encoding="utf-8") == plan_schema(), REMEDY


def test_the_tables_are_current() -> None:
    page = (DOCS / "plan-file.md").read_text(encoding="utf-8")
    assert with_tables(page) == page, REMEDY
    with pytest.raises(ValueError, match="needs the lines"):
        with_tables("no marks")


def test_every_key_is_described() -> None:
    assert all(field.description for _, model in SECTIONS for field in model.model_fields.values())
    assert "None" not in key_tables()


def schema() -> Any:
    import json

    return json.loads(plan_schema())


def test_the_schema_takes_our_own_plans_and_the_example_of_the_page(tmp_path: Path) -> None:
    validator = jsonschema.Draft202012Validator(schema())
    example = (DOCS / "plan-file.md").read_text(encoding="utf-8").split("```toml\n")[1].split("```")[0]
    for text in (DEMO_PLAN.read_text(encoding="utf-8"), starter_plan(), example):
        validator.validate(tomllib.loads(text))
    path = tmp_path / "plan.toml"
    path.write_text(example)
    assert [c.name for c in load_plan(path).config] == ["baseline", "ngram", "eagle3"]


@pytest.mark.parametrize(
    "change",
    [
        {"top": "schema = 3\n"},
        {"target": TARGET + "max_model_len = 'x'\n"},
        {"mixes": MIX + 'turn = "first"\n'},
        {"load": "[load]\nconcurrency = [1]\nwarmup = 20\n"},
        {"load": "[load]\nconcurrency = [1]\nmeasure = { request = 1 }\n"},
        {"configs": NGRAM.replace('"ngram"\n', '"a/b"\n')},
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(write_plan: WritePlan, change: dict[str, str]) -> None:
    raw = tomllib.loads(write_plan(**change).read_text())
    assert list(jsonschema.Draft202012Validator(schema()).iter_errors(raw))
