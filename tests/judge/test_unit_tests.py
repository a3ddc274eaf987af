"""Unit tests on generated code: extraction, limits of the process, pairing, and what the verdict makes of it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow.parquet as pq
import pytest

from loadtest.errors import InputError, RunFolderError
from loadtest.judge.gate import judge_run
from loadtest.judge.quality import FILE, SCHEMA, difference, read_quality
from loadtest.judge.unit_tests import code_of, run_answer, run_unit_tests
from loadtest.judge.verdict import Verdict
from loadtest.merge.read import open_run
from loadtest.model import Message, Prompt, to_json
from loadtest.report.results import quality_of
from tests.judge.runs import cell_facts, request_rows, run_of
from tests.judge.test_decision import SLO
from tests.judge.test_files import write

TESTS = "assert twice(2) == 4\nassert twice(-1) == -2\n"
RIGHT = "Sure:\n```python\ndef twice(x):\n    return 2 * x\n```\nDone."
WRONG = "```python\ndef twice(x):\n    return x * x\n```"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a\n```python\nx = 1\n```\nb", "x = 1\n"),
        ("```py\nx = 1\n```\n```python\nlonger = 2\n```", "longer = 2\n"),
        ("```bash\npip install everything and more\n```\n```python\nx = 1\n```", "x = 1\n"),
        ("```\nx = 1\n```", "x = 1\n"),
        ("```python\nx = 1\ny = ", "x = 1\ny = "),
        ("<think>```python\nwrong = 1\n```</think>```python\nx = 1\n```", "x = 1\n"),
        ("x = 1", "x = 1"),
        ("Here is how you do it.", None),
        ("", None),
    ],
)
def test_code_of_an_answer(text: str, code: str | None) -> None:
    assert code_of(text) == code


@pytest.mark.parametrize(
    ("code", "tests", "passed", "says"),
    [
        ("def twice(x): return 2 * x", TESTS, True, "passed"),
        ("def twice(x): return x * x", TESTS, False, "AssertionError"),
        ("def twice(x) return", TESTS, False, "SyntaxError"),
        ("import sys\nsys.exit(0)", TESTS, False, "SystemExit"),
        ("import os\nos._exit(0)", TESTS, False, "ended by itself"),
        ("raise KeyboardInterrupt", TESTS, False, "KeyboardInterrupt"),
        ("x = bytearray(3 << 30)", "assert x", False, "MemoryError"),
        ("from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int", "assert P(1).x == 1", True, "passed"),
        ("import os", "assert os.listdir() == []", True, "passed"),
        ("open('big', 'wb').write(bytes(2 << 20))", "assert True", False, ""),
        ("import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()", "assert True", True, ""),
    ],
)
def test_answers_run_with_limits(code: str, tests: str, passed: bool, says: str) -> None:
    found = run_answer(code, tests)
    assert found.passed is passed
    assert says in found.reason


def test_answers_reach_no_network() -> None:
    """Not even this machine: a listening socket of the test is out of reach."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = run_answer(f"import socket\nsocket.create_connection(('127.0.0.1', {port}), timeout=2)", "assert True")
    assert not found.passed
    assert found.network in ("cut off", "refused")


def children() -> set[str]:
    """Our direct children; other tests of this process may have left some that are none of this test's."""
    mine = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    return set(mine.read_text().split()) if mine.exists() else set()


def test_endless_answers_are_stopped_with_what_they_started() -> None:
    before = children()
    asleep = run_answer("import time\ntime.sleep(60)", "assert True", timeout_s=1.0)
    assert "out of time" in asleep.reason
    busy = run_answer("while True: pass", "assert True", cpu_s=1)
    assert not busy.passed
    child = "import os, time\npid = os.fork()\ntime.sleep(60)"
    assert not run_answer(child, "assert True", timeout_s=1.0).passed
    assert children() <= before


