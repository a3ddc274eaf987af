"""Plain blocking HTTP for the few questions that are asked before and after a measurement, never during one."""

from __future__ import annotations

import gzip
import json
import os
import urllib.error
import urllib.request
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any

# Requests go to servers under test, never through the proxy of the environment.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
MAX_ANSWER_BYTES = 16 * 2**20
TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered. `status` is None and `error` set when there was no HTTP answer."""

    url: str
    status: int | None
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case."""
    error: str | None = None

    def json(self) -> Any:
        """The JSON value of an answer of 200; None for anything else, also for a body that is no JSON."""
        if self.status != 200:
            return None
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    def seen(self) -> str:
        """The answer in a few words, for an error message."""
        if self.status is None:
            return self.error or "no answer"
        return f"HTTP {self.status}: {' '.join(self.body[:200].decode('utf-8', errors='replace').split()) or 'no body'}"


def ask(url: str, headers: Mapping[str, str] | None = None, body: Any = None, timeout_s: float = TIMEOUT_S) -> Answer:
    """GET `url`, or POST `body` as JSON. Errors become an Answer, never an exception."""
    data = None if body is None else json.dumps(body).encode()
    sent = {"Accept": "*/*", **({"Content-Type": "application/json"} if data else {}), **(headers or {})}
    try:
        request = urllib.request.Request(url, data=data, headers=sent)  # noqa: S310 - the plan allows http(s) only
        with _OPENER.open(request, timeout=timeout_s) as reply:
            content = reply.read(MAX_ANSWER_BYTES)
            if content[:2] == b"\x1f\x8b":  # some servers compress without being asked
                content = gzip.decompress(content)
            return Answer(url, reply.status, content, _lower(reply.headers))
    except urllib.error.HTTPError as error:
        with error:
            return Answer(url, error.code, error.read(MAX_ANSWER_BYTES), _lower(error.headers))
    except (urllib.error.URLError, OSError, HTTPException, ValueError, EOFError, zlib.error) as error:
        reason = getattr(error, "reason", None) or error
        return Answer(url, None, error=f"{type(error).__name__}: {reason}")


def auth_headers(*variables: str) -> dict[str, str]:
    """The Authorization header from the first of the environment variables that is set; empty without one."""
    key = next((os.environ[v] for v in variables if os.environ.get(v)), None)
    return {"Authorization": f"Bearer {key}"} if key else {}


def _lower(headers: Any) -> dict[str, str]:
    return {k.lower(): v for k, v in headers.items()}
