"""Locust's own `request` event, once per request, for its page and for plug-ins. Import after locust."""

from __future__ import annotations

from typing import Any

from locust import log as locust_log

from loadtest.load.cellrun import CellRun

TEXTS_KEPT = 50
"""Locust keeps one entry per error text for good, at the master too: texts with a number in them (a request id, a
time) would fill the memory of a long run."""


class RequestFailedError(Exception):
    """What Locust's own page shows as the failure of a request."""


class UiStats:
    """Fires the event; names are `<mix>/<stratum>`, with the turn of a conversation and the warm-up marked."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._texts: set[str] = set()

    def fire(self, run: CellRun, row: dict[str, Any], api: str, *, conversation: bool = False) -> None:
        """A listener that raises is swallowed by Locust; it is counted in `run.event_errors`."""
        turn = f" turn {row['turn'] + 1}" if conversation else ""
        stage = " (warm-up)" if row["phase"] == "warmup" else ""
        e2e_us = row.get("e2e_us")
        before, locust_log.unhandled_greenlet_exception = locust_log.unhandled_greenlet_exception, False
        try:
            self._environment.events.request.fire(
                request_type=api,
                name=f"{run.cell.mix}/{row['stratum']}{turn}{stage}",
                response_time=None if e2e_us is None else e2e_us / 1000,
                response_length=row.get("output_bytes") or 0,
                response=None,
                context={},
                exception=None if row["outcome"] == "ok" else RequestFailedError(self._text(row)),
                start_time=(row.get("send_ns") or 0) / 1e9,
                url=None,
            )
        finally:
            run.event_errors += bool(locust_log.unhandled_greenlet_exception)
            locust_log.unhandled_greenlet_exception = before

    def _text(self, row: dict[str, Any]) -> str:
        text = f"{row['outcome']}: {row.get('error') or ''}"[:300]
        if text not in self._texts:
            if len(self._texts) >= TEXTS_KEPT:
                return str(row["outcome"])
            self._texts.add(text)
        return text
