"""Sampled outputs (temperature > 0): lengths and finish reasons against those of the baseline.

Equal seeds do not make equal texts, so distributions are compared, by permuting the two sides *within each prompt*:
under "no difference" every such relabelling is as likely as the one seen, whatever the prompts are like.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loadtest.judge.frame import Array, Floats, RunLike
from loadtest.judge.lossless import OutputCheck
from loadtest.judge.select import CellFacts

LEVEL = 0.01
"""Both tests together (Holm): a config is called wrong on it, so one in twenty would be too often."""
MIN_PROMPTS = 20
"""Prompts that both sides answered: fewer show hardly any difference."""
NOT_DONE = "first tokens and whole sequences were not compared"


@dataclass(frozen=True, slots=True)
class Samples:
    """Answers of one side: prompt number, output tokens, 1 where it stopped by itself."""

    prompts: Array
    lengths: Floats
    stopped: Floats


class SampledOutputs:
    """Lengths and finish reasons of sampled cells, read once."""

    def __init__(self, data: RunLike, cells: Sequence[CellFacts]) -> None:
        """Reads served requests of the window of cells with a temperature above 0."""
        ids = [c["cell_id"] for c in cells if (c.get("temperature") or 0.0) > 0.0 and c.get("state") == "done"]
        self._by_cell: dict[str, Samples] = {}
        if not ids:
            return
        wanted = pc.is_in(pc.field("cell_id"), value_set=pa.array(ids, pa.string()))
        wanted = wanted & (pc.field("outcome") == "ok") & (pc.field("phase") == "measure")
        table = data.requests(["cell_id", "prompt_id", "completion_tokens", "finish_reason", "send_ns"], wanted)
        table = table.filter(pc.is_valid(table["completion_tokens"])).sort_by("send_ns")
        names = pc.unique(table["prompt_id"]).sort()
        codes = np.asarray(pc.index_in(table["prompt_id"], names).to_numpy())
        lengths = table["completion_tokens"].to_numpy().astype(np.float64)
        stopped = np.asarray(pc.fill_null(pc.equal(table["finish_reason"], "stop"), False).to_numpy(), np.float64)
        of_cell = table["cell_id"].to_numpy()
        for cell_id in ids:
            mine = of_cell == cell_id
            self._by_cell[cell_id] = Samples(codes[mine], lengths[mine], stopped[mine])

    def check(self, pairs: Sequence[tuple[CellFacts, CellFacts]]) -> OutputCheck:
        """The answer of all (baseline, candidate) cells together: "no", or "not known" where nothing is seen."""
        if pairs and pairs[0][1].get("seed") is not None:
            pairs = pairs[:1]  # a fixed seed repeats the same draws in every cell: copies are no new evidence
        strata: list[tuple[Array, Floats, Floats, Array]] = []
        for number, (base, cand) in enumerate(pairs):
            one, two = self._by_cell.get(base["cell_id"]), self._by_cell.get(cand["cell_id"])
            if one is not None and two is not None:
                strata.append(_both(one, two, number))
        joined = [np.concatenate(parts) for parts in zip(*strata, strict=True)] if strata else []
        prompts = len(np.unique(joined[0])) if joined else 0
        if prompts < MIN_PROMPTS:
            return OutputCheck("not known", f"{prompts} prompts were sampled by both sides, {MIN_PROMPTS} are needed")
        group, lengths, stopped, side = joined
        p_length = permutation_p(_ranks(lengths, group), group, side)
        p_stop = permutation_p(stopped, group, side)
        least = min(1.0, 2 * min(p_length, p_stop))  # Holm's first step
        means = [float(lengths[side == s].mean()) for s in (0, 1)]
        seen = (
            f"sampled outputs over {prompts} prompts: {means[1]:.0f} tokens against {means[0]:.0f} of the baseline "
            f"(p = {p_length:.3g}), stopped by themselves {100 * stopped[side == 1].mean():.0f} % against "
            f"{100 * stopped[side == 0].mean():.0f} % (p = {p_stop:.3g}); permuted within each prompt; {NOT_DONE}"
        )
        return OutputCheck("no" if least < LEVEL else "not known", seen)


def _both(one: Samples, two: Samples, number: int) -> tuple[Array, Floats, Floats, Array]:
    """(stratum, length, stopped, side) of the prompts that both sides answered in one pair of cells."""
    common = np.intersect1d(one.prompts, two.prompts)
    parts = [(s, np.isin(s.prompts, common)) for s in (one, two)]
    group = np.concatenate([s.prompts[keep] for s, keep in parts]).astype(np.int64) + number * 1_000_000_000
    side = np.repeat([0, 1], [int(keep.sum()) for _, keep in parts])
    return (
        group,
        np.concatenate([s.lengths[keep] for s, keep in parts]),
        np.concatenate([s.stopped[keep] for s, keep in parts]),
        side,
    )


def _ranks(values: Floats, group: Array) -> Floats:
    """Mean ranks within each group, over its size: a long answer of one prompt outweighs no other prompt."""
    order = np.lexsort((values, group))
    out = np.empty(len(values))
    g, v = group[order], values[order]
    first = np.flatnonzero(np.r_[True, g[1:] != g[:-1]])
    sizes = np.diff(np.r_[first, len(g)])
    position = np.arange(len(g)) - np.repeat(first, sizes)
    tie = np.cumsum(np.r_[True, (g[1:] != g[:-1]) | (v[1:] != v[:-1])]) - 1
    mean = np.bincount(tie, position) / np.bincount(tie)
    out[order] = (mean[tie] + 1.0) / (np.repeat(sizes, sizes) + 1.0)
    return out


def permutation_p(values: Floats, group: Array, side: Array) -> float:
    """Two-sided p of "side makes no difference", labels permuted within each group.

    The statistic is the sum of side 1's distances from their group's mean. Its variance over all permutations is
    exact; with MIN_PROMPTS groups and more the sum is normal, so nothing needs to be shuffled.
    """
    index = np.unique(group, return_inverse=True)[1]
    size = np.bincount(index).astype(np.float64)
    ones = np.bincount(index, side)
    centred = values - (np.bincount(index, values) / size)[index]
    spread = np.bincount(index, centred**2)
    variance = float((ones * (size - ones) / (size * np.maximum(size - 1.0, 1.0)) * spread).sum())
    if variance <= 0.0:
        return 1.0
    return math.erfc(abs(float(centred @ side)) / math.sqrt(2.0 * variance))
