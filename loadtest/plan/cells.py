"""From a plan to what is measured, in order, and to the plain dataclasses that the other rooms take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from loadtest.model import Cell, ClientSpec, ConfigSpec, SamplingSpec, Slo, TargetSpec
from loadtest.plan.estimate import auto_requests
from loadtest.plan.loads import LoadPoint, load_points
from loadtest.plan.order import derive
from loadtest.plan.schema import Config, Launch, Mix, Plan
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
    settings = list(_settings(plan))
    cells: list[Cell] = []
    for repeat in range(1, plan.load.repeats + 1):
        block = specs if repeat % 2 or plan.load.order == "sequential" else specs[::-1]
        for spec in block:
            for mix, sampling, point in settings:
                cells.append(_cell(plan, len(cells), spec, mix, sampling, point, repeat, run_nonce))
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
                cell = _cell(plan, len(cells), spec, mix, sampling, LoadPoint("sequential", 1.0), 1, run_nonce)
                cells.append(replace(cell, measure_s=None, measure_requests=requests[mix.name]))
    width = max(3, len(str(len(cells) - 1)))
    return specs, [_named(cell, width) for cell in cells]


def load_cells(
    plan: Plan, spec: ConfigSpec, point: LoadPoint, first: int, requests: int, *, run_nonce: str = ""
) -> list[Cell]:
    """The cells of one load of one config, each sampling and mix once, numbered from `first`.

    Their windows end as soon as every criterion is certain, at the latest after `requests`.
    """
    pairs = [(sampling, mix) for sampling in sampling_specs(plan) for mix in plan.mix]
    cells = [_cell(plan, first + k, spec, mix, s, point, 1, run_nonce) for k, (s, mix) in enumerate(pairs)]
    auto = [replace(cell, measure_s=None, measure_requests=requests, auto=True) for cell in cells]
    return [_named(cell, 3) for cell in auto]


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
        max_in_flight=client.max_in_flight,
    )


def _settings(plan: Plan) -> Iterator[tuple[Mix, SamplingSpec, LoadPoint]]:
    points = load_points(plan)
    for sampling in sampling_specs(plan):
        for mix in plan.mix:
            for point in points:
                yield mix, sampling, point


def _cell(
    plan: Plan,
    index: int,
    spec: ConfigSpec,
    mix: Mix,
    sampling: SamplingSpec,
    point: LoadPoint,
    repeat: int,
    nonce: str,
) -> Cell:
    measure = plan.load.measure
    shared = (plan.seed, mix.name, sampling.name, f"{point.kind}{point.value:g}", repeat)
    counted = None if point.length_s is not None else auto_requests(slos(plan)) if measure.auto else measure.requests
    return Cell(
        index=index,
        cell_id="",
        config=spec.name,
        method=spec.method,
        gamma=spec.gamma,
        mix=mix.name,
        sampling=sampling,
        load_kind=point.kind,
        load_value=point.value,
        repeat=repeat,
        # 53 bits: whole in every JSON reader.
        order_seed=int.from_bytes(derive("order", *shared)[:8], "big") >> 11,
        salt=derive("salt", nonce, *shared).hex()[:8] if plan.cache.prefix == "salt" else "",
        warmup_s=plan.load.warmup,
        measure_s=measure.duration_s if point.length_s is None else point.length_s,
        measure_requests=counted,
        drain_s=plan.load.drain,
        max_measure_s=plan.load.budget,
        think_time_s=mix.think_time,
        ramp=point.ramp,
        trace_file=point.trace_file,
        auto=measure.auto and point.length_s is None,
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
