"""Emptying a server's prefix cache between cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loadtest.errors import EndpointError
from loadtest.server.probe import ask

RESET_PATH = "/reset_prefix_cache"


def reset_urls(base_urls: Sequence[str]) -> tuple[str, ...]:
    """Where the cache of each replica is emptied."""
    return tuple(base + RESET_PATH for base in base_urls)


def require_reset(base_urls: Sequence[str], headers: Mapping[str, str] | None = None) -> None:
    """Empty the cache of every replica once, so that a server that cannot is found before anything is measured.

    Raises EndpointError. vLLM has the endpoint only in its development mode.
    """
    for url in reset_urls(base_urls):
        answer = ask(url, headers, body={})
        if answer.status != 200:
            raise EndpointError(
                f'cache.prefix = "reset", but {url} answers {answer.seen()}. vLLM has it only with '
                'VLLM_SERVER_DEV_MODE=1; set that, or use cache.prefix = "restart" or "salt"'
            )
