"""The workers' clocks against the master's. Pure; the messages are the master's business."""

from __future__ import annotations

ROUNDS = 8
"""One round trip bounds the offset by its own length; the best of eight is 0.1 ms on one host."""
ANSWER_S = 2.0


class ClockBounds:
    """Worker clock minus master clock, in nanoseconds, as an interval that holds the truth.

    The worker looked at its clock after the master had asked (`asked_ns`) and before the master got the answer
    (`got_ns`, both by the master's clock): the offset lies in [looked - got, looked - asked].
    """

    def __init__(self) -> None:
        self.low_ns, self.high_ns = -(1 << 62), 1 << 62
        self.answers = 0

    def add(self, asked_ns: int, looked_ns: int, got_ns: int) -> None:
        """One answer. Intervals of a steady clock overlap; after a step the newest one counts alone."""
        low, high = looked_ns - got_ns, looked_ns - asked_ns
        self.answers += 1
        if low > self.high_ns or high < self.low_ns:
            self.low_ns, self.high_ns = low, high
        else:
            self.low_ns, self.high_ns = max(low, self.low_ns), min(high, self.high_ns)

    def ms(self) -> tuple[float, float]:
        """(lowest, highest) offset in milliseconds."""
        return round(self.low_ns / 1e6, 3), round(self.high_ns / 1e6, 3)
