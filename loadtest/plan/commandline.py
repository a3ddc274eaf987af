"""The exact `vllm serve` command line of a config, as a list for exec and as a line for the shell."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from loadtest.model import ConfigSpec, TargetSpec

LAUNCH_DEFAULTS: dict[str, Any] = {
    "host": "127.0.0.1",
    "port": 8000,
    "command": ["vllm", "serve"],
    "args": [],
    "env": {},
    "ready_timeout_s": 600.0,
    "stop_timeout_s": 60.0,
    "per_request_spec_metrics": "detailed",
    "per_request_metrics": True,
    "prompt_tokens_details": True,
    "fingerprint": True,
}
"""What `ConfigSpec.launch` means where it leaves a key out; the flags are named in docs/plan-file.md."""


def served_name(target: TargetSpec) -> str:
    """The `model` field of requests."""
    return target.served_name or target.model


def serve_argv(config: ConfigSpec, target: TargetSpec) -> list[str]:
    """`vllm serve …` of a config that is launched. Raises ValueError for one that is attached or simulated.

    The baseline never gets `--per-request-spec-decode-metrics`: vLLM refuses to start with it where nothing is
    speculative.
    """
    if config.launch is None:
        raise ValueError(f'config "{config.name}" is not launched, so it has no command line')
    launch = LAUNCH_DEFAULTS | config.launch
    argv = [target.model]
    if target.served_name is not None:
        argv += ["--served-model-name", target.served_name]
    argv += ["--host", str(launch["host"]), "--port", str(launch["port"])]
    if target.max_model_len is not None:
        argv += ["--max-model-len", str(target.max_model_len)]
    if target.dtype is not None:
        argv += ["--dtype", target.dtype]
    if config.speculative is not None:
        argv += ["--speculative-config", json.dumps(config.speculative, ensure_ascii=False)]
        if launch["per_request_spec_metrics"] != "none":
            argv += ["--per-request-spec-decode-metrics", str(launch["per_request_spec_metrics"])]
    if launch["per_request_metrics"]:
        argv.append("--enable-per-request-metrics")
    if launch["prompt_tokens_details"]:
        argv.append("--enable-prompt-tokens-details")
    if launch["fingerprint"]:
        argv += ["--fingerprint-mode", "custom", "--fingerprint-value", config.name]
    return [*launch["command"], *remote_words(launch["command"], [*argv, *target.args, *launch["args"]])]


def remote_words(command: Sequence[str], words: Sequence[str]) -> list[str]:
    """Arguments as `command` has to get them: ssh joins its words with blanks for the shell of the other side."""
    return [shlex.quote(word) for word in words] if PurePath(command[0]).name == "ssh" else list(words)


def serve_env(config: ConfigSpec, target: TargetSpec) -> dict[str, str]:
    """Environment variables on top of the inherited ones: the target's, then the config's own."""
    return {**target.env, **dict((config.launch or {}).get("env", {}))}


def shell_line(config: ConfigSpec, target: TargetSpec) -> str:
    """The command line with its environment, quoted so that a POSIX shell takes it as it stands."""
    env = [f"{name}={shlex.quote(value)}" for name, value in serve_env(config, target).items()]
    return " ".join([*env, shlex.join(serve_argv(config, target))])
