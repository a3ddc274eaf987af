"""The speculation block of a response -> columns. Pure.

vLLM puts it into `metrics.speculative_decoding` (dense histogram); a sibling form sits on the choice with a sparse,
string-keyed histogram. Unknown keys are ignored. Ratios that the server prints are not read: they are recomputed from
the counts. A block that contradicts itself keeps its counters and is flagged `block_inconsistent`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

INT16_MAX, INT32_MAX = 2**15 - 1, 2**31 - 1

COLUMNS = (
    "spec_steps",
    "draft_tokens",
    "accepted_tokens",
    "num_spec_tokens",
    "acceptance_histogram",
    "step_accepted",
    "step_drafted",
    "spec_source",
)

_COUNTERS = {
    "spec_steps": "num_spec_steps",
    "draft_tokens": "num_draft_tokens",
    "accepted_tokens": "num_accepted_draft_tokens",
    "num_spec_tokens": "num_spec_tokens",
}
_ON_CHOICE = ("speculative_decoding", "speculative_decoding_stats")


def find_block(answer: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The block of a response or of a stream's final usage chunk; None where there is none."""
    metrics = answer.get("metrics")
    places = [metrics, answer]
    choices = answer.get("choices")
    if isinstance(choices, list) and len(choices) == 1 and isinstance(choices[0], dict):
        places += [choices[0], choices[0].get("metrics")]
    for place in places:
        if isinstance(place, dict):
            for key in _ON_CHOICE:
                block = place.get(key)
                if isinstance(block, dict):
                    return block
    return None


def read_block(block: Mapping[str, Any] | None) -> tuple[dict[str, Any], str | None]:
    """The columns of `COLUMNS` and a warning: None, `block_inconsistent` or `block_unreadable` (no count in it)."""
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    if block is None:
        return row, None
    for column, key in _COUNTERS.items():
        row[column] = count(block.get(key), INT16_MAX if column == "num_spec_tokens" else INT32_MAX)
    row["acceptance_histogram"] = _histogram(block.get("acceptance_histogram"), row["num_spec_tokens"])
    row["step_accepted"] = _counts(block.get("per_step_accepted"), INT16_MAX)
    row["step_drafted"] = _counts(block.get("per_step_drafted"), INT16_MAX)
    unreadable = any(
        block.get(key) is not None and row[column] is None
        for column, key in (
            *_COUNTERS.items(),
            ("acceptance_histogram", "acceptance_histogram"),
            ("step_accepted", "per_step_accepted"),
            ("step_drafted", "per_step_drafted"),
        )
    )
    if row["spec_steps"] is None or row["draft_tokens"] is None or row["accepted_tokens"] is None:
        # Without all three no figure can be formed; a part of them would only mislead a sum.
        return dict.fromkeys(COLUMNS), "block_unreadable"
    row["spec_source"] = "response_block"
    return row, "block_inconsistent" if unreadable or not consistent(row) else None


def consistent(row: Mapping[str, Any]) -> bool:
    """Whether counters, histogram and per-step lists of a block say the same: sum(H) = S, sum(j H_j) = A, A <= D."""
    steps, drafted, accepted = row["spec_steps"], row["draft_tokens"], row["accepted_tokens"]
    checks = [accepted <= drafted, bool(steps) or not drafted]
    histogram = row["acceptance_histogram"]
    if histogram is not None:
        checks += [sum(histogram) == steps, sum(j * n for j, n in enumerate(histogram)) == accepted]
    by_step, drafts = row["step_accepted"], row["step_drafted"]
    if by_step is not None:
        checks += [len(by_step) == steps, sum(by_step) == accepted]
    if drafts is not None:
        checks += [len(drafts) == steps, sum(drafts) == drafted]
    if by_step is not None and drafts is not None:
        checks.append(all(a <= d for a, d in zip(by_step, drafts, strict=False)))
    return all(checks)


def exceeds(row: Mapping[str, Any]) -> bool:
    """Whether the block tells of more tokens than the answer has: it belongs to more than this request.

    N = 1 + undrafted steps + S + A - overrun, and the overrun of one request is at most gamma, or gamma and a step more
    where the engine schedules a step ahead; twice that is no rounding.
    """
    tokens, gamma = row["completion_tokens"], row["num_spec_tokens"]
    if tokens is None or gamma is None or row["spec_steps"] is None:
        return False
    return bool(row["spec_steps"] + row["accepted_tokens"] - tokens > 2 * (gamma + 1))


def count(value: Any, most: int = INT32_MAX) -> int | None:
    """A count of 0 to `most`, whole floats included; None for anything else, true and texts included."""
    if type(value) is int:  # nearly always: a step list has one per decoding step
        return value if 0 <= value <= most else None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or not 0 <= value <= most:
        return None
    return int(value) if value == int(value) else None


def _counts(value: Any, most: int) -> list[int] | None:
    if not isinstance(value, list):
        return None
    counts = [count(v, most) for v in value]
    whole = [c for c in counts if c is not None]
    return whole if len(whole) == len(counts) else None


def _histogram(value: Any, num_spec_tokens: int | None) -> list[int] | None:
    """Dense list from a list, or from a sparse map "j" -> steps (padded to num_spec_tokens + 1 entries)."""
    if not isinstance(value, dict):
        return _counts(value, INT32_MAX)
    try:
        sparse = {int(key): count(steps) for key, steps in value.items()}
    except ValueError:
        return None
    if any(j < 0 or j > INT16_MAX or steps is None for j, steps in sparse.items()):
        return None
    size = max([*sparse, num_spec_tokens or 0]) + 1
    return [sparse.get(j) or 0 for j in range(size)]
