"""The prompt order is the same everywhere, fair to the weights, and a permutation per pass."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.model import Message, Prompt
from loadtest.plan.order import PromptOrder, block_counts, salted


@st.composite
def mixes(draw: st.DrawFn) -> tuple[list[int], list[float]]:
    """Prompts spread over up to four parts, each part with a weight."""
    weights = draw(st.lists(st.floats(0.01, 100), min_size=1, max_size=4))
    parts = draw(st.lists(st.integers(0, len(weights) - 1), min_size=1, max_size=40))
    return parts, weights


@given(mixes(), st.integers(0, 2**53))
@settings(max_examples=60, deadline=None)
def test_every_pass_of_a_part_sends_each_of_its_prompts_once(mix: tuple[list[int], list[float]], seed: int) -> None:
    parts, weights = mix
    order = PromptOrder(parts, weights, seed)
    seen: dict[tuple[int, int], Counter[int]] = {}
    for seq in range(600):
        index, pass_no = order.at(seq)
        seen.setdefault((parts[index], pass_no), Counter())[index] += 1
    last = {part: max(p for q, p in seen if q == part) for part, _ in seen}
    for (part, pass_no), counts in seen.items():
        members = {i for i, p in enumerate(parts) if p == part}
        assert max(counts.values()) == 1
        if pass_no < last[part]:
            assert set(counts) == members


@given(mixes(), st.lists(st.integers(0, 10**7), min_size=1, max_size=30))
@settings(max_examples=40, deadline=None)
def test_the_answer_does_not_depend_on_what_was_asked_before(
    mix: tuple[list[int], list[float]], seqs: list[int]
) -> None:
    parts, weights = mix
    warm = PromptOrder(parts, weights, 7)
    assert [warm.at(s) for s in seqs] == [PromptOrder(parts, weights, 7).at(s) for s in seqs]


def test_another_process_gets_the_same_order() -> None:
    """A hash that Python salts per process would give each worker another order."""
    code = (
        "from loadtest.plan.order import PromptOrder; order = PromptOrder([0] * 50 + [1] * 9, [3, 1], 11); "
        "print([order.at(s) for s in range(99)])"
    )
    told = {subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout for _ in range(2)}
    order = PromptOrder([0] * 50 + [1] * 9, [3, 1], 11)
    assert told == {f"{[order.at(s) for s in range(99)]}\n".encode()}


def test_the_order_is_pinned() -> None:
    """Runs made by different versions stay paired only if the order never changes."""
    order = PromptOrder([0, 0, 0, 1, 1], [2, 1], 42)
    assert [order.at(s) for s in range(9)] == [(2, 0), (4, 0), (1, 0), (3, 0), (0, 0), (0, 1), (2, 1), (1, 1), (3, 1)]


def test_each_block_holds_exactly_the_weights() -> None:
    order = PromptOrder([0] * 10 + [1] * 10 + [2] * 10, [3, 2, 1], 1)
    for block in range(20):
        counts = Counter(order.at(block * 6 + k)[0] // 10 for k in range(6))
        assert counts == {0: 3, 1: 2, 2: 1}


def test_seeds_give_different_orders() -> None:
    orders = {tuple(PromptOrder([0] * 20, [1], seed).at(s)[0] for s in range(20)) for seed in range(20)}
    assert len(orders) == 20


def test_a_part_without_prompts_is_left_out() -> None:
    order = PromptOrder([1, 1], [5, 1], 3)
    assert {order.at(s)[0] for s in range(4)} == {0, 1}


@pytest.mark.parametrize(
    ("weights", "counts"),
    [([1, 1], [1, 1]), ([2, 4], [1, 2]), ([0.5, 0.5], [1, 1]), ([0.7, 0.3], [7, 3]), ([1e-300, 1], [1, 1000])],
)
def test_block_counts(weights: list[float], counts: list[int]) -> None:
    assert block_counts(weights) == counts


@pytest.mark.parametrize(
    ("parts", "weights", "words"),
    [
        ([], [1.0], "no prompt"),
        ([0], [0.0], "no prompt"),
        ([0], [float("nan")], "finite"),
        ([0], [-1.0], "not negative"),
        ([1], [1.0], "part 1"),
    ],
)
def test_bad_mixes_are_refused(parts: list[int], weights: list[float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        PromptOrder(parts, weights, 0)


def test_a_negative_number_is_refused() -> None:
    with pytest.raises(ValueError, match="-1"):
        PromptOrder([0], [1.0], 0).at(-1)


def test_the_salt_stands_at_the_very_front_and_changes_with_the_pass() -> None:
    prompt = Prompt("a", "s", (Message("system", "be kind"), Message("user", "hi")))
    first, second = salted(prompt, "ab12", 0), salted(prompt, "ab12", 1)
    assert first == (Message("system", "[ab12-0]\nbe kind"), Message("user", "hi"))
    assert second[0].content.startswith("[ab12-1]\n")
    assert salted(prompt, "", 3) == prompt.messages
