"""What the gate says, as frozen dataclasses; `to_json` gives strict JSON (docs/verdict.schema.json).

Schema history: 1 = first. 2 = the reasons of a comparison are codes, their words stand once (in `cells`, and in
`details` of the comparison over all strata). Values are in the metric's unit (`us` is microseconds); None means "no
figure", never 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from loadtest.errors import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_PASS
from loadtest.model import to_json as plain

VERDICT_SCHEMA_VERSION = 2

Status = Literal["PASS", "FAIL", "INCONCLUSIVE"]
Answer = Literal["yes", "no", "not known"]
DecisionKind = Literal["DEPLOY", "DEPLOY UP TO", "DO NOT DEPLOY", "INCONCLUSIVE"]

EXIT_CODES: dict[Status, int] = {"PASS": EXIT_PASS, "FAIL": EXIT_FAIL, "INCONCLUSIVE": EXIT_INCONCLUSIVE}


def worst(statuses: list[Status]) -> Status:
    """FAIL if any FAIL, else INCONCLUSIVE if any (or if there is none at all), else PASS."""
    if "FAIL" in statuses:
        return "FAIL"
    return "PASS" if statuses and all(s == "PASS" for s in statuses) else "INCONCLUSIVE"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a cell or a comparison does not count (or, as a hint, what to keep in mind)."""

    code: str
    """Name in docs/inconclusive.md."""
    seen: str
    limit: str
    why: str
    do: str
    """What to do next."""
    blocking: bool = True
    """False: a hint that changes no verdict."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What a check looked at. `repeat` None with several `cell_ids` = the repeats pooled."""

    config: str
    method: str
    gamma: int | None
    mix: str
    sampling: str
    load: str
    load_value: float
    stratum: str | None
    repeat: int | None
    cell_ids: tuple[str, ...]
    is_baseline: bool = False


@dataclass(frozen=True, slots=True)
class Check:
    """One criterion in one scope."""

    slo: str
    metric: str
    stat: str
    unit: str
    direction: Literal["lower", "higher"]
    """Which way is better: `lower` = the limit is a maximum, `higher` = a minimum."""
    limit: float
    confidence: float
    status: Status
    reason: str
    """One sentence with the figures."""
    scope: Scope | None
    """None: the criterion selected no cell."""
    estimate: float | None = None
    """The figure of the sample; failed requests count as infinitely slow, so it is None where they reach it."""
    lower: float | None = None
    """One-sided lower bound at `confidence`."""
    upper: float | None = None
    """One-sided upper bound at `confidence`."""
    n: int = 0
    n_eff: int | None = None
    """Independent requests that n is worth."""
    tau: float | None = None
    over: int | None = None
    """Requests over the limit (for a floor: under it), failures and unknown values included."""
    more: int | None = None
    """About how many more requests would decide it; None: not known or decided."""
    more_unit: Literal["requests", "prompts", "repeats"] = "requests"
    on_these_figures: Status = "INCONCLUSIVE"
    """The status if the server and its acceptance were real; equal to `status` where they are."""
    gating: bool = True
    """False: shown, but not part of the overall status (a baseline that no criterion names)."""
    implicit: bool = False
    """True: not configured by the user (the default error budget)."""


