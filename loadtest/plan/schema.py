"""plan.toml as pydantic models. Every key is described here, and only here: the docs and JSON schema come from it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    PrivateAttr,
    field_validator,
    model_validator,
)

from loadtest.plan import rules
from loadtest.plan.load_table import Load
from loadtest.plan.slo import SloEntry
from loadtest.plan.table import Table
from loadtest.plan.units import Duration, PositiveDuration

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
"""Names become folder names, parts of cell ids and labels: letters, digits, `.`, `_`, `-`."""
EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Port = Annotated[int, Field(ge=1, le=65535)]
Scalar = str | int | float | bool
Argv = Annotated[list[str], Field(min_length=1)]
"""A command as an argument list: no shell splits it."""


class Target(Table):
    """What is served, equal for all configs."""

    model: str = Field(min_length=1, description="Model folder or hub name, the first argument of `vllm serve`.")
    served_model_name: str | None = Field(
        default=None, min_length=1, description="Name that requests use; the `model` if left out."
    )
    max_model_len: int | None = Field(default=None, ge=1, description="Longest context, in tokens.")
    dtype: str | None = Field(default=None, min_length=1, description="`--dtype` of `vllm serve`.")
    api: Literal["chat", "completions"] = Field(default="chat", description="Which endpoint is asked.")
    args: list[str] = Field(default_factory=list, description="More `vllm serve` arguments, for every config.")
    env: dict[EnvName, str] = Field(
        default_factory=dict, description="Environment variables of every server that we start."
    )

    _args = field_validator("args")(rules.check_args)
    _env = field_validator("env")(rules.check_env)


class Launch(Table):
    """A `vllm serve` that the run starts and stops."""

    host: str = Field(default="127.0.0.1", min_length=1, description="Address it listens on.")
    port: Port = Field(
        default=8000, description="Port it listens on; configs run one after the other and may share it."
    )
    command: list[str] = Field(
        default_factory=lambda: ["vllm", "serve"],
        min_length=1,
        description='What is run, with a prefix if need be: `["docker", "exec", "box", "vllm", "serve"]`.',
    )
    args: list[str] = Field(default_factory=list, description="More arguments, after those of `target.args`.")
    env: dict[EnvName, str] = Field(default_factory=dict, description="More environment variables, over `target.env`.")
    ready_timeout: PositiveDuration = Field(default=600.0, description="Longest wait until the server answers.")
    stop_timeout: PositiveDuration = Field(default=60.0, description="Longest wait after SIGTERM before SIGKILL.")
    per_request_spec_metrics: Literal["detailed", "summary", "none"] = Field(
        default="detailed",
        description="`--per-request-spec-decode-metrics`; never given to a config without `speculative`, which vLLM "
        'refuses. "none" for a vLLM that lacks the flag.',
    )
    per_request_metrics: bool = Field(
        default=True, description="`--enable-per-request-metrics`; false for a vLLM before 0.26."
    )
    prompt_tokens_details: bool = Field(
        default=True, description="`--enable-prompt-tokens-details`: cached tokens of each request."
    )
    fingerprint: bool = Field(
        default=True, description="Stamp the config's name on every response (`--fingerprint-mode custom`)."
    )

    _args = field_validator("args")(rules.check_args)
    _env = field_validator("env")(rules.check_env)


class Config(Table):
    """One server config: exactly one of `launch`, `url`, `urls`, `sim`."""

    name: Name = Field(description="Unique name; letters, digits, `.`, `_`, `-`.")
    launch: Launch | None = Field(default=None, description="Start `vllm serve` with these options (`{}` is enough).")
    url: str | None = Field(default=None, description="Attach to a server that runs already.")
    urls: list[str] = Field(default_factory=list, description="Attach to several replicas, used in turn.")
    metrics_urls: list[str] = Field(
        default_factory=list, description="Where `/metrics` is, one per replica; `<url>/metrics` if left out."
    )
    sim: dict[str, Scalar] | None = Field(
        default=None,
        description="Start the simulated server with these options (`{}` is enough). Never a deploy verdict.",
    )
    speculative: dict[str, Any] | None = Field(
        default=None,
        description="What `--speculative-config` gets: `method`, `num_speculative_tokens` and the method's own keys. "
        "A config without it is a baseline.",
    )
    before: list[Argv] = Field(
        default_factory=list,
        description="Commands that we run before the server is started or attached to, as argument lists: "
        '`[["kubectl", "rollout", "status", "deploy/x"]]`. One that fails fails the config. Stored with the run, so '
        "keys come from the environment.",
    )
    after: list[Argv] = Field(
        default_factory=list,
        description="Commands that we run when the config is done with, also when it failed.",
    )
    command_timeout: PositiveDuration = Field(default=300.0, description="Longest time of each of these commands.")
    baseline: bool | None = Field(
        default=None, description="Mark the one to compare with, where several configs have no `speculative`."
    )
    sweep: bool = Field(default=True, description="false keeps this config out of `[sweep]`.")

    _finite = field_validator("speculative", "sim")(rules.check_finite)

    @model_validator(mode="after")
    def _check(self) -> Config:
        problems = rules.config_problems(
            launch=self.launch is not None,
            url=self.url,
            urls=self.urls,
            metrics_urls=self.metrics_urls,
            sim=self.sim is not None,
            speculative=self.speculative,
            baseline=self.baseline,
        )
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @property
    def all_urls(self) -> tuple[str, ...]:
        """Base URLs of an attached server, without a trailing `/` or `/v1`."""
        given = [self.url] if self.url is not None else self.urls
        return tuple(re.sub(r"(/v1)?/*$", "", url) for url in given)


class Part(Table):
    """One data set in a mix."""

    dataset: str = Field(
        min_length=1,
        description="Prompt file: relative to the plan file, else to the current folder, else one of the bundled "
        "`datasets/`.",
    )
    weight: float = Field(default=1.0, gt=0, description="Share of the requests, relative to the other parts.")
    stratum: str | None = Field(
        default=None,
        min_length=1,
        description="Kind of task, for all rows; the file's own `stratum` or `category` if left out.",
    )
    category: str | list[str] | None = Field(default=None, description="Take only rows of this category (or of these).")
    field: str | None = Field(
        default=None, min_length=1, description="Name of the field with the prompt, where it is unusual."
    )
    limit: int | None = Field(default=None, ge=1, description="Take only the first rows.")
    on_error: Literal["fail", "skip"] = Field(
        default="fail", description="What to do with a row that holds no usable prompt; skipped rows are counted."
    )
    warmup: str | None = Field(
        default=None,
        min_length=1,
        description="Prompt file for the warm-up; the bundled `datasets/warmup.jsonl` if left out.",
    )


class Mix(Table):
    """What users ask: one or more data sets with weights."""

    name: Name = Field(description="Unique name.")
    parts: list[Part] = Field(min_length=1, description="The data sets.")
    turns: Literal["all", "first"] = Field(
        default="all", description="Conversations: replay every turn by the same user, or send the first turn only."
    )
    think_time: Duration = Field(
        default=0.0,
        description="Mean pause of a user before each later turn of a conversation (exponential; the same pauses for "
        "every config).",
    )

    @field_validator("name")
    @classmethod
    def _not_warmup(cls, name: str) -> str:
        if name.endswith(".warmup"):
            raise ValueError(
                f'"{name}" is taken by the warm-up pool of a mix; choose a name that does not end in .warmup'
            )
        return name


class Sampling(Table):
    """One sampling setting, equal for all configs."""

    name: Name = Field(description="Unique name.")
    temperature: float = Field(ge=0, description="0 is greedy.")
    max_tokens: int = Field(
        ge=1, le=2**31 - 1, description="Longest answer, in tokens; a data set's own `max_tokens` goes before it."
    )
    top_p: float = Field(default=1.0, gt=0, le=1, description="Nucleus sampling.")
    seed: int | None = Field(default=None, ge=-(2**63), le=2**63 - 1, description="Seed that each request carries.")
    ignore_eos: bool = Field(
        default=False, description="Always write `max_tokens` tokens: equal lengths for all configs."
    )
    extra_body: dict[str, Any] = Field(default_factory=dict, description="More keys of the request body.")

    _extra = field_validator("extra_body")(rules.check_extra_body)
    _finite = field_validator("extra_body")(rules.check_finite)


class Client(Table):
    """How the client sends; equal for all configs."""

    stream: bool = Field(default=True, description="Stream the answers; without it there is no TTFT and no TPOT.")
    connect_timeout: PositiveDuration = Field(default=10.0, description="Longest wait for a connection.")
    read_timeout: PositiveDuration = Field(default=60.0, description="Longest silence inside a response.")
    total_timeout: PositiveDuration = Field(default=600.0, description="Longest request.")
    pace: PositiveDuration = Field(default=0.002, description="How often the reader looks at its sockets.")
    workers: int = Field(default=1, ge=1, le=1024, description="Worker processes that send.")
    max_in_flight: int = Field(
        default=1024,
        ge=1,
        description="Open loop: requests in flight per worker; an arrival above it is dropped and counted, never "
        "delayed. One worker was shown to read 1,024 streams in time.",
    )
    keep_text: bool = Field(default=True, description="Keep the answers; the check for equal output needs them.")
    keep_chunks: bool = Field(default=True, description="Keep the time of every chunk; false for long soaks.")
    api_key_env: EnvName = Field(
        default="OPENAI_API_KEY", description="Environment variable with the key; the key itself is never stored."
    )
    headers_env: dict[str, EnvName] = Field(
        default_factory=dict, description="More headers: name to the environment variable with the value."
    )


class Cache(Table):
    """What may carry over between cells."""

    prefix: Literal["salt", "reset", "restart", "none"] = Field(
        default="salt",
        description="Prefix cache: `salt` puts a short line in front of every prompt, so that nothing carries over; "
        "`reset` sends the prompts as they are and empties the cache before each cell (`/reset_prefix_cache`, which "
        "servers on loopback that we start have); `restart` gives each cell a fresh server; `none` lets it carry over.",
    )
    suffix: Literal["cold", "fresh", "warm"] = Field(
        default="cold",
        description="Suffix decoding's global cache: `cold` switches it off, `fresh` gives each cell a server that has "
        "seen nothing, `warm` lets it learn from cell to cell, in the same order of prompts for all configs.",
    )


class Plan(Table):
    """A whole plan. `folder` is where the plan file lies: relative paths start there."""

    model_config = ConfigDict(serialize_by_alias=True)

    schema_version: Literal[1] = Field(alias="schema", description="Version of the plan format: 1.")
    name: Name = Field(default="loadtest", description="Name of the plan, part of the run's id.")
    seed: int = Field(default=1, ge=0, le=2**63 - 1, description="Seeds prompt order, salts and arrivals.")
    target: Target = Field(description="What is served.")
    config: list[Config] = Field(min_length=1, description="The server configs that are compared.")
    sweep: dict[str, list[Scalar]] = Field(
        default_factory=dict,
        description="`num_speculative_tokens = [2, 4, 8]` makes one config per value from every speculative config; "
        "any other key does so for the configs that have it in `speculative`.",
    )
    mix: list[Mix] = Field(min_length=1, description="The prompt mixes.")
    load: Load = Field(description="The loads.")
    sampling: list[Sampling] = Field(min_length=1, description="The sampling settings.")
    slo: list[SloEntry] = Field(default_factory=list, description="The gate's criteria.")
    client: Client = Field(default_factory=Client, description="How the client sends.")
    cache: Cache = Field(default_factory=Cache, description="What may carry over between cells.")

    _sweep = field_validator("sweep")(rules.check_sweep)
    _folder: Path | None = PrivateAttr(default=None)
    _warnings: tuple[str, ...] = PrivateAttr(default=())

    @property
    def folder(self) -> Path | None:
        """Folder of the plan file; None for a plan that did not come from a file."""
        return self._folder

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is allowed but deserves a second look, in words."""
        return self._warnings

    def to_json(self) -> dict[str, Any]:
        """The plan with every default filled in, as plain JSON values that `loader.plan_from_json` reads back."""
        dumped: dict[str, Any] = self.model_dump(mode="json", exclude_none=True)
        return dumped
