"""Sample sizes by order statistics, and what `loadtest plan` tells."""

from __future__ import annotations

import json
import math

import pytest

from loadtest.model import Slo
from loadtest.plan.cells import expand
from loadtest.plan.describe import describe
from loadtest.plan.estimate import binomial_cdf, needed_for, plan_duration, requests_needed
from loadtest.plan.loader import load_plan
from loadtest.plan.starter import DEMO_PLAN

from .conftest import BASELINE, LOAD, NGRAM, MakePlan

OVER = [0, 1, 2, 3, 4, 5, 10, 20]


@pytest.mark.parametrize(
    ("quantile", "confidence", "needed"),
    [
        (0.99, 0.90, [230, 388, 531, 667, 798, 926, 1538, 2701]),
        (0.99, 0.95, [299, 473, 628, 773, 913, 1049, 1693, 2902]),
        (0.99, 0.99, [459, 662, 838, 1001, 1157, 1307, 2010, 3304]),
        (0.95, 0.95, [59, 93, 124, 153, 181, 208, 336, 577]),
        (0.999, 0.95, [2995, 4742, 6294, 7752, 9151, 10511, 16959, 29058]),
    ],
)
def test_requests_needed_as_published(quantile: float, confidence: float, needed: list[int]) -> None:
    """The rows of MLPerf's early-stopping tables (459 and 662 among them)."""
    assert [requests_needed(quantile, confidence, over) for over in OVER] == needed


def test_no_number_of_requests_shows_that_nothing_ever_fails() -> None:
    assert requests_needed(1.0, 0.95) is None
    assert requests_needed(0.0, 0.95, 3) == 4
    with pytest.raises(ValueError, match="confidence"):
        requests_needed(0.9, 1.0)


def test_the_binomial_sums_to_one_and_is_exact_where_it_can_be_counted() -> None:
    assert binomial_cdf(1, 3, 0.5) == pytest.approx(0.5)
    assert binomial_cdf(5, 5, 0.3) == 1.0
    exact = math.fsum(math.comb(40, i) * 0.1**i * 0.9 ** (40 - i) for i in range(7))
    assert binomial_cdf(6, 40, 0.1) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize(
    ("metric", "stat", "bound", "needed"),
    [
        ("ttft", "p99", {"max": 1.0}, 299),
        ("error_rate", "rate", {"max": 0.01}, 299),
        ("error_rate", "rate", {"max": 0.0}, None),
        ("goodput", "goodput", {"min": 0.95}, 59),
        ("draft_acceptance_rate", "pooled", {"min": 0.3}, None),
        ("tpot", "median_ratio_to_baseline", {"max": 1.0}, None),
    ],
)
def test_what_an_slo_needs(metric: str, stat: str, bound: dict[str, float], needed: int | None) -> None:
    assert needed_for(Slo("x", metric, stat, **bound)) == needed


def test_time_is_the_sum_of_its_parts(make_plan: MakePlan) -> None:
    plan = make_plan(load='[load]\nconcurrency = [1, 2]\nrepeats = 3\nwarmup = "10s"\nmeasure = "30s"\ndrain = "5s"\n')
    time = plan_duration(*expand(plan))
    assert (time.server_starts, time.starts_s) == (6, 720.0)
    assert (time.warmup_s, time.windows_s, time.drains_at_most_s) == (120.0, 360.0, 60.0)
    assert time.expected_s == 720 + 120 + 360 + 36
    assert time.at_most_s == time.expected_s + 60


def test_a_window_of_requests_is_bounded_by_its_budget(make_plan: MakePlan) -> None:
    plan = make_plan(load='[load]\nrate = [2.0]\nrepeats = 1\nmeasure = { requests = 100 }\nbudget = "20s"\n')
    time = plan_duration(*expand(plan))
    assert (time.windows_s, time.windows_at_most_s) == (40.0, 40.0)


SLO = '[[slo]]\nmetric = "ttft"\nstat = "p99"\nlimit = "1s"\n'


@pytest.mark.parametrize(
    ("load", "word"),
    [
        ('[load]\nrate = [10.0]\nmeasure = "60s"\n', "likely"),
        ('[load]\nrate = [5.0]\nmeasure = "60s"\n', "unsure"),
        ('[load]\nrate = [1.0]\nmeasure = "60s"\n', "unlikely"),
        ("[load]\nrate = [1.0]\nmeasure = { requests = 299 }\n", "yes"),
        ("[load]\nrate = [1.0]\nmeasure = { requests = 298 }\n", "no"),
    ],
)
def test_whether_a_window_is_likely_to_be_long_enough(make_plan: MakePlan, load: str, word: str) -> None:
    facts = json.loads(describe(make_plan(load=load, more=SLO), True))
    (told,) = facts["slos"][0]["loads"].values()
    assert (facts["slos"][0]["requests_needed"], told["enough"]) == (299, word)


def test_the_text_shows_every_cell_every_command_line_and_every_need(make_plan: MakePlan) -> None:
    attached = (
        '[[config]]\nname = "there"\nurl = "http://h"\nspeculative = { method = "mpt", num_speculative_tokens = 1 }\n'
    )
    plan = make_plan(configs=BASELINE + NGRAM + attached, load=LOAD + 'measure = "60s"\n', more=SLO)
    text = describe(plan, False)
    _, cells = expand(plan)
    places = [text.index(cell.cell_id) for cell in cells]
    assert places == sorted(places)
    assert """--speculative-config '{"method": "ngram", "num_speculative_tokens": 4}'""" in text
    assert "attach to http://h; it must run with: --speculative-config" in text
    assert "ttft p99 <= 1s" in text
    assert "299" in text
    assert 'method "mpt" is not known here; did you mean "mtp"? vLLM will decide' in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_json_has_the_same_facts() -> None:
    plan = load_plan(DEMO_PLAN)
    facts = json.loads(describe(plan, True))
    assert [c["cell_id"] for c in facts["cells"]] == [c.cell_id for c in expand(plan)[1]]
    assert [c["how"] for c in facts["configs"]] == ["sim"] * 5
    assert any("SIMULATED" in warning for warning in facts["warnings"])
