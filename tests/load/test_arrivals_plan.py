"""Open loops in the plan: ramps and traces become cells with a window of their own, and a file of arrivals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtest.errors import DatasetError, PlanError
from loadtest.load.schedule import decode_trace, schedule_s
from loadtest.plan.cells import expand
from loadtest.plan.load_table import Trace
from loadtest.plan.loader import load_plan, plan_from_json
from loadtest.plan.prompts import write_prompts
from loadtest.plan.trace import read_trace

PLAN = """
schema = 1
[target]
model = "m"
[[config]]
name = "base"
url = "http://127.0.0.1:9"
[[mix]]
name = "talk"
parts = [{ dataset = "talk.jsonl" }]
think_time = "2s"
[load]
LOADS
warmup = "1s"
repeats = 1
[[sampling]]
name = "greedy"
temperature = 0.0
max_tokens = 8
"""


def plan_file(folder: Path, loads: str) -> Path:
    (folder / "talk.jsonl").write_text(json.dumps({"turns": ["one", "two"], "prompt": "zero"}) + "\n")
    (folder / "plan.toml").write_text(PLAN.replace("LOADS", loads))
    return folder / "plan.toml"


def test_a_ramp_and_a_trace_bring_their_own_window(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("id,TIMESTAMP\na,2023-11-16 18:15:46.6805900\nb,2023-11-16 18:15:47.1805900\n")
    loads = 'rate = [2.0]\nramp = [{ rate = 1, for = "10s" }, { rate = 1, to = 9, for = "30s" }]\n'
    loads += 'trace = { file = "log.csv", speed = 0.5 }'
    plan = load_plan(plan_file(tmp_path, loads))
    _, cells = expand(plan)
    rate, ramp, trace = cells
    again = plan_from_json(plan.to_json())  # as run.json keeps it
    assert (again.load.ramp, again.load.trace) == (plan.load.ramp, plan.load.trace)
    assert (rate.load, rate.measure_s, rate.think_time_s) == ("poisson2", 60.0, 2.0)
    assert (ramp.load, ramp.measure_s, ramp.ramp) == ("ramp4", 40.0, ((1.0, 1.0, 10.0), (1.0, 9.0, 30.0)))
    assert (trace.load, trace.measure_s) == ("trace1", 2.0)  # 2 arrivals, a mean gap of 1 s at half the speed
    write_prompts(plan, tmp_path)
    offsets = decode_trace((tmp_path / str(trace.trace_file)).read_bytes())
    assert offsets == (0.0, 1.0)
    endless = schedule_s(trace, warmup=False, trace=offsets)
    assert [next(endless) for _ in range(4)] == [0.0, 1.0, 2.0, 3.0]  # it goes round for the drain
    later = [json.loads(x)["later_turns"] for x in (tmp_path / "prompts" / "talk.jsonl").read_text().splitlines()]
    assert later == [["one", "two"]]


def test_a_step_that_starts_low_has_arrivals_where_its_rate_is_high(tmp_path: Path) -> None:
    plan = load_plan(plan_file(tmp_path, 'ramp = [{ rate = 0.001, to = 200, for = "2s" }]'))
    (cell,) = expand(plan)[1]
    times = []
    for t in schedule_s(cell, warmup=False):
        if t > 4:
            break
        times.append(t)
    assert times == sorted(times)
    assert 150 <= sum(t < 2 for t in times) <= 250  # 200 expected
    assert sum(t < 1 for t in times) < 80  # 50 expected
    assert 320 <= sum(t >= 2 for t in times) <= 480  # afterwards its last rate


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("1\n2\n1.5\n", "line 3: '1.5' is before the line above"),
        ("1\nx\n", "line 2: 'x' is no time"),
        ('{"timestamp": 1}\n{"when": 2}\n', "line 2: none of timestamp"),
        ('{"timestamp": 1}\n{"timestamp": true}\n', "line 2: True is no time"),
        ("3\n3\n", "the same time"),
        ("nan\n", "line 1: 'nan' is no time"),
        ("5\n", "two arrivals or more"),
        ("a,time\n1\n", "1 columns, but the time is in column 2"),
    ],
)
def test_a_bad_trace_is_told_with_line_and_value(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "t.txt").write_text(text)
    with pytest.raises(DatasetError, match=told):
        read_trace(tmp_path / "t.txt", Trace(file="t.txt"))
    with pytest.raises(PlanError, match=r"load\.trace\.file"):
        load_plan(plan_file(tmp_path, 'trace = { file = "t.txt" }'))


def test_times_in_milliseconds_and_only_a_part(tmp_path: Path) -> None:
    lines = [json.dumps({"timestamp": 1000 + 250 * i, "input_length": 7}) + "\n" for i in range(9)]
    (tmp_path / "t.jsonl").write_text("".join(lines))
    whole = read_trace(tmp_path / "t.jsonl", Trace(file="t.jsonl", unit="ms"))
    assert (whole.length_s, whole.rate) == (2.25, 4.0)
    part = read_trace(tmp_path / "t.jsonl", Trace.model_validate({"file": "t.jsonl", "unit": "ms", "for": "1s"}))
    assert part.offsets_s == (0.0, 0.25, 0.5, 0.75)


def test_a_trace_that_is_not_there_is_told_with_the_places(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r'"none.csv" not found; looked at .*none.csv'):
        load_plan(plan_file(tmp_path, 'trace = { file = "none.csv" }'))