def coded_run(tmp_path: Path, wrong: int, n: int = 150, keep_text: bool = True, **facts: Any) -> Path:
    """Baseline answers all prompts right; of the candidate's answers `wrong` are wrong."""
    base, cand = cell_facts("baseline", **facts), cell_facts("ngram-4", **facts)
    rows = []
    for cell, bad in ((base, 0), (cand, wrong)):
        texts = [WRONG if i < bad else RIGHT for i in range(n)]
        rows.append(
            request_rows(
                cell,
                n,
                output_text=texts if keep_text else None,
                output_sha256=[hashlib.sha256(t.encode()).hexdigest() for t in texts],
                prompt_sha256=[f"{i:015d}" for i in range(n)],
                e2e_us=400_000 if cell is base else 300_000,
            )
        )
    opened = write(run_of((base, rows[0]), (cand, rows[1])), tmp_path)
    for cell in (base, cand):
        place = opened.path / f"requests/config={cell['config']}/mix={cell['mix']}/load={cell['load']}"
        for part in place.glob("*.parquet"):
            part.unlink()
        pq.write_table(rows[cell is cand], place / f"part-{cell['cell_id']}.parquet")
    (opened.path / "prompts").mkdir()
    prompts = [Prompt(f"p{i}", "edit", (Message("user", "?"),), unit_tests=TESTS) for i in range(n)]
    (opened.path / "prompts" / "code.jsonl").write_text(
        "".join(json.dumps(to_json(p)) + "\n" for p in prompts), encoding="utf-8"
    )
    return opened.path


def judged(run_dir: Path) -> Verdict:
    return judge_run(open_run(run_dir), [SLO])


def test_failing_tests_say_no(tmp_path: Path) -> None:
    run_dir = coded_run(tmp_path, wrong=30)
    assert "unit tests: not measured (待测)" in judged(run_dir).decisions[0].questions[0].evidence
    told = run_unit_tests(open_run(run_dir), jobs=1)
    assert "180 distinct answers" in told  # equal texts of one prompt are one answer, those of two prompts are two
    assert pq.read_schema(run_dir / FILE).names == SCHEMA.names
    verdict = judged(run_dir)
    (base, cand) = verdict.unit_tests
    assert (base.config, base.passed, base.paired) == ("baseline", 150, 0)
    assert (cand.passed, cand.prompts, cand.non_inferior) == (120, 150, "no")
    assert cand.difference == pytest.approx(-0.2)
    decision = verdict.decisions[0]
    assert decision.questions[0].answer == "no"
    assert decision.decision == "DO NOT DEPLOY"
    quality = quality_of(verdict)
    assert quality["ngram-4", "code", "greedy"] == "no; 80.0 % of 150 prompts pass their tests"
    assert quality["baseline", "code", "greedy"].startswith("reference; 100.0 %")


def test_passing_tests_make_up_for_texts_that_differ(tmp_path: Path) -> None:
    """Every text differs from the baseline's and no noise is known, but all 150 prompts pass their tests."""
    run_dir = coded_run(tmp_path, wrong=0)
    data = open_run(run_dir)
    run_unit_tests(data, jobs=1)
    other = run_dir / "requests/config=ngram-4/mix=code/load=c8"
    (file,) = other.glob("*.parquet")
    table = pq.read_table(file)
    # The hash of the candidate's texts is changed in both files alike, as if it had written other right answers.
    index = table.schema.get_field_index("output_sha256")
    pq.write_table(table.set_column(index, table.schema.field(index), [["e" * 64] * len(table)]), file)
    question = judged(run_dir).decisions[0].questions[0]
    assert question.answer == "yes"
    assert "unit tests: 150 of 150 prompts pass" in question.evidence
    (run_dir / FILE).unlink()
    assert judged(run_dir).decisions[0].questions[0].answer == "not known"


