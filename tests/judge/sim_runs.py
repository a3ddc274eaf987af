"""Run folders made by the simulated engine in model time: its own steps, drafts and texts, without HTTP or waiting.

A busy machine would spoil the stamps of a run over sockets; model time is exact whatever else the machine does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from loadtest.merge.merge import merge_run
from loadtest.merge.read import RunData, open_run
from loadtest.model import Cell, ConfigSpec
from loadtest.server.sim.engine import Engine
from loadtest.server.sim.options import sim_options
from loadtest.server.sim.parameters import Method, Stratum
from loadtest.server.sim.sequence import FinishReason, Group
from loadtest.server.sim.sequence import Sequence as Running
from loadtest.server.sim.text import tokenize
from loadtest.server.sim.throughput import PROMPTS
from tests.merge import make_run as mk

TOKENS = 96
PROVENANCE = {"versions": {"vllm": "0.32.0"}, "gpus": [], "model": {"id": "sim-model"}, "host": {"cores": 2}}


@dataclass
class Recorder:
    """Takes the tokens of one request, with the model time of each step."""

    number: int
    sent: float
    running: Running | None = None
    now: float = 0.0
    times: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    finish: str = ""

    @property
    def closed(self) -> bool:
        """The client stays."""
        return False

    def deliver(self, start: int, end: int, finish: FinishReason | None) -> None:
        """One chunk per step."""
        self.tokens.append(end - start)
        self.finish = finish or ""


def measure(method: Method, gamma: int, streams: int, stratum: Stratum, requests: int) -> tuple[list[Recorder], float]:
    """Every request in the order of sending, and the time of the last send: the window's end."""
    engine = Engine(sim_options(method=method, gamma=gamma, seed=1))
    waiting: list[Recorder | None] = [None] * streams
    done: list[Recorder] = []
    now = last = 0.0
    while True:
        for i, one in enumerate(waiting):
            if (one is None or one.finish) and len(done) < requests:
                fresh = waiting[i] = Recorder(len(done), now)
                done.append(fresh)
                last = now
                prompt = tokenize(PROMPTS[stratum].format(k=fresh.number))
                fresh.running = engine.submit(
                    prompt, stratum, fresh, now, max_tokens=TOKENS, ignore_eos=True, group=Group(1)
                )
        active = [one for one in waiting if one is not None and not one.finish]
        if not active:
            return done, last
        before = [len(one.tokens) for one in active]
        now += engine.begin_step(now) or 0.0
        engine.end_step(now)
        for one, had in zip(active, before, strict=True):
            one.times += [now] * (len(one.tokens) - had)


def raw_row(one: Recorder, cell: Cell, stratum: str) -> dict[str, Any]:
    """The record that a worker would have written."""
    assert one.running is not None
    spec, us = one.running.spec, [round((t - one.sent) * 1e6) for t in one.times]
    send, total = mk.T0 + round(one.sent * 1e9), sum(one.tokens)
    text = "".join(one.running.tokens)
    counts: dict[str, Any] = {}
    if cell.gamma is not None:
        counts = {
            "spec_steps": spec.steps,
            "draft_tokens": spec.drafted,
            "accepted_tokens": spec.accepted,
            "num_spec_tokens": cell.gamma,
            "acceptance_histogram": [spec.step_accepted.count(j) for j in range(cell.gamma + 1)],
            "step_accepted": spec.step_accepted,
            "step_drafted": spec.step_drafted,
            "spec_source": "response_block",
        }
    return mk.row(
        one.number,
        send_ns=send,
        request_id=f"{cell.index}-0-{one.number}",
        prompt_id=f"{stratum}-{one.number}",
        stratum=stratum,
        prompt_sha256=hashlib.sha256(f"{cell.load}-{cell.repeat}-{one.number}".encode()).hexdigest(),
        first_byte_ns=send + us[0] * 1000,
        first_token_ns=send + us[0] * 1000,
        last_token_ns=send + us[-1] * 1000,
        end_ns=send + us[-1] * 1000,
        client_lag_us=200,
        reads=len(us),
        coalesced_reads=0,
        first_chunk_merged=False,
        lateness_us=0,
        finish_reason=one.finish,
        prompt_tokens=20,
        completion_tokens=total,
        token_source="per_chunk_usage",
        ttft_us=us[0],
        ttft_visible_us=us[0],
        tpot_us=(us[-1] - us[0]) / (total - one.tokens[0]),
        tpot_basis="first_chunk_known",
        e2e_us=us[-1],
        e2e_intended_us=us[-1],
        chunks=len(us),
        chunk_offset_us=us,
        chunk_tokens=one.tokens,
        output_sha256=hashlib.sha256(text.encode()).hexdigest(),
        output_text=text,
        output_bytes=len(text),
        **counts,
    )


