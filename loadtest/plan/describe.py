"""What a plan will do, before it does it: `loadtest plan`. Plain text that is good without a terminal, or JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from loadtest.model import Cell, ConfigSpec, Slo
from loadtest.plan.cells import expand, server_starts, slos, target_spec
from loadtest.plan.commandline import shell_line
from loadtest.plan.estimate import (
    ASSUMED_TPOT_S,
    COMFORT,
    expected_requests,
    needed_for,
    plan_duration,
    why_no_number,
)
from loadtest.plan.schema import Plan


def describe(plan: Plan, as_json: bool = False) -> str:
    """Every config with its command line, every cell in order, what each SLO needs, and the estimated time."""
    facts = plan_facts(plan)
    if as_json:
        return json.dumps(facts, ensure_ascii=False, indent=1)
    return "\n".join(_text(facts))


def plan_facts(plan: Plan) -> dict[str, Any]:
    """The same as plain JSON values: {plan, configs, cells, slos, time, warnings}."""
    configs, cells = expand(plan)
    target = target_spec(plan)
    time = plan_duration(configs, cells)
    return {
        "plan": {"name": plan.name, "seed": plan.seed, "model": target.model, "repeats": plan.load.repeats},
        "configs": [_config_facts(config, shell_line(config, target) if config.launch else None) for config in configs],
        "server_starts": [{"config": name, "cells": len(group)} for name, group in server_starts(cells, configs)],
        "cells": [_cell_facts(cell) for cell in cells],
        "slos": [_slo_facts(slo, cells) for slo in slos(plan)],
        "time": {
            "server_starts": time.server_starts,
            "starts_s": time.starts_s,
            "warmup_s": time.warmup_s,
            "windows_s": time.windows_s,
            "overhead_s": time.overhead_s,
            "drains_at_most_s": time.drains_at_most_s,
            "expected_s": time.expected_s,
            "at_most_s": time.at_most_s,
        },
        "assumed_tpot_s": ASSUMED_TPOT_S,
        "warnings": list(plan.warnings),
    }


def span(seconds: float) -> str:
    """`45 s`, `12 min`, `3 h 20 min`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned columns, numbers as they come, no trailing blanks."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [head, *rows]]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return [line.rstrip() for line in lines]


def _config_facts(config: ConfigSpec, command: str | None) -> dict[str, Any]:
    how = "launch" if config.launch is not None else "sim" if config.sim is not None else "attach"
    return {
        "name": config.name,
        "method": config.method,
        "gamma": config.gamma,
        "baseline": config.is_baseline,
        "how": how,
        "command": command,
        "urls": list(config.urls),
        "sim": config.sim,
        "speculative": config.speculative,
    }


def _cell_facts(cell: Cell) -> dict[str, Any]:
    return {
        "index": cell.index,
        "cell_id": cell.cell_id,
        "config": cell.config,
        "mix": cell.mix,
        "sampling": cell.sampling.name,
        "load": cell.load,
        "repeat": cell.repeat,
        "warmup_s": cell.warmup_s,
        "measure_s": cell.measure_s,
        "measure_requests": cell.measure_requests,
        "drain_s": cell.drain_s,
    }


def _slo_facts(slo: Slo, cells: Sequence[Cell]) -> dict[str, Any]:
    """What the SLO needs of one window, and which loads of the plan are likely to give it."""
    needed = needed_for(slo)
    loads: dict[str, float] = {}
    for cell in cells:
        loads[cell.load] = min(loads.get(cell.load, float("inf")), expected_requests(cell))
    likely: dict[str, dict[str, Any]] = {}
    if needed is not None:
        exact = {cell.load for cell in cells if cell.measure_requests is not None}
        for load, expected in loads.items():
            comfort = 1.0 if load in exact else COMFORT
            word = (
                "likely" if expected >= comfort * needed else "unsure" if expected >= needed / COMFORT else "unlikely"
            )
            if load in exact:
                word = "yes" if expected >= needed else "no"
            window = next((c.measure_s for c in cells if c.load == load), None)
            likely[load] = {
                "expected_requests": round(expected),
                "enough": word,
                "rate_needed_per_s": None if window is None else needed / window,
            }
    return {
        "name": slo.name,
        "metric": slo.metric,
        "stat": slo.stat,
        "confidence": slo.confidence,
        "requests_needed": needed,
        "why_no_number": None if needed is not None else why_no_number(slo),
        "loads": likely,
    }


