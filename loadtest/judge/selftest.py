"""A gate that is known to fire: plant one fault of every kind into a copy of a run and show that each is caught.

Nothing is written: the faults are made in memory, in the tables that the judge reads. The copy holds one cell (and its
baseline) whose facts are first put right, so that the planted fault is the only one. A fault is caught where the named
reason (or a failed criterion) appears at the damaged cell and none of that cell's checks passes any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loadtest.errors import InputError
from loadtest.judge.frame import Bools, RunLike, load_frame
from loadtest.judge.gate import judge_run
from loadtest.judge.verdict import Verdict
from loadtest.model import Slo

Change = Callable[[pa.Table], pa.Table]


@dataclass(frozen=True, slots=True)
class Copy:
    """A few cells of a run, in memory, as the judge reads them."""

    run: dict[str, Any]
    cells: pa.Table
    rows: pa.Table

    def requests(self, columns: list[str] | None = None, filter: Any = None) -> pa.Table:  # noqa: A002 - as RunData
        """The rows, filtered, of these columns."""
        table = self.rows if filter is None else self.rows.filter(filter)
        return table if columns is None else table.select(columns)


@dataclass(frozen=True, slots=True)
class Fault:
    """One planted violation."""

    name: str
    expect: str
    """Code of the reason that must appear, or "FAIL": a criterion must fail."""
    facts: dict[str, Any] | None = None
    """Columns of cells.parquet to overwrite."""
    change: Change | None = None
    """What happens to the rows of the cell."""
    slo: Slo | None = None
    """A criterion of the fault's own, where the run's may not look at it."""


@dataclass(frozen=True, slots=True)
class Planted:
    """What became of one fault."""

    name: str
    expect: str
    caught: bool
    seen: str


def _set(table: pa.Table, name: str, values: Any) -> pa.Table:
    index = table.schema.get_field_index(name)
    field = table.schema.field(index)
    return table.set_column(index, field, pa.array(values, type=field.type, from_pandas=True))


def _three_in_ten(table: pa.Table) -> Bools:
    """Rows 0, 4 and 7 of every ten: many enough for small cells to fail, and no bursts."""
    return np.asarray(np.arange(len(table)) * 3 % 10 < 3)


def _slower(table: pa.Table) -> pa.Table:
    """Three requests in ten take 1,000 s to its first token and to its end."""
    for name in ("ttft_us", "e2e_us"):
        old = pc.fill_null(table[name], 0).to_numpy()
        table = _set(table, name, np.where(_three_in_ten(table), 1_000_000_000, old))
    return table


def _failing(table: pa.Table) -> pa.Table:
    """Three requests in ten are rejected."""
    bad = _three_in_ten(table)
    table = _set(
        table, "outcome", np.where(bad, "http_error", table["outcome"].to_numpy(zero_copy_only=False)).tolist()
    )
    return _set(table, "e2e_us", np.where(bad, np.nan, pc.fill_null(table["e2e_us"], 0).to_numpy()))


def _cut(table: pa.Table) -> pa.Table:
    """Three streams in ten break off."""
    bad = _three_in_ten(table)
    return _set(table, "outcome", np.where(bad, "truncated", table["outcome"].to_numpy(zero_copy_only=False)).tolist())


def _fewer(table: pa.Table) -> pa.Table:
    """Three rows in ten are lost."""
    return table.filter(pa.array(~_three_in_ten(table)))


def _zero(table: pa.Table) -> pa.Table:
    """Nothing was measured: TTFT 0."""
    return _set(table, "ttft_us", np.zeros(len(table), dtype=np.int64))


def _nothing(table: pa.Table) -> pa.Table:
    """No latency is known at all."""
    for name in ("ttft_us", "tpot_us", "e2e_us"):
        table = _set(table, name, [None] * len(table))
    return table


def _no_usage(table: pa.Table) -> pa.Table:
    """The server tells no token counts."""
    return _set(table, "completion_tokens", [None] * len(table))


_TTFT = Slo("self-test: ttft p50 <= 100 s", "ttft", "p50", max=100e6)
_TTFT_95 = Slo("self-test: ttft p95 <= 100 s", "ttft", "p95", max=100e6)

FAULTS: tuple[Fault, ...] = (
    Fault("slower tail", "FAIL", change=_slower, slo=_TTFT_95),
    Fault("rejected requests", "FAIL", change=_failing),
    Fault("broken streams", "FAIL", change=_cut),
    Fault("fewer rows than requests", "rows_missing", change=_fewer),
    Fault("zero TTFT", "implausible_values", change=_zero),
    Fault("latencies null", "INCONCLUSIVE", change=_nothing, slo=_TTFT),
    Fault("no token counts", "no_usage", change=_no_usage),
    Fault("unfinished cell", "cell_not_done", {"state": "unfinished"}),
    Fault("nothing sent", "no_requests", {"sent": 0}),
    Fault("missing worker", "worker_missing", {"workers_reported": 0}),
    Fault("rows lost on the way", "rows_missing", {"worker_rows_missing": 7}),
    Fault("torn file", "torn_file", {"torn_files": ["worker-0.arrows"]}),
    Fault("duplicate ids", "duplicate_request_ids", {"duplicate_request_ids": 2}),
    Fault("merged reads", "merged_reads", {"chunks": 1000, "coalesced_share": 0.5}),
    Fault("merged first chunks", "merged_first_chunks", {"chunks": 1000, "merged_first_share": 0.5}),
    Fault("dropped arrivals", "arrivals_dropped", {"load_kind": "poisson", "dropped": 3}),
    Fault("late sends", "late_sends", {"load_kind": "poisson", "lateness_p99_us": 1e6}),
    Fault("lagging client", "client_lag", {"user_clock_share": 0.0, "client_lag_p99_us": 1e6}),
    Fault("saturated client", "client_cpu", {"worker_cpu_max": 1.0}),
    Fault("absent event loop", "client_stalls", {"worker_stall_share": 0.5}),
    Fault("skewed clock", "clock_skew", {"clock_skew_ms": 900.0}),
    Fault("stepping clock", "clock_step", {"clock_step_us": 1e6}),
    Fault("too little load", "load_not_reached", {"load_kind": "closed", "achieved_concurrency": 0.0}),
    Fault("scrape gap", "scrape_gap", {"scrape_max_gap_s": 60.0}),
    Fault("reset counter", "counter_reset", {"counter_resets": ["planted engine=0"]}),
    Fault("foreign traffic", "foreign_traffic", {"unexplained_share": 0.5}),
    Fault("contradictory counts", "spec_identity", {"spec_identity_breaches": ["planted"]}),
    Fault("two stories of acceptance", "acceptance_residual",
          {"residual_accepted_tokens": 500.0, "cell_ctr_accepted_tokens": 1000.0}),
    Fault("swapped config", "config_contradiction", {"contradictions": ["num_speculative_tokens"]}),
    Fault("swapped server", "several_fingerprints", {"server_fingerprints": ["planted-1", "planted-2"]}),
    Fault("NaN in a fact", "hdr_mismatch", {"hdr_max_rel_error": float("nan")}),
    Fault("simulated server", "simulated", {"simulated": True}),
    Fault("synthetic acceptance", "synthetic_acceptance", {"synthetic_acceptance": True}),
)  # fmt: skip
"""At least one fault for every blocking check of a cell (proven by a test)."""


def self_test(data: RunLike, slos: Sequence[Slo]) -> list[Planted]:
    """Plant every fault, one at a time, into the largest candidate cell; one result per fault.

    Raises InputError where the run has no cell to damage.
    """
    cells = data.cells.to_pylist()
    served = [c for c in cells if c["state"] == "done" and (c["ok"] or 0) > 0]
    candidates = [c for c in served if not c["is_baseline"]] or served
    if not candidates:
        raise InputError("the self-test needs a run with at least one finished cell that served requests")
    victim = max(candidates, key=lambda c: int(c["ok"]))
    # The victim alone and its baseline: the other cells only cost time.
    ids = [victim["cell_id"], *(c["cell_id"] for c in served if c["is_baseline"] and _same_place(c, victim))]
    wanted = pa.array(ids, pa.string())
    rows = data.requests(None, pc.is_in(pc.field("cell_id"), value_set=wanted))
    rows = _set(rows, "first_chunk_merged", [False] * len(rows))
    kept = [{**c, **SOUND} for c in cells if c["cell_id"] in ids]
    copy = Copy(dict(data.run), pa.Table.from_pylist(kept, schema=data.cells.schema), rows)
    frame = load_frame(copy)
    for cell in kept:
        cell["sent"] = len(frame.cell(cell["cell_id"]))
        cell["achieved_concurrency"] = cell["load_value"]
    copy = Copy(copy.run, pa.Table.from_pylist(kept, schema=data.cells.schema), rows)
    return [_plant(copy, slos, victim["cell_id"], fault) for fault in FAULTS]


SOUND: dict[str, Any] = {
    "simulated": False,
    "synthetic_acceptance": False,
    "workers_expected": 1,
    "workers_reported": 1,
    "worker_rows_missing": 0,
    "torn_files": [],
    "duplicate_request_ids": 0,
    "coalesced_share": 0.0,
    "merged_first_share": 0.0,
    "dropped": 0,
    "lateness_p99_us": 0.0,
    "client_lag_p99_us": 0.0,
    "worker_cpu_max": 0.0,
    "worker_stall_share": 0.0,
    "clock_skew_ms": 0.0,
    "clock_step_us": 0.0,
    "scrapes_expected": 1,
    "scrapes_ok": 1,
    "scrape_max_gap_s": 1.0,
    "counter_resets": [],
    "unexplained_share": 0.0,
    "spec_identity_breaches": [],
    "residual_spec_steps": 0.0,
    "residual_draft_tokens": 0.0,
    "residual_accepted_tokens": 0.0,
    "contradictions": [],
    "server_fingerprints": [],
    "hdr_max_rel_error": 0.0,
    "hdr_overflow": 0,
}
"""Facts of a cell that passes every trust check, whatever was seen: the copy starts from these."""


def self_test_text(planted: Sequence[Planted]) -> str:
    """One line per fault and a last line that sums up."""
    missed = sum(not p.caught for p in planted)
    lines = [f"{'caught' if p.caught else 'MISSED':7} {p.name}: {p.expect}: {p.seen}" for p in planted]
    end = (
        f"{missed} of {len(planted)} planted faults were missed: do not trust this gate"
        if missed
        else (f"all {len(planted)} planted faults were caught")
    )
    return "\n".join([*lines, end])


def _same_place(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return all(a[k] == b[k] for k in ("mix", "sampling", "load", "repeat"))


def _plant(copy: Copy, slos: Sequence[Slo], cell_id: str, fault: Fault) -> Planted:
    cells = copy.cells.to_pylist()
    for cell in cells:
        if cell["cell_id"] == cell_id:
            cell.update(fault.facts or {})
    rows = copy.rows
    if fault.change is not None:
        mine = pc.equal(rows["cell_id"], cell_id)
        rows = pa.concat_tables([rows.filter(pc.invert(mine)), fault.change(rows.filter(mine))])
    damaged = Copy(copy.run, pa.Table.from_pylist(cells, schema=copy.cells.schema), rows)
    verdict = judge_run(damaged, [*slos, *([fault.slo] if fault.slo else [])])
    return _outcome(verdict, cell_id, fault)


def _outcome(verdict: Verdict, cell_id: str, fault: Fault) -> Planted:
    mine = [c for c in verdict.checks if c.scope is not None and cell_id in c.scope.cell_ids and c.gating]
    passing = [c for c in mine if c.status == "PASS"]
    trust = next(c for c in verdict.cells if c.cell_id == cell_id)
    codes = {r.code: r.seen for r in trust.reasons if r.blocking}
    if fault.expect in ("FAIL", "INCONCLUSIVE"):
        name = fault.slo.name if fault.slo else None
        looked = [c for c in mine if c.slo == name or (name is None and c.metric == "error_rate")]
        looked = [c for c in looked if c.scope is not None and len(c.scope.cell_ids) == 1]
        hit = [c for c in looked if c.status == fault.expect]
        caught = bool(hit) and len(hit) == len(looked)
        seen = hit[0].reason if hit else f"{fault.expect} did not appear"
    else:
        caught = fault.expect in codes and not passing
        seen = codes.get(fault.expect, "the reason did not appear")
    return Planted(fault.name, fault.expect, caught and verdict.status != "PASS", seen)
