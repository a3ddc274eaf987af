"""Is the output right? Exact equality of greedy outputs, against the noise between two baselines.

Even without speculation the same prompt does not always give the same text at temperature 0 (sums in another order,
near ties), so equality is compared with equality, never demanded. Rows are matched by the hash of the text sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loadtest.judge.frame import Array, Bools, RunLike
from loadtest.judge.orderstats import share_bounds
from loadtest.judge.ratios import MIN_CLUSTERS, resampled, weights
from loadtest.judge.select import CellFacts
from loadtest.judge.verdict import Answer
from loadtest.judge.words import figure

MARGIN = 0.03
"""Share of exact matches that may be lost against baseline v baseline: 3 points, the non-inferiority margin."""
MIN_PROMPTS = 300
"""Prompts that a margin of 3 points needs: the interval of a share of 0.9 is then +- 3 points wide."""


@dataclass(frozen=True, slots=True)
class OutputCheck:
    """What the outputs say."""

    answer: Answer
    evidence: str


class Outputs:
    """Hash of the output by hash of the prompt text, per greedy cell."""

    def __init__(self, data: RunLike, cells: Sequence[CellFacts]) -> None:
        """Reads the hashes of served greedy requests of the window, once."""
        greedy = [c["cell_id"] for c in cells if c.get("temperature") == 0.0 and c.get("state") == "done"]
        wanted = pc.is_in(pc.field("cell_id"), value_set=pa.array(greedy, pa.string()))
        wanted = wanted & (pc.field("outcome") == "ok") & (pc.field("phase") == "measure")
        columns = ["cell_id", "prompt_sha256", "output_sha256"]
        table = data.requests(columns, wanted)
        self._by_cell: dict[str, tuple[Array, Array]] = {}
        for cell_id in greedy:
            part = table.filter(pc.equal(table["cell_id"], cell_id)).drop_null()
            # 15 hex digits keep a million texts apart and take a quarter of the memory.
            keys, values = (
                np.asarray(pc.utf8_slice_codeunits(part[c], 0, 15).to_numpy(), dtype="S15") for c in columns[1:]
            )
            unique, first = np.unique(keys, return_index=True)
            self._by_cell[cell_id] = unique, values[first]

    def matches(self, one: CellFacts, two: CellFacts) -> Bools:
        """Equal or not, for each text that both cells served."""
        if one["cell_id"] not in self._by_cell or two["cell_id"] not in self._by_cell:
            return np.empty(0, dtype=np.bool_)
        (keys, values), (other_keys, other_values) = self._by_cell[one["cell_id"]], self._by_cell[two["cell_id"]]
        _, i, j = np.intersect1d(keys, other_keys, assume_unique=True, return_indices=True)
        return np.asarray(values[i] == other_values[j])


def check_outputs(same: Bools, noise: Bools, confidence: float, seed: int) -> OutputCheck:
    """The answer from exact matches candidate v baseline (`same`) and baseline v baseline (`noise`)."""
    n = len(same)
    if n == 0:
        return OutputCheck("not known", "no greedy output of candidate and baseline to compare")
    share = float(same.mean())
    seen = f"{int(same.sum())} of {n} greedy outputs equal the baseline's"
    if len(noise) < MIN_CLUSTERS:
        lower, _ = share_bounds(int(same.sum()), n, confidence)
        if lower > 1.0 - MARGIN:
            return OutputCheck("yes", f"{seen} (at least {figure(lower, 'share')} with confidence)")
        advice = "add a second config without speculation to the plan: its difference from the baseline is the noise"
        return OutputCheck("not known", f"{seen}; how often two baselines differ is not known: {advice}")
    low, high = _difference(same, noise, confidence, seed)
    against = f"two baselines agree on {int(noise.sum())} of {len(noise)}"
    bounds = f"difference {100 * (share - noise.mean()):+.1f} points, bounds {100 * low:+.1f} to {100 * high:+.1f}"
    if high < -MARGIN:
        return OutputCheck("no", f"{seen}, but {against}: {bounds}")
    if low > -MARGIN and min(n, len(noise)) >= MIN_PROMPTS:
        return OutputCheck("yes", f"{seen}; {against}: {bounds}")
    return OutputCheck(
        "not known", f"{seen}; {against}: {bounds}; needs {MIN_PROMPTS} prompts and bounds over -3 points"
    )


def _difference(same: Bools, noise: Bools, confidence: float, seed: int) -> tuple[float, float]:
    """One-sided bounds of mean(same) - mean(noise), by bootstrap over prompts on each side."""
    draws = [_means(same, seed), _means(noise, seed + 1)]
    low, high = np.quantile(draws[0] - draws[1], [1.0 - confidence, confidence])
    return float(low), float(high)


def _means(hits: Bools, seed: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    n = len(hits)
    if n > 1000:  # binomial resampling is the bootstrap of a share; no matrix needed
        return np.asarray(np.random.default_rng(seed).binomial(n, float(hits.mean()), size=2000) / n)
    return np.asarray(resampled(weights(n, seed), hits.astype(np.float64)) / n)
