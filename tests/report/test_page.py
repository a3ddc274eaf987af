"""report.html: loads nothing, runs nothing that came from a plan or a server, and draws its charts."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from loadtest.judge.verdict import RatioEstimate, Reason, Verdict
from loadtest.merge.read import RunData, open_run
from loadtest.model import NOT_MEASURED
from loadtest.report import html
from loadtest.report.charts import embed
from loadtest.report.manager import write_reports
from loadtest.report.tables import Row, build_rows
from tests.merge.make_run import NGRAM
from tests.report.world import HOSTILE_NAME, HOSTILE_REASON, build, judged

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page(HTMLParser):
    """Elements, attributes, scripts and the text that a reader sees."""

    def __init__(self, content: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str, str] = {}
        self.text = ""
        self.style = ""
        self._inside: tuple[str, str] | None = None
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside = tag, dict(attrs).get("id") or "own"

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside is None:
            self.text += data
        elif self._inside[0] == "style":
            self.style += data
        else:
            self.scripts[self._inside[1]] = self.scripts.get(self._inside[1], "") + data


def page_of(data: RunData) -> Page:
    return Page((data.path / "report.html").read_text(encoding="utf-8"))


def figures_of(page: Page) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    return json.loads(page.scripts["figures"], parse_constant=refuse)


def test_the_page_loads_nothing(world: tuple[RunData, Verdict]) -> None:
    """No element or style names anything outside the page, so it opens the same in ten years and behind a firewall."""
    page = page_of(world[0])
    loading = ("src", "href", "srcset", "data", "action", "poster", "background", "formaction")
    found = [(t, k, v) for t, attrs in page.tags for k, v in attrs.items() if k in loading]

    assert found
    assert all(k == "href" and (v or "").startswith("#") for _, k, v in found)
    assert not {t for t, _ in page.tags} & {"link", "img", "iframe", "object", "embed", "base", "form"}
    assert not re.search(r"url\(|@import|https?:", page.style)
    assert not re.search(r"fetch\(|XMLHttpRequest|import\(|https?:", page.scripts["own"])


def test_simulated_stands_on_the_page_and_not_on_a_real_one(
    world: tuple[RunData, Verdict], real_world: tuple[RunData, Verdict]
) -> None:
    """Title and banner; the chart titles follow the same flag."""
    real = Page(html.render(real_world[0], build_rows(real_world[0]), real_world[1]).decode())
    simulated = page_of(world[0])

    assert "SIMULATED INCONCLUSIVE – test-run" in simulated.text
    assert "can never be a deploy verdict" in simulated.text
    assert figures_of(simulated)["simulated"] is True
    assert "SIMULATED" not in real.text
    assert figures_of(real)["simulated"] is False


def test_every_table_says_not_measured(world: tuple[RunData, Verdict]) -> None:
    """In the results and among the cells; with the reason once beside the table."""
    page = page_of(world[0])

    assert page.text.count(NOT_MEASURED) >= 2
    assert "Why not measured" in page.text
    assert "eagle3-4 on code (greedy) at c8" in page.text


def test_charts_get_the_figures_of_the_table(world: tuple[RunData, Verdict], rows: dict[str, Row]) -> None:
    """Measured lines only; undefined stays null; the whole mix lies first among its kinds of task."""
    drawn = {r["config"]: r for r in figures_of(page_of(world[0]))["rows"]}
    tasks = [(t["name"], t["n"], t["drafts"], t["accepted"]) for t in drawn["ngram-4"]["tasks"]]

    assert set(drawn) == {"baseline", "ngram-4", "suffix-4"}
    assert drawn["ngram-4"]["survival"] == pytest.approx(rows["ngram-4"].survival)
    assert tasks == [("all tasks", 3, 48, 24), ("edit", 2, 28, 18), ("explain", 1, 20, 6)]
    assert drawn["suffix-4"]["tasks"] == []
    assert drawn["ngram-4"]["curve"]["e2e"] == [pytest.approx([1 / 3, 2 / 3, 1]), [100_000, 200_000, 400_000]]
    assert drawn["ngram-4"]["curve"]["chunk_gap"] == [[], []]


def test_figures_cannot_leave_their_script_element() -> None:
    """A kind of task may be called anything; JSON reads it back unchanged."""
    nasty = {"</script><!-- <script>": "\u2028&"}
    text = embed(nasty)

    assert not set(text) & set("<>&\u2028")
    assert json.loads(text) == nasty


def test_a_page_without_javascript_or_unpacking_explains_itself(world: tuple[RunData, Verdict]) -> None:
    """The tables carry every figure; empty frames and dead pickers stay hidden until the charts are there."""
    page = page_of(world[0])
    hidden = [attrs["id"] for _, attrs in page.tags if "hidden" in attrs]

    assert "The charts need JavaScript; every figure is in the tables." in page.text
    assert {"charts-live", "chart-error"} == set(hidden)
    assert "no DecompressionStream" in page.scripts["own"]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    """A config, a failed start, a reason and a note of the judge that all try to run a script."""
    run_dir = build(tmp_path_factory.mktemp("hostile") / "run", ngram=replace(NGRAM, name=HOSTILE_NAME))
    data, verdict = judged(run_dir)
    nasty = Reason("code", HOSTILE_REASON, HOSTILE_REASON, HOSTILE_REASON, HOSTILE_REASON)
    ratio = RatioEstimate("tpot", 0.5, 0.4, 0.6, 0.95, 3, HOSTILE_REASON)
    comparisons = tuple(replace(c, ratios=c.ratios | {"tpot": ratio}) for c in verdict.comparisons)
    write_reports(run_dir, data, replace(verdict, reasons=(nasty,), sentence=HOSTILE_REASON, comparisons=comparisons))
    return open_run(run_dir)


def test_text_from_plans_and_servers_is_escaped(hostile: RunData) -> None:
    """Exactly the three scripts of the page, no element out of a name, and the name readable as it was."""
    page = page_of(hostile)
    scripts = [attrs.get("id") for t, attrs in page.tags if t == "script"]

    assert scripts == ["figures", "plotly-gz", None]
    assert not [t for t, _ in page.tags if t in ("img", "b/")]
    assert not [a for _, attrs in page.tags for a in attrs if a.startswith("on")]
    assert HOSTILE_NAME in page.text
    assert "</script><script>document.body" in page.text
    assert HOSTILE_NAME in {r["config"] for r in figures_of(page)["rows"]}


def test_markdown_tables_stay_whole(hostile: RunData) -> None:
    """A bar or a tag in a name must not open a column or an element."""
    lines = (hostile.path / "summary.md").read_text().splitlines()
    tables = [line for line in lines if line.startswith("|")]
    widths = {len(re.findall(r"(?<!\\)\|", line)) for line in tables}

    assert widths == {10, 18}
    assert not [line for line in lines if re.search(r"<(img|script|/script)", line)]
    assert not [line for line in lines if "\x1b" in line or "\x00" in line]


def dom_of(page: Path, profile: Path) -> str:
    argv = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"]
    argv += ["--disable-background-networking", "--disable-component-update", "--virtual-time-budget=20000"]
    argv += [f"--user-data-dir={profile}", "--dump-dom", page.as_uri()]
    return subprocess.run(argv, capture_output=True, text=True, timeout=90, check=True).stdout


@pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium to draw in")
def test_a_browser_draws_six_charts_and_runs_nothing_else(hostile: RunData, tmp_path: Path) -> None:
    """With names that try to run a script in every label: the charts stand, and nothing was hacked."""
    dom = dom_of(hostile.path / "report.html", tmp_path)
    body = re.search(r"<body[^>]*>", dom)

    assert body is not None
    assert 'data-charts="drawn"' in body.group()
    assert "hacked" not in body.group()
    assert re.search(r'class="legendtext"[^>]*>n\|&lt;b&gt;x&lt;img src=x', dom)
    assert len(re.findall(r'<div id="chart-[a-z]+" class="chart js-plotly-plot"', dom)) == 6
    assert dom.count("SIMULATED – ") >= 6
    assert "concurrency (requests in flight)" in dom
    assert "times as fast as the baseline" in dom
