"""The planted faults: all caught on a sound run, and missed when the check that catches them is taken away."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from loadtest.errors import InputError
from loadtest.judge import selftest, trust
from loadtest.judge.gate import judge_run
from loadtest.judge.selftest import FAULTS, Planted, self_test
from loadtest.model import Slo
from tests.judge.runs import MemoryRun, cell_facts, request_rows, run_of, simple_run

SLOS = [Slo("ttft", "ttft", "p95", max=500_000.0)]


@functools.cache
def sound_run() -> MemoryRun:
    base, cand = cell_facts("baseline"), cell_facts()
    return run_of((base, request_rows(base, 320)), (cand, request_rows(cand, 320)))


def test_the_run_without_a_fault_passes() -> None:
    """Else "caught" would mean nothing."""
    assert judge_run(sound_run(), SLOS).status == "PASS"


def test_every_fault_is_caught() -> None:
    missed = [p for p in self_test(sound_run(), SLOS) if not p.caught]
    assert missed == []


def test_a_run_is_not_changed_by_the_test() -> None:
    run = sound_run()
    before = run.table.num_rows, run.cells.to_pylist()
    self_test(run, SLOS)
    assert (run.table.num_rows, run.cells.to_pylist()) == before


def test_every_blocking_check_has_a_fault() -> None:
    assert {c.code for c in trust.CHECKS if c.blocking} <= {f.expect for f in FAULTS}


@pytest.mark.parametrize("code", [c.code for c in trust.CHECKS if c.blocking])
def test_removing_a_check_is_noticed(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take one check out of the table: the self-test must miss exactly its faults."""
    monkeypatch.setattr(trust, "CHECKS", tuple(c for c in trust.CHECKS if c.code != code))
    monkeypatch.setattr(selftest, "FAULTS", tuple(f for f in FAULTS if f.expect == code))
    planted: list[Planted] = self_test(sound_run(), SLOS)
    assert planted
    assert not any(p.caught for p in planted)


def test_a_run_without_requests_cannot_be_tested() -> None:
    with pytest.raises(InputError, match="at least one finished cell"):
        self_test(run_of(), SLOS)


@pytest.mark.parametrize("facts", [{"simulated": True}, {"coalesced_share": 0.1, "merged_first_share": 0.5}], ids=str)
def test_works_on_a_run_that_has_faults_of_its_own(facts: dict[str, Any]) -> None:
    """A small simulated run on a busy machine: its own faults are put right in the copy first."""
    run = simple_run(40, facts=facts, first_chunk_merged=[i % 2 == 0 for i in range(40)])
    assert [p for p in self_test(run, SLOS) if not p.caught] == []


@pytest.mark.parametrize("expect", ["FAIL", "INCONCLUSIVE", "torn_file"])
def test_a_fault_that_changes_nothing_is_not_called_caught(expect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sound cell shows no fault, even where the run does not pass for another cause."""
    slo = Slo("own", "ttft", "p95", max=100e6)
    lost = Slo("lost", "ttft", "p95", max=1.0, where={"mix": "nothing"})
    monkeypatch.setattr(selftest, "FAULTS", (selftest.Fault("nothing happens", expect, slo=slo),))
    (planted,) = self_test(sound_run(), [*SLOS, lost])
    assert not planted.caught
