"""Faults that tests ask for: which requests they hit and when. The handlers carry them out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from loadtest.errors import InputError

FaultMode = Literal["error", "cut", "reset", "http500", "stall", "empty", "engine-death"]
MODES: tuple[FaultMode, ...] = get_args(FaultMode)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `value` is the percentage of requests, for engine-death the seconds after the start of listening.

    - error: error event in a 200 stream (500 without streaming)
    - cut: clean end of the connection in mid-stream; reset: TCP RST in mid-stream
    - http500: no stream at all; empty: a complete stream without a token
    - stall: silence in mid-stream, connection open
    - engine-death: every stream gets the error event, then the server exits
    """

    mode: FaultMode
    value: float


def parse_fault(text: str) -> Fault:
    """`MODE:VALUE`, for example `cut:5` or `engine-death:2.5`. Raises InputError."""
    name, _, number = text.partition(":")
    mode = next((m for m in MODES if m == name), None)
    if mode is None:
        raise InputError(f"sim: fail {text!r} has unknown mode {name!r}; allowed: {', '.join(MODES)}")
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf") or (mode != "engine-death" and value > 100):
        wanted = "seconds" if mode == "engine-death" else "a percentage from 0 to 100"
        raise InputError(f"sim: fail {text!r} needs {wanted} after the colon, for example {mode}:5")
    return Fault(mode, value)


class FaultPlan:
    """Spreads each fault evenly over the requests in order of arrival: exactly `value` of every hundred."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        self._faults = tuple(f for f in faults if f.mode != "engine-death")
        self.death_s = min((f.value for f in faults if f.mode == "engine-death"), default=None)
        self._requests = 0

    def next(self) -> FaultMode | None:
        """The fault of the next request; the first of several that meet wins."""
        k, self._requests = self._requests, self._requests + 1
        for fault in self._faults:
            if int((k + 1) * fault.value / 100) > int(k * fault.value / 100):
                return fault.mode
        return None
