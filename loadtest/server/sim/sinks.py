"""Where the engine's tokens go: a stream on the wire, or a waiting answer. Faults in mid-answer happen here."""

from __future__ import annotations

import asyncio
import socket
import struct
from random import Random

from loadtest.server.sim.faults import FaultMode
from loadtest.server.sim.render import DONE, ERROR_EVENT, Renderer
from loadtest.server.sim.sequence import FinishReason, Sequence

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER on, 0 s: closing sends RST instead of FIN."""


class Exchange:
    """One HTTP request in flight: its sequences, its connection and what may go wrong with it."""

    def __init__(self, renderer: Renderer, transport: asyncio.Transport, fault: FaultMode | None) -> None:
        self.renderer = renderer
        self.transport = transport
        self.fault = fault
        self.stream = renderer.request.stream
        self.sequences: list[Sequence] = []
        self.left = renderer.request.n
        self.total = 0
        self.started = False
        self.muted = False
        self.failed = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def closed(self) -> bool:
        """Nobody is there to read the rest."""
        return self.failed or self.transport.is_closing() or self.done.cancelled()

    def write(self, *events: bytes) -> None:
        """Each event as an HTTP chunk, all in one write to the transport: no task and no coroutine per step."""
        if not self.muted and not self.transport.is_closing():
            self.transport.write(b"".join([b"%x\r\n%b\r\n" % (len(e), e) for e in events if e]))

    def finish(self) -> None:
        """Lets the handler go on."""
        if not self.done.done():
            self.done.set_result(None)

    def die(self) -> None:
        """The engine is dead: error event and [DONE] in a stream; the handler answers 500 otherwise."""
        if self.done.done():
            return
        self.failed = True
        if self.stream:
            self.write(ERROR_EVENT, DONE)
        self.finish()

    def strike(self) -> bool:
        """Carries out the fault once half of the answer is out; True when the answer ends here."""
        fault, self.fault = self.fault, None
        if fault == "error":
            self.die()
        elif fault == "stall":
            self.muted = True
            return False
        elif fault in ("cut", "reset"):
            self.failed = True
            raw = self.transport.get_extra_info("socket")
            if fault == "reset" and raw is not None:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                self.transport.abort()
            else:
                self.transport.close()
            self.finish()
        return self.failed


class ChoiceSink:
    """Receives the tokens of one choice."""

    __slots__ = ("_exchange", "_from", "_index", "_merge", "_rng", "sequence")

    def __init__(self, exchange: Exchange, index: int, merge_probability: float, rng: Random) -> None:
        self._exchange = exchange
        self._index = index
        self._merge = merge_probability
        self._rng = rng
        self._from: int | None = None
        self.sequence: Sequence | None = None

    @property
    def closed(self) -> bool:
        """Nobody is there to read the rest."""
        return self._exchange.closed

    def deliver(self, start: int, end: int, finish: FinishReason | None) -> None:
        """Sends the tokens of this step, or holds them for the next one (a merged chunk); one write per step."""
        exchange, sequence = self._exchange, self.sequence
        if exchange.failed or sequence is None:
            return
        if exchange.stream:
            held = self._from if self._from is not None else start
            if finish is None and start > 0 and self._rng.random() < self._merge:
                self._from = held
            else:
                self._from = None
                self._send(sequence, held, end, finish)
        elif finish is not None:
            exchange.left -= 1
        if exchange.fault is not None and 2 * end >= len(sequence.tokens) and exchange.strike():
            return
        if not exchange.left and not exchange.muted:
            exchange.finish()

    def _send(self, sequence: Sequence, start: int, end: int, finish: FinishReason | None) -> None:
        exchange = self._exchange
        exchange.total += end - start
        renderer = exchange.renderer
        events = [renderer.chunk(self._index, sequence, start, end, finish, exchange.total)]
        if not exchange.started:
            exchange.started = True
            events.insert(0, renderer.first())
        if finish is not None:
            exchange.left -= 1
            if not exchange.left:
                events += renderer.last(exchange.sequences)
        exchange.write(*events)
