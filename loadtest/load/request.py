"""HTTP/1.1 request bytes for the OpenAI completion routes of vLLM. Pure: reads no clock, opens nothing.

A body depends on prompt and sampling only and may be cached; `RequestBuilder.frame` puts a head with the request id
in front of it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

import orjson

import loadtest
from loadtest.errors import PlanError
from loadtest.model import ClientSpec, Message, SamplingSpec

RESERVED = frozenset(
    {
        "model",
        "messages",
        "prompt",
        "stream",
        "stream_options",
        "max_tokens",
        "temperature",
        "top_p",
        "seed",
        "ignore_eos",
    }
)
"""Fields that `extra_body` may not set: the plan has its own keys for them, and two values would hide one."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A base URL taken apart."""

    scheme: Literal["http", "https"]
    host: str
    port: int
    prefix: str
    """Path in front of the route, with its /v1, without a slash at the end."""

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        """Accepts `http://host:8000`, with or without `/v1` and a path prefix. Raises PlanError."""
        try:
            parts = urlsplit(url.strip())
            port = parts.port
        except ValueError as error:
            raise PlanError(f"url {url!r}: {error}; write it as http://host:port") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise PlanError(f"url {url!r} has no http:// or https:// and host; write it as http://host:port")
        if parts.username is not None or parts.query or parts.fragment:
            raise PlanError(
                f"url of host {parts.hostname!r} carries credentials, a query or a fragment; "
                "keys belong into the environment variable named by api_key_env or headers_env"
            )
        path = parts.path.rstrip("/")
        if not path.isascii() or any(c <= " " for c in path):
            raise PlanError(f"url {url!r}: the path must be percent-encoded ASCII")
        if not path.endswith("/v1"):
            path += "/v1"
        scheme: Literal["http", "https"] = "https" if parts.scheme == "https" else "http"
        return cls(scheme, parts.hostname, port or (443 if scheme == "https" else 80), path)

    @property
    def host_header(self) -> str:
        """Value of the Host header: IPv6 in brackets, the scheme's own port left out."""
        host = f"[{self.host}]" if ":" in self.host else self.host.encode("idna").decode("ascii")
        default = 443 if self.scheme == "https" else 80
        return host if self.port == default else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Body:
    """An encoded request body and what its prompt hashes to."""

    data: bytes
    prompt_sha256: str
    """SHA-256 of the prompt as it is sent: role and content of every message, each followed by a NUL."""


def clean(text: str) -> str:
    """`text` with every half of a surrogate pair joined or replaced by U+FFFD, so that it can be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _clean_deep(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {clean(str(k)): _clean_deep(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_clean_deep(v) for v in value]
    return value


class RequestBuilder:
    """Builds the requests of one base URL. The API key and the headers are read from the environment once, here."""

    def __init__(
        self,
        url: str,
        *,
        api: Literal["chat", "completions"],
        model: str,
        client: ClientSpec,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """Raises PlanError for a URL or header that cannot be sent."""
        env = os.environ if environ is None else environ
        self.endpoint = Endpoint.parse(url)
        self.api, self.model, self.client = api, clean(model), client
        route = "/chat/completions" if api == "chat" else "/completions"
        lines = [
            f"POST {self.endpoint.prefix}{route} HTTP/1.1",
            f"Host: {self.endpoint.host_header}",
            f"User-Agent: loadtest/{loadtest.__version__}",
            "Accept: text/event-stream" if client.stream else "Accept: application/json",
            "Accept-Encoding: identity",  # a compressed stream arrives in blocks, not in tokens
            "Content-Type: application/json",
        ]
        key = env.get(client.api_key_env, "").strip() if client.api_key_env else ""
        if key:
            lines.append(f"Authorization: Bearer {_header_value(client.api_key_env, key)}")
        for name, variable in client.headers_env.items():
            if not _is_token(name):
                raise PlanError(f"headers_env: {name!r} is no header name")
            if variable not in env:
                raise PlanError(f"headers_env: environment variable {variable!r} for header {name!r} is not set")
            lines.append(f"{name}: {_header_value(variable, env[variable])}")
        self._head = ("\r\n".join(lines) + "\r\nX-Request-Id: ").encode("latin-1")

    def body(
        self,
        messages: Sequence[Message],
        sampling: SamplingSpec,
        *,
        max_tokens: int | None = None,
        seed: int | None = None,
    ) -> Body:
        """The JSON body. `max_tokens` and `seed` override the sampling's. Raises PlanError for a bad `extra_body`."""
        clash = RESERVED & sampling.extra_body.keys()
        if clash:
            raise PlanError(
                f"sampling {sampling.name!r}: extra_body sets {sorted(clash)}; these have keys of their own in the plan"
            )
        texts = [(clean(m.role), clean(m.content)) for m in messages]
        fields: dict[str, Any] = {"model": self.model}
        if self.api == "chat":
            fields["messages"] = [{"role": role, "content": content} for role, content in texts]
        else:
            fields["prompt"] = "\n\n".join(content for _, content in texts)
        fields["max_tokens"] = sampling.max_tokens if max_tokens is None else max_tokens
        fields["temperature"] = sampling.temperature
        fields["top_p"] = sampling.top_p
        seed = sampling.seed if seed is None else seed
        if seed is not None:
            fields["seed"] = seed
        if sampling.ignore_eos:
            fields["ignore_eos"] = True
        fields["stream"] = self.client.stream
        if self.client.stream:
            fields["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
        fields.update(_clean_deep(sampling.extra_body))
        digest = hashlib.sha256()
        for role, content in texts:
            digest.update(role.encode() + b"\0" + content.encode() + b"\0")
        return Body(orjson.dumps(fields), digest.hexdigest())

    def frame(self, body: Body, request_id: str) -> bytes:
        """Head and body as they go over the wire. `request_id` is printable ASCII without blanks."""
        return b"%b%b\r\nContent-Length: %d\r\n\r\n%b" % (
            self._head,
            request_id.encode("ascii"),
            len(body.data),
            body.data,
        )


def _is_token(name: str) -> bool:
    return bool(name) and name.isascii() and all(c.isalnum() or c in "!#$%&'*+-.^_`|~" for c in name)


def _header_value(variable: str, value: str) -> str:
    """Checks a header value without ever showing it."""
    if any(ord(c) < 32 or ord(c) == 127 or ord(c) > 255 for c in value):
        raise PlanError(f"environment variable {variable!r} holds a line break or a character that no header can carry")
    return value
