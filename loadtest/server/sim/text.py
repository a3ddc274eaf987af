"""What the simulated model reads and writes: a pseudo-tokenizer, the guess at a prompt's kind of task, and the answer.

The answer depends on server seed, prompt and sampling seed only, never on the method: speculation is lossless.
"""

from __future__ import annotations

import re
import zlib
from functools import lru_cache
from hashlib import blake2b
from random import Random

from loadtest.server.sim.parameters import Stratum

_TOKEN = re.compile(r" ?[A-Za-z]{1,8}| ?[0-9]{1,3}|[ \t]+|\n+|.", re.DOTALL)
_CODE = re.compile(
    r"```|`\w+ ?[(=]|\bdef \w|\bclass \w|\bfunction\b|\breturn\b|\bimport \w|#include|\bSELECT\b|\bpython\b"
    r"|\bunit tests?\b|\balgorithm\b|\blist comprehension\b|\bregular expression\b|\bimplement\b",
    re.IGNORECASE | re.ASCII,
)
_EDIT = re.compile(
    r"\b(edit|rewrite|refactor|rename|modify|change|fix|update|replace|remove|move|turn|convert|simplify|add type"
    r"|same file|whole file)\b|[Rr]éécri|[Rr]écri|改",
    re.IGNORECASE,
)
_FENCED = re.compile(r"```.*?(```|\Z)", re.DOTALL)
_LETTER = re.compile(r"[^\W\d_]")
NON_ASCII_SHARE = 0.2
"""More letters than this outside ASCII: not English. Accents in Western text stay below it, any CJK text is above."""
EDIT_MIN_CODE_LINES = 4
"""Fewer lines of given code leave nothing worth copying."""

_PHRASES: dict[Stratum, tuple[str, ...]] = {
    "code": (
        "def merge(left, right):\n",
        "    result = []\n",
        "    for item in items:\n",
        "        result.append(item)\n",
        "    return result\n\n",
        "def count_words(text):\n",
        "    counts = {}\n",
        "    for word in text.split():\n",
        "        counts[word] = counts.get(word, 0) + 1\n",
        "    return counts\n\n",
        "    if not items:\n",
        "        return None\n",
        '        raise ValueError(f"unexpected value: {value!r}")\n',
        "class Queue:\n",
        "    def __init__(self) -> None:\n",
        "        self.items: list[int] = []\n",
        "    def push(self, value: int) -> None:\n",
        "        self.items.append(value)\n",
        "    while low < high:\n",
        "        middle = (low + high) // 2\n",
        "            low = middle + 1\n",
        "            high = middle\n",
        "    # the loop keeps low <= answer <= high\n",
        "    total = sum(values)\n",
    ),
    "edit": (
        "    # renamed for clarity\n",
        '    """Return the value for this key."""\n',
        "    if value is None:\n",
        "        value = default\n",
        "    return value\n",
        '    logger.debug("updated %s", name)\n',
        "    values = sorted(values)\n",
    ),
    "chat": (
        "The short answer is that it depends on the load. ",
        "First, look at what changes over time. ",
        "A good way to start is to write down what you already know. ",
        "In most cases the simple choice is enough. ",
        "This matters because small delays add up. ",
        "For example, a train that leaves late still has to stop everywhere. ",
        "You can check this by comparing two weeks. ",
        "There are three points to keep in mind.\n\n",
        "- Keep a record of each step.\n",
        "- Ask early, and ask one question at a time.\n",
        "- Plan some time for things that go wrong.\n\n",
        "If that is not possible, choose the option that you can undo. ",
        "Most people find the second approach easier. ",
        "The reason is not obvious at first. ",
        "In the end, both ways lead to the same place. ",
    ),
    "non_english": (
        "首先需要明确目标。",
        "接下来可以分三步进行。",
        "第一步是收集数据，",
        "第二步是比较不同的方案，",
        "最后根据结果做出决定。",
        "例如，在高并发的情况下，",
        "延迟会明显增加。",
        "因此建议先做小规模测试。",
        "这样可以避免不必要的风险。",
        "需要注意的是，",
        "平均值并不能说明全部问题。",
        "应当同时观察尾部延迟。\n\n",
    ),
}
MEAN_LENGTH: dict[Stratum, tuple[float, float]] = {
    "code": (220.0, 0.5),
    "edit": (320.0, 0.4),
    "chat": (260.0, 0.6),
    "non_english": (240.0, 0.6),
}
"""Median and log-normal sigma of the length at which an answer ends by itself, in tokens."""
_COPY_SHARE = 0.7
"""Share of lines that an edit copies from the prompt."""


def tokenize(text: str) -> list[str]:
    """Pieces whose concatenation is `text`: words with their leading space, digits in threes, else characters."""
    return _TOKEN.findall(text)


def token_id(token: str) -> int:
    """A stable id below 150,000 for a piece of text."""
    return zlib.crc32(token.encode()) % 150_000


def guess_stratum(prompt: str) -> Stratum:
    """Kind of task: code by code words, edit by an edit word beside given code, non_english by letters, else chat."""
    if _CODE.search(prompt):
        asks_for_edit = _EDIT.search(_FENCED.sub(" ", prompt))  # "update" inside the given code asks for nothing
        return "edit" if asks_for_edit and len(_code_lines(prompt)) >= EDIT_MIN_CODE_LINES else "code"
    if not prompt.isascii():
        letters = _LETTER.findall(prompt)
        if letters and sum(not c.isascii() for c in letters) / len(letters) > NON_ASCII_SHARE:
            return "non_english"
    return "chat"


def _code_lines(prompt: str) -> list[str]:
    return [
        line + "\n"
        for line in prompt.splitlines()
        if line.startswith((" ", "\t")) or re.search(r"[=({:;]\s*$|\)$", line)
    ]


def stable_seed(*parts: object) -> int:
    """A 64-bit seed from any values, the same in every process."""
    text = "\x1f".join(map(str, parts))
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


@lru_cache(maxsize=512)
def _phrases(stratum: Stratum) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(tokenize(p)) for p in _PHRASES[stratum])


def answer(
    prompt: str, stratum: Stratum, max_tokens: int, min_tokens: int, ignore_eos: bool, seed: int
) -> tuple[list[str], bool]:
    """Tokens of the answer, at most `max_tokens`, and whether it ended by itself.

    An answer that ends by itself has an empty last token: the end-of-sequence token, which counts but has no text.
    """
    rng = Random(seed)
    median, sigma = MEAN_LENGTH[stratum]
    natural = max(min_tokens, 2, round(median * rng.lognormvariate(0.0, sigma)))
    stops = not ignore_eos and natural <= max_tokens
    length = natural - 1 if stops else max_tokens
    phrases = _phrases(stratum)
    lines = [tuple(tokenize(line)) for line in _code_lines(prompt)] if stratum == "edit" else []
    tokens: list[str] = []
    position = 0
    while len(tokens) < length:
        if lines and rng.random() < _COPY_SHARE:
            tokens += lines[position % len(lines)]
            position += 1
        else:
            tokens += rng.choice(phrases)
    del tokens[length:]
    if stops:
        tokens.append("")
    return tokens, stops
