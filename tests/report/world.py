"""A small run whose figures are worked out by hand, merged and judged by the real rooms.

ngram-4 on code at c8, two repeats:

    repeat 1 (window 10 s)  S=5 D=20 A=10 N=20 (edit)     e2e 100 ms     histogram 1 1 1 1 1
                            S=5 D=20 A=6  N=20 (explain)  e2e 200 ms     histogram 2 1 1 1 0
                            one http error
                            and a warm-up request of 2 s that belongs to no figure
    repeat 2 (window 30 s)  S=2 D=8  A=8  N=20 (edit)     e2e 400 ms     histogram 0 0 0 0 2

suffix-4 never drafts (D = 0), eagle3-4 did not start; the baseline serves the same prompts.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from loadtest.judge.gate import judge_run
from loadtest.judge.verdict import Verdict
from loadtest.merge.merge import merge_run
from loadtest.merge.read import RunData, open_run
from loadtest.model import ConfigSpec, Slo
from loadtest.plan.cells import server_starts
from tests.merge.make_run import BASELINE, NGRAM, SECOND, T0, done, make_cell, make_cell_folder, make_run, row

SUFFIX = ConfigSpec(name="suffix-4", method="suffix", gamma=4, sim={}, speculative={"method": "suffix"})
EAGLE3 = ConfigSpec(name="eagle3-4", method="eagle3", gamma=4, sim={}, speculative={"method": "eagle3"})
HOSTILE_NAME = 'n|<b>x<img src=x onerror="document.body.dataset.hacked=1">&'
HOSTILE_REASON = "no CUDA\x00 \x1b[31m</script><script>document.body.dataset.hacked=1</script> | <b>"

SLOS = (
    Slo("ttft p95 <= 500ms", "ttft", "p95", max=500_000.0),
    Slo("e2e p99 <= 3s", "e2e", "p99", max=3_000_000.0),
    Slo("A/D >= 0.3", "draft_acceptance_rate", "pooled", min=0.3),
    Slo("errors <= 50%", "error_rate", "rate", max=0.5),
)


def request(seq: int, e2e_ms: int, tokens: int = 20, **values: Any) -> dict[str, Any]:
    """An ok request: first token after a tenth of its time."""
    send = T0 + seq * SECOND
    times = {"first_token_ns": send + e2e_ms * 100_000, "last_token_ns": send + e2e_ms * 1_000_000}
    latencies = {"ttft_us": e2e_ms * 100, "e2e_us": e2e_ms * 1000, "tpot_us": e2e_ms * 900 / (tokens - 1)}
    ends = {"end_ns": send + e2e_ms * 1_000_000, "e2e_intended_us": e2e_ms * 1000, "chunks": 10}
    return row(seq, completion_tokens=tokens, **times, **latencies, **ends, **values)


def drafts(s: int, d: int, a: int, histogram: list[int] | None = None) -> dict[str, Any]:
    return {
        "spec_steps": s,
        "draft_tokens": d,
        "accepted_tokens": a,
        "spec_source": "response_block",
        "acceptance_histogram": histogram,
    }


def build(run_dir: Path, *, simulated: bool = True, ngram: ConfigSpec = NGRAM) -> Path:
    """The run of the module's docstring, merged. `ngram` may have another name."""
    base = [make_cell(i, BASELINE, repeat=i) for i in (1, 2)]
    fast = [replace(make_cell(2 + i, ngram, repeat=i), cell_id=f"00{2 + i}-ngram-r{i}") for i in (1, 2)]
    suffix, eagle = make_cell(5, SUFFIX), make_cell(6, EAGLE3)
    configs = (BASELINE, ngram, SUFFIX, EAGLE3)
    cells = [*base, *fast, suffix, eagle]
    make_run(run_dir, cells, configs, simulated=simulated, slos=SLOS)
    warmup = request(-3, 2000, phase="warmup", **drafts(1, 4, 0, [1, 0, 0, 0, 0]))
    error = row(3, outcome="http_error", http_status=503, error="503 </script>")
    parts = [
        (base[0], BASELINE, [request(0, 150), request(1, 250)], 10.0),
        (base[1], BASELINE, [request(0, 450)], 30.0),
        (
            fast[0],
            ngram,
            [
                request(0, 100, **drafts(5, 20, 10, [1, 1, 1, 1, 1])),
                request(1, 200, stratum="explain", **drafts(5, 20, 6, [2, 1, 1, 1, 0])),
                error,
                warmup,
            ],
            10.0,
        ),
        (fast[1], ngram, [request(0, 400, **drafts(2, 8, 8, [0, 0, 0, 0, 2]))], 30.0),
        (suffix, SUFFIX, [request(0, 100, **drafts(0, 0, 0))], 10.0),
    ]
    for cell, config, rows, window_s in parts:
        folder = make_cell_folder(run_dir, cell, rows, config=config, done_json=done(rows, window_s=window_s))
        told = json.loads((folder / "cell.json").read_text())
        (folder / "cell.json").write_text(json.dumps(told | {"simulated": simulated}))
    starts = [f"{i:02d}-{config}" for i, (config, _) in enumerate(server_starts(cells, configs))]
    failed = run_dir / "servers" / next(s for s in starts if s.endswith("eagle3-4"))
    failed.mkdir(parents=True)
    (failed / "failed.json").write_text(json.dumps({"reason": "StartError", "diagnosis": HOSTILE_REASON}))
    merge_run(run_dir)
    return run_dir


def judged(run_dir: Path) -> tuple[RunData, Verdict]:
    data = open_run(run_dir)
    return data, judge_run(data, list(SLOS))
