"""report.html: one self-contained page. It loads nothing from anywhere: styles, scripts and plotly lie inside it.

plotly.min.js is 4.8 MB; it travels gzipped (1.5 MB) and the browser unpacks it with DecompressionStream.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from loadtest.judge.verdict import Verdict
from loadtest.merge.read import RunData
from loadtest.model import NOT_MEASURED
from loadtest.report import summary
from loadtest.report.sides import side_by_side
from loadtest.report.tables import METRICS, Row
from loadtest.report.units import P95_CLAIM_N, P99_CLAIM_N, in_unit


def render(data: RunData, rows: Sequence[Row], verdict: Verdict) -> bytes:
    """The page as UTF-8. Text from servers and plans is escaped; nothing of it runs."""
    env = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    env.globals.update(in_unit=in_unit, scope_text=summary.scope_text, NOT_MEASURED=NOT_MEASURED)
    template = env.from_string(_text("page.html"))
    quality = summary.quality_of(verdict)
    results = [(r, summary.result_cells(r, summary.quality_cell(r, quality))) for r in rows]
    order = {"FAIL": 0, "INCONCLUSIVE": 1, "PASS": 2}
    page = template.render(
        run=data.run,
        verdict=verdict,
        checks=sorted(verdict.checks, key=lambda c: order[c.status]),
        header=summary.RESULT_HEADER,
        results=results,
        sides=side_by_side(data.path),
        bundled=summary.BUNDLED,
        claim={"p99": P99_CLAIM_N, "p95": P95_CLAIM_N},
        css=Markup(_text("page.css")),  # noqa: S704 - our own file
        script=Markup(_text("page.js")),  # noqa: S704 - our own file
        figures=Markup(_embed(chart_data(rows, verdict))),  # noqa: S704 - escaped by _embed
        plotly=plotly_gz_base64(),
    )
    return page.encode()


def chart_data(rows: Sequence[Row], verdict: Verdict) -> dict[str, Any]:
    """What page.js draws: one entry per measured row, and the paired ratios against the baseline."""
    return {
        "metrics": list(METRICS),
        "simulated": verdict.simulated,
        "rows": [
            {
                "config": r.config,
                "scheme": r.scheme,
                "mix": r.mix,
                "sampling": r.sampling,
                "load": r.load,
                "kind": r.load_kind,
                "value": r.load_value,
                "tok_s": r.output_tok_s,
                "n": r.ok,
                "survival": list(r.survival),
                "acceptance": r.acceptance_rate,
                "coverage": r.coverage,
                "curve": r.curve,
                "latency": r.latency,
            }
            for r in rows
            if r.measured
        ],
        "ratios": [
            {
                "config": c.config,
                "mix": c.mix,
                "sampling": c.sampling,
                "load": c.load,
                "value": c.load_value,
                "trusted": c.trusted,
                "name": name,
                "estimate": e.estimate,
                "lower": e.lower,
                "upper": e.upper,
                "n": e.n,
            }
            for c in verdict.comparisons
            if c.stratum is None
            for name, e in c.ratios.items()
            if e.estimate is not None
        ],
    }


def _embed(value: Any) -> str:
    """JSON that is safe inside a script element."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e").replace("\u2028", "\\u2028")


@cache
def plotly_gz_base64() -> str:
    """plotly.min.js of the installed plotly package, gzipped without a time stamp so that reports are reproducible."""
    script = files("plotly").joinpath("package_data/plotly.min.js").read_bytes()
    return base64.b64encode(gzip.compress(script, 9, mtime=0)).decode()


def _text(name: str) -> str:
    return files("loadtest.report").joinpath(name).read_text(encoding="utf-8")
