"""What the engine keeps about one sequence, and where its tokens go."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

from loadtest.server.sim.drafter import Drafter
from loadtest.server.sim.parameters import Stratum

FinishReason = Literal["length", "stop"]


class Sink(Protocol):
    """Where a sequence's tokens go."""

    @property
    def closed(self) -> bool:
        """True when nobody listens any more: the sequence is aborted."""

    def deliver(self, start: int, end: int, finish: FinishReason | None) -> None:
        """Tokens `start` to `end` of the sequence are there."""


@dataclass(slots=True)
class Group:
    """The sequences of one request (n > 1); vLLM counts some figures once per request."""

    n: int
    finished: int = 0
    longest: int = 0


@dataclass(slots=True)
class SpecStats:
    """Speculation of one sequence, as vLLM's `RequestSpecDecodeMetrics`: steps without a draft are not in it."""

    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    step_drafted: list[int] = field(default_factory=list)
    step_accepted: list[int] = field(default_factory=list)

    def add(self, drafted: int, accepted: int) -> None:
        """Counts one verify step."""
        self.steps += 1
        self.drafted += drafted
        self.accepted += accepted
        self.step_drafted.append(drafted)
        self.step_accepted.append(accepted)


@dataclass(slots=True)
class Sequence:
    """One running or waiting sequence. Times are on the driver's clock, in seconds."""

    prompt: list[str]
    tokens: list[str]
    finish: FinishReason
    stratum: Stratum
    suffix_key: int
    drafter: Drafter | None
    max_tokens: int
    group: Group
    sink: Sink
    arrival_s: float
    blocks: list[int]
    cached: int = 0
    prefill_left: int = 0
    delivered: int = 0
    scheduled_s: float = 0.0
    first_token_s: float = 0.0
    last_token_s: float = 0.0
    step: tuple[int, int] | None = None
    """(drafted, accepted) of the step under way; None: it does not yield a token."""
    spec: SpecStats = field(default_factory=SpecStats)

    reserved_blocks: int = 0
    """KV blocks that the sequence may need in the end."""
