"""plan.toml and slo.toml: what is accepted, and errors that a person can act on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtest.errors import PlanError
from loadtest.plan.cells import expand
from loadtest.plan.loader import load_plan, load_slos, plan_from_json
from loadtest.plan.starter import DEMO_PLAN, starter_plan

from .conftest import BASELINE, LOAD, MIX, NGRAM, SAMPLING, TARGET, MakePlan, WritePlan

URL = '[[config]]\nname = "a"\nurl = "{}"\n'


SWEEP_2 = "[sweep]\nnum_speculative_tokens = [2]\n"
LOOKUP = 'method = "ngram", num_speculative_tokens = 4, prompt_lookup_min = 5, prompt_lookup_max = 2'
P99 = 'metric = "ttft"\nstat = "p99"\nlimit = "1s"'
RATIO = 'metric = "tpot"\nstat = "median_ratio_to_baseline"\nlimit = 1.0'


def slo(text: str) -> str:
    return f"[[slo]]\n{text}\n"


def spec(text: str, how: str = "launch = {}") -> str:
    return BASELINE + f'[[config]]\nname = "s"\n{how}\nspeculative = {{ {text} }}\n'


def test_the_smallest_plan_loads_with_the_documented_defaults(make_plan: MakePlan) -> None:
    plan = make_plan()
    assert (plan.seed, plan.load.warmup, plan.load.measure.duration_s, plan.load.order) == (1, 20.0, 60.0, "abba")
    assert (plan.config[0].launch and plan.config[0].launch.port, plan.cache.suffix) == (8000, "cold")
    assert any("no [[slo]]" in warning for warning in plan.warnings)


def test_an_auto_window_without_repeats_is_warned_of(make_plan: MakePlan) -> None:
    """Bursts cannot be seen in one window that ends early; only repeats that must all pass keep its error small."""
    told = {
        repeats: make_plan(load=f'[load]\nconcurrency = [1]\nmeasure = "auto"\nrepeats = {repeats}\n').warnings
        for repeats in (2, 3)
    }
    assert any("set load.repeats = 3" in warning for warning in told[2])
    assert not any("set load.repeats = 3" in warning for warning in told[3])


def test_a_plan_survives_the_way_through_run_json(make_plan: MakePlan) -> None:
    plan = make_plan(
        load='[load]\nrate = [0.5]\nmeasure = { requests = 7 }\nwarmup = "1500ms"\n',
        more=slo('metric = "error_rate"\nlimit = "1%"'),
    )
    for dumped in (plan.to_json(), plan.model_dump(mode="json")):
        again = plan_from_json(json.loads(json.dumps(dumped)))
        assert again.to_json() == plan.to_json()
        assert expand(again) == expand(plan)


def test_the_starter_and_the_demo_plan_are_valid(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(starter_plan())
    assert [c.name for c in load_plan(path).config] == ["baseline", "ngram"]
    demo = load_plan(DEMO_PLAN)
    assert [c.name for c in demo.config] == ["baseline", "ngram", "suffix", "draft_model", "eagle3"]
    assert all(c.sim is not None for c in demo.config)
    assert (demo.load.concurrency, demo.load.repeats) == ([1, 8, 32], 1)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"top": "schema = 2\n"}, "schema: 2 is not allowed; write 1"),
        ({"top": ""}, "schema: missing"),
        ({"top": "schema = 1\nsed = 3\n"}, 'sed: unknown key; did you mean "seed"?'),
        ({"target": ""}, "target: missing"),
        ({"target": TARGET + "max_model_len = '8192'\n"}, 'target.max_model_len: "8192": should be a valid integer'),
        (
            {"target": TARGET + "args = ['--port', '1']\n"},
            "target.args: --port is set by the command line itself; use launch.port",
        ),
        ({"target": TARGET + "args = ['--api-key=x']\n"}, "set VLLM_API_KEY in the environment"),
        ({"target": TARGET + "args = ['--api_key', 'x']\n"}, "set VLLM_API_KEY in the environment"),
        ({"target": TARGET + "args = ['--hf-token=x']\n"}, "set HF_TOKEN in the environment"),
        ({"sampling": SAMPLING.replace("max_tokens = ", "max_tokens = 99999999")}, "less than or equal to 2147483647"),
        ({"sampling": SAMPLING + "extra_body = { a = [{ b = nan }] }\n"}, "nan cannot be sent as JSON"),
        ({"load": LOAD + "warmup = '99999999h'\n"}, "is too long: a year at most"),
        ({"target": TARGET + "env = { HF_TOKEN = 'x' }\n"}, "HF_TOKEN looks like a secret"),
        (
            {"configs": BASELINE.replace("launch", "lanch")},
            'config[0] ("baseline").lanch: unknown key; did you mean "launch"?',
        ),
        ({"configs": BASELINE.replace("{}", "{ prot = 1 }")}, '.launch.prot: unknown key; did you mean "port"?'),
        (
            {"configs": BASELINE.replace("{}", "{ port = 70000 }")},
            "launch.port: 70000: should be less than or equal to 65535",
        ),
        ({"configs": BASELINE.replace("baseline", "a/b")}, '"a/b" is not allowed; write letters'),
        (
            {"configs": BASELINE + BASELINE.replace("baseline", "Baseline")},
            '"Baseline" is already the name of another config',
        ),
        ({"configs": BASELINE + "sim = {}\n"}, "exactly one of launch, url, urls, sim; seen: launch and sim"),
        ({"configs": '[[config]]\nname = "a"\n'}, "seen: none"),
        ({"configs": URL.format("127.0.0.1:8000")}, "is no URL"),
        ({"configs": URL.format("http://u:p@h")}, "must not hold a user or password"),
        ({"configs": URL.format("http://h:99999")}, "is no URL"),
        ({"configs": BASELINE + "metrics_urls = ['http://h/metrics']\n"}, "metrics_urls: only with url"),
        ({"configs": BASELINE + BASELINE.replace("baseline", "b2")}, "mark the one to compare with: baseline = true"),
        ({"configs": NGRAM + "baseline = true\n"}, "a baseline has no `speculative`"),
        ({"configs": spec("num_speculative_tokens = 4")}, "speculative.method: write the method's name"),
        ({"configs": spec('method = "ngram"')}, "num_speculative_tokens is missing"),
        ({"configs": spec('method = "ngram", num_speculative_tokens = 0')}, "0 is no whole number of 1 or more"),
        ({"configs": spec(LOOKUP)}, "prompt_lookup_min = 5 is above"),
        (
            {"configs": spec('method = "eagle3", num_speculative_tokens = 4')},
            "needs the folder or name of its draft checkpoint",
        ),
        ({"mixes": MIX.replace("code.jsonl", "cod.jsonl")}, '"cod.jsonl" not found; looked at'),
        ({"mixes": MIX.replace("warm.jsonl", "w.jsonl")}, 'parts[0].warmup: "w.jsonl" not found'),
        ({"mixes": MIX.replace('name = "code"', 'name = "code.warmup"')}, "taken by the warm-up pool"),
        ({"mixes": MIX.replace("{ dataset", "{ weight = 0, dataset")}, "parts[0].weight: 0: should be greater than 0"),
        (
            {"mixes": MIX.replace("{ dataset", "{ weight = inf, dataset")},
            "parts[0].weight: inf: should be a finite number",
        ),
        ({"load": "[load]\nrepeats = 1\n"}, "load: write concurrency = [1, 8, 32] or rate"),
        ({"load": LOAD.replace("[1]", "[1, 1]")}, "load: concurrency: 1 stands there more than once"),
        ({"load": LOAD.replace("[1]", "[0]")}, "load.concurrency[0]: 0: should be greater than or equal to 1"),
        ({"load": LOAD + "warmup = 20\n"}, "load.warmup: 20 is not a duration; write a number with its unit"),
        ({"load": LOAD + 'warmup = "-1s"\n'}, "load.warmup: '-1s' is not a duration"),
        ({"load": LOAD + 'measure = "0s"\n'}, "load.measure: '0s' is no window"),
        ({"load": LOAD + "measure = { requests = 0 }\n"}, "write { requests = 1000 }"),
        ({"load": LOAD + 'measure = "long"\n'}, "load.measure: 'long' is no window"),
        ({"load": LOAD + 'budget = "0s"\n'}, "load.budget: 0 is not allowed here"),
        ({"load": LOAD + 'order = "random"\n'}, "load.order: \"random\" is not allowed; write 'abba' or 'sequential'"),
        (
            {"sampling": SAMPLING + "extra_body = { n = 2 }\n"},
            'sampling[0] ("greedy").extra_body: "n" is set by the client itself',
        ),
        ({"sampling": SAMPLING + "top_p = 0\n"}, "top_p: 0: should be greater than 0"),
        ({"more": "[sweep]\nnum_speculative_tokens = [2, 2]\n"}, "write one or more different values"),
        ({"more": "[sweep]\nnum_speculative_tokens = [true]\n"}, "write whole numbers"),
        ({"more": '[sweep]\nmethod = ["ngram"]\n'}, "method cannot be swept"),
        ({"more": "[sweep]\nprompt_lookup_max = [2, 3]\n"}, "sweep.prompt_lookup_max: no config has"),
        (
            {"configs": BASELINE + NGRAM + NGRAM.replace('"ngram"\nl', '"ngram-2"\nl'), "more": SWEEP_2},
            'two configs are called "ngram-2"',
        ),
        ({"more": "[client]\nworkers = 0\n"}, "client.workers: 0: should be greater"),
        ({"more": '[client]\napi_key_env = "a b"\n'}, "the name of an environment variable"),
        ({"more": '[cache]\nsuffix = "hot"\n'}, "\"hot\" is not allowed; write 'cold', 'fresh' or 'warm'"),
        ({"more": slo(P99 + '\nwhere = { config = "gram*" }')}, 'slo[0].where.config: "gram*" matches nothing'),
        ({"more": slo(P99 + '\nwhere = { load = "c2" }')}, "Known: c1"),
        ({"more": slo('metric = "ttft"\nstat = "p99"\nlimit = "1s"') * 2}, "is already criterion [0]"),
        ({"configs": NGRAM, "more": slo(RATIO)}, "every config has `speculative`"),
    ],
)
def test_one_mistake_is_told_with_place_value_and_remedy(
    write_plan: WritePlan, sections: dict[str, str], words: str
) -> None:
    path = write_plan(**sections)
    with pytest.raises(PlanError) as caught:
        load_plan(path)
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
    assert "Traceback" not in str(caught.value)


def test_all_mistakes_are_told_at_once(write_plan: WritePlan) -> None:
    path = write_plan(
        top="schema = 1\nsede = 4\n",
        configs=BASELINE.replace("{}", "{ port = 'x' }") + NGRAM + NGRAM,
        mixes=MIX.replace("code.jsonl", "gone.jsonl"),
        load=LOAD + "warmup = 5\n",
        more=slo('metric = "ttfp"\nlimit = 3'),
    )
    with pytest.raises(PlanError) as caught:
        load_plan(path)
    text = str(caught.value)
    assert "6 errors" in text.splitlines()[0]
    for words in (
        "sede",
        "launch.port",
        'config[2] ("ngram").name',
        "gone.jsonl",
        "load.warmup",
        '"ttfp" is no metric',
    ):
        assert words in text


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"schema = ", "not valid TOML"),
        (b"schema = 1\n# caf\xe9\n", "line 2 is not UTF-8 (byte 0xe9)"),
        (b"", "schema: missing"),
        (b"a = 1\na = 2\n", "not valid TOML"),
    ],
)
def test_a_file_that_is_no_plan_at_all(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_bytes(data)
    with pytest.raises(PlanError) as caught:
        load_plan(path)
    assert words in str(caught.value)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="no such file; `loadtest init`"):
        load_plan(tmp_path / "none.toml")
    with pytest.raises(PlanError, match="cannot be read"):
        load_plan(tmp_path)


def test_data_sets_are_looked_for_beside_the_plan_then_here_then_bundled(
    tmp_path: Path, write_plan: WritePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    (here / "mine.jsonl").write_text('{"prompt": "x"}')
    for name in ("code.jsonl", "mine.jsonl", "datasets/chat.jsonl"):
        assert load_plan(write_plan(mixes=MIX.replace("code.jsonl", name)))


def test_slos_of_a_file_of_their_own_and_of_a_plan(tmp_path: Path, write_plan: WritePlan) -> None:
    text = slo('metric = "ttft"\nstat = "p99"\nlimit = "500ms"') + slo('metric = "coverage"\nlimit = 0.5\nname = "c"')
    alone = tmp_path / "slo.toml"
    alone.write_text(text)
    first, second = load_slos(alone)
    assert (first.name, first.max, first.min, first.confidence) == ("ttft p99 <= 500ms", 500_000.0, None, 0.95)
    assert (second.name, second.stat, second.max, second.min) == ("c", "pooled", None, 0.5)
    assert load_slos(write_plan(more=text)) == [first, second]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "slo: missing"),
        ("slo = []", "slo: []"),
        (slo('metric = "ttft"\nstat = "p99"\nlimit = "1s"') * 2, "stands there twice"),
        (slo('metric = "ttft"\nstat = "p99"\nlimt = "1s"'), 'slo[0].limt: unknown key; did you mean "limit"?'),
        ("x = 1\n" + slo('metric = "ttft"\nstat = "p99"\nlimit = "1s"'), "x: unknown key. Allowed: schema, slo"),
    ],
)
def test_a_bad_slo_file(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "slo.toml"
    path.write_text(text)
    with pytest.raises(PlanError) as caught:
        load_slos(path)
    assert words in str(caught.value)
