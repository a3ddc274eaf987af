"""`[load]` of a plan: the window, closed loops, and the kinds of open loops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from loadtest.plan.table import Table
from loadtest.plan.units import DURATION_PATTERN, Duration, PositiveDuration, format_duration, parse_duration


@dataclass(frozen=True, slots=True)
class Measure:
    """How long a window is: exactly one of a time, a number of requests, or as many as the SLOs need."""

    duration_s: float | None = None
    requests: int | None = None
    auto: bool = False


def _measure(value: object) -> object:
    if isinstance(value, Measure):
        return value
    if value == "auto":
        return Measure(auto=True)
    if isinstance(value, dict):
        count = value.get("requests")
        if set(value) != {"requests"} or isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ValueError(f"{value!r} is no window; write {{ requests = 1000 }} with a whole number of 1 or more")
        return Measure(requests=count)
    try:
        seconds = parse_duration(value)
    except ValueError:
        raise ValueError(f'{value!r} is no window; write "60s", {{ requests = 1000 }} or "auto"') from None
    if seconds <= 0:
        raise ValueError(f"{value!r} is no window; it must be longer than 0")
    return Measure(duration_s=seconds)


def _measure_text(value: Measure) -> Any:
    if value.auto:
        return "auto"
    return {"requests": value.requests} if value.duration_s is None else format_duration(value.duration_s)


_MEASURE_SCHEMA = {
    "anyOf": [
        {"type": "string", "pattern": DURATION_PATTERN},
        {"const": "auto"},
        {
            "type": "object",
            "properties": {"requests": {"type": "integer", "minimum": 1}},
            "required": ["requests"],
            "additionalProperties": False,
        },
    ]
}
Window = Annotated[Measure, BeforeValidator(_measure), PlainSerializer(_measure_text), WithJsonSchema(_MEASURE_SCHEMA)]


class RampStep(Table):
    """One step of a ramp: a rate that is kept, or that grows (or falls) evenly."""

    rate: float = Field(gt=0, description="Requests per second, at the beginning of the step.")
    to: float | None = Field(default=None, gt=0, description="Requests per second at its end; `rate` if left out.")
    for_: PositiveDuration = Field(alias="for", description="How long the step lasts.")

    @property
    def step(self) -> tuple[float, float, float]:
        """(rate at its beginning, at its end, seconds)."""
        return self.rate, self.rate if self.to is None else self.to, self.for_


class Trace(Table):
    """Arrivals from a file."""

    file: str = Field(
        min_length=1,
        description="Where the times are: a number per line, JSON Lines or CSV with a field `timestamp`; numbers or "
        "dates (ISO 8601), ascending. Looked for like a data set.",
    )
    unit: Literal["s", "ms", "us", "ns"] = Field(default="s", description="Unit of the times where they are numbers.")
    speed: float = Field(default=1.0, gt=0, description="2 replays it twice as fast.")
    for_: PositiveDuration | None = Field(
        default=None, alias="for", description="Only its first part, as it lasts after `speed`; all if left out."
    )


class Load(Table):
    """How hard, how long, how often. At least one of `concurrency`, `rate`, `ramp` and `trace`."""

    concurrency: list[Annotated[int, Field(ge=1)]] = Field(
        default_factory=list, description="Closed loop: number of users, each with one request in flight."
    )
    rate: list[Annotated[float, Field(gt=0)]] = Field(
        default_factory=list, description="Open loop: requests per second."
    )
    ramp: list[RampStep] = Field(
        default_factory=list,
        description="Open loop with a rate that changes: the steps one after the other, Poisson. They are the window.",
    )
    trace: Trace | None = Field(
        default=None, description="Open loop with the arrivals of a file, for example of your own access log."
    )
    arrival: Literal["poisson", "constant"] = Field(default="poisson", description="Arrivals of `rate`.")
    warmup: Duration = Field(default=20.0, description="Load before the window, at the same level, on other prompts.")
    measure: Window = Field(
        default=Measure(duration_s=60.0),
        description='The window: a duration, `{ requests = 1000 }`, or `"auto"`: until every SLO is certain.',
    )
    drain: Duration = Field(
        default=60.0,
        description="Longest wait for the measured requests at the window's end; the load goes on meanwhile.",
    )
    budget: PositiveDuration = Field(
        default=3600.0, description='Longest window where `measure` is a number of requests or `"auto"`.'
    )
    repeats: int = Field(
        default=3, ge=1, le=1000, description="How often all is measured, each with a fresh server start."
    )
    order: Literal["abba", "sequential"] = Field(
        default="abba",
        description="Order of the configs over the repeats: every other one reversed, or always the same.",
    )

    @model_validator(mode="after")
    def _check(self) -> Load:
        given = self.concurrency or self.rate or self.ramp or self.trace
        problems = [] if given else ["write concurrency = [1, 8, 32] or rate = [4.0] (or a ramp, or a trace)"]
        loads: dict[str, list[float]] = {"concurrency": [float(c) for c in self.concurrency], "rate": self.rate}
        for key, values in loads.items():
            twice = sorted({f"{v:g}" for v in values if sum(f"{w:g}" == f"{v:g}" for w in values) > 1})
            problems += [f"{key}: {v} stands there more than once" for v in twice]
        if problems:
            raise ValueError("; ".join(problems))
        return self
