"""Two runs of one plan: regression, no regression, not comparable."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from loadtest.errors import InputError
from loadtest.judge.compare import compare_runs
from tests.judge.runs import PROVENANCE, MemoryRun, cell_facts, request_rows, run_of

N = 300


def build(
    slower: float = 1.0,
    seed: int = 1,
    *,
    loads: tuple[int, ...] = (8,),
    run: dict[str, Any] | None = None,
    **facts: Any,
) -> MemoryRun:
    """One config; per prompt the same effect in every build, and noise of 5 %."""
    effect = np.exp(np.random.default_rng(99).normal(0, 0.4, N))
    rng = np.random.default_rng(seed)
    parts = []
    for load in loads:
        for repeat in (1, 2):
            order = rng.permutation(N)
            e2e = (400_000 * slower * effect * np.exp(rng.normal(0, 0.05, N)))[order]
            cell = cell_facts(load=load, repeat=repeat, **facts)
            columns = {"e2e_us": e2e.astype(int), "tpot_us": e2e / 40, "ttft_us": (e2e / 10).astype(int),
                       "prompt_id": [f"p{i}" for i in order]}  # fmt: skip
            parts.append((cell, request_rows(cell, N, **columns)))
    return run_of(*parts, **(run or {}))


@pytest.mark.parametrize(("slower", "status", "code"), [(1.0, "PASS", 0), (0.8, "PASS", 0), (1.2, "FAIL", 99)])
def test_regression(slower: float, status: str, code: int) -> None:
    found = compare_runs(build(), build(slower, 2))
    assert (found.status, found.exit_code) == (status, code)
    (group,) = found.groups
    assert group.pairs == 2 * N
    assert group.ratios["e2e"].estimate == pytest.approx(slower, rel=0.02)
    json.dumps(found.to_json(), allow_nan=False)


def test_prompts_are_paired_by_id_not_by_number() -> None:
    """The new run met its prompts in another order and holds prompts that the old one never saw."""
    old, new = build(), build(1.0, 7)
    names = [f"x{i}" if i % 3 == 0 else p for i, p in enumerate(new.table["prompt_id"].to_pylist())]
    index = new.table.schema.get_field_index("prompt_id")
    import pyarrow as pa

    table = new.table.set_column(index, new.table.schema.field(index), pa.array(names))
    group = compare_runs(old, MemoryRun(new.run, new.cells, table)).groups[0]
    assert group.pairs == 2 * N * 2 // 3
    assert group.ratios["e2e"].estimate == pytest.approx(1.0, rel=0.02)


def test_other_plan_is_refused_unless_allowed() -> None:
    with pytest.raises(InputError, match="different plans"):
        compare_runs(build(), build(run={"plan_sha256": "cd" * 32}))
    found = compare_runs(build(), build(1.0, 2, run={"plan_sha256": "cd" * 32}), allow=["plan"])
    assert found.allowed == ("plan",)


def test_other_build_is_refused_unless_allowed() -> None:
    """The version is what a build changes, so it has to be named; the GPU must not slip through with it."""
    newer = json.dumps({**json.loads(PROVENANCE), "versions": {"vllm": "0.33.0"}})
    with pytest.raises(InputError, match="--allow versions"):
        compare_runs(build(), build(provenance_equal=newer))
    assert compare_runs(build(), build(1.0, 2, provenance_equal=newer), allow=["versions"]).status == "PASS"
    both = json.dumps({**json.loads(newer), "gpus": ["L4"]})
    with pytest.raises(InputError, match="--allow gpus"):
        compare_runs(build(), build(provenance_equal=both), allow=["versions"])


def test_untrusted_or_missing_cells_never_pass() -> None:
    assert compare_runs(build(), build(1.0, 2, worker_cpu_max=1.0)).status == "INCONCLUSIVE"
    assert compare_runs(build(provenance_equal=None), build(1.0, 2)).status == "INCONCLUSIVE"
    lost = compare_runs(build(loads=(8, 32)), build(1.0, 2))
    assert lost.status == "INCONCLUSIVE"
    assert lost.only_old == ("ngram-4/code/greedy/c32",)
    assert compare_runs(build(), run_of()).status == "INCONCLUSIVE"


def test_simulated_runs_show_regressions_but_never_pass() -> None:
    """A change of the simulator that slows it down is a regression of the simulator."""
    assert compare_runs(build(simulated=True), build(1.0, 2, simulated=True)).status == "INCONCLUSIVE"
    assert compare_runs(build(simulated=True), build(1.2, 2, simulated=True)).status == "FAIL"


def test_delta_must_be_a_share() -> None:
    with pytest.raises(InputError, match="5 % slower"):
        compare_runs(build(), build(), delta=5)
