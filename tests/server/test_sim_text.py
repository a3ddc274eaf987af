"""What the simulated server generates: lossless, seeded, and by kind of task."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from loadtest.server.sim.process import SimProcess, simulated_server
from loadtest.server.sim.text import answer, guess_stratum, tokenize

PROMPTS = [
    "Write a python function that sorts a list.",
    "Rename the variable in this file.\ndef f(x):\n    y = x\n    y += 1\n    y *= 2\n    return y",
    "Why do trains run late?",
    "请解释延迟和吞吐量的关系。",
]


def texts(prompts: list[str], where: SimProcess | dict[str, Any], **extra: Any) -> list[dict[str, Any]]:
    """The answers of a server, or of a fresh one with these options, to all prompts at once."""

    async def run(url: str) -> list[dict[str, Any]]:
        async def one(session: aiohttp.ClientSession, prompt: str) -> dict[str, Any]:
            body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 400, "temperature": 0, **extra}
            async with session.post(f"{url}/v1/chat/completions", data=json.dumps(body)) as response:
                result: dict[str, Any] = await response.json()
                return result

        async with aiohttp.ClientSession() as session:
            return await asyncio.gather(*(one(session, p) for p in prompts))

    if isinstance(where, SimProcess):
        return asyncio.run(run(where.url))
    with simulated_server(speed=50, **where) as server:
        return asyncio.run(run(server.url))


def contents(replies: list[dict[str, Any]]) -> list[str]:
    return [choice["message"]["content"] for reply in replies for choice in reply["choices"]]


@pytest.fixture(scope="module")
def plain() -> Iterator[SimProcess]:
    with simulated_server(speed=50) as server:
        yield server


@pytest.fixture(scope="module")
def baseline(plain: SimProcess) -> list[dict[str, Any]]:
    return texts(PROMPTS, plain)


@pytest.mark.parametrize("method", ["ngram", "suffix", "draft_model", "eagle", "eagle3"])
def test_greedy_text_is_the_baselines_for_every_method(method: str, baseline: list[dict[str, Any]]) -> None:
    """Speculation changes no token and no token count at temperature 0."""
    replies = texts(PROMPTS, {"method": method})
    assert contents(replies) == contents(baseline)
    assert [r["usage"]["completion_tokens"] for r in replies] == [r["usage"]["completion_tokens"] for r in baseline]
    assert len(set(contents(replies))) == 4


def test_a_seeded_run_repeats_itself() -> None:
    """Same seed: same texts and, step by step, the same acceptance. Another seed: neither."""

    def blocks(seed: int) -> tuple[list[str], list[Any]]:
        replies = texts(PROMPTS, {"method": "eagle3", "seed": seed}, ignore_eos=True)
        return contents(replies), [r["metrics"]["speculative_decoding"]["per_step_accepted"] for r in replies]

    first, again, other = blocks(7), blocks(7), blocks(8)
    assert first == again
    assert first[0] != other[0]
    assert first[1] != other[1]


def test_sampling_seeds(plain: SimProcess) -> None:
    """At temperature 1 a sampling seed repeats its text; another one, or none, gives another text."""
    same = texts([PROMPTS[0]] * 2, plain, temperature=1, seed=3)
    other = texts([PROMPTS[0]], plain, temperature=1, seed=4)
    unseeded = texts([PROMPTS[0]] * 2, plain, temperature=1)
    assert len(set(contents(same))) == 1
    assert len(set(contents(same + other + unseeded))) == 4


def test_several_choices_have_no_metrics() -> None:
    """n > 1: different texts, metrics null, usage over all of them."""
    (reply,) = texts([PROMPTS[2]], {"method": "eagle3"}, temperature=1, n=3, max_tokens=20, ignore_eos=True)
    assert len(set(contents([reply]))) == 3
    assert reply["metrics"] is None
    assert reply["usage"]["completion_tokens"] == 60


def test_answers_end_by_themselves_unless_told_otherwise(plain: SimProcess) -> None:
    """With room enough the reason is "stop" and the end-of-sequence token counts; ignore_eos runs to max_tokens."""
    free = texts(PROMPTS, plain, max_tokens=4000)
    assert {r["choices"][0]["finish_reason"] for r in free} == {"stop"}
    for reply in free:
        tokens = tokenize(reply["choices"][0]["message"]["content"])
        assert len(tokens) <= reply["usage"]["completion_tokens"] - 1
    full = texts(PROMPTS, plain, max_tokens=600, ignore_eos=True)
    assert {(r["choices"][0]["finish_reason"], r["usage"]["completion_tokens"]) for r in full} == {("length", 600)}


def test_kind_of_task_is_guessed_from_the_prompt() -> None:
    """Code, edit, chat and other languages are told apart; an edit copies lines of its prompt."""
    assert [guess_stratum(p) for p in PROMPTS] == ["code", "edit", "chat", "non_english"]
    assert guess_stratum("Define `clamp(x, lo, hi)` on one line.") == "code"
    assert guess_stratum("用 Python 实现 `lis_length(xs)`。") == "code"
    assert guess_stratum("Où est la gare, s'il vous plaît ?") == "chat"
    tokens, stops = answer(PROMPTS[1], "edit", 200, 0, ignore_eos=True, seed=1)
    assert not stops
    assert len(tokens) == 200
    assert "    y += 1\n" in "".join(tokens)


@pytest.mark.parametrize(
    "text", ["", "a", "def f(x):\n\treturn  x\r\n", "混合 mixed 文本 1234567", "\ud800 lone", "e\u0301\u200d👩‍💻"]
)
def test_tokens_join_to_the_text(text: str) -> None:
    """Nothing is lost in the pseudo-tokenizer."""
    assert "".join(tokenize(text)) == text
