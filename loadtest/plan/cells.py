"""From a plan to what is measured, in order, and to the plain dataclasses that the other rooms take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from loadtest.model import Cell, ClientSpec, ConfigSpec, LoadKind, SamplingSpec, Slo, TargetSpec
from loadtest.plan.estimate import auto_requests
from loadtest.plan.order import derive
from loadtest.plan.schema import Config, Launch, Plan
from loadtest.plan.sweep import GAMMA, swept


def expand(plan: Plan, *, run_nonce: str = "") -> tuple[list[ConfigSpec], list[Cell]]:
    """All configs, and all cells in order of measurement; `cells[i].index == i`.

    One repeat block after the other; inside a block one config after the other (`abba` reverses every second block), so
    that one server start serves all cells of a config in a block. Inside those: greedy before sampled, then mix by mix,
    loads ascending, closed loops first. Order seeds come from (plan seed, mix, sampling, load, repeat) and are equal
    for all configs. `run_nonce` (the run's id) goes into the salts alone: on a server that outlives the run, a second
    run of the same plan would else be served from the prefix cache.
    """
    specs = config_specs(plan)
    cells: list[Cell] = []
    for repeat in range(1, plan.load.repeats + 1):
        block = specs if repeat % 2 or plan.load.order == "sequential" else specs[::-1]
        for spec in block:
            for mix, sampling, kind, value in _settings(plan):
                cells.append(_cell(plan, len(cells), spec, mix, sampling, kind, value, repeat, run_nonce))
    width = max(3, len(str(len(cells) - 1)))
    return specs, [_named(cell, width) for cell in cells]


def expand_probe(
    plan: Plan, requests: Mapping[str, int], *, run_nonce: str = ""
) -> tuple[list[ConfigSpec], list[Cell]]:
    """All configs and the cells of a sequential probe: one user, `requests[mix]` requests, one repeat.

    Config by config, greedy before sampled, mix by mix; prompts, order and salt are equal for all configs.
    """
    specs = config_specs(plan)
    cells: list[Cell] = []
    for spec in specs:
        for sampling in sampling_specs(plan):
            for mix in plan.mix:
                cell = _cell(plan, len(cells), spec, mix.name, sampling, "sequential", 1.0, 1, run_nonce)
                cells.append(replace(cell, measure_s=None, measure_requests=requests[mix.name]))
    width = max(3, len(str(len(cells) - 1)))
    return specs, [_named(cell, width) for cell in cells]


def server_starts(cells: Sequence[Cell], configs: Sequence[ConfigSpec] = ()) -> list[tuple[str, tuple[Cell, ...]]]:
    """(config, its cells) of each server start, in order: the cells of one config in one repeat block.

    A config with `restart_per_cell` gets a start for each cell.
    """
    single = {config.name for config in configs if config.restart_per_cell}

    def start(cell: Cell) -> tuple[str, int, int]:
        return cell.config, cell.repeat, cell.index if cell.config in single else -1

    return [(key[0], tuple(group)) for key, group in groupby(cells, key=start)]


def config_specs(plan: Plan) -> list[ConfigSpec]:
    """The configs after the sweep, in the plan's order. Exactly one is the baseline, where there is one."""
    configs = swept(plan)
    plain = [config for config in configs if config.speculative is None]
    baseline = next((c.name for c in plain if c.baseline), plain[0].name if plain else None)
    return [_config_spec(plan, config, config.name == baseline) for config in configs]


def sampling_specs(plan: Plan) -> list[SamplingSpec]:
    """The sampling settings, greedy ones first."""
    specs = [SamplingSpec(**sampling.model_dump()) for sampling in plan.sampling]
    return sorted(specs, key=lambda spec: spec.temperature > 0)


def slos(plan: Plan) -> list[Slo]:
    """The gate's criteria, in the units of their metrics."""
    return [entry.to_slo() for entry in plan.slo]


def target_spec(plan: Plan) -> TargetSpec:
    """What is served."""
    target = plan.target
    return TargetSpec(
        model=target.model,
        served_name=target.served_model_name,
        max_model_len=target.max_model_len,
        dtype=target.dtype,
        api=target.api,
        args=tuple(target.args),
        env=dict(target.env),
    )


def client_spec(plan: Plan) -> ClientSpec:
    """How the client sends."""
    client = plan.client
    return ClientSpec(
        stream=client.stream,
        connect_timeout_s=client.connect_timeout,
        read_timeout_s=client.read_timeout,
        total_timeout_s=client.total_timeout,
        pace_s=client.pace,
        workers=client.workers,
        keep_text=client.keep_text,
        keep_chunks=client.keep_chunks,
        api_key_env=client.api_key_env,
        headers_env=dict(client.headers_env),
    )


def _settings(plan: Plan) -> Iterator[tuple[str, SamplingSpec, LoadKind, float]]:
    open_kind: LoadKind = plan.load.arrival
    loads: list[tuple[LoadKind, float]] = [("closed", float(c)) for c in sorted(plan.load.concurrency)]
    loads += [(open_kind, rate) for rate in sorted(plan.load.rate)]
    for sampling in sampling_specs(plan):
        for mix in plan.mix:
            for kind, value in loads:
                yield mix.name, sampling, kind, value


def _cell(
    plan: Plan,
    index: int,
    spec: ConfigSpec,
    mix: str,
    sampling: SamplingSpec,
    kind: LoadKind,
    value: float,
    repeat: int,
    nonce: str,
) -> Cell:
    measure = plan.load.measure
    shared = (plan.seed, mix, sampling.name, f"{kind}{value:g}", repeat)
    return Cell(
        index=index,
        cell_id="",
        config=spec.name,
        method=spec.method,
        gamma=spec.gamma,
        mix=mix,
        sampling=sampling,
        load_kind=kind,
        load_value=value,
        repeat=repeat,
        # 53 bits: whole in every JSON reader.
        order_seed=int.from_bytes(derive("order", *shared)[:8], "big") >> 11,
        salt=derive("salt", nonce, *shared).hex()[:8] if plan.cache.prefix == "salt" else "",
        warmup_s=plan.load.warmup,
        measure_s=measure.duration_s,
        measure_requests=auto_requests(slos(plan)) if measure.auto else measure.requests,
        drain_s=plan.load.drain,
        max_measure_s=plan.load.budget,
        auto=measure.auto,
    )


def _named(cell: Cell, width: int) -> Cell:
    name = f"{cell.index:0{width}d}-{cell.config}-{cell.mix}-{cell.sampling.name}-{cell.load}-r{cell.repeat}"
    return replace(cell, cell_id=name)


def _config_spec(plan: Plan, config: Config, is_baseline: bool) -> ConfigSpec:
    speculative = dict(config.speculative) if config.speculative is not None else None
    if speculative is not None and speculative["method"] == "suffix" and plan.cache.suffix == "cold":
        # No endpoint empties the suffix tree, so a cold cache means one that keeps nothing.
        speculative.setdefault("suffix_decoding_max_cached_requests", 0)
    return ConfigSpec(
        name=config.name,
        method="none" if speculative is None else str(speculative["method"]),
        gamma=None if speculative is None else speculative.get(GAMMA),
        speculative=speculative,
        launch=None if config.launch is None else _launch(config.launch),
        urls=config.all_urls,
        metrics_urls=tuple(config.metrics_urls),
        sim=None if config.sim is None else dict(config.sim),
        is_baseline=is_baseline,
        before=tuple(tuple(command) for command in config.before),
        after=tuple(tuple(command) for command in config.after),
        command_timeout_s=config.command_timeout,
        restart_per_cell=not config.all_urls and _restarts(plan, config),
    )


def _restarts(plan: Plan, config: Config) -> bool:
    suffix = config.speculative is not None and config.speculative["method"] == "suffix"
    return plan.cache.prefix == "restart" or (suffix and plan.cache.suffix == "fresh")


def _launch(launch: Launch) -> dict[str, Any]:
    return {
        "host": launch.host,
        "port": launch.port,
        "command": list(launch.command),
        "args": list(launch.args),
        "env": dict(launch.env),
        "ready_timeout_s": launch.ready_timeout,
        "stop_timeout_s": launch.stop_timeout,
        "per_request_spec_metrics": launch.per_request_spec_metrics,
        "per_request_metrics": launch.per_request_metrics,
        "prompt_tokens_details": launch.prompt_tokens_details,
        "fingerprint": launch.fingerprint,
    }
