"""Every number of the simulation: what a step costs, and how often drafts are accepted.

The costs are invented, shaped after runs of real servers: a memory-bound step that grows little with the batch,
drafting that grows with it, and n-gram and suffix decoding that pay for the host and for lost asynchronous scheduling.
docs/simulator.md has the throughput that comes out.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Literal, get_args

Method = Literal["none", "ngram", "suffix", "draft_model", "eagle", "eagle3"]
METHODS: tuple[Method, ...] = get_args(Method)
Stratum = Literal["code", "edit", "chat", "non_english"]
STRATA: tuple[Stratum, ...] = get_args(Stratum)

DEFAULT_GAMMA: dict[Method, int] = {"none": 0, "ngram": 4, "suffix": 8, "draft_model": 4, "eagle": 4, "eagle3": 4}


def default_gamma(method: Method) -> int:
    """The usual num_speculative_tokens of a method."""
    return DEFAULT_GAMMA[method]


@dataclass(frozen=True, slots=True)
class Acceptance:
    """How well drafts do.

    `coverage`: share of decode steps with a candidate. `conditional[i]`: chance that draft i is accepted given i-1 was.
    """

    coverage: float
    conditional: tuple[float, ...]

    def survival(self, gamma: int) -> tuple[float, ...]:
        """Chance that at least 1, 2, ... `gamma` drafts are accepted; the last conditional holds for later ones."""
        rates = [self.conditional[min(i, len(self.conditional) - 1)] for i in range(gamma)]
        return tuple(accumulate(rates, mul))


ACCEPTANCE: dict[Method, dict[Stratum, Acceptance]] = {
    "none": {},
    "ngram": {
        "code": Acceptance(0.14, (0.60, 0.68, 0.74)),
        "edit": Acceptance(0.36, (0.72, 0.78, 0.82)),
        "chat": Acceptance(0.06, (0.38, 0.48, 0.55)),
        "non_english": Acceptance(0.03, (0.30, 0.40, 0.45)),
    },
    "suffix": {
        "code": Acceptance(0.40, (0.68, 0.76, 0.82, 0.86)),
        "edit": Acceptance(0.60, (0.76, 0.82, 0.86, 0.90)),
        "chat": Acceptance(0.20, (0.52, 0.60, 0.66)),
        "non_english": Acceptance(0.12, (0.46, 0.54, 0.60)),
    },
    "draft_model": {
        "code": Acceptance(1.0, (0.80, 0.79, 0.78, 0.77)),
        "edit": Acceptance(1.0, (0.84, 0.83, 0.82, 0.81)),
        "chat": Acceptance(1.0, (0.70, 0.68, 0.66, 0.64)),
        "non_english": Acceptance(1.0, (0.56, 0.53, 0.50, 0.48)),
    },
    "eagle": {
        "code": Acceptance(1.0, (0.75, 0.68, 0.62, 0.57)),
        "edit": Acceptance(1.0, (0.78, 0.71, 0.65, 0.60)),
        "chat": Acceptance(1.0, (0.66, 0.58, 0.52, 0.47)),
        "non_english": Acceptance(1.0, (0.50, 0.42, 0.36, 0.32)),
    },
    "eagle3": {
        "code": Acceptance(1.0, (0.82, 0.79, 0.76, 0.73)),
        "edit": Acceptance(1.0, (0.85, 0.82, 0.79, 0.76)),
        "chat": Acceptance(1.0, (0.73, 0.69, 0.66, 0.63)),
        "non_english": Acceptance(1.0, (0.56, 0.50, 0.46, 0.43)),
    },
}


@dataclass(frozen=True, slots=True)
class DraftCost:
    """Milliseconds that drafting adds to one engine step. `sequential` costs are paid once per draft position."""

    per_step_ms: float = 0.0
    """Fixed: lost asynchronous scheduling, kernel launches."""
    per_seq_ms: float = 0.0
    """For every running sequence: the host's lookup."""
    sequential_ms: float = 0.0
    """Fixed, per draft position: one pass of the draft model or head."""
    sequential_per_seq_ms: float = 0.0
    """For every running sequence and draft position."""


DRAFT_COST: dict[Method, DraftCost] = {
    "none": DraftCost(),
    "ngram": DraftCost(per_step_ms=0.55, per_seq_ms=0.05),
    "suffix": DraftCost(per_step_ms=0.50, per_seq_ms=0.04),
    "draft_model": DraftCost(sequential_ms=0.40, sequential_per_seq_ms=0.13),
    "eagle": DraftCost(sequential_ms=0.20, sequential_per_seq_ms=0.022),
    "eagle3": DraftCost(sequential_ms=0.22, sequential_per_seq_ms=0.026),
}


@dataclass(frozen=True, slots=True)
class Parameters:
    """The engine at speed 1. Durations in milliseconds, before `--speed`."""

    base_step_ms: float = 3.8
    """Reading the weights once: the memory-bound floor of a step."""
    per_seq_ms: float = 0.025
    """Attention and sampling of one sequence's next token."""
    per_draft_token_ms: float = 0.042
    """Verifying one draft token: the compute-bound part, batch x gamma."""
    prefill_per_token_ms: float = 0.010
    """One prompt token that was not in the prefix cache."""
    prefill_budget_tokens: int = 2048
    """Prompt tokens computed in one step at most (chunked prefill)."""
    step_noise: float = 0.02
    """Standard deviation of the step time, relative."""
    block_size: int = 16
    """Tokens of one KV cache block; the prefix cache hits whole blocks."""
    num_blocks: int = 40_000
    """KV cache blocks: enough that no request of the bundled plans is ever preempted."""
    merge_probability: float = 0.002
    """Chance that a step's chunk waits for the next one, as vLLM's output collector does when the API process lags."""
    temperature_loss: float = 0.12
    """Share of acceptance that temperature 1 costs; proportional below and above."""
    suffix_scale_tokens: float = 6000.0
    """Output tokens of one stratum after which suffix decoding has learned 63 % of what it can."""
    suffix_learned_coverage: float = 0.35
    """Coverage that a full global tree adds."""
    suffix_repeat: Acceptance = Acceptance(0.97, (0.97,))
    """Suffix decoding on a prompt that it has answered before."""
    suffix_min_token_probability: float = 0.1
    """Draft lengths vary: one reaches position i with its survival as the chance, but at least with this."""

    def step_ms(
        self, method: Method, gamma: int, decoding: int, draft_tokens: int, prefill_tokens: int, seqs: int
    ) -> float:
        """Time of one step: `seqs` scheduled, `decoding` of them past prefill, with `draft_tokens` to verify."""
        cost = DRAFT_COST[method]
        drafting = 0.0
        if decoding:
            drafting = cost.per_step_ms + cost.per_seq_ms * decoding
            drafting += gamma * (cost.sequential_ms + cost.sequential_per_seq_ms * decoding)
        return (
            self.base_step_ms
            + self.per_seq_ms * seqs
            + self.per_draft_token_ms * draft_tokens
            + self.prefill_per_token_ms * prefill_tokens
            + drafting
        )
