"""Data that crosses the seams between rooms, as frozen dataclasses. Imports nothing of ours.

Names carry units: `_ns` are UNIX nanoseconds, `_us` and `_s` are durations. None means "not measured", never 0.
`to_json` and `from_json` turn any of these into plain JSON values and back; unknown keys are refused.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

SCHEMA_VERSION = 1
"""Version of every file in a run folder. History: 1 = first."""

NOT_MEASURED = "not measured (待测)"

LoadKind = Literal["closed", "poisson", "constant", "trace", "ramp", "sequential"]
Phase = Literal["warmup", "measure", "drain"]
Outcome = Literal[
    "ok",
    "http_error",
    "stream_error",
    "truncated",
    "empty",
    "connect_timeout",
    "read_timeout",
    "total_timeout",
    "connection_error",
    "bad_payload",
    "censored",
]

JsonDict = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a mix. `part` is the index of the mix part it came from; `stratum` names its kind of task."""

    prompt_id: str
    stratum: str
    messages: tuple[Message, ...]
    part: int = 0
    max_tokens: int | None = None
    """Overrides the sampling's max_tokens where the data set says so."""
    later_turns: tuple[str, ...] = ()
    """Further user turns of a conversation, replayed in order by the same user."""
    unit_tests: str | None = None
    """Python source whose assertions check the answer (code prompts)."""


@dataclass(frozen=True, slots=True)
class SamplingSpec:
    """One sampling setting, equal for all configs."""

    name: str
    temperature: float
    max_tokens: int
    top_p: float = 1.0
    seed: int | None = None
    ignore_eos: bool = False
    extra_body: JsonDict = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConfigSpec:
    """One server config of the matrix, after the sweep is expanded.

    Exactly one of `launch`, `urls`, `sim` is set. `speculative` is what `vllm serve --speculative-config` gets.
    """

    name: str
    method: str
    """"none" for a baseline, else the vLLM method name."""
    gamma: int | None
    """num_speculative_tokens; None for a baseline."""
    speculative: JsonDict | None = None
    launch: JsonDict | None = None
    """{host, port, command, args, env, ready_timeout_s, stop_timeout_s}; see plan-file.md."""
    urls: tuple[str, ...] = ()
    metrics_urls: tuple[str, ...] = ()
    """Where /metrics is, one per replica; empty: `<url>/metrics` of each url."""
    sim: JsonDict | None = None
    is_baseline: bool = False
    before: tuple[tuple[str, ...], ...] = ()
    """Commands (argument lists) that the run executes before it starts or attaches to the server."""
    after: tuple[tuple[str, ...], ...] = ()
    """Commands that the run executes when the server is done with, in whatever way."""
    command_timeout_s: float = 300.0
    """For each of these commands."""
    restart_per_cell: bool = False
    """A fresh server for every cell, so that no cache carries over."""


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """What is served, equal for all configs."""

    model: str
    served_name: str | None = None
    max_model_len: int | None = None
    dtype: str | None = None
    api: Literal["chat", "completions"] = "chat"
    args: tuple[str, ...] = ()
    """Further `vllm serve` arguments for every config."""
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClientSpec:
    """How the client sends; equal for all configs."""

    stream: bool = True
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 60.0
    total_timeout_s: float = 600.0
    pace_s: float = 0.002
    """The reader looks at its sockets once per pace; kernel stamps keep the times exact."""
    workers: int = 1
    keep_text: bool = True
    keep_chunks: bool = True
    api_key_env: str = "OPENAI_API_KEY"
    """Name of the environment variable that holds the key; the key itself is never stored."""
    headers_env: dict[str, str] = field(default_factory=dict)
    """Header name -> name of the environment variable with its value."""
    max_in_flight: int = 1024
    """Open loop: requests in flight per worker; an arrival above it is dropped and counted, never delayed."""


