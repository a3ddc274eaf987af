"""One cell as a worker sees it: which request comes next, which phase it belongs to, and what became of it.

Pure bookkeeping, no locust, no gevent: the worker calls it between waits, so nothing here needs a lock.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from loadtest.errors import LoadError
from loadtest.model import Cell, Message, Phase, Prompt, from_json, to_json
from loadtest.plan.order import PromptOrder, salted

FAR_FUTURE_NS = 1 << 62
"""A window whose start or end is not known yet."""


@dataclass(frozen=True, slots=True)
class MixPrompts:
    """The prompts of a mix and its warm-up pool, as the master hands them out."""

    mix: str
    sha256: str
    prompts: tuple[Prompt, ...]
    warmup: tuple[Prompt, ...]
    weights: tuple[float, ...]


def encode_prompts(prompts: Sequence[Prompt]) -> bytes:
    """JSON Lines of prompts, the form of `prompts/<mix>.jsonl`."""
    return b"".join(orjson.dumps(to_json(p)) + b"\n" for p in prompts)


def mix_digest(prompts: bytes, warmup: bytes, weights: Sequence[float]) -> str:
    """SHA-256 over everything that decides which prompts a cell sends."""
    h = hashlib.sha256()
    for part in (prompts, warmup, orjson.dumps(list(weights))):
        h.update(len(part).to_bytes(8, "big") + part)
    return h.hexdigest()


def decode_mix(message: dict[str, Any]) -> MixPrompts:
    """The mix of an `lt_mix` message. Raises LoadError where it is not what the master sent, or empty."""
    mix, sha256 = str(message["mix"]), str(message["sha256"])
    digest = mix_digest(message["prompts"], message["warmup"], message["weights"])
    if digest != sha256:
        raise LoadError(f"mix {mix!r} arrived damaged: SHA-256 {digest}, the master sent {sha256}")
    prompts, warmup = _decode(message["prompts"]), _decode(message["warmup"])
    if not prompts:
        raise LoadError(f"mix {mix!r} has no prompts")
    return MixPrompts(mix, sha256, prompts, warmup, tuple(float(w) for w in message["weights"]))


def checked(data: bytes, sha256: str) -> bytes:
    """The data, if it is what the master sent. Raises LoadError."""
    if (digest := hashlib.sha256(data).hexdigest()) != sha256:
        raise LoadError(f"a file arrived damaged: SHA-256 {digest}, the master sent {sha256}")
    return data


def _decode(data: bytes) -> tuple[Prompt, ...]:
    return tuple(from_json(Prompt, orjson.loads(line)) for line in data.splitlines() if line.strip())


@dataclass(frozen=True, slots=True)
class Ticket:
    """Leave to send one request."""

    seq: int
    """Number in the cell's prompt order (of the measured part, or of the warm-up)."""
    request_id: str
    prompt: Prompt
    messages: tuple[Message, ...]
    """What is sent: the prompt with its salt, of a later turn with all turns and answers before it."""
    warmup: bool
    turn: int = 0

    def next_turn(self, answer: str, text: str) -> Ticket:
        """Leave to send the next user turn of the conversation, after the answer to this one."""
        turn = self.turn + 1
        said = (*self.messages, Message("assistant", answer), Message("user", text))
        request_id = f"{self.request_id.partition('-t')[0]}-t{turn}"
        return Ticket(self.seq, request_id, self.prompt, said, self.warmup, turn)


