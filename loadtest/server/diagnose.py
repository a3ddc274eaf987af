"""The cause of a failed start or of a death, from the server's log.

Rules are tried in order, the specific before the general. Each pattern is the text of a real vLLM message
(0.23 to 0.32, and issues of the vLLM project); each says what it means and what to do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

TAIL_LINES = 40
"""Lines of the log that are shown beside a diagnosis: a Python traceback of vLLM has about 30."""


class Rule(NamedTuple):
    """One known cause."""

    reason: str
    pattern: re.Pattern[str]
    says: str
    todo: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why a server failed. `line` is the line of the log that shows it, "" when nothing was found."""

    reason: str
    says: str
    todo: str
    line: str

    def __str__(self) -> str:
        seen = f' The log says: "{self.line}".' if self.line else ""
        return f"{self.says}.{seen} {self.todo}"


def _rule(reason: str, pattern: str, says: str, todo: str) -> Rule:
    return Rule(reason, re.compile(pattern, re.IGNORECASE), says, todo)


RULES: tuple[Rule, ...] = (
    _rule(
        "command_not_found",
        r"loadtest: cannot run|No module named '?vllm'?\b|vllm: (command )?not found",
        "the command that should start the server cannot be run",
        "Install vLLM in the environment that runs this tool, or give its path in launch.command",
    ),
    _rule(
        "port_in_use",
        r"address already in use|Errno 98\]|EADDRINUSE",
        "the port is taken by another process",
        "Stop that process or give another launch.port",
    ),
    _rule(
        "per_request_metrics_refused",
        r"--per-request-spec-decode-metrics\s*requires speculative decoding",
        "per-request speculation metrics are refused by a server without a speculative config",
        'Set launch.per_request_spec_metrics = "none" for the baseline',
    ),
    _rule(
        "unknown_argument",
        r"error: unrecognized arguments?:|error: argument [^:]+: (invalid|expected|ignored)|ambiguous option:",
        "this vLLM does not know an argument of the command line",
        "Check `vllm --version` against the flags, and switch off in launch those that it lacks "
        "(fingerprint, per_request_spec_metrics, per_request_metrics, prompt_tokens_details)",
    ),
    _rule(
        "out_of_memory",
        r"OutOfMemoryError|CUDA out of memory|HIP out of memory|No available memory for the cache blocks"
        r"|is less than desired GPU memory utilization|larger than the available KV cache memory"
        r"|larger than the maximum number of tokens that can be stored in KV cache|MemoryError\b"
        r"|Cannot allocate memory|DefaultCPUAllocator: can't allocate",
        "the server ran out of memory",
        "Free the memory (does another server still run?), lower target.max_model_len, give the engine its share with "
        "--gpu-memory-utilization, or use a smaller draft model",
    ),
    _rule(
        "bad_draft",
        r"All drafting layers should belong to the same kv cache group",
        "the draft model's layers do not fit the target's hybrid KV cache",
        "Add --disable-hybrid-kv-cache-manager to launch.args",
    ),
    _rule(
        "unsupported_method",
        r"does not support EAGLE3 interface|Synthetic acceptance not supported"
        r"|(speculative|spec[ _]decod\w*|draft|eagle3?|medusa|ngram|suffix|mtp)[^\n]{0,80} (is )?not (yet )?supported"
        r"|Unsupported speculative method|Unknown speculative (decoding )?method"
        r"|arctic[-_ ]inference[^\n]{0,60}(required|not installed|install)",
        "this speculative method does not work with this model, device or installation",
        "Use another method for this target, or install what the message names",
    ),
    _rule(
        "bad_draft",
        r"There is no module or parameter named|size mismatch for"
        r"|draft[^\n]{0,60}vocab[^\n]{0,60}(mismatch|differ|same)"
        r"|vocab[^\n]{0,40}(mismatch|must match|should be the same)[^\n]{0,60}"
        r"|The checkpoint you are trying to load has model type `?\w*(eagle|draft|medusa)",
        "the draft checkpoint does not fit the target",
        "Check that draft and target are of one family with one vocabulary, and that the draft is of the method's kind",
    ),
    _rule(
        "missing_model",
        r"is not a local folder and is not a valid model identifier|Repo id must be in the form|RepositoryNotFoundError"
        r"|Can't load the configuration of|Invalid repository ID or local directory|couldn't connect to .*huggingface"
        r"|No such file or directory: '[^']*(config\.json|safetensors|tokenizer)|gated repo|GatedRepoError",
        "a model cannot be found",
        "Check the path or name of target.model and of the draft in speculative.model",
    ),
    _rule(
        "no_device",
        r"Failed to infer device type|No CUDA GPUs are available|CUDA driver version is insufficient"
        r"|libcuda\.so[^\n]*cannot open",
        "vLLM finds no usable device",
        "Check nvidia-smi, the driver and CUDA_VISIBLE_DEVICES, or install the CPU build",
    ),
    _rule(
        "engine_dead",
        r"EngineDeadError|EngineCore encountered an issue|EngineCore hit an exception|Engine core proc\w* .* died",
        "the engine died while it served",
        "The error above it in server.log is the cause; the cells measured before it stay",
    ),
    _rule(
        "engine_start_failed",
        r"Engine core initialization failed|EngineCore failed to start",
        "the engine did not start",
        "The first error in server.log is the cause",
    ),
)

