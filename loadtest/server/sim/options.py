"""Options of the simulated server, checked once; the same names on the command line and in a plan's `sim` table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtest.errors import InputError
from loadtest.server.sim.faults import Fault, parse_fault
from loadtest.server.sim.parameters import METHODS, STRATA, Acceptance, Method, Stratum, default_gamma

PER_REQUEST_METRICS = ("none", "summary", "detailed")
MAX_GAMMA = 64
"""More is surely a mistake: vLLM configs use 2 to 16, suffix decoding up to 32."""


@dataclass(frozen=True, slots=True)
class SimOptions:
    """What one simulated server does. Build it with `sim_options`, which checks the values."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: any free port; see `port_file`."""
    port_file: Path | None = None
    """Gets the port number, in one rename, when the server listens."""
    method: Method = "none"
    gamma: int = 0
    """num_speculative_tokens; 0 for a baseline."""
    seed: int = 0
    model: str = "sim-model"
    speed: float = 1.0
    """Every modelled duration is divided by this."""
    acceptance: Mapping[Stratum, Acceptance] = field(default_factory=dict)
    max_num_seqs: int = 256
    max_model_len: int = 8192
    fingerprint: str | None = None
    per_request_metrics: str = "none"
    timing_metrics: bool = True
    """Whether the timing keys of `metrics` are filled (vLLM's --enable-per-request-metrics)."""
    faults: tuple[Fault, ...] = ()
    prompt_tokens_details: bool = True
    """Whether usage tells the cached prompt tokens (vLLM's --enable-prompt-tokens-details)."""
    version: str = "0.32.0"

    @property
    def speculative(self) -> bool:
        """Whether there is a method at all."""
        return self.method != "none"


def sim_options(
    *,
    method: str = "none",
    gamma: int | None = None,
    acceptance: str | Mapping[str, Any] | None = None,
    per_request_metrics: str | None = None,
    fail: tuple[str, ...] | list[str] | str = (),
    port_file: str | Path | None = None,
    speed: float = 1.0,
    **rest: Any,
) -> SimOptions:
    """Checked options. InputError names the option, the value seen and what is allowed.

    `acceptance` is a JSON text, a path of a JSON file or a mapping (see `parse_acceptance`); `fail` is one or more
    `MODE:VALUE`. `gamma` None takes the method's usual value; `per_request_metrics` None means detailed if speculative.
    """
    if method not in METHODS:
        raise InputError(f"sim: method {method!r} is unknown; allowed: {', '.join(METHODS)}")
    chosen: Method = next(m for m in METHODS if m == method)
    if method == "none":
        if gamma:
            raise InputError(f"sim: gamma {gamma} needs a method; method is 'none'")
        if per_request_metrics not in (None, "none"):
            # vLLM refuses to start in the same way.
            raise InputError(
                f"sim: per-request-metrics {per_request_metrics!r} requires speculation; give a method or leave it out"
            )
    gamma = default_gamma(chosen) if gamma is None else gamma
    if method != "none" and not 1 <= gamma <= MAX_GAMMA:
        raise InputError(f"sim: gamma {gamma} is out of range; allowed: 1 to {MAX_GAMMA}")
    level = per_request_metrics or ("none" if method == "none" else "detailed")
    if level not in PER_REQUEST_METRICS:
        raise InputError(f"sim: per-request-metrics {level!r} is unknown; allowed: {', '.join(PER_REQUEST_METRICS)}")
    if not 0 < speed < float("inf"):
        raise InputError(f"sim: speed {speed} must be a positive number")
    known = set(SimOptions.__dataclass_fields__)
    unknown = sorted(set(rest) - known)
    if unknown:
        raise InputError(f"sim: unknown option {unknown}; known: {', '.join(sorted(known))}")
    for name in ("max_num_seqs", "max_model_len"):
        if name in rest and rest[name] < 1:
            raise InputError(f"sim: {name.replace('_', '-')} {rest[name]} must be at least 1")
    return SimOptions(
        method=chosen,
        gamma=gamma,
        acceptance=parse_acceptance(acceptance),
        per_request_metrics=level,
        faults=tuple(parse_fault(f) for f in ([fail] if isinstance(fail, str) else fail)),
        port_file=Path(port_file) if port_file else None,
        speed=speed,
        **rest,
    )


def parse_acceptance(source: str | Mapping[str, Any] | None) -> dict[Stratum, Acceptance]:
    """Overrides per stratum, `{"code": {"coverage": 0.5, "conditional": [0.8, 0.7]}, "*": {...}}`.

    `coverage` is the share of steps with a candidate, `conditional` the chance that position i is accepted given that
    i-1 was (the last value holds for all further positions). "*" stands for every stratum. Raises InputError.
    """
    if not source:
        return {}
    if isinstance(source, str):
        try:
            text = source if source.lstrip().startswith("{") else Path(source).read_text("utf-8")
            data = json.loads(text)
        except (OSError, ValueError) as error:
            raise InputError(
                f"sim: acceptance {source!r} is neither a JSON object nor a readable JSON file: {error}"
            ) from error
    else:
        data = source
    if not isinstance(data, Mapping):
        raise InputError(f"sim: acceptance must be a JSON object by stratum, got {type(data).__name__}")
    result: dict[Stratum, Acceptance] = {}
    for key in sorted(data):  # "*" sorts first, so that a named stratum wins
        if key != "*" and key not in STRATA:
            raise InputError(f"sim: acceptance has unknown stratum {key!r}; allowed: {', '.join(STRATA)}, *")
        value = _acceptance(key, data[key])
        result.update({s: value for s in STRATA if key in ("*", s)})
    return result


def _acceptance(key: str, entry: Any) -> Acceptance:
    if not isinstance(entry, Mapping) or set(entry) - {"coverage", "conditional"} or "conditional" not in entry:
        raise InputError(
            f'sim: acceptance of {key!r} is {entry!r}; give {{"coverage": 0..1, "conditional": [0..1, ...]}}'
        )
    numbers = [entry.get("coverage", 1.0), *entry["conditional"]]
    if len(numbers) < 2 or not all(isinstance(n, int | float) and 0 <= n <= 1 for n in numbers):
        raise InputError(f"sim: acceptance of {key!r} is {entry!r}; every number must be between 0 and 1")
    return Acceptance(float(numbers[0]), tuple(float(n) for n in numbers[1:]))


def sim_argv(options: Mapping[str, Any]) -> list[str]:
    """Command-line arguments of `loadtest sim` for an option table such as `ConfigSpec.sim`; values become text.

    Lists repeat the option, mappings become JSON, booleans a flag, None leaves the option out.
    """
    argv: list[str] = []
    for key, value in options.items():
        flag = "--" + key.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            argv.append(flag if value else "--no-" + flag[2:])
        elif isinstance(value, list | tuple):
            argv += [part for item in value for part in (flag, str(item))]
        else:
            argv += [flag, json.dumps(value) if isinstance(value, Mapping) else str(value)]
    return argv
