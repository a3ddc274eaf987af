"""The `vllm serve` command line: exact, and safe to paste."""

from __future__ import annotations

import json
import shlex
import subprocess

import pytest

from loadtest.plan.cells import expand, target_spec
from loadtest.plan.commandline import serve_argv, shell_line

from .conftest import BASELINE, NGRAM, MakePlan


def test_the_baseline_gets_no_speculative_flags(make_plan: MakePlan) -> None:
    """vLLM refuses to start with --per-request-spec-decode-metrics where nothing is speculative."""
    plan = make_plan()
    assert serve_argv(expand(plan)[0][0], target_spec(plan)) == [
        "vllm", "serve", "m", "--host", "127.0.0.1", "--port", "8000", "--enable-per-request-metrics",
        "--enable-prompt-tokens-details", "--fingerprint-mode", "custom", "--fingerprint-value", "baseline",
    ]  # fmt: skip


def test_a_speculative_config_gets_all(make_plan: MakePlan) -> None:
    plan = make_plan(
        target='[target]\nmodel = "m"\nserved_model_name = "s"\nmax_model_len = 99\ndtype = "float32"\nargs = ["-x"]\n',
        configs=BASELINE + NGRAM.replace("{}", '{ port = 9, host = "::1", args = ["-y"] }'),
    )
    assert serve_argv(expand(plan)[0][1], target_spec(plan)) == [
        "vllm", "serve", "m", "--served-model-name", "s", "--host", "::1", "--port", "9", "--max-model-len", "99",
        "--dtype", "float32", "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4}',
        "--per-request-spec-decode-metrics", "detailed", "--enable-per-request-metrics",
        "--enable-prompt-tokens-details", "--fingerprint-mode", "custom", "--fingerprint-value", "ngram", "-x", "-y",
    ]  # fmt: skip


def test_every_flag_of_newer_versions_can_be_switched_off(make_plan: MakePlan) -> None:
    options = (
        '{ per_request_spec_metrics = "none", per_request_metrics = false, prompt_tokens_details = false, '
        'fingerprint = false, command = ["box", "vllm", "serve"] }'
    )
    plan = make_plan(configs=BASELINE + NGRAM.replace("{}", options))
    argv = serve_argv(expand(plan)[0][1], target_spec(plan))
    assert argv[:4] == ["box", "vllm", "serve", "m"]
    assert [word for word in argv if word.startswith("--")] == ["--host", "--port", "--speculative-config"]


def test_a_shell_takes_the_line_as_it_stands(make_plan: MakePlan) -> None:
    plan = make_plan(
        target='[target]\nmodel = "my $model"\nenv = { A = "it\'s", B = "1" }\n',
        configs=BASELINE + NGRAM.replace("{}", '{ env = { B = "two words" } }'),
    )
    config = expand(plan)[0][1]
    line = shell_line(config, target_spec(plan))
    assert shlex.split(line) == ["A=it's", "B=two words", *serve_argv(config, target_spec(plan))]
    code = "import json, os, sys; print(json.dumps([os.environ['A'], os.environ['B'], sys.argv[1:]]))"
    pasted = line.replace("vllm serve", f"python3 -c {shlex.quote(code)}", 1)
    out = subprocess.run(["sh", "-c", pasted], capture_output=True, check=True).stdout
    assert json.loads(out) == ["it's", "two words", serve_argv(config, target_spec(plan))[2:]]


def test_an_attached_config_has_no_command_line(make_plan: MakePlan) -> None:
    plan = make_plan(configs='[[config]]\nname = "a"\nurl = "http://h"\n')
    with pytest.raises(ValueError, match="not launched"):
        serve_argv(expand(plan)[0][0], target_spec(plan))
