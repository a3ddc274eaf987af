"""The unit tests of the code prompts are right: a reference solution passes each, a wrong answer does not."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CODE = Path(__file__).parents[2] / "datasets" / "code.jsonl"
SOLUTIONS = Path(__file__).parents[1] / "data" / "datasets" / "code_solutions.jsonl"
TIMEOUT_S = 30
"""Far above what any reference needs (below 2 s), so that a busy machine is no failure. A wrong answer that loops for
ever is stopped earlier, by the driver."""

DRIVER = """
import json, signal, sys, types


def out_of_time(*_):
    raise TimeoutError("still running")


signal.signal(signal.SIGALRM, out_of_time)
case = json.load(sys.stdin)
verdicts = {}
for name, source in case["answers"].items():
    module = types.ModuleType("answer")
    sys.modules["answer"] = module
    signal.alarm(20 if name == "reference" else 2)
    try:
        exec(compile(source, "answer.py", "exec"), module.__dict__)
        exec(compile(case["tests"], "tests.py", "exec"), module.__dict__)
        verdicts[name] = "pass"
    except Exception as error:
        verdicts[name] = f"{type(error).__name__}: {error}"
    signal.alarm(0)
sys.stdout.write("\\nverdicts " + json.dumps(verdicts) + "\\n")
"""


def load(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


ROWS = {row["id"]: row for row in load(CODE) if "tests" in row}
REFERENCE = {row["id"]: row["solution"] for row in load(SOLUTIONS)}


def given_code(row: dict[str, Any]) -> str | None:
    """The Python block in the prompt, if there is one."""
    match = re.search(r"```python\n(.*?)```", row["messages"][0]["content"], re.DOTALL)
    return match[1] if match else None


def verdicts(tests: str, answers: dict[str, str]) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", DRIVER],
        input=json.dumps({"tests": tests, "answers": answers}),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.rsplit("\nverdicts ", 1)[1])
    return found


def test_every_prompt_with_tests_has_a_reference_solution_and_the_other_way_round() -> None:
    assert set(ROWS) == set(REFERENCE)
    assert len(ROWS) >= 64


@pytest.mark.parametrize("prompt_id", sorted(ROWS))
def test_reference_passes_and_wrong_answers_fail(prompt_id: str) -> None:
    row = ROWS[prompt_id]
    assert "assert" in row["tests"]
    answers = {"reference": REFERENCE[prompt_id], "empty": ""}
    unchanged = given_code(row) if row["stratum"] in ("debug", "edit") else None
    if row["stratum"] in ("debug", "edit"):
        assert unchanged, "bug hunts and edits carry the code to change"
        answers["unchanged"] = unchanged
    result = verdicts(row["tests"], answers)
    assert result.pop("reference") == "pass"
    assert "pass" not in result.values(), result


def test_prompts_name_what_their_tests_call() -> None:
    """An answer can only be checked if the prompt says which name to define."""
    for row in ROWS.values():
        prompt = row["messages"][0]["content"]
        defined = set(re.findall(r"^(?:(?:async )?def|class) (\w+)|^(\w+) = ", REFERENCE[row["id"]], re.MULTILINE))
        names = {name for pair in defined for name in pair if name}
        called = {name for name in names if re.search(rf"\b{name}\b", row["tests"])}
        assert called, row["id"]
        assert all(name in prompt for name in called), (row["id"], called)
