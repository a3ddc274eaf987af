"""Files appear in an order that never lets a report contradict the verdict beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from loadtest.errors import RunFolderError
from loadtest.judge.verdict import Verdict
from loadtest.merge.read import RunData
from loadtest.report.manager import REPORTS, VERDICT, publish, read_verdict, write_reports


def strict(text: str) -> object:
    """JSON without NaN and infinities."""

    def refuse(name: str) -> object:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


def passing(verdict: Verdict) -> Verdict:
    """A verdict that says PASS and differs from the one on disk."""
    return replace(verdict, status="PASS", sentence="PASS: all checks hold", simulated=False)


def test_every_file_is_written_verdict_first(copy: RunData, world: tuple[RunData, Verdict]) -> None:
    """The list of paths is the order of writing, and all of them exist."""
    paths = write_reports(copy.path, copy, world[1])

    assert paths[0] == copy.path / VERDICT
    assert paths[1 : 1 + len(REPORTS)] == [copy.path / n for n in REPORTS]
    assert all(p.stat().st_size for p in paths)
    assert not list(copy.path.rglob("*.tmp"))


def test_a_verdict_reads_back_as_it_was(world: tuple[RunData, Verdict]) -> None:
    """`loadtest report` works from verdict.json alone, so nothing may be lost in it."""
    assert read_verdict(world[0].path / VERDICT) == world[1]


def test_verdict_and_exports_are_strict_json(world: tuple[RunData, Verdict]) -> None:
    """NaN would stop every other reader."""
    for file in [world[0].path / VERDICT, *(world[0].path / "exports").glob("*.json")]:
        assert strict(file.read_text())


@pytest.mark.parametrize("old", ["kept", "removed"])
def test_a_crash_of_an_exporter_leaves_the_verdict_and_no_other_report(
    copy: RunData, world: tuple[RunData, Verdict], old: str
) -> None:
    """Reports of another verdict are gone before the new verdict is there; those of the same verdict may stay.

    The rows are damaged behind the run's back, so the page cannot be made.
    """
    write_reports(copy.path, copy, passing(world[1]))
    before = {n: (copy.path / n).read_bytes() for n in REPORTS}
    for rows in (copy.path / "requests").rglob("*.parquet"):
        rows.write_bytes(b"not Parquet")
    verdict = passing(world[1]) if old == "kept" else world[1]
    with pytest.raises(pa.ArrowInvalid, match="Parquet"):
        write_reports(copy.path, copy, verdict)

    assert read_verdict(copy.path / VERDICT) == verdict
    if old == "kept":
        assert {n: (copy.path / n).read_bytes() for n in REPORTS} == before
    else:
        assert not [n for n in REPORTS if (copy.path / n).exists()]


def test_a_crash_before_the_verdict_leaves_no_new_claim(copy: RunData, world: tuple[RunData, Verdict]) -> None:
    """A full disk while verdict.json is written: the old verdict stays, and no report says PASS."""
    (copy.path / f"{VERDICT}.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space"):
        write_reports(copy.path, copy, passing(world[1]))

    assert read_verdict(copy.path / VERDICT) == world[1]
    assert not [n for n in REPORTS if (copy.path / n).exists()]


@pytest.mark.parametrize("name", ["exports", "report.html"])
def test_a_path_that_takes_no_file_is_told_before_anything_changes(
    copy: RunData, world: tuple[RunData, Verdict], name: str
) -> None:
    """A file in place of exports/, or a folder in place of report.html."""
    target = copy.path / name
    if target.is_dir():
        target.rename(copy.path / "elsewhere")
        target.write_text("")
    else:
        target.unlink()
        target.mkdir()
    before = (copy.path / VERDICT).read_bytes()
    with pytest.raises(RunFolderError, match="cannot write reports into"):
        write_reports(copy.path, copy, passing(world[1]))

    assert (copy.path / VERDICT).read_bytes() == before
    assert (copy.path / "summary.md").exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "does not exist"),
        ("{", "cannot be read"),
        ("[]", "has schema None"),
        ('{"schema": 99}', "has schema 99"),
        ('{"schema": 2, "colour": "red"}', "another version"),
    ],
)
def test_an_unusable_verdict_says_what_to_run(tmp_path: Path, content: str | None, says: str) -> None:
    """Each names the file, what is wrong, and the command that makes it anew."""
    file = tmp_path / VERDICT
    if content is not None:
        file.write_text(content)
    with pytest.raises(RunFolderError, match=says) as error:
        read_verdict(file)

    assert f"loadtest gate {tmp_path}" in str(error.value)


def test_the_report_command_makes_the_same_files_again(copy: RunData) -> None:
    """`loadtest report RUN` needs Parquet and verdict.json only, and the same input gives the same bytes."""
    before = {n: (copy.path / n).read_bytes() for n in (VERDICT, *REPORTS)}
    for name in REPORTS:
        (copy.path / name).unlink()
    argv = [sys.executable, "-m", "loadtest", "report", str(copy.path)]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)

    assert result.returncode == 0, result.stderr
    assert str(copy.path / "report.html") in result.stdout.splitlines()
    assert {n: (copy.path / n).read_bytes() for n in (VERDICT, *REPORTS)} == before


def test_the_step_summary_is_appended_and_annotations_go_to_stderr(
    copy: RunData,
    world: tuple[RunData, Verdict],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Standard output stays free for --json; an earlier step's summary stays."""
    target = tmp_path / "step.md"
    target.write_text("earlier\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(target))
    publish(copy.path, copy, world[1])
    out, err = capsys.readouterr()

    assert target.read_text().startswith("earlier\n## SIMULATED INCONCLUSIVE")
    assert out == ""
    assert [line[:8] for line in err.splitlines()] == ["::error "] * 3


def test_a_bad_step_summary_path_does_not_cost_the_reports(
    copy: RunData, world: tuple[RunData, Verdict], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The reports are complete before GitHub is told."""
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(copy.path / "no" / "such.md"))
    paths = write_reports(copy.path, copy, world[1])

    assert all(p.exists() for p in paths)
    assert "GITHUB_STEP_SUMMARY: cannot write" in capsys.readouterr().err
