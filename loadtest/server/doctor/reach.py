"""Ports to take, servers to attach to, commands to run, variables to have."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

from loadtest.errors import EndpointError
from loadtest.model import ClientSpec, ConfigSpec, TargetSpec
from loadtest.plan.commandline import LAUNCH_DEFAULTS
from loadtest.server import ports
from loadtest.server.attach import attach
from loadtest.server.doctor.findings import Finding
from loadtest.server.metrics import VLLM_PREFIX, parse_page
from loadtest.server.probe import ask


def check_ports(configs: list[ConfigSpec]) -> list[Finding]:
    """Each port that a config will listen on, once."""
    wanted: dict[tuple[str, int], str] = {}
    for config in configs:
        options = LAUNCH_DEFAULTS | config.launch if config.launch is not None else config.sim or {}
        port = int(options.get("port", 0))
        if port:
            wanted.setdefault((str(options.get("host", "127.0.0.1")), port), config.name)
    return [_port(host, port, name) for (host, port), name in wanted.items()]


def _port(host: str, port: int, config: str) -> Finding:
    if not ports.is_free(host, port):
        todo = "Stop it or give another launch.port"
        return Finding("stop", "port", f"{port} on {host} is taken by {ports.owner(port)}", todo, config)
    lock = ports.lock(port)
    if lock is None:
        todo = "Wait for it or give another launch.port"
        return Finding("stop", "port", f"{port} on {host} is held by another run of loadtest", todo, config)
    os.close(lock)
    return Finding("ok", "port", f"{port} on {host} is free", "", config)


def check_variables(client: ClientSpec) -> list[Finding]:
    """Headers and keys come from the environment; a header without its variable stops the run."""
    findings = []
    for header, variable in client.headers_env.items():
        if variable in os.environ:
            findings.append(Finding("ok", "environment", f"{variable} for the header {header} is set"))
        else:
            seen = f"{variable} for the header {header} is not set"
            findings.append(Finding("stop", "environment", seen, f"Export {variable}"))
    return findings


def check_commands(configs: list[ConfigSpec]) -> list[Finding]:
    """Whether the programs of `before` and `after` exist."""
    findings = []
    for config in configs:
        for argv in (*config.before, *config.after):
            if shutil.which(argv[0]) is None:
                seen, todo = f"{argv[0]!r} is no program on PATH", "Install it or give its path"
                findings.append(Finding("stop", "commands", seen, todo, config.name))
    return findings


def check_attached(config: ConfigSpec, target: TargetSpec, client: ClientSpec) -> list[Finding]:
    """Whether a server that someone else runs answers now; with `before` commands it need not yet."""
    headers = {name: os.environ[var] for name, var in client.headers_env.items() if var in os.environ}
    try:
        server = attach(config, target, headers, (client.api_key_env,))
    except EndpointError as error:
        if config.before:
            seen = f"{error}. Its `before` commands may still start it"
            return [Finding("note", "server", seen, "", config.name)]
        return [Finding("stop", "server", str(error), "Start it, or correct the URL", config.name)]
    findings = [Finding("ok", "server", f"{', '.join(server.base_urls)} serve {server.model_name!r}", "", config.name)]
    findings += [f for url in server.metrics_urls if (f := _metrics(url, server.headers, config.name))]
    if not any(ask(f"{base}/server_info?config_format=json", server.headers).json() for base in server.base_urls):
        seen = "no /server_info: the speculative config is only partly proven, by the series on /metrics"
        todo = "Start it with VLLM_SERVER_DEV_MODE=1 where nobody else can reach it"
        findings.append(Finding("lost", "proof", seen, todo, config.name))
    return findings


def _metrics(url: str, headers: Mapping[str, str], config: str) -> Finding | None:
    answer = ask(url, headers)
    if answer.status == 200:
        page = parse_page(answer.body, answer.headers.get("content-type"))
        if page.vllm_series:
            return Finding("ok", "metrics", f"{url}: {page.vllm_series} series", "", config)
        seen = f"{url} has no {VLLM_PREFIX} series: a gateway's or router's page?"
    else:
        seen = f"{url}: {answer.seen()}"
    todo = "Name each replica's own /metrics in metrics_urls: without them there are no acceptance counters"
    return Finding("lost", "metrics", seen, todo, config)
