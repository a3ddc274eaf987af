"""Parsing in idle time, and the garbage collector kept out of the measured window.

Fifty greenlets that each parse an answer before they wait again stall the hub for 50 x 0.6 ms, and one full collection
for 30 ms: both are longer than a decode step and merge chunks.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import gevent
from gevent.event import Event

Item = TypeVar("Item")


class IdleParser(Generic[Item]):
    """A queue and a greenlet that handles one item per idle turn of the hub.

    `handle(item)` parses and passes on; what it raises is counted in `errors` and kept in `last_error`.
    """

    def __init__(self, handle: Callable[[Item], Any], *, limit: int = 8192) -> None:
        """`limit` bounds memory (about 36 kB per waiting answer): above it, `put` handles the oldest item at once."""
        self._handle, self._limit = handle, limit
        self._queue: deque[Item] = deque()
        self._wake = Event()
        self.handled = self.errors = self.most_waiting = 0
        self.last_error: BaseException | None = None
        self._greenlet = gevent.spawn(self._run)

    def __len__(self) -> int:
        """Items waiting."""
        return len(self._queue)

    def put(self, item: Item) -> None:
        """Queues an item; cheap."""
        self._queue.append(item)
        self.most_waiting = max(self.most_waiting, len(self._queue))
        if len(self._queue) > self._limit:
            self._one()
        self._wake.set()

    def drain(self) -> None:
        """Handles all that wait now, letting other greenlets run in between: between stages, and at the end."""
        while self._queue:
            self._one()
            gevent.sleep(0)

    def stop(self) -> None:
        """Drains and ends the greenlet."""
        self.drain()
        self._greenlet.kill()

    def _one(self) -> None:
        item = self._queue.popleft()
        try:
            self._handle(item)
        except Exception as error:  # one bad item must not stop the others; the caller reports `errors`
            self.errors += 1
            self.last_error = error
        self.handled += 1

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._queue:
                gevent.idle()
                if self._queue:
                    self._one()


class quiet_collector:  # noqa: N801  used like the context managers of contextlib
    """Collects now, then keeps the garbage collector off inside; collects again at the end. Watch the memory.

    May be entered again after it was left. A whole collection costs about 30 ms, so enter and leave outside windows.
    """

    def __init__(self) -> None:
        self._was_enabled = True

    def __enter__(self) -> None:
        self._was_enabled = gc.isenabled()
        gc.collect()
        gc.freeze()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        gc.unfreeze()
        if self._was_enabled:
            gc.enable()
        gc.collect()
