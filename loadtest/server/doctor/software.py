"""The installed vLLM against the command lines of the plan: flags, methods, parameters."""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.model import ConfigSpec, TargetSpec
from loadtest.plan.commandline import LAUNCH_DEFAULTS, serve_argv
from loadtest.plan.methods import KEYS_FROM, unknown_parameters
from loadtest.server.doctor.findings import Finding
from loadtest.server.doctor.installed import Installed

SPEC_METRICS = "--per-request-spec-decode-metrics"
OPTIONAL: dict[str, tuple[str, str, str]] = {
    SPEC_METRICS: (
        "per_request_spec_metrics",
        '"none"',
        (
            "drafted, proposed and accepted tokens of each request (S, D, A): acceptance comes from the server's "
            "counters over the window instead, without histograms per request, per kind of task or per prompt"
        ),
    ),
    "--enable-per-request-metrics": (
        "per_request_metrics",
        "false",
        "the server's own time to first token, queue and generation time of each request",
    ),
    "--enable-prompt-tokens-details": (
        "prompt_tokens_details",
        "false",
        "cached prompt tokens of each request: a warm prefix cache shows only in the counters",
    ),
    "--fingerprint-mode": (
        "fingerprint",
        "false",
        (
            "the config's name on every response: a swapped or shared server can go unseen, because vLLM's own "
            "fingerprint is equal for different speculative configs"
        ),
    ),
}
"""Flag -> launch key, value that leaves it out, what is lost without it. From 0.26 (`--enable-per-request-metrics`)
and later versions; 0.32 has them all."""


def check_vllm(found: Installed, configs: Sequence[ConfigSpec], target: TargetSpec) -> list[Finding]:
    """What one launch command answers about all configs that use it."""
    name = " ".join(found.command)
    if found.problem is not None:
        return [
            Finding(
                "stop",
                "vllm",
                f"`{name}` is no usable vLLM: {found.problem}",
                "Install vLLM where the command runs, give its path in launch.command, attach to a server with url, or "
                "try the process without one: `loadtest demo`",
            )
        ]
    version = found.version or "of unknown version"
    findings = [Finding("ok", "vllm", f"{version} by `{name}`, {len(found.flags)} flags")]
    for config in configs:
        findings += _flags(found, version, config, target) + _method(found, version, config)
    findings += _left_out(found, version, configs)
    findings += [_baseline(config, target) for config in configs if config.speculative is None]
    return findings


def _baseline(config: ConfigSpec, target: TargetSpec) -> Finding:
    if SPEC_METRICS in serve_argv(config, target):
        seen = f"{SPEC_METRICS} is given to a baseline; vLLM refuses it without speculation"
        return Finding("stop", "flags", seen, "Take it out of the arguments", config.name)
    seen = f"a baseline does not get {SPEC_METRICS}, which vLLM refuses without speculation"
    return Finding("ok", "flags", seen, "", config.name)


def _flags(found: Installed, version: str, config: ConfigSpec, target: TargetSpec) -> list[Finding]:
    findings = []
    argv = serve_argv(config, target)[len((LAUNCH_DEFAULTS | (config.launch or {}))["command"]) :]
    for flag in dict.fromkeys(word.partition("=")[0] for word in argv if word.startswith("--")):
        if found.knows(flag) or flag == "--fingerprint-value":
            continue
        seen = f"vLLM {version} has no {flag}; it refuses to start with it"
        if flag in OPTIONAL:
            key, off, lost = OPTIONAL[flag]
            todo = f"Set launch.{key} = {off} or install a newer vLLM. Without the flag you lose {lost}"
        else:
            todo = "Take it out of target.args, launch.args or the plan"
        findings.append(Finding("stop", "flags", seen, todo, config.name))
    return findings


def _method(found: Installed, version: str, config: ConfigSpec) -> list[Finding]:
    if config.speculative is None:
        return []
    findings = []
    if not found.knows("--speculative-config"):
        todo = "Install a vLLM with --speculative-config (0.8 or newer)"
        findings.append(Finding("stop", "method", f"vLLM {version} has no --speculative-config", todo, config.name))
    elif not found.methods:
        seen = f"vLLM {version} does not list its speculative methods; {config.method!r} is tried as it stands"
        findings.append(Finding("note", "method", seen, "", config.name))
    elif config.method not in found.methods:
        todo = f"Use one of {', '.join(found.methods)}"
        findings.append(Finding("stop", "method", f"vLLM {version} has no method {config.method!r}", todo, config.name))
    else:
        gamma = "its own number of" if config.gamma is None else f"{config.gamma}"
        findings.append(Finding("ok", "method", f"{config.method} with {gamma} draft tokens", "", config.name))
    for text in unknown_parameters(config.speculative):
        seen = f"{text} (installed: {version}; the list is that of {KEYS_FROM})"
        findings.append(Finding("note", "parameters", seen, "", config.name))
    return findings


def _left_out(found: Installed, version: str, configs: Sequence[ConfigSpec]) -> list[Finding]:
    """What the plan does without, and whether this version could."""
    findings = []
    for flag, (key, off, lost) in OPTIONAL.items():
        without = [
            c.name
            for c in configs
            if (LAUNCH_DEFAULTS | (c.launch or {}))[key] in (False, "none")
            and (flag != SPEC_METRICS or c.speculative is not None)
        ]
        if without:
            could = f"Leave launch.{key} = {off} away: this version has {flag}" if found.knows(flag) else ""
            why = "the plan leaves it out" if found.knows(flag) else f"vLLM {version} has no {flag}"
            findings.append(Finding("lost", "flags", f"{lost} ({why}: {', '.join(without)})", could))
    return findings
