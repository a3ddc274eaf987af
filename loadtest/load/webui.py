"""Locust's web page: two tabs of our own, and a guard in front of it. Import after locust.

Locust has no protection against CSRF, answers every origin. So a request that a page of another
site made is refused, and a server bound to loopback answers only to a loopback name (DNS rebinding).
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import orjson
from flask import request

from loadtest.load import hdr
from loadtest.load.master import Master
from loadtest.load.recorder import METRICS, Recorder

PERCENTILES = (50.0, 95.0, 99.0)
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
FORBIDDEN = 403


def install(web_ui: Any, master: Master) -> None:
    """Adds the tabs and the guard; called in Locust's `init`, before the page is served."""
    columns = [("name", "Metric"), ("n", "n"), *((f"p{p:g}", f"p{p:g} (ms)") for p in PERCENTILES)]
    acceptance = [("name", "Figure"), ("value", "Value"), ("n", "Requests")]
    web_ui.template_args.update(
        {
            "extended_tabs": [{"title": "Latency", "key": "latency"}, {"title": "Speculation", "key": "speculation"}],
            "extended_tables": [
                {"key": "latency", "structure": [{"key": k, "title": t} for k, t in columns]},
                {"key": "speculation", "structure": [{"key": k, "title": t} for k, t in acceptance]},
            ],
        }
    )

    @web_ui.app.before_request
    def guard() -> Any:
        reason = refusal(web_ui.host, request.host, request.path, request.headers)
        return None if reason is None else (reason, FORBIDDEN)

    @web_ui.app.after_request
    def add_tables(response: Any) -> Any:
        if request.path.endswith("/stats/requests") and response.is_json:
            recorder = master.recorder
            tables = [
                {"key": "latency", "data": latency_rows(recorder) if recorder else []},
                {"key": "speculation", "data": speculation_rows(recorder) if recorder else []},
            ]
            response.set_data(orjson.dumps({**response.json, "extended_stats": tables}))
        return response


def refusal(bound: str, host: str, path: str, headers: Any) -> str | None:
    """Why a request to the web page is refused, or None.

    `bound`: the address that the page is bound to; `host`: the Host header; `headers`: of the request.
    """
    name = urlsplit(f"//{host}").hostname or ""
    if bound in LOOPBACK and name not in LOOPBACK:
        return f"refused: the page is bound to {bound}, but was asked for as {name!r}"
    origin = headers.get("Origin")
    if origin and urlsplit(origin).netloc != host:
        return f"refused: a page of {origin!r} may not ask this one"
    site = headers.get("Sec-Fetch-Site", "none")
    opened = path == "/" and headers.get("Sec-Fetch-Mode") == "navigate"  # a link to the start page is harmless
    if site in ("cross-site", "same-site") and not opened:
        return "refused: the request was made by a page of another site"
    return None


def latency_rows(recorder: Recorder) -> list[dict[str, Any]]:
    """Live percentiles of the window, in milliseconds; "-" where nothing was measured."""
    rows = []
    for metric in METRICS:
        h = recorder.histograms[metric]
        values = hdr.percentiles(h, PERCENTILES)
        shown = {f"p{p:g}": "-" if v is None else f"{v / 1000:.2f}" for p, v in zip(PERCENTILES, values, strict=True)}
        rows.append({"name": metric, "n": int(h.total_count), **shown})
    return rows


def speculation_rows(recorder: Recorder) -> list[dict[str, Any]]:
    """Live acceptance of the window from the requests' own blocks: sums first, "undefined" where D or S is 0."""
    s, d, a = (recorder.sums[k] for k in ("spec_steps", "draft_tokens", "accepted_tokens"))
    figures = (
        ("draft acceptance rate A/D", f"{a / d:.4f}" if d else None),
        ("mean acceptance length 1+A/S", f"{1 + a / s:.3f}" if s else None),
        ("drafted steps S", str(s)),
        ("draft tokens D", str(d)),
        ("accepted tokens A", str(a)),
    )
    return [{"name": name, "value": value or "undefined", "n": recorder.sums["blocks"]} for name, value in figures]
