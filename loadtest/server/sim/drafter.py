"""How many tokens a step drafts and how many of them are accepted, for one sequence.

Draws come from the sequence's own generator, so that they don't depend on what else runs; only suffix decoding
remembers other requests, as the real one does.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from random import Random

from loadtest.server.sim.parameters import ACCEPTANCE, Acceptance, Method, Parameters, Stratum


class SuffixMemory:
    """What the global suffix tree has seen: output tokens per stratum, and the prompts it has answered."""

    def __init__(self) -> None:
        self.tokens: Counter[Stratum] = Counter()
        self.prompts: set[int] = set()

    def learn(self, stratum: Stratum, prompt_key: int, tokens: int) -> None:
        """Takes in one finished answer."""
        self.tokens[stratum] += tokens
        self.prompts.add(prompt_key)


class Drafter:
    """Draft lengths and acceptance of one sequence; made when it is scheduled."""

    __slots__ = ("_coverage", "_gamma", "_lengths", "_rng", "_survival")

    def __init__(
        self, coverage: float, survival: tuple[float, ...], rng: Random, *, min_survival: float | None
    ) -> None:
        self._coverage = coverage
        self._survival = survival
        self._gamma = len(survival)
        self._rng = rng
        # Suffix decoding drafts as far as its own estimate reaches: a longer match (smaller u) drafts further.
        self._lengths = None if min_survival is None else tuple(max(s, min_survival) for s in survival)

    def step(self, room: int) -> tuple[int, int]:
        """(drafted, accepted) of one step; `room` is the space up to max_model_len. (0, 0) without a candidate."""
        rng = self._rng
        if self._coverage < 1.0 and rng.random() >= self._coverage:
            return 0, 0
        drafted = min(self._gamma, room)
        if drafted > 1 and self._lengths is not None:
            match = rng.random()
            # At least one token is proposed; the match quality decides how many of the rest.
            drafted = min(drafted, 1 + sum(match < length for length in self._lengths[1:]))
        u = rng.random()
        accepted = 0
        for chance in self._survival[:drafted]:
            if u >= chance:
                break
            accepted += 1
        return drafted, accepted


class DrafterFactory:
    """Makes the drafter of each sequence from the tables, the overrides, the temperature and the suffix memory."""

    def __init__(
        self, method: Method, gamma: int, parameters: Parameters, overrides: Mapping[Stratum, Acceptance]
    ) -> None:
        self._method: Method = method
        self._gamma = gamma
        self._parameters = parameters
        self._overrides = overrides
        self.memory = SuffixMemory()

    def make(self, stratum: Stratum, prompt_key: int, temperature: float, rng: Random) -> Drafter | None:
        """None without speculation. `prompt_key` identifies the end of the prompt, where salts don't reach."""
        if self._method == "none":
            return None
        p = self._parameters
        acceptance = self._overrides.get(stratum) or self._learned(stratum, prompt_key)
        survival = acceptance.survival(self._gamma)
        if temperature > 0 and stratum not in self._overrides:
            loss = 1.0 - min(0.9, p.temperature_loss * temperature)
            survival = tuple(s * loss ** (i + 1) for i, s in enumerate(survival))
        varying = p.suffix_min_token_probability if self._method == "suffix" else None
        return Drafter(acceptance.coverage, survival, rng, min_survival=varying)

    def _learned(self, stratum: Stratum, prompt_key: int) -> Acceptance:
        table = ACCEPTANCE[self._method][stratum]
        if self._method != "suffix":
            return table
        p = self._parameters
        if prompt_key in self.memory.prompts:
            return p.suffix_repeat
        learned = 1.0 - math.exp(-self.memory.tokens[stratum] / p.suffix_scale_tokens)
        return Acceptance(min(0.95, table.coverage + p.suffix_learned_coverage * learned), table.conditional)
