"""Cells: order, names, seeds, and what the sweep makes."""

from __future__ import annotations

import pytest

from loadtest.model import Cell
from loadtest.plan.cells import client_spec, expand, server_starts, target_spec
from loadtest.plan.loader import load_plan
from loadtest.plan.starter import DEMO_PLAN

from .conftest import BASELINE, LOAD, MIX, NGRAM, SAMPLING, MakePlan

SUFFIX = '[[config]]\nname = "suffix"\nlaunch = {}\nspeculative = { method = "suffix" }\n'
SAMPLED = '[[sampling]]\nname = "sampled"\ntemperature = 0.7\ntop_p = 0.9\nmax_tokens = 16\n'


def big_plan(make_plan: MakePlan, order: str = "abba", **more: str) -> list[Cell]:
    plan = make_plan(
        configs=BASELINE + NGRAM + SUFFIX,
        mixes=MIX + MIX.replace('"code"', '"chat"'),
        load=f'[load]\nconcurrency = [8, 1]\nrate = [2.5]\nrepeats = 3\norder = "{order}"\n',
        sampling=SAMPLED + SAMPLING,
        **more,
    )
    return expand(plan)[1]


def test_repeat_by_repeat_config_by_config_greedy_first_loads_ascending(make_plan: MakePlan) -> None:
    cells = big_plan(make_plan)
    assert len(cells) == 3 * 3 * 2 * 2 * 3
    assert [cell.index for cell in cells] == list(range(108))
    assert [(c.sampling.name, c.mix, c.load) for c in cells[:7]] == [
        ("greedy", "code", "c1"), ("greedy", "code", "c8"), ("greedy", "code", "poisson2.5"),
        ("greedy", "chat", "c1"), ("greedy", "chat", "c8"), ("greedy", "chat", "poisson2.5"),
        ("sampled", "code", "c1"),
    ]  # fmt: skip
    assert cells[0].cell_id == "000-baseline-code-greedy-c1-r1"
    assert cells[107].cell_id == "107-suffix-chat-sampled-poisson2.5-r3"
    assert len({cell.cell_id for cell in cells}) == 108


def test_abba_turns_every_second_block_round(make_plan: MakePlan) -> None:
    there = ["baseline", "ngram", "suffix"]
    starts = server_starts(big_plan(make_plan))
    assert [name for name, _ in starts] == there + there[::-1] + there
    assert {len(cells) for _, cells in starts} == {12}
    assert [name for name, _ in server_starts(big_plan(make_plan, "sequential"))] == there * 3


def test_seeds_and_salts_are_equal_for_all_configs_and_for_nothing_else(make_plan: MakePlan) -> None:
    by_setting: dict[tuple[str, str, str, int], set[tuple[int, str]]] = {}
    for c in big_plan(make_plan):
        by_setting.setdefault((c.mix, c.sampling.name, c.load, c.repeat), set()).add((c.order_seed, c.salt))
    assert {len(values) for values in by_setting.values()} == {1}
    values = [next(iter(v)) for v in by_setting.values()]
    assert len({seed for seed, _ in values}) == len({salt for _, salt in values}) == len(by_setting) == 36
    assert max(seed for seed, _ in values) < 2**53


def test_the_run_changes_the_salts_and_not_the_order(make_plan: MakePlan) -> None:
    plan = make_plan()
    one, two = expand(plan, run_nonce="a")[1], expand(plan, run_nonce="b")[1]
    assert [c.order_seed for c in one] == [c.order_seed for c in two]
    assert {c.salt for c in one}.isdisjoint(c.salt for c in two)
    assert one == expand(plan, run_nonce="a")[1]


def test_the_plans_seed_changes_the_order(make_plan: MakePlan) -> None:
    one, two = (expand(make_plan(top=f"schema = 1\nseed = {s}\n"))[1][0] for s in (1, 2))
    assert (one.order_seed, one.salt) != (two.order_seed, two.salt)


def test_no_salt_on_request(make_plan: MakePlan) -> None:
    assert {c.salt for c in expand(make_plan(more='[cache]\nprefix = "none"\n'))[1]} == {""}


