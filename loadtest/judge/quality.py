"""Unit tests on generated code: what `loadtest quality` found, paired with the baseline by prompt.

The figure of a prompt is the share of its outputs that pass; the prompt is the unit. Non-inferior means that at most
3 points of the prompts are lost for certain. Nothing is run here: `unit_tests.py` does that, when a person asks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from loadtest.errors import RunFolderError
from loadtest.judge.lossless import MARGIN
from loadtest.judge.orderstats import share_bounds
from loadtest.judge.select import CellFacts
from loadtest.judge.verdict import Answer, UnitTests
from loadtest.judge.words import figure

FILE = "quality.parquet"
SCHEMA = pa.schema(
    [
        pa.field("cell_id", pa.string(), nullable=False),
        pa.field("prompt_id", pa.string(), nullable=False),
        pa.field("output_sha256", pa.string(), nullable=False),
        pa.field("requests", pa.int64(), nullable=False),  # requests of the window that gave this output
        pa.field("passed", pa.bool_()),  # null: could not be tested
        pa.field("reason", pa.string(), nullable=False),  # "passed", or why not
    ]
)
"""One row per cell, prompt and distinct output."""

Shares = dict[str, float]
"""prompt_id -> share of its outputs that pass."""


def read_quality(data: Any) -> dict[str, Shares] | None:
    """cell_id -> Shares of the run's quality.parquet; None where the tests were never run.

    Raises RunFolderError for a file that cannot be read.
    """
    folder = getattr(data, "path", None)
    if folder is None or not (Path(folder) / FILE).is_file():
        return None
    path = Path(folder) / FILE
    try:
        table = pq.read_table(path, schema=SCHEMA)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OSError) as error:
        raise RunFolderError(f"{path} cannot be read ({error}): run `loadtest quality {folder}` again") from error
    return shares_of(table)


def shares_of(table: pa.Table) -> dict[str, Shares]:
    """The shares behind rows of SCHEMA; outputs that could not be tested are left out."""
    sums: dict[tuple[str, str], list[int]] = {}
    for row in table.to_pylist():
        if row["passed"] is not None:
            total = sums.setdefault((row["cell_id"], row["prompt_id"]), [0, 0])
            total[0] += row["requests"] * bool(row["passed"])
            total[1] += row["requests"]
    out: dict[str, Shares] = {}
    for (cell_id, prompt_id), (passed, tested) in sorted(sums.items()):
        out.setdefault(cell_id, {})[prompt_id] = passed / tested
    return out


@dataclass(frozen=True, slots=True)
class Difference:
    """Candidate minus baseline, in shares of the prompts; bounds are one-sided at the confidence asked."""

    prompts: int
    estimate: float
    lower: float
    upper: float


def mean_shares(cells: Sequence[Shares]) -> Shares:
    """Share by prompt, cells weighing alike."""
    found: dict[str, list[float]] = {}
    for shares in cells:
        for prompt_id, share in shares.items():
            found.setdefault(prompt_id, []).append(share)
    return {prompt_id: math.fsum(values) / len(values) for prompt_id, values in found.items()}


def difference(pairs: Sequence[tuple[Shares, Shares]], confidence: float) -> Difference | None:
    """(baseline, candidate) of cells that belong together, paired by prompt; None without a common prompt.

    Bounds from exact ones on the lost and on the gained prompts: a bootstrap of hardly any changes is too sure.
    """
    changes: dict[str, list[float]] = {}
    for base, cand in pairs:
        for prompt_id in base.keys() & cand.keys():
            changes.setdefault(prompt_id, []).append(cand[prompt_id] - base[prompt_id])
    n = len(changes)
    if n == 0:
        return None
    means = [math.fsum(v) / len(v) for v in changes.values()]
    lost, gained = math.fsum(max(0.0, -m) for m in means), math.fsum(max(0.0, m) for m in means)
    each = (1.0 + confidence) / 2.0 if lost and gained else confidence
    lost_low, _ = share_bounds(math.floor(lost + 1e-9), n, each)
    _, lost_high = share_bounds(math.ceil(lost - 1e-9), n, each)
    gain_low, _ = share_bounds(math.floor(gained + 1e-9), n, each)
    _, gain_high = share_bounds(math.ceil(gained - 1e-9), n, each)
    return Difference(n, (gained - lost) / n, gain_low - lost_high, gain_high - lost_low)


def unit_tests(
    facts: CellFacts, own: Sequence[Shares], pairs: Sequence[tuple[Shares, Shares]], confidence: float
) -> UnitTests | None:
    """The figures of one config at one mix and sampling; None where none of its outputs was tested.

    own: its cells. pairs: (baseline, candidate) of the same mix, sampling, load and repeat; empty for the baseline.
    """
    shares = mean_shares(own)
    if not shares:
        return None
    n, passed = len(shares), math.fsum(shares.values())
    lower, _ = share_bounds(math.floor(passed + 1e-9), n, confidence)
    _, upper = share_bounds(math.ceil(passed - 1e-9), n, confidence)
    found = difference(pairs, confidence)
    answer: Answer = "not known"
    if found is not None:
        answer = "no" if found.upper < -MARGIN else "yes" if found.lower > -MARGIN else "not known"
    return UnitTests(
        config=facts["config"],
        mix=facts["mix"],
        sampling=facts["sampling"],
        prompts=n,
        passed=passed,
        lower=lower,
        upper=upper,
        paired=0 if found is None else found.prompts,
        difference=None if found is None else found.estimate,
        difference_lower=None if found is None else found.lower,
        difference_upper=None if found is None else found.upper,
        confidence=confidence,
        non_inferior=answer,
    )


def words_of(tests: UnitTests) -> str:
    """One sentence with the figures."""
    share = figure(tests.passed / tests.prompts, "share")
    text = f"unit tests: {tests.passed:.4g} of {tests.prompts} prompts pass ({share})"
    if tests.difference is None or tests.difference_lower is None or tests.difference_upper is None:
        return text + ", no baseline outputs to pair with"
    return (
        f"{text}, {100 * tests.difference:+.1f} points against the baseline "
        f"({100 * tests.difference_lower:+.1f} to {100 * tests.difference_upper:+.1f} over {tests.paired} prompts)"
    )