def _text(facts: dict[str, Any]) -> list[str]:
    plan, cells, time = facts["plan"], facts["cells"], facts["time"]
    counts = f"{len(facts['configs'])} configs, {len(cells)} cells, {plan['repeats']} repeat(s), seed {plan['seed']}"
    lines = [f"plan {plan['name']}: {plan['model']}, {counts}"]
    lines += ["", "Configs", *_config_lines(facts["configs"])]
    lines += ["", f"Cells, in order of measurement ({len(facts['server_starts'])} server starts)"]
    lines += table(
        ("cell", "warm-up", "window", "drain at most"),
        [(c["cell_id"], span(c["warmup_s"]), _window(c), span(c["drain_s"])) for c in cells],
    )
    if facts["slos"]:
        lines += ["", *_slo_lines(facts)]
    lines += [
        "",
        f"Time: about {span(time['expected_s'])}, at most {span(time['at_most_s'])}",
        f"  server starts  {span(time['starts_s'])} ({time['server_starts']} starts, assumed)",
        f"  warm-up        {span(time['warmup_s'])}",
        f"  windows        {span(time['windows_s'])}",
        f"  between cells  {span(time['overhead_s'])}",
        f"  drains         0 to {span(time['drains_at_most_s'])}",
    ]
    if facts["warnings"]:
        lines += ["", "Warnings", *(f"  {warning}" for warning in facts["warnings"])]
    return lines


def _config_lines(configs: Sequence[dict[str, Any]]) -> list[str]:
    lines = []
    for config in configs:
        gamma = "" if config["gamma"] is None else f", gamma {config['gamma']}"
        mark = ", baseline" if config["baseline"] else ""
        lines.append(f"  {config['name']} ({config['method']}{gamma}{mark})")
        if config["command"] is not None:
            lines.append(f"    {config['command']}")
        elif config["how"] == "attach":
            lines.append(f"    attach to {', '.join(config['urls'])}; it must run with: {_asked(config)}")
        else:
            lines.append("    simulated server")
    return lines


def _asked(config: dict[str, Any]) -> str:
    if config["speculative"] is None:
        return "no --speculative-config"
    return f"--speculative-config '{json.dumps(config['speculative'], ensure_ascii=False)}'"


def _slo_lines(facts: dict[str, Any]) -> list[str]:
    rows, notes = [], []
    for slo in facts["slos"]:
        needed = slo["requests_needed"]
        rows.append((slo["name"], f"{slo['confidence']:g}", "-" if needed is None else str(needed), _enough(slo)))
        if needed is None:
            notes.append(f"  {slo['name']}: {slo['why_no_number']}")
    head = "Requests that each window needs before a claim can be made (with none over the limit)"
    tpot = f"{facts['assumed_tpot_s'] * 1e3:g} ms"
    lines = [head, *table(("criterion", "confidence", "requests", "enough?"), rows)]
    if any(cell["measure_s"] is not None for cell in facts["cells"]):
        lines.append(
            f"  enough? assumes {tpot} per output token and full-length answers; correct it by a first short run"
        )
    return [*lines, *notes]


def _enough(slo: dict[str, Any]) -> str:
    words = [f"{load} {facts['enough']} (~{facts['expected_requests']})" for load, facts in slo["loads"].items()]
    return ", ".join(words) or "-"


def _window(cell: dict[str, Any]) -> str:
    return f"{cell['measure_requests']} requests" if cell["measure_s"] is None else span(cell["measure_s"])
