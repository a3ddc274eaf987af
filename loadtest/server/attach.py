"""Servers that someone else runs: several replicas behind one or more URLs, with their own metrics addresses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from loadtest.errors import EndpointError
from loadtest.model import ConfigSpec, TargetSpec
from loadtest.server.probe import ask, auth_headers
from loadtest.server.ready import models_of

KEY_VARIABLES = ("OPENAI_API_KEY", "VLLM_API_KEY")


class AttachedServer:
    """The surface of `ServerProcess` for servers that we neither start nor stop."""

    started_by_us = False
    simulated = False
    log_file = None
    fingerprint: str | None = None
    """Not ours to give; a server's own fingerprint is in the provenance."""

    def __init__(
        self, base_urls: tuple[str, ...], metrics_urls: tuple[str, ...], model_name: str, headers: Mapping[str, str]
    ) -> None:
        self.base_urls = base_urls
        self.metrics_urls = metrics_urls
        self.model_name = model_name
        self.headers = dict(headers)

    def exit_code(self) -> int | None:
        """None: we do not see the process."""
        return None

    def check_alive(self, phase: Literal["proof", "measure"] = "measure") -> None:
        """Nothing to check: the requests themselves show it."""

    def stop(self) -> None:
        """Leave the servers alone."""


def attach(
    config: ConfigSpec,
    target: TargetSpec,
    headers: Mapping[str, str] | None = None,
    key_variables: tuple[str, ...] = KEY_VARIABLES,
) -> AttachedServer:
    """Check that every URL of the config serves the target's model.

    `headers` are sent with every question, besides the API key from the environment. Raises EndpointError that says
    which URL, what was seen there and what to do.
    """
    sent = {**auth_headers(*key_variables), **(headers or {})}
    model = target.served_name or target.model
    bases = tuple(url.rstrip("/").removesuffix("/v1") for url in config.urls)
    if not bases:
        raise EndpointError(f"{config.name}: no URL to attach to")
    for base in bases:
        answer = ask(f"{base}/v1/models", sent)
        served = models_of(answer)
        if not served:
            raise EndpointError(
                f"{config.name}: {answer.url} is no OpenAI-compatible server. {_advice(answer.status)}"
                f" Seen: {answer.seen()}"
            )
        if model not in served:
            raise EndpointError(
                f"{config.name}: {base} serves {', '.join(map(repr, served))}, not {model!r}; "
                "set target.served_model_name to the name that requests should use"
            )
    return AttachedServer(bases, config.metrics_urls or tuple(f"{b}/metrics" for b in bases), model, sent)


def _advice(status: int | None) -> str:
    if status is None:
        return "Check the address and that the server runs."
    if status in (401, 403):
        return f"It wants a key: export {KEY_VARIABLES[0]}."
    if status == 404:
        return "Give the URL without a path, or with /v1."
    return "It should answer 200 with a list of models."
