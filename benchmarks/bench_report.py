"""The tables of README.md, written from results.json between two marks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- bench: written by bench.py -->", "<!-- bench: end -->"
OURS = "loadtest"
BUSY = "\\*"


def write(results: Mapping[str, Any], readme: Path) -> None:
    """Replaces what stands between the marks. Raises ValueError where they are missing."""
    text = readme.read_text()
    if BEGIN not in text or END not in text:
        raise ValueError(f"{readme} lacks the marks {BEGIN} and {END}")
    head, rest = text.split(BEGIN, 1)
    readme.write_text(f"{head}{BEGIN}\n\n{body(results)}\n\n{END}{rest.split(END, 1)[1]}")


def body(results: Mapping[str, Any]) -> str:
    parts = [tools_text(results), fidelity_text(results), merge_text(results), memory_text(results)]
    return "\n\n".join([*filter(None, parts), *filter(None, [scaling_text(results)])])


def where(results: Mapping[str, Any], part: str) -> str:
    host = results.get("machine", {}).get(part)
    if not host:
        return "Not measured."
    busy = (
        " The load average before includes the part before this one; beside other work they are provisional."
        if host["busy_before"]
        else ""
    )
    return (
        f"{host['utc']} UTC, {host['cpu']}, {host['cores']} cores, kernel {host['kernel']}, Python {host['python']}; "
        f"load average {host['load_average_before']} before, {host['load_average_after']} after.{busy}"
    )


def number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


# -- tools

FIGURES = (
    ("TTFT p99, reported over true", "ttft_p99_ratio", 2),
    ("TTFT p50, reported over true", "ttft_p50_ratio", 2),
    ("TPOT p50, reported over true", "tpot_p50_ratio", 3),
    ("TPOT p99, reported over true", "tpot_p99_ratio", 3),
    ("CPU, microseconds per chunk, first request to last", "cpu_us_per_chunk", 0),
    ("Chunks per second that the server got rid of", "chunks_per_s", 0),
    ("Peak memory of all processes, MiB", "peak_rss_mb", 0),
    ("CPU seconds before the first request", "startup_cpu_s", 1),
    ("CPU seconds of the whole run, start and evaluation included", "whole_run_cpu_s", 1),
)


def tools_text(results: Mapping[str, Any]) -> str:
    tools: Mapping[str, Any] = results.get("tools", {})
    if not tools:
        return ""
    streams = sorted({s["streams"] for t in tools.values() for s in t["scenarios"].values()})
    ks = sorted({s["k"] for t in tools.values() for s in t["scenarios"].values()})
    titles = ["tool", *(f"{c} stream{'s' * (c > 1)}" for c in streams)]
    out = ["### Other tools on the same work", where(results, "peers")]
    out.append(f"Each cell: k = {' / '.join(map(str, ks))} tokens per chunk. {BUSY}: the server itself was late.")
    for title, key, digits in FIGURES:
        rows = []
        for name, tool in tools.items():
            cells = [cell(tool["scenarios"], c, ks, key, digits) for c in streams]
            rows.append([f"{name} {tool['version']}", *cells])
        out += [f"**{title}**", table(titles, rows)]
    skipped = results.get("skipped", {})
    if skipped:
        out.append("Not measured:\n" + "\n".join(f"* {name}: {why}" for name, why in skipped.items()))
    out += filter(None, [third(tools)])
    return "\n\n".join(out)


def cell(scenarios: Mapping[str, Any], streams: int, ks: Sequence[int], key: str, digits: int) -> str:
    values = []
    for k in ks:
        told = scenarios.get(f"c{streams}-k{k}")
        mark = BUSY if told and told["machine_busy"] else ""
        values.append("-" if told is None else number(told.get(key), digits) + mark)
    return " / ".join(values)


def third(tools: Mapping[str, Any]) -> str:
    """Our cost at the most streams beside that of the cheapest other tool."""
    scenarios = tools.get(OURS, {}).get("scenarios", {})
    if not scenarios:
        return ""
    key = max(scenarios, key=lambda name: (scenarios[name]["streams"], -scenarios[name]["k"]))
    others = {
        n: t["scenarios"][key]["cpu_us_per_chunk"] for n, t in tools.items() if n != OURS and key in t["scenarios"]
    }
    if not others:
        return ""
    best = min(others, key=lambda name: others[name])
    own = scenarios[key]["cpu_us_per_chunk"]
    return (
        f"CPU per chunk at {key}: ours {own:.1f} us, the cheapest other {others[best]:.1f} us ({best}), "
        f"{others[best] / own:.1f} times ours."
    )


# -- ours alone


def fidelity_text(results: Mapping[str, Any]) -> str:
    out = []
    for key, title in (
        ("fidelity", "Client fidelity, this machine"),
        ("fidelity_16_core", "Client fidelity, 16 cores"),
    ):
        told = results.get(key)
        if not told:
            continue
        import fidelity

        out += [f"### {title}", told.get("machine") or where(results, key), fidelity.table(told["rows"])]
    return "\n\n".join(out)


def merge_text(results: Mapping[str, Any]) -> str:
    sizes = [m[1] for key in results if (m := re.fullmatch(r"merge_(\w+)_s", key)) and not key.endswith("cpu_s")]
    if not sizes:
        return ""
    rows = [
        [
            f"{size.replace('m', ',000,000').replace('k', ',000')} x 40 chunks",
            *(number(results[f"merge_{size}_{key}"], d) for key, d in (("s", 1), ("cpu_s", 1), ("mb", 0))),
            *(number(results[f"merge_{size}_{key}"], 0) for key in ("raw_mb", "parquet_mb")),
        ]
        for size in sizes
    ]
    out = ["### Merge", where(results, "merge")]
    out.append(table(["requests", "seconds", "CPU seconds", "peak MiB", "raw MB", "Parquet MB"], rows))
    if {"1m", "10m"} <= set(sizes):
        times, cpu = (results[f"merge_10m_{k}"] / results[f"merge_1m_{k}"] for k in ("s", "cpu_s"))
        out.append(f"Ten times the requests: {times:.1f} times the time, {cpu:.1f} times the CPU time.")
    return "\n\n".join(out)


def memory_text(results: Mapping[str, Any]) -> str:
    told = results.get("memory")
    if not told:
        return ""
    rows = [
        [
            name,
            *(number(told[f"{name}_rss_mb_{key}"], 1) for key in ("at_10k", "at_end", "per_million", "at_1m_by_line")),
        ]
        for name in ("worker", "master")
    ]
    titles = [
        "process",
        "MiB at 10,000 requests",
        f"at {told['requests']:,}",
        "MiB per million (line)",
        "at 1,000,000 (line)",
    ]
    about = (
        f"{told['requests']:,} requests in {told['seconds']:g} s ({told['requests_per_s']:,} per second), "
        f"{told['cpu_us_per_request']:.0f} us of CPU each in worker and master together."
    )
    return "\n\n".join(["### Memory over many requests", where(results, "memory"), about, table(titles, rows)])


def scaling_text(results: Mapping[str, Any]) -> str:
    told = results.get("scaling")
    if not told:
        return ""
    keys = ("workers", "streams", "chunks_per_s", "ttft_p99_ratio", "gap_p99_ratio", "server_late_pct",
            "worker_cpu_us_per_chunk", "master_cpu_us_per_chunk")  # fmt: skip
    rows = [[f"{told[name][key]:,}" for key in keys] for name in ("one_worker", "two_workers")]
    titles = [
        "workers",
        "streams",
        "chunks/s",
        "TTFT p99 x",
        "gap p99 x",
        "server late %",
        "worker us/chunk",
        "master us/chunk",
    ]
    text = f"Two workers over one: {told['ratio']} ({told['how']})."
    if told["ratio"] is None:
        by_cost = told.get("ratio_by_cost")
        text = f"{told['how'][0].upper()}{told['how'][1:]}."
        text += f" By cost, two workers on cores of their own carry {by_cost} times the load of one." if by_cost else ""
    return "\n\n".join(["### Two workers", where(results, "scaling"), text, table(titles, rows)])
