"""Methods with their own parameters, what passes through, and the plan keys around a server's life."""

from __future__ import annotations

import pytest

from loadtest.errors import PlanError
from loadtest.model import ConfigSpec, from_json, to_json
from loadtest.plan.cells import expand, expand_probe, server_starts
from loadtest.plan.describe import plan_facts
from loadtest.plan.methods import KNOWN_METHODS, speculative_problems, unknown_parameters

from .conftest import BASELINE, NGRAM, SAMPLING, MakePlan

SAMPLED = '[[sampling]]\nname = "sampled"\ntemperature = 0.7\nmax_tokens = 16\n'
SUFFIX = '[[config]]\nname = "suffix"\nlaunch = {}\nspeculative = { method = "suffix", num_speculative_tokens = 4 }\n'


@pytest.mark.parametrize(
    ("speculative", "words"),
    [
        (
            {"method": "suffix", "suffix_decoding_min_token_prob": 1.5},
            "suffix_decoding_min_token_prob: 1.5 is no share",
        ),
        ({"method": "suffix", "suffix_decoding_max_cached_requests": -1}, "max_cached_requests: -1 is no whole number"),
        (
            {"method": "suffix", "suffix_decoding_max_spec_factor": "2"},
            "max_spec_factor: '2' is no number of 0 or more",
        ),
        ({"method": "mtp", "num_speculative_tokens": True}, "num_speculative_tokens: True is no whole number of 1"),
        ({"method": "eagle3", "num_speculative_tokens": 2, "model": 7}, "model: 7 is no text"),
        ({"method": "eagle", "num_speculative_tokens": 2}, "model is missing"),
        (
            {"method": "draft_model", "num_speculative_tokens": 2, "model": "d", "draft_tensor_parallel_size": 0},
            "draft_tensor_parallel_size: 0 is no whole number of 1 or more",
        ),
        (
            {"method": "ngram", "num_speculative_tokens": 2, "synthetic_acceptance_rates": [0.5, 2]},
            "synthetic_acceptance_rates: [0.5, 2] is no list of shares",
        ),
        ({"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_min": 0}, "prompt_lookup_min: 0 is no whole"),
        ({"method": "medusa", "parallel_drafting": "yes"}, "parallel_drafting: 'yes' is not true or false"),
    ],
)
def test_a_parameter_of_the_wrong_kind_is_an_error_with_its_value(speculative: dict, words: str) -> None:
    (problem,) = speculative_problems(speculative, simulated=False)
    assert words in problem


@pytest.mark.parametrize("method", KNOWN_METHODS)
def test_every_known_method_has_a_form_that_is_fine(method: str) -> None:
    config = {"method": method, "num_speculative_tokens": 4, "model": "draft"}
    assert speculative_problems(config, simulated=False) == []
    assert unknown_parameters(config) == []


def test_unknown_parameters_pass_with_a_warning_that_names_the_version(make_plan: MakePlan) -> None:
    odd = NGRAM.replace("tokens = 4 }", "tokens = 4, tree_width = 3, suffix_decoding_max_tree_depth = 5 }")
    plan = make_plan(configs=BASELINE + odd)
    told = [w for w in plan.warnings if w.startswith('config "ngram"')]
    assert '`suffix_decoding_max_tree_depth` is no parameter of method "ngram" in vLLM 0.32.0' in told[0]
    assert "`tree_width` is not known to vLLM 0.32.0; it is passed on" in told[1]
    assert expand(plan)[0][1].speculative["tree_width"] == 3


def test_a_method_that_is_not_known_takes_any_parameter(make_plan: MakePlan) -> None:
    odd = NGRAM.replace('"ngram", num', '"hydra", prompt_lookup_max = 3, dspark_draft_topk = 2, num')
    plan = make_plan(configs=BASELINE + odd)
    assert [w for w in plan.warnings if "passed on" in w] == []
    assert any('method "hydra" is not known here' in w for w in plan.warnings)


def test_a_fresh_server_for_each_cell_where_the_plan_says_so(make_plan: MakePlan) -> None:
    plan = make_plan(configs=BASELINE + NGRAM, sampling=SAMPLING + SAMPLED, more='[cache]\nprefix = "restart"\n')
    configs, cells = expand(plan)
    assert len(server_starts(cells, configs)) == len(cells) == 4
    assert all(c.salt == "" for c in cells), "a fresh server needs no salt"
    assert plan_facts(plan)["time"]["server_starts"] == 4
    plan = make_plan(configs=BASELINE + SUFFIX, sampling=SAMPLING + SAMPLED, more='[cache]\nsuffix = "fresh"\n')
    configs, cells = expand(plan)
    assert [(name, len(group)) for name, group in server_starts(cells, configs)] == [
        ("baseline", 2), ("suffix", 1), ("suffix", 1),
    ]  # fmt: skip
    assert "suffix_decoding_max_cached_requests" not in configs[1].speculative


@pytest.mark.parametrize(("key", "value", "configs"), [("prefix", "restart", NGRAM), ("suffix", "fresh", SUFFIX)])
def test_only_servers_that_we_start_can_be_started_again(
    make_plan: MakePlan, key: str, value: str, configs: str
) -> None:
    attached = configs.replace("launch = {}", 'url = "http://box:8000"')
    with pytest.raises(PlanError, match=f'cache.{key} = "{value}" restarts the server'):
        make_plan(configs=BASELINE + attached, more=f'[cache]\n{key} = "{value}"\n')


def test_commands_are_argument_lists_and_survive_the_run_folder(make_plan: MakePlan) -> None:
    text = NGRAM + 'before = [["kubectl", "scale", "x y"], ["true"]]\nafter = [["true"]]\ncommand_timeout = "9s"\n'
    spec = expand(make_plan(configs=BASELINE + text))[0][1]
    assert spec.before == (("kubectl", "scale", "x y"), ("true",))
    assert (spec.after, spec.command_timeout_s) == ((("true",),), 9.0)
    assert from_json(ConfigSpec, to_json(spec)) == spec
    for wrong, key in (
        ('before = ["kubectl get pods"]', "before"),
        ("before = [[]]", "before"),
        ("after = 'x'", "after"),
    ):
        with pytest.raises(PlanError, match=rf'config\[1\] \("ngram"\)\.{key}'):
            make_plan(configs=BASELINE + NGRAM + wrong + "\n")


def test_a_probe_asks_each_prompt_once_by_one_user_config_after_config(make_plan: MakePlan) -> None:
    plan = make_plan(sampling=SAMPLED + SAMPLING)
    _, cells = expand_probe(plan, {"code": 5}, run_nonce="n")
    assert [c.cell_id for c in cells] == [
        "000-baseline-code-greedy-seq1-r1",
        "001-baseline-code-sampled-seq1-r1",
        "002-ngram-code-greedy-seq1-r1",
        "003-ngram-code-sampled-seq1-r1",
    ]
    assert {(c.load_kind, c.load_value, c.measure_s, c.measure_requests) for c in cells} == {
        ("sequential", 1.0, None, 5)
    }
    assert cells[0].order_seed == cells[2].order_seed
    assert cells[0].salt == cells[2].salt != cells[1].salt