def write_cell(run_dir: Path, cell: Cell, config: ConfigSpec, stratum: Stratum, requests: int) -> None:
    """Measure one cell in model time and write its folder, counters included."""
    method: Method = "none" if config.gamma is None else config.method  # type: ignore[assignment]
    done, last = measure(method, config.gamma or 0, int(cell.load_value), stratum, requests)
    rows = [raw_row(one, cell, stratum) for one in done]
    window_s = last + 1e-3
    end_s = max(window_s, max(one.times[-1] for one in done)) + 1.0
    sums = [float(sum(r.get(k) or 0 for r in rows)) for k in
            ("spec_steps", "draft_tokens", "accepted_tokens", "completion_tokens")]  # fmt: skip
    inside = [r for r in rows if r["end_ns"] <= mk.T0 + window_s * 1e9]
    part = [float(sum(r.get(k) or 0 for r in inside)) for k in
            ("spec_steps", "draft_tokens", "accepted_tokens", "completion_tokens")]  # fmt: skip
    zero = [0.0] * 4
    scrapes: list[dict[str, Any]] = []
    for name, at, values in (("idle_start", -1.0, zero), ("window_start", 0.0, zero),
                             ("window_end", window_s, part), ("idle_end", end_s, sums)):  # fmt: skip
        series = mk.spec_counters(*values)
        if config.gamma is None:
            series = {"vllm:generation_tokens_total": values[3]}
        series |= {"vllm:prefix_cache_queries_total": 20.0 * len(rows) if at > 0 else 0.0,
                   "vllm:prefix_cache_hits_total": 0.0}  # fmt: skip
        t = mk.T0 + round(at * 1e9)
        scrapes.append(mk.sample(t, mk.SCRAPE_OK, 1.0, edge=name))
        scrapes += [mk.sample(t, metric, value, edge=name) for metric, value in series.items()]
    scrapes += [mk.sample(mk.T0 + s * mk.SECOND, mk.SCRAPE_OK, 1.0) for s in range(int(end_s) + 1)]
    told = mk.done(rows, window_s=window_s, idle_start_ns=mk.T0 - mk.SECOND,
                   idle_end_ns=mk.T0 + round(end_s * 1e9))  # fmt: skip
    told["clock_offset"] = {"start_ns": 0, "end_ns": 0, "max_step_us": 1}
    folder = mk.make_cell_folder(
        run_dir, cell, rows, scrapes=sorted(scrapes, key=lambda s: s["t_ns"]), done_json=told,
        provenance={**PROVENANCE, "simulated": True, "contradictions": [], "synthetic_acceptance": False},
        config=config,
    )  # fmt: skip
    assert folder.is_dir()


def simulated_run(
    run_dir: Path, method: Method, gamma: int, stratum: Stratum, loads: Sequence[int], requests: int = 160
) -> RunData:
    """Baseline and one config over closed loads, merged."""
    config = ConfigSpec(name=f"{method}-{gamma}", method=method, gamma=gamma, sim={}, speculative={"method": method})
    cells = []
    for load in loads:
        for spec in (mk.BASELINE, config):
            cell = mk.make_cell(len(cells), spec, stratum, load)
            cells.append((replace(cell, measure_s=None, measure_requests=requests), spec))
    mk.make_run(run_dir, [c for c, _ in cells], [mk.BASELINE, config])
    for cell, spec in cells:
        write_cell(run_dir, cell, spec, stratum, requests)
    merge_run(run_dir)
    return open_run(run_dir)
