"""capacity.json and capacity.html of a search: every probe that was tried, and the interval per config."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from loadtest import __version__
from loadtest.capacity.drive import CapacityRun, Found, Tried, facts_of
from loadtest.judge.gate import judge_run
from loadtest.judge.verdict import EXIT_CODES, Check, worst
from loadtest.merge.read import open_run
from loadtest.model import to_json
from loadtest.report import criteria
from loadtest.report.charts import embed
from loadtest.report.files import write_durably
from loadtest.report.html import plotly_gz_base64
from loadtest.report.manager import publish
from loadtest.report.units import shorten

SCHEMA = 1
"""Version of capacity.json. History: 1 = first."""


def publish_answer(prepared: CapacityRun, found: Sequence[Found]) -> str:
    """Writes the answer and the ordinary reports of the run. -> the answer for the terminal."""
    data = open_run(prepared.run.path)
    publish(prepared.run.path, data, judge_run(data, list(prepared.settings.criteria)))
    paths = write_answer(prepared, found)
    search = prepared.settings
    lines = [f"{f.config}: {f.text}" for f in found]
    lines.append(f"each interval with {100 * search.confidence:g} % confidence over all its probes")
    if prepared.run.facts["simulated"]:
        lines.insert(0, "SIMULATED: made with the simulated server; it says nothing about a real one.")
    return "\n".join([*lines, f"probes: {paths[-1]}"])


def exit_code(prepared: CapacityRun, found: Sequence[Found]) -> int:
    """0 found for every config, 99 where one fails at the lowest load, 98 where one is open or the server simulated."""
    status = worst([f.status for f in found])
    simulated = bool(prepared.run.facts["simulated"])
    return EXIT_CODES["INCONCLUSIVE" if status == "PASS" and simulated else status]


def write_answer(prepared: CapacityRun, found: Sequence[Found]) -> list[Path]:
    """Writes capacity.json, then capacity.html. -> both paths."""
    answer = answer_of(prepared, found)
    written = [prepared.run.path / "capacity.json", prepared.run.path / "capacity.html"]
    write_durably(written[0], json.dumps(answer, ensure_ascii=False, indent=1, allow_nan=False).encode())
    write_durably(written[1], render(answer, found))
    return written


def answer_of(prepared: CapacityRun, found: Sequence[Found]) -> dict[str, Any]:
    """The whole answer as plain JSON values."""
    facts = prepared.run.facts
    return {
        "schema": SCHEMA,
        "tool_version": __version__,
        "run_id": facts["run_id"],
        "plan_sha256": facts["plan_sha256"],
        "simulated": bool(facts["simulated"]),
        "search": facts_of(prepared.settings),
        "criteria": to_json(list(prepared.settings.criteria)),
        "configs": [
            {
                "config": f.config,
                "holds_at": f.interval.holds_at,
                "fails_at": f.interval.fails_at,
                "inconclusive_at": list(f.interval.unsure),
                "answer": f.text,
                "broken": f.broken,
                "probes": [_probe(n, t) for n, t in enumerate(f.tried, 1)],
            }
            for f in found
        ],
    }


def _probe(number: int, tried: Tried) -> dict[str, Any]:
    return {
        "number": number,
        "load": tried.probe.load,
        "status": tried.probe.status,
        "requests": tried.requests,
        "seconds": round(tried.seconds, 1),
        "cells": list(tried.cells),
        "checks": [
            {
                "slo": c.slo,
                "stratum": c.scope.stratum if c.scope else None,
                "cells": list(c.scope.cell_ids) if c.scope else [],
                "status": c.on_these_figures,
                "estimate": c.estimate,
                "limit": c.limit,
                "unit": c.unit,
                "share_of_limit": share_of_limit(c),
                "n": c.n,
                "over": c.over,
                "reason": c.reason,
            }
            for c in tried.checks
        ],
    }


def share_of_limit(check: Check) -> float | None:
    """Estimate over limit, for a floor limit over estimate: above 1 breaks it. None where there is no figure."""
    above, below = (check.estimate, check.limit) if check.direction == "lower" else (check.limit, check.estimate)
    return above / below if above is not None and below else None


def render(answer: dict[str, Any], found: Sequence[Found]) -> bytes:
    """The page as UTF-8; it loads nothing from anywhere."""
    env = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    env.globals.update(criteria=criteria, shorten=shorten)
    page = env.from_string(_text("loadtest.capacity", "capacity.html")).render(
        answer=answer,
        found=found,
        css=Markup(_text("loadtest.report", "page.css")),  # noqa: S704 - our own file
        script=Markup(_text("loadtest.capacity", "capacity.js")),  # noqa: S704 - our own file
        figures=Markup(embed(answer)),  # noqa: S704 - escaped by embed
        plotly=plotly_gz_base64(),
    )
    return page.encode()


def _text(package: str, name: str) -> str:
    return files(package).joinpath(name).read_text(encoding="utf-8")
