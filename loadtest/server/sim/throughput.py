"""Throughput of the simulated engine in model time: a closed loop without HTTP, sockets or waiting.

`python -m loadtest.server.sim.throughput` prints the table of docs/simulator.md.
"""

from __future__ import annotations

from loadtest.server.sim.engine import Engine
from loadtest.server.sim.options import sim_options
from loadtest.server.sim.parameters import METHODS, STRATA, Method, Stratum
from loadtest.server.sim.sequence import FinishReason, Group
from loadtest.server.sim.text import guess_stratum, tokenize

CONCURRENCY = (1, 8, 32, 128)
OUTPUT_TOKENS = 256
WINDOW_S = 4.0
"""Model time of one run: about four answers per stream for the baseline."""

PROMPTS: dict[Stratum, str] = {
    "code": "Write a Python function that merges two sorted lists, with type hints and a docstring. Task {k}.",
    "edit": "Rename the variable and return the whole file.\n```python\ndef total(values):\n    result = 0\n"
    "    for value in values:\n        result += value\n    return result\n```\nTask {k}.",
    "chat": "How should a small team plan a week in which two people are away? Question {k}.",
    "non_english": "请说明在高并发情况下如何控制延迟，并给出三个步骤。问题{k}。",
}


class _Counter:
    """Sink that counts tokens and tells when its sequence is done."""

    def __init__(self) -> None:
        self.tokens = 0
        self.done = False

    @property
    def closed(self) -> bool:
        """Never: this client stays."""
        return False

    def deliver(self, start: int, end: int, finish: FinishReason | None) -> None:
        """Counts."""
        self.tokens += end - start
        self.done = finish is not None


def tokens_per_second(
    method: Method,
    concurrency: int,
    stratum: Stratum,
    *,
    gamma: int | None = None,
    seed: int = 0,
    window_s: float = WINDOW_S,
) -> float:
    """Output tokens per second of model time with `concurrency` streams that send one request after another."""
    engine = Engine(sim_options(method=method, gamma=gamma, seed=seed))
    sinks: list[_Counter] = []
    streams: list[_Counter | None] = [None] * concurrency
    now = 0.0
    while now < window_s:
        for i, sink in enumerate(streams):
            if sink is None or sink.done:
                fresh = streams[i] = _Counter()
                _submit(engine, fresh, len(sinks), stratum, now)
                sinks.append(fresh)
        now += engine.begin_step(now) or 0.0
        engine.end_step(now)
    return sum(s.tokens for s in sinks) / now


def _submit(engine: Engine, sink: _Counter, k: int, stratum: Stratum, now: float) -> None:
    prompt = PROMPTS[stratum].format(k=k)
    engine.submit(
        tokenize(prompt), guess_stratum(prompt), sink, now, max_tokens=OUTPUT_TOKENS, ignore_eos=True, group=Group(1)
    )


def table() -> str:
    """Markdown: throughput relative to the baseline, by method, kind of task and concurrency."""
    lines = [
        "| method | gamma | task | " + " | ".join(map(str, CONCURRENCY)) + " |",
        "|---" * (3 + len(CONCURRENCY)) + "|",
    ]
    base = {(c, s): tokens_per_second("none", c, s) for c in CONCURRENCY for s in STRATA}
    for method in METHODS[1:]:
        gamma = sim_options(method=method).gamma
        for stratum in STRATA:
            ratios = [tokens_per_second(method, c, stratum) / base[c, stratum] for c in CONCURRENCY]
            lines.append(f"| {method} | {gamma} | {stratum} | " + " | ".join(f"{r:.2f}" for r in ratios) + " |")
    steps = " | ".join(f"{base[c, 'chat']:.0f}" for c in CONCURRENCY)
    return "\n".join([*lines, f"| none | | tokens/s | {steps} |"])


if __name__ == "__main__":
    print(table())
