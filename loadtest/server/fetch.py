"""One GET of a `/metrics` page over aiohttp. What goes wrong becomes a text in `Fetched.error`, never an exception.

A failed scrape must not be mistaken for an idle engine, so there is no page without an answer of 200 that holds
`vllm:` series.
"""

from __future__ import annotations

import asyncio
import gzip
import time
import zlib
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

import aiohttp

from loadtest.server.metrics import Page, parse_page
from loadtest.server.spec_counters import NO_VLLM_SERIES

MAX_REDIRECTS = 5
MAX_BODY_BYTES = 64 * 2**20
"""A page of a real engine has 50 kB; anything near this is not a metrics page."""
ACCEPT = "text/plain;version=0.0.4;q=1,*/*;q=0.1"
"""Plain text keeps names as the engine writes them; a server that answers OpenMetrics all the same is read too."""


@dataclass(slots=True)
class Fetched:
    """Result of one scrape of one endpoint. Exactly one of `page` and `error` tells the outcome."""

    endpoint: str
    t_request_ns: int
    """UNIX time at which the scrape was asked for."""
    t_ns: int
    """UNIX time at which the answer was complete."""
    mono_ns: int
    page: Page | None = None
    """The parsed page; also there for a page without `vllm:` series, which is an error."""
    error: str | None = None
    body: bytes = b""
    status: int | None = None

    @property
    def ok(self) -> bool:
        """Whether this is an engine's page."""
        return self.error is None


async def fetch(session: aiohttp.ClientSession, endpoint: str, headers: dict[str, str], timeout_s: float) -> Fetched:
    """Scrape `endpoint`, follow redirects on the same host, undo gzip, parse."""
    asked = time.time_ns()
    status, body, content_type, error = None, b"", None, None
    try:
        async with asyncio.timeout(timeout_s):
            status, body, content_type, error = await _get(session, endpoint, headers)
    except TimeoutError:
        error = f"no complete answer within {timeout_s:g} s"
    except (aiohttp.ClientError, OSError, ValueError, zlib.error, EOFError) as exc:
        error = f"{type(exc).__name__}: {exc}"
    got = Fetched(endpoint, asked, time.time_ns(), time.monotonic_ns(), body=body, status=status, error=error)
    if error is None:
        got.page = parse_page(body, content_type)
        if not got.page.vllm_series:
            got.error = NO_VLLM_SERIES
            if got.page.broken:
                got.error += f" (the answer is no metrics page: {got.page.broken[0]})"
    return got


async def _get(
    session: aiohttp.ClientSession, endpoint: str, headers: dict[str, str]
) -> tuple[int | None, bytes, str | None, str | None]:
    """(status, body, content type, error)."""
    url = endpoint
    for _ in range(MAX_REDIRECTS + 1):
        async with session.get(url, headers={"Accept": ACCEPT, **headers}, allow_redirects=False) as answer:
            location = answer.headers.get("Location")
            if answer.status in (301, 302, 303, 307, 308) and location:
                target = urljoin(url, location)
                if urlsplit(target).hostname != urlsplit(endpoint).hostname:
                    return (
                        answer.status,
                        b"",
                        None,
                        (f"redirects to another host ({target}); set metrics_urls to it if that is the engine"),
                    )
                url = target
                continue
            body = await answer.content.read(MAX_BODY_BYTES + 1)
            while len(body) <= MAX_BODY_BYTES and (more := await answer.content.read(MAX_BODY_BYTES + 1)):
                body += more
            if answer.status != 200:
                text = " ".join(body[:200].decode("utf-8", errors="replace").split())
                return answer.status, body, None, f"HTTP {answer.status}: {text or 'empty answer'}"
            if len(body) > MAX_BODY_BYTES:
                return answer.status, b"", None, f"the page is larger than {MAX_BODY_BYTES} bytes"
            if body[:2] == b"\x1f\x8b":  # compressed, but no Content-Encoding header said so
                body = gzip.decompress(body)
            return answer.status, body, answer.headers.get("Content-Type"), None
    return None, b"", None, f"more than {MAX_REDIRECTS} redirects, the last to {url}"