class CellRun:
    """A worker's part of one cell: numbers `offset + k * stride` of the prompt order, phases by send time, counts."""

    def __init__(self, cell: Cell, mix: MixPrompts, worker: int) -> None:
        self.cell, self.mix, self.worker = cell, mix, worker
        self.start_ns, self.end_ns = FAR_FUTURE_NS, FAR_FUTURE_NS
        self.offset, self.stride = 0, 1
        self.open = self.closed = False
        self._order = PromptOrder([p.part for p in mix.prompts], mix.weights, cell.order_seed)
        # Without a pool of its own the warm-up takes measured prompts under another salt: no cache hit either.
        self._pool = mix.warmup or mix.prompts
        self._warm_salt = cell.salt if mix.warmup else f"warmup-{cell.salt}"
        parts = [p.part for p in self._pool]
        weights = mix.weights if max(parts) < len(mix.weights) else (1.0,) * (max(parts) + 1)
        self._warm_order = PromptOrder(parts, weights, cell.order_seed)
        self._next = {True: 0, False: 0}
        self._limit = cell.measure_requests if cell.load_kind == "sequential" else None
        self.sent = self.rows = self.event_errors = self.user_errors = self.dropped = 0
        self.by_outcome: Counter[str] = Counter()
        self.by_phase: Counter[str] = Counter()
        self.lag_max_us = 0
        self.late_window_ms = 0.0
        self.conversations = self.conversations_cut = self.thinking_ns = 0
        self.flying: dict[str, int] = {}
        """Request id -> when it was begun (UNIX ns; of a scheduled one: when it was due), oldest first."""

    def set_window(self, start_ns: int, end_ns: int, stripe: tuple[int, int] | None, now_ns: int) -> None:
        """Opens the cell, or moves the edges of its window. `stripe`: (offset, stride); None: no share for this worker.

        An edge that is already past when the message arrives is noted: rows may have been labelled without it.
        """
        for old, new in ((self.start_ns, start_ns), (self.end_ns, end_ns)):
            if self.open and old != new and new < now_ns:
                self.late_window_ms = max(self.late_window_ms, (now_ns - new) / 1e6)
        self.start_ns, self.end_ns = start_ns, end_ns
        self.offset, self.stride = stripe or (0, 1)
        self.open = True

    def take(self, now_ns: int) -> Ticket | None:
        """The next request, or None: the cell is over (or not open, or its fixed number of requests is out).

        After the end of the window the load goes on, in phase drain, so that the last measured requests do not run on
        a server that is emptying.
        """
        if not self.open or self.over(now_ns):
            return None
        warmup = now_ns < self.start_ns
        seq = self.offset + self._next[warmup] * self.stride
        if not warmup and self._limit is not None and seq >= self._limit:
            return None
        self._next[warmup] += 1
        return self.ticket(seq, warmup=warmup)

    def ticket(self, seq: int, *, warmup: bool) -> Ticket:
        """Request number `seq` of the measured part or of the warm-up."""
        pool, order, salt = (
            (self._pool, self._warm_order, self._warm_salt)
            if warmup
            else (self.mix.prompts, self._order, self.cell.salt)
        )
        index, pass_no = order.at(seq)
        prompt = pool[index]
        number = f"w{seq}" if warmup else str(seq)
        request_id = f"{self.cell.index}-{self.worker}-{number}"
        return Ticket(seq, request_id, prompt, salted(prompt, salt, pass_no), warmup)

    def holds(self) -> bool:
        """Whether a request that was begun before the end of the window is in flight."""
        return next(iter(self.flying.values()), FAR_FUTURE_NS) < self.end_ns

    def over(self, now_ns: int) -> bool:
        """Whether no more requests are begun. The only worker knows by itself when the load is not needed any more."""
        if self.closed:
            return True
        if now_ns < self.end_ns:
            return False
        return self._limit is not None or (self.stride == 1 and not self.holds())

    def close(self) -> None:
        """No more requests: every measured one has ended, at all workers, or the drain is over."""
        self.closed = True

    def think(self, from_ns: int, to_ns: int) -> None:
        """Counts a user's pause inside a conversation, as far as it lies in the window."""
        self.thinking_ns += max(0, min(to_ns, self.end_ns) - max(from_ns, self.start_ns))

    def phase(self, ticket: Ticket, send_ns: int) -> Phase:
        """Phase of a request by its send time, of a scheduled arrival by the time it was due.

        One that was built from the warm-up pool stays warm-up even when the window began while it was being sent:
        the measured part never holds a warm-up prompt.
        """
        if ticket.warmup or send_ns < self.start_ns:
            return "warmup"
        return "measure" if send_ns < self.end_ns else "drain"

    def note(self, row: dict[str, Any]) -> None:
        """Counts a row that goes to the master."""
        self.rows += 1
        self.by_outcome[str(row["outcome"])] += 1
        self.by_phase[str(row["phase"])] += 1
        self.lag_max_us = max(self.lag_max_us, row.get("client_lag_us") or 0)

    def counts(self) -> dict[str, Any]:
        """The worker's own counts, for `lt_final` and `done.json`."""
        return {
            "sent": self.sent,
            "rows": self.rows,
            "by_outcome": dict(self.by_outcome),
            "by_phase": dict(self.by_phase),
            "dropped": self.dropped,
            "event_errors": self.event_errors,
            "user_errors": self.user_errors,
            "lag_max_us": self.lag_max_us,
            "late_window_ms": round(self.late_window_ms, 1),
            "conversations": self.conversations,
            "conversations_cut": self.conversations_cut,
            "thinking_s": round(self.thinking_ns / 1e9, 3),
        }