@dataclass(frozen=True, slots=True)
class CellTrust:
    """Whether a cell counts."""

    cell_id: str
    config: str
    state: str
    trusted: bool
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class RatioEstimate:
    """A ratio with a two-sided interval; None where it is undefined."""

    name: str
    estimate: float | None
    lower: float | None
    upper: float | None
    confidence: float
    n: int
    """Clusters (prompts or repeats) behind it."""
    method: str
    """bootstrap over prompts | delta method | …"""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One config against the baseline at one mix, sampling and load; paired by prompt and repeat."""

    config: str
    baseline: str
    mix: str
    sampling: str
    load: str
    load_value: float
    stratum: str | None
    repeats: tuple[int, ...]
    pairs: int
    unpaired: int
    length_ratio: float | None
    """Mean output tokens, candidate over baseline."""
    ratios: dict[str, RatioEstimate]
    """tpot, e2e, ttft (candidate / baseline, below 1 is better) and output_rate (above 1 is better)."""
    trusted: bool
    reasons: tuple[str, ...]
    """Codes of all reasons; those of cells are spelt out in `Verdict.cells`."""
    details: tuple[Reason, ...] = ()
    """Reasons of the pairing itself in words; only where `stratum` is None."""


@dataclass(frozen=True, slots=True)
class Crossover:
    """Where a config stops paying, over the loads of one mix and sampling."""

    config: str
    mix: str
    sampling: str
    stratum: str | None
    load_kind: str
    pays_up_to: float | None
    """Highest load up to which every measured load pays for certain."""
    loses_from: float | None
    """Lowest load whose interval lies wholly on the losing side."""
    estimate: float | None
    """Load where the paired speed-up passes 1, interpolated in log load between measured loads."""
    lower: float | None
    upper: float | None
    confidence: float
    monotone: bool
    note: str


@dataclass(frozen=True, slots=True)
class Decile:
    """The requests of one tenth by their own draft acceptance rate, worst drafted first."""

    decile: int
    """1 to 10."""
    n: int
    acceptance_low: float
    acceptance_high: float
    tpot_p50_us: float | None
    tpot_p99_us: float | None
    """Nearest-rank figures of the sample, no claims."""
    tail_share: float
    """Share of the slowest 1 % (by TPOT) that lies in this tenth; 0.1 where acceptance does not matter."""


@dataclass(frozen=True, slots=True)
class TimeSlice:
    """Acceptance in one equal part of the window."""

    start_s: float
    """Seconds after the start of the window."""
    acceptance: RatioEstimate


@dataclass(frozen=True, slots=True)
class Profile:
    """Where the tail comes from and whether acceptance drifts, for one config at one mix, sampling and load."""

    config: str
    mix: str
    sampling: str
    load: str
    deciles: tuple[Decile, ...]
    badly_drafted_tail: Answer
    """Whether the slowest requests are those whose drafts were rejected most."""
    slices: tuple[TimeSlice, ...]
    drifts: Answer
    """Whether acceptance at the end of the window differs from that at its start."""
    words: str


@dataclass(frozen=True, slots=True)
class UnitTests:
    """Unit tests on generated code, for one config, mix and sampling; only where `loadtest quality` was run."""

    config: str
    mix: str
    sampling: str
    prompts: int
    """Prompts with tests whose outputs were run."""
    passed: float
    """Prompts that pass; one of which a part of the outputs passes counts with that part."""
    lower: float
    """One-sided exact bounds of the share that passes."""
    upper: float
    paired: int
    """Prompts that the baseline was tested on as well."""
    difference: float | None
    """Share of the paired prompts that pass, minus the baseline's."""
    difference_lower: float | None
    difference_upper: float | None
    confidence: float
    non_inferior: Answer
    """Whether at most 3 points are lost for certain."""


@dataclass(frozen=True, slots=True)
class Question:
    """One of the four questions of a decision."""

    key: Literal["output", "candidates", "pays", "slo"]
    question: str
    answer: Answer
    evidence: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do with one config for one mix and sampling."""

    config: str
    method: str
    gamma: int | None
    mix: str
    sampling: str
    decision: DecisionKind
    up_to: str | None
    """Label of the highest load for DEPLOY UP TO."""
    sentence: str
    questions: tuple[Question, ...]
    on_these_figures: DecisionKind
    """What the figures alone say; differs from `decision` where they are simulated or synthetic."""
    on_these_figures_up_to: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The gate's answer for one run."""

    run_id: str
    plan_sha256: str
    tool_version: str
    status: Status
    sentence: str
    simulated: bool
    synthetic_acceptance: bool
    checks: tuple[Check, ...]
    cells: tuple[CellTrust, ...]
    comparisons: tuple[Comparison, ...] = ()
    crossovers: tuple[Crossover, ...] = ()
    decisions: tuple[Decision, ...] = ()
    profiles: tuple[Profile, ...] = ()
    unit_tests: tuple[UnitTests, ...] = ()
    reasons: tuple[Reason, ...] = ()
    """About the run as a whole."""
    allowed: tuple[str, ...] = ()
    """Provenance keys whose difference was allowed by the user."""
    schema: int = field(default=VERDICT_SCHEMA_VERSION)

    @property
    def exit_code(self) -> int:
        """0 pass, 99 fail, 98 inconclusive."""
        return EXIT_CODES[self.status]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values without NaN or infinities (they become null), with `exit_code`."""
        return {**finite(plain(self)), "exit_code": self.exit_code}


def finite(value: Any) -> Any:
    """JSON values with null for what JSON has no number for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [finite(v) for v in value]
    return value
