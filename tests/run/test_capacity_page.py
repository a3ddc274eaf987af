"""The page of a capacity search: drawn in a browser, and no text of a plan runs in it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from loadtest.capacity.page import render, share_of_limit
from loadtest.judge.verdict import Check

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
EVIL = "<b>x<img src=x onerror=document.body.dataset.bad=1>"


def answer() -> dict[str, Any]:
    """Two configs: one with an interval, one whose lowest load fails; a name that tries to run a script."""

    def probe(number: int, load: float, status: str, share: float | None) -> dict[str, Any]:
        check = {"slo": EVIL, "stratum": None, "share_of_limit": share, "over": 1, "n": 100, "status": status}
        return {"number": number, "load": load, "status": status, "checks": [check]}

    good = [probe(1, 1, "PASS", 0.5), probe(2, 2, "INCONCLUSIVE", 0.9), probe(3, 4, "FAIL", 1.8)]
    return {
        "simulated": True,
        "run_id": "r",
        "search": {
            "by": "users",
            "confidence": 0.95,
            "confidence_per_check": 0.9975,
            "max_probes": 10,
            "requests_per_probe": 63,
            "left_out": [EVIL],
        },
        "configs": [
            {"config": EVIL, "holds_at": 1.0, "fails_at": 4.0, "answer": "holds at 1, fails at 4", "probes": good},
            {"config": "bad", "holds_at": None, "fails_at": 1.0, "answer": "fails at 1", "probes": [
                probe(1, 1, "FAIL", None)]},
        ],
    }  # fmt: skip


def test_text_of_plans_is_escaped() -> None:
    page = render(answer(), []).decode()
    assert "SIMULATED" in page
    assert "<img src=x" not in page
    assert "&lt;img src=x" in page
    assert "http" not in re.sub(r'<script type="text/plain".*?</script>', "", page, flags=re.DOTALL)


@pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium to draw in")
def test_a_browser_draws_a_chart_for_each_config(tmp_path: Path) -> None:
    file = tmp_path / "capacity.html"
    file.write_bytes(render(answer(), []))
    argv = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"]
    argv += ["--disable-background-networking", "--disable-component-update", "--virtual-time-budget=20000"]
    argv += [f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", file.as_uri()]
    dom = subprocess.run(argv, capture_output=True, text=True, timeout=90, check=True).stdout

    assert 'data-charts="drawn"' in dom
    assert "data-bad" not in dom
    assert dom.count("js-plotly-plot") >= 2
    assert dom.count("SIMULATED – ") >= 3


def test_share_of_a_floor_is_turned_round() -> None:
    """Above 1 always means broken: 120 of at most 100, 50 of at least 100."""
    ceiling = Check("s", "e2e", "p95", "us", "lower", 100.0, 0.95, "FAIL", "", None, estimate=120.0)
    floor = Check("s", "goodput", "goodput", "share", "higher", 1.0, 0.95, "FAIL", "", None, estimate=0.5)
    unknown = Check("s", "e2e", "p95", "us", "lower", 100.0, 0.95, "FAIL", "", None)
    assert share_of_limit(ceiling) == pytest.approx(1.2)
    assert share_of_limit(floor) == pytest.approx(2.0)
    assert share_of_limit(unknown) is None
