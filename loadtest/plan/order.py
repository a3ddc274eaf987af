"""Which prompt is sent as number `seq` of a cell, and the salt that keeps the prefix cache from carrying over.

The order is a pure function of (parts, weights, seed): any process that asks for the same `seq` gets the same answer,
in whatever order it asks, so that workers need not talk to each other and every config replays the same prompts.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections import OrderedDict
from collections.abc import Sequence
from functools import reduce
from typing import TypeVar

from loadtest.model import Message, Prompt

K = TypeVar("K")
V = TypeVar("V")

_MAX_BLOCK = 1000
"""Longest interleaving block: weights are kept to 0.1 %, and a block is drawn in well under a millisecond."""
_KEPT = 8
"""Blocks and passes kept in memory: workers run ahead of each other by far less than this."""


class PromptOrder:
    """Weighted interleave of the parts of a mix; inside a part, shuffled passes without replacement.

    `parts[i]` is the part (0-based) of prompt `i`, in file order; `weights[p]` the weight of part `p`. A part that has
    no prompt, or weight 0, is left out. Within every block each part has its exact share (in steps of a thousandth).
    """

    def __init__(self, parts: Sequence[int], weights: Sequence[float], seed: int) -> None:
        """Raises ValueError for no prompts, a part without a weight, or weights that are not finite and >= 0."""
        if any(not math.isfinite(w) or w < 0 for w in weights):
            raise ValueError(f"weights must be finite and not negative, not {list(weights)}")
        members: dict[int, list[int]] = {}
        for index, part in enumerate(parts):
            if not 0 <= part < len(weights):
                raise ValueError(f"prompt {index} belongs to part {part}, but there are {len(weights)} weights")
            members.setdefault(part, []).append(index)
        used = sorted(part for part in members if weights[part] > 0)
        if not used:
            raise ValueError("no prompt has a weight above 0")
        self._seed = seed
        self._members = [members[part] for part in used]
        self._counts = block_counts([weights[part] for part in used])
        self._block = sum(self._counts)
        self._blocks: OrderedDict[int, list[tuple[int, int]]] = OrderedDict()
        self._passes: OrderedDict[tuple[int, int], list[int]] = OrderedDict()

    def at(self, seq: int) -> tuple[int, int]:
        """(index of the prompt in the file, pass number of its part) for the cell's request number `seq` >= 0."""
        if seq < 0:
            raise ValueError(f"seq must be 0 or more, not {seq}")
        block, offset = divmod(seq, self._block)
        part, rank = self._pattern(block)[offset]
        pass_no, place = divmod(block * self._counts[part] + rank, len(self._members[part]))
        return self._pass(part, pass_no)[place], pass_no

    def _pattern(self, block: int) -> list[tuple[int, int]]:
        """(part, rank within the part) of each place of a block: evenly spread, with a seeded jitter.

        The jitter keeps a part from falling in step with the users, who take every n-th number.
        """
        if block in self._blocks:
            return self._blocks[block]
        rng = _rng(self._seed, "block", block)
        keyed = [((j + rng.random()) / count, p, j) for p, count in enumerate(self._counts) for j in range(count)]
        return _keep(self._blocks, block, [(p, j) for _, p, j in sorted(keyed)])

    def _pass(self, part: int, pass_no: int) -> list[int]:
        key = (part, pass_no)
        if key in self._passes:
            return self._passes[key]
        order = list(self._members[part])
        _rng(self._seed, "pass", part, pass_no).shuffle(order)
        return _keep(self._passes, key, order, _KEPT * len(self._members))


def salted(prompt: Prompt, salt: str, pass_no: int) -> tuple[Message, ...]:
    """The prompt's messages with a short salt line at the very front of the first one; salt "" leaves them as they are.

    The pass number is part of the line, so a prompt that comes round again is not a prefix-cache hit either.
    """
    if not salt or not prompt.messages:
        return prompt.messages
    first = prompt.messages[0]
    return (Message(first.role, f"[{salt}-{pass_no}]\n{first.content}"), *prompt.messages[1:])


def block_counts(weights: Sequence[float]) -> list[int]:
    """How many places each part gets in one block: exact where small integers do, else in thousandths, at least 1."""
    if all(float(w).is_integer() for w in weights):
        whole = [int(w) for w in weights]
        divisor = reduce(math.gcd, whole)
        if sum(whole) // divisor <= _MAX_BLOCK:
            return [w // divisor for w in whole]
    largest = max(weights)
    scaled = [w / largest for w in weights]
    total = math.fsum(scaled)
    counts = [max(1, round(_MAX_BLOCK * w / total)) for w in scaled]
    divisor = reduce(math.gcd, counts)
    return [c // divisor for c in counts]


def derive(*parts: object) -> bytes:
    """SHA-256 over the parts' text forms, unambiguously joined: the source of every seed and salt."""
    return hashlib.sha256("\x1f".join(str(part) for part in parts).encode()).digest()


def _rng(*parts: object) -> random.Random:
    return random.Random(int.from_bytes(derive(*parts)[:16], "big"))


def _keep(store: OrderedDict[K, V], key: K, value: V, limit: int = _KEPT) -> V:
    store[key] = value
    while len(store) > limit:
        store.popitem(last=False)
    return value