@pytest.mark.parametrize(
    ("name", "sweep", "names"),
    [
        ("ngram", "num_speculative_tokens = [2, 4, 8]", ["ngram-2", "ngram-4", "ngram-8"]),
        ("ngram-4", "num_speculative_tokens = [2, 4, 8]", ["ngram-2", "ngram-4", "ngram-8"]),
        ("ngram-4", "num_speculative_tokens = [2, 8]", ["ngram-2", "ngram-8"]),
        ("ngram-v3", "num_speculative_tokens = [2]", ["ngram-v3-2"]),
        ("ngram-7", "num_speculative_tokens = [2]", ["ngram-7-2"]),
        ("n", "num_speculative_tokens = [2, 4]\nprompt_lookup_max = [3, 5]",
         ["n-2-prompt_lookup_max-3", "n-2-prompt_lookup_max-5", "n-4-prompt_lookup_max-3", "n-4-prompt_lookup_max-5"]),
        ("n-4", "prompt_lookup_max = [3]", ["n-4-prompt_lookup_max-3"]),
    ],
)  # fmt: skip
def test_sweep(make_plan: MakePlan, name: str, sweep: str, names: list[str]) -> None:
    ngram = NGRAM.replace('name = "ngram"', f'name = "{name}"').replace("= 4 }", "= 4, prompt_lookup_max = 5 }")
    configs = expand(make_plan(configs=BASELINE + ngram, more=f"[sweep]\n{sweep}\n"))[0]
    assert [c.name for c in configs] == ["baseline", *names]
    assert all(c.speculative and c.gamma == c.speculative["num_speculative_tokens"] for c in configs[1:])
    assert configs[0].is_baseline
    assert not any(c.is_baseline for c in configs[1:])


def test_a_config_may_stay_out_of_the_sweep(make_plan: MakePlan) -> None:
    fixed = NGRAM.replace('"ngram"\nl', '"fixed"\nsweep = false\nl')
    plan = make_plan(configs=BASELINE + NGRAM + fixed, more="[sweep]\nnum_speculative_tokens = [2, 8]\n")
    assert [c.name for c in expand(plan)[0]] == ["baseline", "ngram-2", "ngram-8", "fixed"]


def test_the_marked_baseline_is_the_one(make_plan: MakePlan) -> None:
    other = BASELINE.replace("baseline", "other") + "baseline = true\n"
    configs = expand(make_plan(configs=BASELINE + other + NGRAM))[0]
    assert [c.name for c in configs if c.is_baseline] == ["other"]


def test_a_cold_suffix_cache_keeps_nothing_and_a_warm_one_is_left_alone(make_plan: MakePlan) -> None:
    key = "suffix_decoding_max_cached_requests"
    for cache, own, want in (("cold", "", 0), ("warm", "", None), ("cold", f", {key} = 9", 9)):
        suffix = SUFFIX.replace(' "suffix" }', f' "suffix"{own} }}')
        spec = expand(make_plan(configs=BASELINE + suffix, more=f'[cache]\nsuffix = "{cache}"\n'))[0][1]
        assert spec.speculative is not None
        assert spec.speculative.get(key) == want
        assert spec.gamma is None


@pytest.mark.parametrize(
    ("measure", "slo", "seconds", "requests"),
    [
        ('"90s"', "", 90.0, None),
        ("{ requests = 50 }", "", None, 50),
        ('"auto"', "", None, 1000),
        ('"auto"', '[[slo]]\nmetric = "ttft"\nstat = "p99"\nlimit = "1s"\n', None, 913),
        # The gate's own error budget of 1 % needs as many as a P99.
        ('"auto"', '[[slo]]\nmetric = "ttft"\nstat = "p95"\nlimit = "1s"\n', None, 913),
        ('"auto"', '[[slo]]\nmetric = "error_rate"\nlimit = "5%"\n', None, 181),
    ],
)
def test_windows(make_plan: MakePlan, measure: str, slo: str, seconds: float | None, requests: int | None) -> None:
    cell = expand(make_plan(load=f'{LOAD}measure = {measure}\nbudget = "5m"\ndrain = "7s"\n', more=slo))[1][0]
    assert (cell.measure_s, cell.measure_requests, cell.max_measure_s, cell.drain_s) == (seconds, requests, 300.0, 7.0)


def test_urls_lose_what_the_client_adds_itself(make_plan: MakePlan) -> None:
    attached = '[[config]]\nname = "a"\nurls = ["http://h:1/v1/", "http://h:2/", "http://h/base"]\n'
    assert expand(make_plan(configs=attached))[0][0].urls == ("http://h:1", "http://h:2", "http://h/base")


def test_client_and_target(make_plan: MakePlan) -> None:
    plan = make_plan(
        target='[target]\nmodel = "m"\nserved_model_name = "s"\nargs = ["-tp", "2"]\n',
        more='[client]\nworkers = 2\nread_timeout = "1m"\nheaders_env = { X-Org = "ORG" }\n',
    )
    target, client = target_spec(plan), client_spec(plan)
    assert (target.model, target.served_name, target.args, target.api) == ("m", "s", ("-tp", "2"), "chat")
    assert (client.workers, client.read_timeout_s, client.headers_env) == (2, 60.0, {"X-Org": "ORG"})


def test_the_demo_has_thirty_cells() -> None:
    configs, cells = expand(load_plan(DEMO_PLAN))
    assert [c.gamma for c in configs] == [None, 4, 4, 4, 4]
    assert len(cells) == 5 * 2 * 3
    assert len(server_starts(cells)) == 5