_EXCEPTION = re.compile(r"\b([A-Za-z_][\w.]*(?:Error|Exception|Interrupt))\b: (?P<text>.+)")
_GENERIC = re.compile(r"Engine core initialization failed|EngineCore encountered an issue")
_HARMLESS = re.compile(r"^(\([^)]*pid=\d+\)\s*)?(INFO|WARNING|DEBUG)[ :]")
_PREFIX = re.compile(
    r"^(\([^)]*pid=\d+\)\s*)?((ERROR|WARNING|INFO|CRITICAL)\s+)?(\d\d-\d\d \d\d:\d\d:\d\d\s+)?(\[[\w./-]+:\d+\]\s*)?"
)


def diagnose(log: str, exit_code: int | None = None, timed_out_s: float | None = None) -> Diagnosis:
    """The most specific cause in `log`; without one the first exception, else how the process ended.

    `exit_code` is that of the server (negative or over 128: a signal), None while it runs.
    """
    # what vLLM itself calls INFO or WARNING is no cause, though it may speak of unsupported things
    lines = [line for line in log.splitlines() if not _HARMLESS.match(line)]
    for rule in RULES:
        for line in lines:
            if rule.pattern.search(line):
                todo = rule.todo
                line = _root_cause(lines) if rule.reason in ("engine_start_failed", "engine_dead") else line
                return Diagnosis(rule.reason, rule.says, todo, _bare(line))
    if cause := _root_cause(lines):
        return Diagnosis("exception", "the server stopped with an error", "See server.log", _bare(cause))
    last = _bare(next((line for line in reversed(lines) if line.strip()), ""))
    if timed_out_s is not None:
        todo = "Raise launch.ready_timeout if it was still loading; else see server.log for where it hangs"
        return Diagnosis("hang", f"the server was not ready after {timed_out_s:.0f} s", todo, last)
    if exit_code is not None and (exit_code < 0 or exit_code > 128):
        number = -exit_code if exit_code < 0 else exit_code - 128
        hint = " (the kernel's out-of-memory killer?)" if number == 9 else ""
        return Diagnosis("killed", f"the server was ended by signal {number}{hint}", "See server.log and dmesg", last)
    if exit_code is not None:
        return Diagnosis("exit", f"the server ended with exit code {exit_code}", "See server.log", last)
    return Diagnosis("unknown", "the log shows no cause", "See server.log", last)


def tail(log: str, lines: int = TAIL_LINES) -> str:
    """The last lines of a log."""
    return "\n".join(log.splitlines()[-lines:])


def _root_cause(lines: list[str]) -> str:
    """The first exception that is not the API server's "see above"; else the first of those; else ""."""
    found = [line for line in lines if _EXCEPTION.search(line)]
    return next((line for line in found if not _GENERIC.search(line)), found[0] if found else "")


def _bare(line: str) -> str:
    """Without vLLM's process, level, time and source prefix; shortened."""
    bare = _PREFIX.sub("", line.strip())
    return bare if len(bare) <= 300 else bare[:297] + "…"
