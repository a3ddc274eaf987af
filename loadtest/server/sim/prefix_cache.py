"""Prefix cache: hashed blocks of prompt tokens, least recently used out first."""

from __future__ import annotations

from collections.abc import Iterable


def block_keys(tokens: list[str], block_size: int) -> list[int]:
    """One key per whole block; each key stands for the block and everything before it."""
    keys: list[int] = []
    before = 0
    for start in range(0, len(tokens) - block_size + 1, block_size):
        before = hash((before, tuple(tokens[start : start + block_size])))
        keys.append(before)
    return keys


class PrefixCache:
    """Keys of the blocks whose content is still in memory."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._blocks: dict[int, None] = {}

    def hits(self, keys: Iterable[int]) -> int:
        """Number of leading blocks that are there; they become the most recently used."""
        count = 0
        for key in keys:
            if key not in self._blocks:
                break
            del self._blocks[key]
            self._blocks[key] = None
            count += 1
        return count

    def add(self, keys: Iterable[int]) -> None:
        """Keeps these blocks, and drops the oldest ones over the capacity."""
        for key in keys:
            self._blocks.pop(key, None)
            self._blocks[key] = None
        while len(self._blocks) > self._capacity:
            del self._blocks[next(iter(self._blocks))]

    def clear(self) -> None:
        """POST /reset_prefix_cache."""
        self._blocks.clear()
