"""Conversations: later turns follow the real answers before them, after a pause. Import after locust."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from gevent.event import AsyncResult, Event

from loadtest.load.cellrun import CellRun, Ticket
from loadtest.load.engine import RawExchange
from loadtest.load.sending import Sender, UserSlot
from loadtest.model import Cell


def think_s(cell: Cell, seq: int, turn: int) -> float:
    """Pause before a turn: exponential around the cell's mean, from its seed alone, so every config has the same ones.

    A constant pause would keep users in step who began together.
    """
    if cell.think_time_s <= 0:
        return 0.0
    return random.Random(f"{cell.order_seed}-think-{seq}-{turn}").expovariate(1 / cell.think_time_s)


def converse(
    sender: Sender,
    run: CellRun,
    ticket: Ticket,
    user: UserSlot,
    halt: Event,
    intended_ns: int | None = None,
    pausing: Callable[[bool], None] = lambda _: None,
) -> RawExchange:
    """Sends a request and, where its prompt has them, all later turns. -> the last exchange.

    Every turn is a row of its own. A turn that is not `ok` ends the conversation; so does `halt`, the end of the cell.
    `pausing(True)` and `pausing(False)` frame each pause.
    """
    if not ticket.prompt.later_turns:
        return sender.send(run, ticket, user, intended_ns)
    run.conversations += 1
    reply = AsyncResult()
    raw = sender.send(run, ticket, user, intended_ns, reply)
    for text in ticket.prompt.later_turns:
        outcome, answer = reply.get()
        if outcome != "ok":
            run.conversations_cut += 1
            break
        began_ns = time.time_ns()
        pausing(True)
        try:
            halt.wait(think_s(run.cell, ticket.seq, ticket.turn + 1))
        finally:
            pausing(False)
            run.think(began_ns, time.time_ns())
        if run.over(time.time_ns()):
            break
        ticket, reply = ticket.next_turn(answer, text), AsyncResult()
        raw = sender.send(run, ticket, user, None, reply)
    return raw
