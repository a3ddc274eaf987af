"""One request from ticket to raw answer: slots with a kept-alive connection each, and who is in flight.

Import after locust.
"""

from __future__ import annotations

import heapq
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gevent.event import AsyncResult

from loadtest.errors import LoadError
from loadtest.load.cellrun import CellRun, Ticket
from loadtest.load.engine import Connection, RawExchange, Reader
from loadtest.load.parse import RequestFacts
from loadtest.load.request import Endpoint, RequestBuilder
from loadtest.model import JsonDict, LoadJob

BACKOFF_S = (0.1, 1.0)
"""Pause of a user after a request that could not even be sent, doubled each time up to the second value: a server
that is down must not be asked thousands of times a second. The rows still show every try."""


def require_reachable(url: str, timeout_s: float) -> None:
    """Opens and closes a connection. Raises LoadError: an address that the master reaches may mean nothing here."""
    endpoint = Endpoint.parse(url)
    try:
        socket.create_connection((endpoint.host, endpoint.port), timeout=timeout_s).close()
    except OSError as e:
        raise LoadError(
            f"host {socket.gethostname()} does not reach the server at {url}: {e}; give the config a url (or a "
            "launch.host) that all workers reach"
        ) from e


class UserSlot:
    """What one user keeps between requests: its number, its connection, its back-off."""

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.connection: Connection | None = None
        self.builder: RequestBuilder | None = None
        self.backoff_s = BACKOFF_S[0]

    def close(self) -> None:
        """Closes the connection."""
        if self.connection is not None:
            self.connection.close()
        self.connection = self.builder = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A raw answer and what is known of its request, on the way to the parser."""

    run: CellRun
    raw: RawExchange
    columns: JsonDict
    """The columns of RAW_SCHEMA that come from the request."""
    facts: RequestFacts
    reply: AsyncResult | None = None
    """Of a turn of a conversation: gets (outcome, text of the answer), which the next turn needs."""


class Sender:
    """Sends the requests of one worker. Every request that begins becomes exactly one Answer for `put`."""

    def __init__(self, index: int, put: Callable[[Answer], None]) -> None:
        self.index, self._put = index, put
        self.reader = Reader()
        self.in_flight = 0
        self.workers = 1
        self.job: LoadJob | None = None
        self._builders: list[RequestBuilder] = []
        self._free: list[int] = []
        self._slots = 0

    def set_job(self, job: LoadJob, workers: int) -> list[RequestBuilder]:
        """Takes over a job (the same one again costs nothing). -> one builder per base URL. PlanError: not sendable."""
        if self.job is None or job.client != self.job.client:
            self.reader.close()
            self.reader = Reader(pace_s=job.client.pace_s, read_timeout_s=job.client.read_timeout_s)
        if job != self.job:
            self._builders = [
                RequestBuilder(url, api=job.api, model=job.model_name, client=job.client) for url in job.base_urls
            ]
        self.job, self.workers = job, workers
        return self._builders

    def enter(self) -> UserSlot:
        """A number for a new user, the lowest that is free."""
        if self._free:
            return UserSlot(heapq.heappop(self._free))
        self._slots += 1
        return UserSlot(self._slots - 1)

    def leave(self, user: UserSlot) -> None:
        """The user is gone: its connection is closed, its number is free."""
        user.close()
        if user.slot >= 0:
            heapq.heappush(self._free, user.slot)

    def send(
        self,
        run: CellRun,
        ticket: Ticket,
        user: UserSlot,
        intended_ns: int | None = None,
        reply: AsyncResult | None = None,
    ) -> RawExchange:
        """Sends one request and waits for its answer, which also goes to `put`. Nothing waits before it counts."""
        number = user.slot * self.workers + self.index
        builder = self._builders[number % len(self._builders)]
        client, sampling = builder.client, run.cell.sampling
        max_tokens = ticket.prompt.max_tokens or sampling.max_tokens
        body = builder.body(ticket.messages, sampling, max_tokens=max_tokens)
        columns = self._columns(ticket, number) | {"prompt_sha256": body.prompt_sha256, "max_tokens": max_tokens}
        facts = RequestFacts(client.stream, intended_ns, client.keep_text or reply is not None, client.keep_chunks)
        connection = self._connection(user, builder)
        run.sent += 1
        self.in_flight += 1
        asked_ns = time.time_ns()
        run.flying.setdefault(ticket.request_id, asked_ns)
        raw: RawExchange | None = None
        try:
            raw = connection.exchange(
                builder.frame(body, ticket.request_id),
                total_timeout_s=client.total_timeout_s,
                read_timeout_s=client.read_timeout_s,
            )
        finally:
            self.in_flight -= 1
            if raw is None:  # the user is being stopped in mid-request
                raw = connection.partial() or RawExchange()
            columns["phase"] = run.phase(ticket, intended_ns or raw.send_ns or asked_ns)
            del run.flying[ticket.request_id]
            self._put(Answer(run, raw, columns, facts, reply))
        self.reader.pump()
        return raw

    def drop(self, run: CellRun, ticket: Ticket, intended_ns: int, cap: int) -> JsonDict:
        """The row of an arrival that is not sent because `cap` requests are in flight; counted, never delayed."""
        run.dropped += 1
        return self._columns(ticket, 0) | {
            "phase": run.phase(ticket, intended_ns),
            "prompt_sha256": "",
            "intended_ns": intended_ns,
            "clock": "user",
            "token_source": "none",
            "outcome": "censored",
            "error": f"dropped: {cap} requests in flight at this worker",
        }

    def _columns(self, ticket: Ticket, number: int) -> dict[str, Any]:
        return {
            "seq": ticket.seq,
            "worker": self.index,
            "user": number,
            "request_id": ticket.request_id,
            "prompt_id": ticket.prompt.prompt_id,
            "stratum": ticket.prompt.stratum,
            "turn": ticket.turn,
        }

    def _connection(self, user: UserSlot, builder: RequestBuilder) -> Connection:
        if user.connection is None or user.builder is not builder:
            user.close()
            user.builder = builder
            user.connection = Connection(
                self.reader, builder.endpoint, connect_timeout_s=builder.client.connect_timeout_s
            )
        return user.connection
