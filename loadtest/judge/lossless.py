"""Is the output right? Exact equality of greedy outputs, against the noise between two configs without speculation.

Even without speculation the same prompt does not always give the same text at temperature 0 (sums in another order,
near ties), so equality is compared with equality, never demanded. Rows are matched by the hash of the text sent; the
same prompt with another salt is another text, but belongs to the same prompt when intervals are made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loadtest.judge.frame import Array, Bools, Floats, RunLike
from loadtest.judge.orderstats import share_bounds
from loadtest.judge.ratios import BOOTSTRAPS, MIN_CLUSTERS, delta_error, resampled, weights
from loadtest.judge.select import CellFacts
from loadtest.judge.verdict import Answer
from loadtest.judge.words import figure

MARGIN = 0.03
"""Share of exact matches that may be lost against baseline v baseline: 3 points, the non-inferiority margin."""
MIN_OUTPUTS = 300
"""Texts that a margin of 3 points needs: the interval of a share of 0.9 is then +- 3 points wide."""


@dataclass(frozen=True, slots=True)
class OutputCheck:
    """What the outputs say."""

    answer: Answer
    evidence: str


@dataclass(frozen=True, slots=True)
class Matches:
    """Texts that two cells answered: equal or not, and the prompt that each text belongs to."""

    equal: Bools
    prompts: Array

    def __len__(self) -> int:
        return len(self.equal)

    @property
    def share(self) -> float:
        """Share of equal outputs."""
        return float(self.equal.mean())

    def sums(self) -> tuple[Floats, Floats]:
        """(equal outputs, texts) of each prompt."""
        index = np.unique(self.prompts, return_inverse=True)[1]
        return np.bincount(index, self.equal).astype(np.float64), np.bincount(index).astype(np.float64)

    @staticmethod
    def joined(parts: Sequence[Matches]) -> Matches:
        """Several pairs of cells together."""
        if not parts:
            return NOTHING
        return Matches(np.concatenate([p.equal for p in parts]), np.concatenate([p.prompts for p in parts]))


NOTHING = Matches(np.empty(0, dtype=np.bool_), np.empty(0, dtype="S1"))


class Outputs:
    """Hash of the output by hash of the prompt text, per greedy cell."""

    def __init__(self, data: RunLike, cells: Sequence[CellFacts]) -> None:
        """Reads the hashes of served greedy requests of the window, once."""
        greedy = [c["cell_id"] for c in cells if c.get("temperature") == 0.0 and c.get("state") == "done"]
        wanted = pc.is_in(pc.field("cell_id"), value_set=pa.array(greedy, pa.string()))
        wanted = wanted & (pc.field("outcome") == "ok") & (pc.field("phase") == "measure")
        columns = ["cell_id", "prompt_sha256", "output_sha256", "prompt_id"]
        table = data.requests(columns, wanted)
        # Numbered once for the whole run, so that prompts of two cells can be told to be the same.
        names = pc.unique(table["prompt_id"]).sort()
        codes = pc.index_in(table["prompt_id"], names).combine_chunks()
        table = table.set_column(3, "prompt_id", codes)
        self._by_cell: dict[str, tuple[Array, Array, Array]] = {}
        for cell_id in greedy:
            part = table.filter(pc.equal(table["cell_id"], cell_id)).drop_null()
            # 15 hex digits keep a million texts apart and take a quarter of the memory.
            keys, values = (
                np.asarray(pc.utf8_slice_codeunits(part[c], 0, 15).to_numpy(), dtype="S15") for c in columns[1:3]
            )
            order = np.lexsort((values, keys))  # the order of rows in the files must not choose among equal texts
            unique, first = np.unique(keys[order], return_index=True)
            self._by_cell[cell_id] = unique, values[order][first], part["prompt_id"].to_numpy()[order][first]

    def matches(self, one: CellFacts, two: CellFacts) -> Matches:
        """Equal or not, for each text that both cells served."""
        if one["cell_id"] not in self._by_cell or two["cell_id"] not in self._by_cell:
            return NOTHING
        (keys, values, prompts), (others, other_values, _) = (
            self._by_cell[one["cell_id"]],
            self._by_cell[two["cell_id"]],
        )
        _, i, j = np.intersect1d(keys, others, assume_unique=True, return_indices=True)
        return Matches(np.asarray(values[i] == other_values[j]), prompts[i])


def check_outputs(same: Matches, noise: Matches, confidence: float, seed: int) -> OutputCheck:
    """The answer from exact matches candidate v baseline (`same`) and between configs without speculation (`noise`)."""
    n = len(same)
    if n == 0:
        return OutputCheck("not known", "no greedy output of candidate and baseline to compare")
    equal = int(same.equal.sum())
    seen = f"{equal} of {n} greedy outputs equal the baseline's"
    if len(noise) < MIN_CLUSTERS:
        effect = _design_effect(same)
        lower, _ = share_bounds(math.floor(equal / effect), max(1, math.floor(n / effect)), confidence)
        if lower > 1.0 - MARGIN:
            return OutputCheck("yes", f"{seen} (at least {figure(lower, 'share')} with confidence)")
        advice = "add a second config without speculation to the plan: its difference from the baseline is the noise"
        return OutputCheck("not known", f"{seen}; how often two baselines differ is not known: {advice}")
    low, high = _difference(same, noise, confidence, seed)
    against = f"two baselines agree on {int(noise.equal.sum())} of {len(noise)}"
    bounds = f"difference {100 * (same.share - noise.share):+.1f} points, bounds {100 * low:+.1f} to {100 * high:+.1f}"
    if high < -MARGIN:
        return OutputCheck("no", f"{seen}, but {against}: {bounds}")
    if low > -MARGIN and min(n, len(noise)) >= MIN_OUTPUTS:
        return OutputCheck("yes", f"{seen}; {against}: {bounds}")
    return OutputCheck(
        "not known", f"{seen}; {against}: {bounds}; needs {MIN_OUTPUTS} outputs and bounds over -3 points"
    )


def _difference(same: Matches, noise: Matches, confidence: float, seed: int) -> tuple[float, float]:
    """One-sided bounds of the difference of the two shares, by bootstrap over prompts on each side."""
    low, high = np.quantile(_draws(same, seed) - _draws(noise, seed + 1), [1.0 - confidence, confidence])
    return float(low), float(high)


def _draws(matches: Matches, seed: int) -> Floats:
    """(BOOTSTRAPS,) resampled shares; the texts of one prompt stay together."""
    equal, texts = matches.sums()
    n = len(texts)
    if n > 1000:  # the mean of so many prompts is normal; no matrix needed
        rng = np.random.default_rng(seed)
        return matches.share + rng.standard_normal(BOOTSTRAPS) * delta_error(equal, texts)
    w = weights(n, seed)
    return np.asarray(resampled(w, equal) / resampled(w, texts))


def _design_effect(matches: Matches) -> float:
    """How many times the prompts widen the interval of independent texts (squared), at least 1."""
    equal, texts = matches.sums()
    binomial = matches.share * (1.0 - matches.share) / len(matches)
    if binomial == 0.0 or len(texts) < 2:
        return 1.0
    return max(1.0, delta_error(equal, texts) ** 2 / binomial)