def test_passing_tests_of_a_part_of_the_prompts_do_not_stand_for_all(tmp_path: Path) -> None:
    """120 of 150 prompts carry tests and pass; the texts of all differ: nobody looked at the other 30."""
    run_dir = coded_run(tmp_path, wrong=0)
    file = run_dir / "prompts" / "code.jsonl"
    file.write_text("".join(line + "\n" for line in file.read_text().splitlines()[:120]))
    run_unit_tests(open_run(run_dir), jobs=1)
    (part,) = (run_dir / "requests/config=ngram-4/mix=code/load=c8").glob("*.parquet")
    table = pq.read_table(part)
    index = table.schema.get_field_index("output_sha256")
    pq.write_table(table.set_column(index, table.schema.field(index), [["e" * 64] * len(table)]), part)
    verdict = judged(run_dir)
    assert verdict.unit_tests[1].non_inferior == "yes"
    assert verdict.decisions[0].questions[0].answer == "not known"


def test_texts_that_were_not_kept_are_not_tested(tmp_path: Path) -> None:
    run_dir = coded_run(tmp_path, wrong=0, n=20, keep_text=False)
    assert "could not be tested" in run_unit_tests(open_run(run_dir), jobs=1)
    assert judged(run_dir).unit_tests == ()


def test_runs_without_tests_or_answers_are_refused(tmp_path: Path) -> None:
    run_dir = coded_run(tmp_path, wrong=0, n=20)
    file = run_dir / "prompts" / "code.jsonl"
    prompts = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps({**p, "prompt_id": f"other-{p['prompt_id']}"}) + "\n" for p in prompts))
    with pytest.raises(InputError, match="no served answer"):
        run_unit_tests(open_run(run_dir))
    file.write_text("".join(json.dumps({**p, "unit_tests": None}) + "\n" for p in prompts))
    with pytest.raises(InputError, match="no prompt of this run has unit tests"):
        run_unit_tests(open_run(run_dir))


def test_a_broken_quality_file_is_named(tmp_path: Path) -> None:
    run_dir = coded_run(tmp_path, wrong=0, n=20)
    (run_dir / FILE).write_bytes(b"PAR1 not parquet")
    with pytest.raises(RunFolderError, match="loadtest quality"):
        read_quality(open_run(run_dir))


def test_differences_by_hand() -> None:
    """100 prompts, none changed: at most 2.95 % lost (0.9705^100 = 5 %); 98 prompts leave 3.01 %."""
    same = {f"p{i}": 1.0 for i in range(100)}
    found = difference([(same, same)], 0.95)
    assert found is not None
    assert found.lower == pytest.approx(0.05 ** (1 / 100) - 1)
    assert found.upper == pytest.approx(1 - 0.05 ** (1 / 100))
    fewer = {f"p{i}": 1.0 for i in range(98)}
    less = difference([(fewer, fewer)], 0.95)
    assert less is not None
    assert less.lower < -0.03
    assert difference([(same, {"q": 1.0})], 0.95) is None


def test_repeats_of_a_prompt_are_one_prompt() -> None:
    """Nine cells of 30 prompts are 30 prompts, and a half-failed prompt counts half."""
    base = {f"p{i}": 1.0 for i in range(30)}
    cells = [(base, {**base, "p0": float(k % 2)}) for k in range(10)]
    found = difference(cells, 0.95)
    assert found is not None
    assert found.prompts == 30
    assert found.estimate == pytest.approx(-0.5 / 30)


def test_gained_prompts_do_not_hide_lost_ones() -> None:
    """Ten lost and ten gained of 300: no difference on average, but not certain to within 3 points."""
    base = {f"p{i}": float(i >= 10) for i in range(300)}
    cand = {f"p{i}": float(not 10 <= i < 20) for i in range(300)}
    found = difference([(base, cand)], 0.95)
    assert found is not None
    assert found.estimate == 0.0
    assert found.lower < -0.03 < 0.03 < found.upper


def test_verdict_with_unit_tests_is_still_valid(tmp_path: Path) -> None:
    from tests.judge.test_verdict import SCHEMA as VERDICT_SCHEMA

    run_dir = coded_run(tmp_path, wrong=1, n=20)
    run_unit_tests(open_run(run_dir), jobs=1)
    verdict = judged(run_dir)
    assert dataclasses.astuple(verdict.unit_tests[1])[:4] == ("ngram-4", "code", "greedy", 20)
    jsonschema.Draft202012Validator(VERDICT_SCHEMA).validate(json.loads(json.dumps(verdict.to_json())))
