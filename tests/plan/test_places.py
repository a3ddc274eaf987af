"""The bundled data sets belong to the package: an installed one has no repository beside it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import loadtest
from loadtest.plan.loader import load_plan
from loadtest.plan.places import BUNDLED, find_dataset
from loadtest.plan.prompts import load_mixes

ROOT = Path(__file__).parents[2]


def test_package_data_covers_every_bundled_data_set() -> None:
    """What the wheel takes along, by the patterns of pyproject.toml, is what lies in `datasets/`, byte for byte."""
    package = Path(loadtest.__file__).parent
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["loadtest"]
    packed = {path for pattern in patterns for path in package.glob(pattern)}
    originals = sorted((ROOT / "datasets").glob("*.jsonl"))
    assert len(originals) >= 3
    for original in originals:
        assert BUNDLED / original.name in packed
        assert (BUNDLED / original.name).read_bytes() == original.read_bytes()


def test_the_demo_plan_needs_nothing_outside_the_package(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    package = Path(loadtest.__file__).parent
    plan = load_plan(package / "plan" / "demo.toml")
    assert all(mix.prompts and mix.warmup for mix in load_mixes(plan))
    found = find_dataset("datasets/code.jsonl", package / "plan")
    assert found is not None
    assert package in found.parents
