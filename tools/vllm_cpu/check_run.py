"""Checks a run against real servers from outside, with SQL over its Parquet: nothing lost, nothing counted twice.

usage: check_run.py RUN; prints each fact, exits 1 on the first that does not hold.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb

Check = Callable[[str, bool, object], None]
"""Takes the name of a fact, whether it holds, and what was seen."""


def main(run: Path) -> int:
    facts = json.loads((run / "run.json").read_text(encoding="utf-8"))
    verdict = json.loads((run / "verdict.json").read_text(encoding="utf-8"))
    db = duckdb.connect()
    requests = f"read_parquet('{run}/requests/**/*.parquet', hive_partitioning = false)"
    cells = f"read_parquet('{run}/cells.parquet')"
    problems: list[str] = []

    def check(name: str, ok: bool, seen: object) -> None:
        print(f"{'ok ' if ok else 'BAD'} {name}: {seen}")
        if not ok:
            problems.append(name)

    planned = len(facts["cells"])
    states = dict(db.sql(f"select state, count(*) from {cells} group by all").fetchall())
    check("every cell was measured", states == {"done": planned}, f"{states} of {planned}")
    check("no simulated server", not verdict["simulated"], verdict["simulated"])
    check(
        "a verdict with its exit code",
        verdict["exit_code"] in (0, 98, 99),
        f"{verdict['status']} {verdict['exit_code']}",
    )
    rows = db.sql(f"select count(*) from {requests}").fetchall()[0][0]
    told = sum(
        worker["sent"]
        for done in sorted((run / "cells").glob("*/done.json"))
        for worker in json.loads(done.read_text(encoding="utf-8"))["workers"].values()
    )
    check("rows = requests sent", rows == told and rows > 0, f"{rows} rows, workers sent {told}")
    ids = db.sql(f"select count(*), count(distinct request_id) from {requests}").fetchall()[0]
    check("request ids are unique", ids[0] == ids[1], ids)
    outcomes = dict(db.sql(f"select outcome, count(*) from {requests} group by all").fetchall())
    check("every request ended well", set(outcomes) == {"ok"}, outcomes)
    for name, counter, requested in (
        ("S", "cell_ctr_spec_steps", "cell_req_spec_steps"),
        ("D", "cell_ctr_draft_tokens", "cell_req_draft_tokens"),
        ("A", "cell_ctr_accepted_tokens", "cell_req_accepted_tokens"),
        ("completion tokens", "cell_ctr_generation_tokens", "cell_req_completion_tokens"),
    ):
        only = "" if name == "completion tokens" else "where method <> 'none'"
        pairs = db.sql(f"select cell_id, {counter}, {requested} from {cells} {only}").fetchall()
        off = [p for p in pairs if p[1] is None or p[2] is None or p[1] != p[2]]
        total = sum(p[2] or 0 for p in pairs)
        check(
            f"{name}: requests = server counters in every cell",
            not off and total > 0,
            off or f"{total:.0f} in {len(pairs)} cells",
        )
    chunks = db.sql(
        f"select count(*) filter (where list_sum(chunk_tokens) <> completion_tokens) from {requests}"
    ).fetchall()
    check("tokens per chunk add up to the usage", chunks[0][0] == 0, f"{chunks[0][0]} rows differ")
    check_provenance(run, facts["configs"], check)
    strange = db.sql(
        f"select config, server_fingerprint, count(*) from {requests} "
        "where server_fingerprint is distinct from config group by all"
    ).fetchall()
    check("every response names its config", not strange, strange or f"{rows} rows")
    if problems:
        print(f"{run}: {len(problems)} facts do not hold", file=sys.stderr)
    return 1 if problems else 0


def check_provenance(run: Path, configs: list[dict[str, Any]], check: Check) -> None:
    """Each server start proved method, number of draft tokens, model and fingerprint; nothing contradicts the plan."""
    asked = {c["name"]: c for c in configs}
    for file in sorted((run / "servers").glob("*/provenance.json")):
        told = json.loads(file.read_text(encoding="utf-8"))
        wanted = ["model", "system_fingerprint", "speculative.method"]
        wanted += [f"speculative.{key}" for key in asked[told["config"]]["speculative"] or {}]
        status = {key: told["facts"].get(key, {}).get("status") for key in wanted}
        proven = all(s == "proven" for s in status.values()) and not told["contradictions"]
        check(f"{file.parent.name} is what was asked", proven, ", ".join(f"{k} {s}" for k, s in status.items()))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
