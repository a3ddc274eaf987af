"""report.html: one self-contained page. It loads nothing from anywhere: styles, scripts and plotly lie inside it.

plotly.min.js is 4.8 MB; it travels gzipped (1.5 MB) and the browser unpacks it with DecompressionStream.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

import jinja2
from markupsafe import Markup

from loadtest.judge.verdict import Verdict
from loadtest.merge.read import RunData
from loadtest.model import NOT_MEASURED
from loadtest.report import criteria, results, summary
from loadtest.report.charts import chart_data, embed
from loadtest.report.sides import side_by_side
from loadtest.report.tables import Row
from loadtest.report.units import P95_CLAIM_N, P99_CLAIM_N, number, share, shorten

MAX_CHECKS = 2000
"""Rows of the table of all checks at most: a browser still opens it at once; verdict.json has all."""


def render(data: RunData, rows: Sequence[Row], verdict: Verdict) -> bytes:
    """The page as UTF-8. Text from servers and plans is escaped; nothing of it runs."""
    env = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    env.globals.update(criteria=criteria, share=share, number=number, shorten=shorten, NOT_MEASURED=NOT_MEASURED)
    quality = results.quality_of(verdict)
    page = env.from_string(_text("page.html")).render(
        run=data.run,
        verdict=verdict,
        groups=criteria.by_criterion_and_config(verdict.checks),
        checks=criteria.ranked(verdict.checks)[:MAX_CHECKS],
        comparisons=[c for c in verdict.comparisons if c.stratum is None],
        header=results.HEADER,
        keys=results.KEYS,
        questions=results.QUESTIONS,
        note=results.NOTE,
        load_kinds=results.load_kinds(rows),
        results=[(r, results.cells(r, results.quality_cell(r, quality))) for r in rows],
        unmeasured=results.unmeasured(rows),
        strata=[(r, name, s, r.figures_of(name)) for r in rows for name, s in r.strata.items()],
        sides=side_by_side(data.path, data),
        bundled=summary.BUNDLED,
        claim={"p99": P99_CLAIM_N, "p95": P95_CLAIM_N},
        css=Markup(_text("page.css")),  # noqa: S704 - our own file
        script=Markup(_text("page.js")),  # noqa: S704 - our own file
        figures=Markup(embed(chart_data(rows, verdict))),  # noqa: S704 - escaped by embed
        plotly=plotly_gz_base64(),
    )
    return page.encode()


@cache
def plotly_gz_base64() -> str:
    """plotly.min.js of the installed plotly package, gzipped without a time stamp so that reports are reproducible."""
    script = files("plotly").joinpath("package_data/plotly.min.js").read_bytes()
    return base64.b64encode(gzip.compress(script, 9, mtime=0)).decode()


def _text(name: str) -> str:
    return files("loadtest.report").joinpath(name).read_text(encoding="utf-8")