def load_label(kind: LoadKind, value: float) -> str:
    """Label of a load as it stands in the cell id, for example `c8` or `poisson4`."""
    prefix = {"closed": "c", "sequential": "seq"}.get(kind, kind)
    return f"{prefix}{value:g}"


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement: config x mix x sampling x load x repeat."""

    index: int
    cell_id: str
    """`<nnn>-<config>-<mix>-<sampling>-<load>-r<k>`, also the folder name."""
    config: str
    method: str
    gamma: int | None
    mix: str
    sampling: SamplingSpec
    load_kind: LoadKind
    load_value: float
    """Concurrency for closed loops, requests per second for open loops (of a trace or a ramp: the mean)."""
    repeat: int
    order_seed: int
    """Seeds the prompt order; equal for all configs of the same mix x sampling x load x repeat."""
    salt: str
    """Goes in front of every prompt so that the prefix cache cannot carry over; equal for all configs; "" = none."""
    warmup_s: float
    measure_s: float | None
    """Length of the window; None when `measure_requests` decides."""
    measure_requests: int | None
    drain_s: float
    max_measure_s: float = 3600.0
    """Budget of a window that ends by number of requests."""
    auto: bool = False
    """`measure_requests` is a budget: the window ends before it once `stop.json` says that all criteria are certain."""
    think_time_s: float = 0.0
    """Mean pause of a user between the turns of a conversation."""
    ramp: tuple[tuple[float, float, float], ...] = ()
    """Of a ramp: (rate at its start, rate at its end, seconds) of each step."""
    trace_file: str | None = None
    """Of a trace: path below the run folder of its arrivals, one offset in seconds per line."""

    @property
    def load(self) -> str:
        """Label of the load as it stands in the cell id, for example `c8` or `poisson4`."""
        return load_label(self.load_kind, self.load_value)


@dataclass(frozen=True, slots=True)
class Slo:
    """One criterion of the gate. See docs/slo-file.md for the grammar.

    `stat` is a quantile ("p50", "p95", "p99", "p99.9"), "pooled" (ratio of sums), "rate" (share or rate over the
    window), "median_ratio_to_baseline", "goodput". Exactly one of `max` and `min` is set, in the unit of the metric
    (`_us` metrics in microseconds); the direction of `limit` comes from the metric's definition.
    """

    name: str
    metric: str
    stat: str
    max: float | None = None
    min: float | None = None
    confidence: float = 0.95
    where: dict[str, str] = field(default_factory=dict)
    """Selector: config, method, mix, sampling, stratum, load -> glob."""
    limits: dict[str, float] = field(default_factory=dict)
    """For goodput: per-request upper limits, metric -> limit in the metric's unit."""


@dataclass(frozen=True, slots=True)
class LoadJob:
    """What one Locust start does: all cells of one server start, in order. Stored as `jobs/<nn>-<config>.json`."""

    run_id: str
    run_dir: str
    config: ConfigSpec
    base_urls: tuple[str, ...]
    """Where requests go; several are used round-robin by user."""
    model_name: str
    """The `model` field of the requests."""
    api: Literal["chat", "completions"]
    client: ClientSpec
    cells: tuple[Cell, ...]
    prompt_files: dict[str, str]
    """mix -> path below run_dir of a JSON Lines file of Prompt, warm-up pools as `<mix>.warmup`."""
    mix_weights: dict[str, tuple[float, ...]]
    """mix -> weight of each part."""
    scraper_socket: str | None
    """Unix socket of the scraper's control channel; None: nothing is scraped."""
    provenance_file: str | None
    """Copied into each cell folder when the cell starts."""
    server_fingerprint: str | None = None
    """The fingerprint that we gave to this server, where the version can."""
    simulated: bool = False
    bind_host: str | None = None
    """Address at which the master waits for `client.workers` workers of other hosts; None: it forks its own."""
    bind_port: int = 0
    workers_timeout_s: float = 60.0
    """Longest wait for the workers: forked ones say hello within a second."""


T = TypeVar("T")


def to_json(value: Any) -> Any:
    """Plain JSON values of a dataclass (or of a list, tuple or dict of them)."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(v) for v in value]
    return value


def from_json(kind: type[T], value: Any) -> T:
    """The dataclass `kind` from what `to_json` gave. Raises TypeError on unknown or missing keys."""
    return typing.cast("T", _revive(kind, value))


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    """Evaluating them takes 0.2 ms each time, and a run has hundreds of cells."""
    return typing.get_type_hints(kind)


def _revive(kind: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = _hints(kind)
        unknown = set(value) - set(hints)
        if unknown:
            raise TypeError(f"{kind.__name__} has no field {sorted(unknown)}; known: {sorted(hints)}")
        return kind(**{k: _revive(hints[k], v) for k, v in value.items()})
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple and value is not None:
        return tuple(_revive(args[0], v) for v in value)
    if origin is dict and value is not None:
        return {k: _revive(args[1], v) for k, v in value.items()}
    if origin in (typing.Union, types.UnionType) and value is not None:
        return _revive(next(a for a in args if a is not type(None)), value)
    return value
