"""The judge's commands through the front door: exit codes, texts, files, errors in one line."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from loadtest.cli import cli, main
from tests.judge.test_compare import build
from tests.judge.test_confirm import PLAN, picked_run
from tests.judge.test_files import write

SLOS = [{"name": "ttft p95", "metric": "ttft", "stat": "p95", "max": 5e8, "min": None, "confidence": 0.95,
         "where": {}, "limits": {}}]  # fmt: skip


def call(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in argv])
    told = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, told.out, told.err


def run_folder(folder: Path, slower: float = 1.0, seed: int = 1, **facts: object) -> Path:
    folder.mkdir()
    return write(build(slower, seed, run={"slos": SLOS}, **facts), folder).path  # type: ignore[arg-type]


@pytest.mark.parametrize("command", ["compare", "confirm", "quality", "gate"])
def test_help_has_an_example(capsys: pytest.CaptureFixture[str], command: str) -> None:
    code, out, _ = call(capsys, command, "--help")
    assert code == 0
    assert f"Example: loadtest {command}" in out


def test_every_option_of_every_command_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    call(capsys, "--help")  # adds the rooms' own commands
    options = [(n, p) for n, c in cli.commands.items() for p in c.params if isinstance(p, click.Option)]
    assert len(options) > 30
    assert [(n, p.opts) for n, p in options if not p.help] == []


def test_an_inconclusive_verdict_ends_with_0_only_where_that_was_asked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Of a real run whose criterion selects no cell; verdict.json says INCONCLUSIVE either way."""
    (tmp_path / "a").mkdir()
    facts = {"slos": [], "tool_version": "1", "plan_sha256": "ab", "host": {}}
    run, slo = write(build(1.0, 1, run=facts), tmp_path / "a").path, tmp_path / "slo.toml"
    slo.write_text('[[slo]]\nmetric = "ttft"\nstat = "p95"\nlimit = "1s"\nwhere = { mix = "nothing" }\n')
    for more, ends, warns in (((), 98, False), (("fail",), 98, False), (("warn",), 0, True)):
        option = ("--on-inconclusive", *more) if more else ()
        code, _, err = call(capsys, "gate", run, "--slo", slo, *option)
        assert (code, "This is no PASS" in err) == (ends, warns)
        verdict = json.loads((run / "verdict.json").read_text())
        assert (verdict["status"], verdict["exit_code"]) == ("INCONCLUSIVE", 98)


def test_self_test_shows_every_fault_and_writes_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = run_folder(tmp_path / "a")
    before = sorted(p.name for p in run.rglob("*"))
    code, out, _ = call(capsys, "gate", run, "--self-test")
    assert code == 0
    lines = out.splitlines()
    assert all(line.startswith("caught") for line in lines[:-1])
    assert len(lines) > 30
    assert lines[-1] == f"all {len(lines) - 1} planted faults were caught"
    code, out, _ = call(capsys, "gate", run, "--self-test", "--json")
    assert code == 0
    assert all(p["caught"] for p in json.loads(out))
    assert sorted(p.name for p in run.rglob("*")) == before


def test_a_gate_that_misses_a_fault_ends_with_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check is taken away: the self-test names the fault that slips through."""
    from loadtest.judge import trust

    monkeypatch.setattr(trust, "CHECKS", tuple(c for c in trust.CHECKS if c.code != "torn_file"))
    code, out, _ = call(capsys, "gate", run_folder(tmp_path / "a"), "--self-test")
    assert code == 1
    assert "MISSED  torn file" in out
    assert "1 of " in out.splitlines()[-1]


def test_compare_ends_with_what_it_found(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    old, same, slow = run_folder(tmp_path / "a"), run_folder(tmp_path / "b", 1.0, 2), run_folder(tmp_path / "c", 1.2, 3)
    record = tmp_path / "record.json"
    code, out, _ = call(capsys, "compare", old, same, "--out", record)
    assert code == 0
    assert out.splitlines()[-1].startswith("PASS (exit code 0)")
    assert json.loads(record.read_text())["status"] == "PASS"
    code, out, _ = call(capsys, "compare", old, slow, "--json")
    assert code == 99
    assert json.loads(out)["groups"][0]["status"] == "FAIL"
    code, out, _ = call(capsys, "compare", old, slow, "--delta", "0.5")
    assert code == 0


def test_compare_refuses_what_must_be_equal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    old, new = run_folder(tmp_path / "a"), run_folder(tmp_path / "b", 1.0, 2)
    for run, text in ((old, '{"code": [{"sha256": "1"}]}'), (new, '{"code": [{"sha256": "2"}]}')):
        (run / "prompts").mkdir()
        (run / "prompts" / "datasets.json").write_text(text)
    code, _, err = call(capsys, "compare", old, new)
    assert code == 2
    assert "--allow prompts" in err
    code, out, _ = call(capsys, "compare", old, new, "--allow", "prompts")
    assert code == 0
    assert "allowed to differ: prompts" in out
    code, _, err = call(capsys, "compare", old, new, "--allow", "gpu")
    assert code == 2
    assert "gpu cannot be allowed to differ; known: plan, prompts, versions, gpus, model, host" in err


def test_confirm_writes_a_plan(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    data = picked_run(tmp_path)
    facts = json.loads((data.path / "run.json").read_text())
    (data.path / "run.json").write_text(json.dumps({**facts, "plan": PLAN, "slos": SLOS}))
    code, out, _ = call(capsys, "confirm", data.path, "-o", tmp_path / "c.toml")
    assert code == 0
    assert f"next: loadtest plan {tmp_path / 'c.toml'}" in out
    assert (tmp_path / "c.toml").exists()


@pytest.mark.parametrize("command", ["compare", "confirm", "quality"])
def test_a_folder_that_is_no_run_is_a_usage_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str
) -> None:
    code, _, err = call(capsys, command, tmp_path, *([tmp_path] if command == "compare" else []))
    assert code == 2
    assert err.startswith("loadtest: ")
    assert "no run folder" in err
