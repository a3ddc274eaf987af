"""Servers of one plan that run at the same time on one GPU, and the plan that attaches to them.

serve   the command line of a config as `loadtest plan` prints it, with its environment, for a shell
ready   waits until all servers answer, then warms each up
plan    the same plan with URLs for the launches, and windows that fit the time that is left

Starting vLLM takes two minutes, most of them on the CPU: where the time on a machine is short, servers that start
together and wait for their turn leave more of it for measuring. An idle server takes memory, no time of the GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

from loadtest.plan.cells import config_specs, target_spec
from loadtest.plan.commandline import LAUNCH_DEFAULTS, shell_line
from loadtest.plan.loader import load_plan, read_toml

CELL_OVERHEAD_S = 2.5
"""Per cell besides warm-up and window: spawning, drain and scrapes; 2.4 s on average were seen, 0.6 to 6 s."""
CONFIG_OVERHEAD_S = 6.0
"""Per config: proof of the server, the scraper, the start and end of Locust."""
WARMUP_S = 2.0
"""Servers are warm already (`warm`); this fills the queue to the level of the cell."""
SHORTEST_S, LONGEST_S = 5.0, 15.0
"""Windows: below the shortest one user ends a dozen requests, so mixes are left out instead."""
BURSTS = (1, 8, 32, 128)
WARM_TOKENS = 24


def base_url(plan: Path, config: str) -> str:
    """Where the config's server listens."""
    spec = next((c for c in config_specs(load_plan(plan)) if c.name == config), None)
    if spec is None or spec.launch is None:
        raise SystemExit(f"{plan} has no config {config!r} that is launched")
    launch = LAUNCH_DEFAULTS | spec.launch
    return f"http://{launch['host']}:{launch['port']}"


def serve(plan: Path, config: str) -> None:
    """Print the line for a shell."""
    base_url(plan, config)
    loaded = load_plan(plan)
    print(next(shell_line(c, target_spec(loaded)) for c in config_specs(loaded) if c.name == config))


def ready(plan: Path, pids: dict[str, int], seconds: float, bursts: tuple[int, ...]) -> None:
    """Wait for every config's server and warm it up; exit code 1 where one ended or was not ready in time."""
    deadline = time.monotonic() + seconds
    found: dict[str, str] = {}
    model = load_plan(plan).target
    name = model.served_model_name or model.model

    def one(config: str, pid: int) -> None:
        base = base_url(plan, config)
        start = time.monotonic()
        while not _healthy(base):
            if not Path(f"/proc/{pid}").exists():
                found[config] = "ended"
            elif time.monotonic() > deadline:
                found[config] = "not ready in time"
            if config in found:
                say(f"{config}: {found[config]} after {time.monotonic() - start:.0f} s")
                return
            time.sleep(0.5)
        say(f"{config}: ready after {time.monotonic() - start:.0f} s")
        errors = warm(base, name, bursts)
        found[config] = "ready"
        say(f"{config}: warm after {time.monotonic() - start:.0f} s, {errors} of {sum(bursts)} requests failed")

    threads = [threading.Thread(target=one, args=item) for item in pids.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.exit(any(state != "ready" for state in found.values()))


def warm(base: str, model: str, bursts: tuple[int, ...]) -> int:
    """Send bursts of requests, so that what is compiled at the first request of a batch size is. -> failed ones."""
    failed: list[str] = []

    def ask(text: str) -> None:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": WARM_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
        }
        request = urllib.request.Request(
            f"{base}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                answer.read()
        except OSError as e:
            failed.append(str(e))

    for size in bursts:
        texts = [f"Question {i} of {size}: count from {i} to {i + 40} and back, please." for i in range(size)]
        threads = [threading.Thread(target=ask, args=(text,)) for text in texts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if failed:
        say(f"{base}: {failed[0]}")
    return len(failed)


def attached(plan: Path, configs: list[str], left_s: float, out: Path) -> None:
    """Write the plan with URLs; first the windows shrink, then the last mixes are left out."""
    raw = read_toml(plan)
    raw["config"] = [c for c in raw["config"] if c["name"] in configs]
    for config in raw["config"]:
        config["url"] = base_url(plan, config["name"])
        del config["launch"]
    loads = len(raw["load"]["concurrency"]) * len(raw.get("sampling", [1])) * raw["load"].get("repeats", 3)
    for mixes in range(len(raw["mix"]), 0, -1):
        cells = mixes * loads * len(configs)
        each_s = (left_s - CONFIG_OVERHEAD_S * len(configs)) / cells
        window_s = min(LONGEST_S, each_s - WARMUP_S - CELL_OVERHEAD_S)
        if window_s >= SHORTEST_S or mixes == 1:
            break
    window_s = max(1.0, window_s)
    raw["mix"] = raw["mix"][:mixes]
    raw["load"] |= {"warmup": f"{WARMUP_S:g}s", "measure": f"{window_s:.1f}s"}
    out.write_text(toml(raw), encoding="utf-8")
    say(f"{left_s:.0f} s for {len(configs)} configs, {mixes} mixes, {cells} cells: windows of {window_s:.1f} s")


def toml(raw: dict[str, Any]) -> str:
    """TOML of plain values, tables and lists of tables; JSON's strings and numbers are TOML's too."""

    def value(v: Any) -> str:
        if isinstance(v, dict):
            return "{ " + ", ".join(f"{json.dumps(k)} = {value(w)}" for k, w in v.items()) + " }"
        if isinstance(v, list):
            return "[" + ", ".join(value(w) for w in v) + "]"
        return json.dumps(v, ensure_ascii=False)

    def is_table(v: Any) -> bool:
        return isinstance(v, list) and bool(v) and all(isinstance(w, dict) for w in v)

    plain = [f"{k} = {value(v)}" for k, v in raw.items() if not isinstance(v, dict) and not is_table(v)]
    tables = [(f"[{k}]", v) for k, v in raw.items() if isinstance(v, dict)]
    tables += [(f"[[{k}]]", table) for k, v in raw.items() if is_table(v) for table in v]
    for head, table in tables:
        plain += ["", head, *(f"{k} = {value(v)}" for k, v in table.items())]
    return "\n".join(plain) + "\n"


def _healthy(base: str) -> bool:
    try:
        with urllib.request.urlopen(f"{base}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def say(text: str) -> None:
    """One line with the time."""
    print(time.strftime("%H:%M:%S"), text, flush=True)


def main() -> None:
    """Command line; see the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    sub = commands.add_parser("serve")
    sub.add_argument("plan", type=Path)
    sub.add_argument("config")
    sub = commands.add_parser("ready")
    sub.add_argument("plan", type=Path)
    sub.add_argument("pids", nargs="+", metavar="CONFIG=PID")
    sub.add_argument("--seconds", type=float, default=300.0)
    sub.add_argument("--bursts", default=",".join(map(str, BURSTS)))
    sub = commands.add_parser("plan")
    sub.add_argument("plan", type=Path)
    sub.add_argument("out", type=Path)
    sub.add_argument("--configs", required=True, help="names, with commas")
    sub.add_argument("--left", type=float, required=True, help="seconds for everything")
    given = parser.parse_args()
    if given.command == "serve":
        serve(given.plan, given.config)
    elif given.command == "ready":
        pids = {name: int(pid) for name, _, pid in (item.partition("=") for item in given.pids)}
        ready(given.plan, pids, given.seconds, tuple(int(n) for n in given.bursts.split(",")))
    else:
        attached(given.plan, given.configs.split(","), given.left, given.out)


if __name__ == "__main__":
    main()
