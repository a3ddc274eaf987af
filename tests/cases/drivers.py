"""Runs each case through the product and gives what came out, by name: rows, cells, samples, verdicts, data sets.

A driver only turns the case's files into what the product reads (wire bytes, a served page, a raw run folder, a file).
"""

from __future__ import annotations

import dataclasses
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadtest.errors import LoadtestError
from loadtest.load import hdr
from loadtest.model import ConfigSpec, Slo
from loadtest.plan.datasets import Dataset, load_dataset
from tests.cases import kit
from tests.cases.kit import BASELINE, NGRAM, Pages, Part, Reply, Run, Scrapers, folder_of, read, row, timed_row, zeroed

Seen = dict[str, Any]


@dataclasses.dataclass
class World:
    """What the drivers may use; `folder` is the test's own."""

    streams: Run
    answers: Run
    scrapers: Scrapers
    folder: Path

    def scraped(self, pages: Pages, **part: Any) -> Run:
        return kit.run_of(self.folder, Part(pages=pages, **part), scrapers=self.scrapers)


def page(number: str, name: str) -> str:
    return (folder_of(number) / name).read_text(encoding="utf-8")


def before_after(number: str) -> Pages:
    return Pages([(page(number, "metrics_before.txt"), page(number, "metrics_after.txt"))])


def cell_of(run: Run) -> Seen:
    return {"cell": run.cell, "samples": run.samples(), "rows": run.rows(), "run": run}


def acceptance_slo(metric: str = "draft_acceptance_rate", limit: float = 0.3) -> Slo:
    return Slo(metric, metric, "pooled", min=limit)


# -- /metrics


def two_pages(world: World, number: str) -> Seen:
    run = world.scraped(before_after(number))
    return cell_of(run) | {"verdict": run.judge(acceptance_slo()).to_json()}


def one_page(world: World, number: str) -> Seen:
    text = page(number, "metrics.txt")
    return cell_of(world.scraped(Pages([(zeroed(text), text)])))


def gzipped(world: World, number: str) -> Seen:
    body = (folder_of(number) / "metrics.txt.gz").read_bytes()
    before = gzip.compress(zeroed(gzip.decompress(body).decode()).encode())
    headers = read(number, "headers.json")
    return cell_of(world.scraped(Pages([(Reply(before, headers=headers), Reply(body, headers=headers))])))


def alias(world: World, number: str) -> Seen:
    answer = next(r for r in world.answers.rows() if r["prompt_id"] == "10/0")
    asked = next(r for r in world.answers.log if r["name"] == "10/0")
    rows = [row(response_model=answer["response_model"])]
    return cell_of(world.scraped(before_after(number), rows=rows)) | {"answer": answer, "asked": asked["body"]}


def replicas(world: World, number: str) -> Seen:
    pairs = [(page(number, f"replica_{r}_before.txt"), page(number, f"replica_{r}_after.txt")) for r in "ab"]
    both = kit.run_of(world.folder / "both", Part(pages=Pages(pairs)), scrapers=world.scrapers)
    failing = [pairs[0], (pairs[1][0], Reply("down", 503))]
    rows = [timed_row(0, {"ok": True, "ttft_ms": 50, "e2e_ms": 100})]
    half = kit.run_of(world.folder / "half", Part(rows, pages=Pages(failing)), scrapers=world.scrapers)
    router = page(number, "router.txt")
    routed = kit.run_of(world.folder / "router", Part(pages=Pages([(router, router)])), scrapers=world.scrapers)
    return cell_of(both) | {"half": half.cell, "router": routed.cell}


def scrape_500(world: World, number: str) -> Seen:
    replies = [Reply(s["body"], s["status"]) for s in read(number, "scrapes.json")]
    rows = [timed_row(i, {"ok": True, "ttft_ms": 50, "e2e_ms": 100}) for i in range(3)]
    run = world.scraped(Pages([(replies[0], replies[1])]), rows=rows)
    return cell_of(run) | {"verdict": run.judge(acceptance_slo()).to_json()}


def redirected(world: World, number: str) -> Seen:
    first, second = read(number, "exchange.json")
    target = first["headers"]["location"].replace("http://gw:4000/metrics/", "{server}/0/metrics/")
    hop = Reply("", first["status"], {"Location": target})
    other = {"/0/metrics/": Reply(second["body"], second["status"])}
    rows = [timed_row(0, {"ok": True, "ttft_ms": 50, "e2e_ms": 100})]
    run = world.scraped(Pages([(hop, hop)], other), rows=rows)
    paths = [path for path, _ in world.scrapers.server.asked]
    return cell_of(run) | {"followed": "/0/metrics/" in paths, "told": " ".join(run.cell["edge_errors"])}


# -- counters and requests


def aborted(world: World, number: str) -> Seen:
    rows = []
    for seq, record in enumerate(read(number, "records.jsonl")):
        outcomes = {"client_timeout": "read_timeout", "cancelled": "censored"}
        spec = record["spec"]
        counts = {} if spec is None else {
            "spec_steps": spec["num_spec_steps"],
            "draft_tokens": spec["num_draft_tokens"],
            "accepted_tokens": spec["num_accepted_draft_tokens"],
            "spec_source": "response_block",
        }  # fmt: skip
        rows.append(row(seq, outcome=outcomes.get(record.get("error"), "ok"), send_ns=kit.T0 + seq, **counts))
    run = world.scraped(before_after(number), rows=rows)
    return cell_of(run) | {"trust": [r.code for r in trust(run)]}


def trust(run: Run) -> list[Any]:
    return [reason for cell in run.judge(acceptance_slo()).cells for reason in cell.reasons]


def two_configs(world: World, base: Part, candidate: Part, *slos: Slo) -> Seen:
    run = kit.run_of(world.folder, base, candidate, scrapers=world.scrapers)
    verdict = run.judge(*slos)
    seen = {cell["config"]: cell for cell in run.cells}
    compared = verdict.comparisons[0]
    return {
        "base": seen[base.config.name],
        "cand": seen[candidate.config.name],
        "verdict": verdict.to_json(),
        "reasons": list(compared.reasons),
        "said": " ".join(r.seen for r in compared.details),
        "trusted": compared.trusted,
        "length_ratio": compared.length_ratio,
        "rows": run.rows(),
    }


def warm_cache(world: World, number: str) -> Seen:
    pages = {
        a: Pages([(page(number, f"{a}_before.txt"), page(number, f"{a}_after.txt"))]) for a in ("baseline", "candidate")
    }
    rows = [timed_row(i, {"ok": True, "ttft_ms": 50, "e2e_ms": 350}) for i in range(4)]
    return two_configs(
        world, Part(rows, BASELINE, pages=pages["baseline"]), Part(rows, NGRAM, pages=pages["candidate"])
    )


def across_k(world: World, number: str) -> Seen:
    parts = []
    for k in (3, 7):
        config = ConfigSpec(f"k{k}", "draft_model", k, urls=("http://h",), is_baseline=k == 3)
        after = page(number, f"k{k}_after.txt")
        rows = [timed_row(i, {"ok": True, "ttft_ms": 50, "e2e_ms": 350}) for i in range(4)]
        parts.append(Part(rows, config, pages=Pages([(zeroed(after), after)])))
    limit = 1 - read(number, "slo.json")["slos"][0]["max_regression_pct"] / 100
    return two_configs(world, *parts, acceptance_slo(limit=0.5 * limit))


# -- records


def plain_records(world: World, rows: list[dict[str, Any]], *slos: Slo, **done: Any) -> Seen:
    run = kit.run_of(world.folder, Part(rows, done=done))
    verdict = run.judge(*slos)
    return cell_of(run) | {"verdict": verdict.to_json(), "checks": {c.slo: c for c in verdict.checks}}


def rejects(world: World, number: str) -> Seen:
    rows = [timed_row(i, r) for i, r in enumerate(read(number, "records.jsonl"))]
    limits = {s["metric"]: s["value"] for s in read(number, "slo.json")["slos"]}
    return plain_records(
        world,
        rows,
        Slo("e2e", "e2e", "p95", max=limits["e2e_p95_ms"] * 1000),
        Slo("errors", "error_rate", "rate", max=limits["error_rate"]),
        Slo("goodput", "goodput", "goodput", min=0.9, limits={"e2e": 200_000.0}),
    )


def all_failed(world: World, number: str) -> Seen:
    rows = [timed_row(i, r) for i, r in enumerate(read(number, "records.jsonl"))]
    (slo,) = read(number, "slo.json")["slos"]
    return plain_records(world, rows, Slo("e2e", "e2e", "p99", max=slo["value"] * 1000))


def nan_figures(world: World, number: str) -> Seen:
    """The summary's figures are missing because the rows have none: TTFT null, TPOT NaN, no counts of acceptance."""
    rows = [row(i, e2e_us=100_000, tpot_us=float("nan"), completion_tokens=10, chunks=5) for i in range(5)]
    limits = {s["metric"]: s["value"] for s in read(number, "slo.json")["slos"]}
    return plain_records(
        world,
        rows,
        Slo("ttft", "ttft", "p99", max=limits["ttft_p99_ms"] * 1000),
        Slo("tpot", "tpot", "p50", max=limits["tpot_mean_ms"] * 1000),
        acceptance_slo(limit=limits["draft_acceptance_rate"]),
    )


def goodput(world: World, number: str) -> Seen:
    config = read(number, "config.json")
    rows = []
    for seq, record in enumerate(read(number, "records.jsonl")):
        whole = {"e2e_ms": 1000, **record} if record["ok"] else record
        rows.append(timed_row(seq, whole))
    limits = {k.removesuffix("_ms"): v * 1000.0 for k, v in config["goodput"].items()}
    window = {"window_end_ns": kit.T0 + config["duration_s"] * kit.SECOND}
    return plain_records(world, rows, Slo("goodput", "goodput", "goodput", min=0.9, limits=limits), **window)


def lengths(world: World, number: str) -> Seen:
    def part(name: str, config: ConfigSpec) -> Part:
        records = read(number, name)
        return Part([timed_row(i, r, finish_reason=r["finish_reason"]) for i, r in enumerate(records)], config)

    return two_configs(world, part("baseline.jsonl", BASELINE), part("candidate.jsonl", NGRAM))


def no_baseline(world: World, number: str) -> Seen:
    """a: no baseline at all; b: a baseline at another load only. TPOT in ms of both files becomes rows."""

    def part(name: str, config: ConfigSpec) -> Part:
        ((key, figures),) = read(number, name).items()
        tpot = figures["tpot_mean_ms"]
        rows = [timed_row(i, {"ok": True, "ttft_ms": 50, "tpot_ms": tpot, "e2e_ms": 50 + 30 * tpot}) for i in range(40)]
        return Part(rows, config, load=float(key[1:]))

    limit = 1 + read(number, "slo.json")["slos"][0]["max_regression_pct"] / 100
    slo = Slo("tpot", "tpot", "median_ratio_to_baseline", max=limit)
    candidate = part("candidate.json", NGRAM)
    alone = kit.run_of(world.folder / "a", candidate).judge(slo)
    disjoint = kit.run_of(world.folder / "b", part("baseline_b.json", BASELINE), candidate).judge(slo)
    return {
        "alone": alone.to_json(),
        "disjoint": disjoint.to_json(),
        "codes": (alone.exit_code, disjoint.exit_code),
        "pairs": sum(c.pairs for v in (alone, disjoint) for c in v.comparisons),
        "said": alone.checks[0].reason + disjoint.checks[0].reason,
    }


def implausible(world: World, number: str) -> Seen:
    def part(name: str, config: ConfigSpec) -> Part:
        figures = read(number, name)
        record = {"ok": True, "ttft_ms": figures["ttft_p50_ms"], "e2e_ms": figures["ttft_p50_ms"] + 300}
        record["completion_tokens"] = figures["completion_tokens_mean"]
        return Part([timed_row(i, record) for i in range(40)], config)

    limit = 1 + read(number, "slo.json")["slos"][0]["max_regression_pct"] / 100
    seen = two_configs(
        world,
        part("baseline.json", BASELINE),
        part("candidate.json", NGRAM),
        Slo("ttft", "ttft", "median_ratio_to_baseline", max=limit),
    )
    return seen | {"all_reasons": [r["code"] for c in seen["verdict"]["cells"] for r in c["reasons"]]}


def out_of_range(world: World, number: str) -> Seen:
    config = read(number, "config.json")
    ours = (hdr.LOWEST_US, hdr.HIGHEST_US / 1000, hdr.DIGITS)
    assert ours == (config["lowest_us"], config["highest_ms"], config["significant_digits"])
    rows = [
        timed_row(i, {"ok": True, "ttft_ms": 50, "e2e_ms": ms}) for i, ms in enumerate(read(number, "samples_ms.json"))
    ]
    seen = plain_records(world, rows, Slo("e2e", "e2e", "p50", max=1e9))
    (histogram,) = [e.histogram for e in hdr.read_hlog(world.folder / "latency.hlog") if e.tag.endswith(".e2e")]
    reasons = [r["code"] for c in seen["verdict"]["cells"] for r in c["reasons"]]
    return seen | {"hdr": histogram, "hdr_p99": hdr.percentiles(histogram, [99])[0], "reasons": reasons}


def merged_workers(world: World, number: str) -> Seen:
    told = read(number, "workers.json")
    rows, seq = [], 0
    for worker, report in enumerate(told["reports"]):
        for ms, n in report["histogram_ms"].items():
            for _ in range(n):
                rows.append(
                    timed_row(seq, {"ok": True, "ttft_ms": 5, "e2e_ms": float(ms)}, worker=worker, send_ns=kit.T0 + seq)
                )
                seq += 1
    seen = plain_records(world, rows, Slo("e2e", "e2e", "p50", max=1e6), workers_expected=told["expected"])
    return seen | {"reasons": [r["code"] for c in seen["verdict"]["cells"] for r in c["reasons"]]}


def duplicates(world: World, number: str) -> Seen:
    cell = world.answers.cells[1]
    rows = world.answers.rows(cell["cell_id"])
    joined = world.answers.data.requests(["request_id"]).to_pylist()
    own = {r["request_id"] for r in rows}
    return {"rows": rows, "cell": cell, "joined": [j for j in joined if j["request_id"] in own]}


# -- streams and answers


def stream(world: World, number: str) -> Seen:
    first = next(r for r in world.streams.rows() if r["prompt_id"] == number)
    return {"row": first, "late_ms": late_ms(world.streams, number, first)}


def late_ms(run: Run, name: str, first: dict[str, Any]) -> float:
    """How far this exchange may be off on a busy machine, beside the loopback's own time.

    How much later than scheduled the replay server wrote, counted from the client's send; and how late the client read,
    because what comes in while it stalls is read together and bears the last stamp (the row says so).
    """
    played = next(entry for entry in run.log if entry["name"] == name)
    planned = run.scripts[name]["chunks"]
    late = [
        (wrote - first["send_ns"]) / 1e6 - chunk["t_ms"]
        for wrote, chunk in zip(played["chunks_ns"], planned, strict=True)
    ]
    return max(late, default=0.0) + (first["client_lag_us"] or 0) / 1000


def preempted(world: World, number: str) -> Seen:
    return stream(world, number) | cell_of(world.scraped(before_after(number)))


def dead_engine(world: World, number: str) -> Seen:
    cell = world.streams.cells[1]
    rows = world.streams.rows(cell["cell_id"])
    verdict = world.streams.judge(Slo("ttft", "ttft", "p99", max=1e6))
    checks = [c for c in verdict.checks if c.scope and c.scope.cell_ids == (cell["cell_id"],)]
    return {"cell": cell, "rows": rows, "checks": [c.status for c in checks], "status": verdict.status}


def plain_rows(world: World, number: str) -> Seen:
    rows = [r for r in world.answers.rows() if r["prompt_id"].startswith(f"{number}/")]
    rows.sort(key=lambda r: r["prompt_id"])
    run = kit.run_of(world.folder, Part([raw_of(r) for r in rows]))
    return {"row": rows[0], "rows": rows, "cell": run.cell, "all_cells": world.answers.cells}


def raw_of(merged: dict[str, Any]) -> dict[str, Any]:
    """A merged row as it stood in the worker's file."""
    from loadtest.load.records import RAW_SCHEMA

    return {name: merged[name] for name in RAW_SCHEMA.names}


# -- data sets


def dataset(world: World, number: str) -> Seen:
    (name,) = [n for n in ("sharegpt.json", "data.jsonl", "question.jsonl") if (folder_of(number) / n).exists()]
    return {"strict": loaded(number, name), "loaded": loaded(number, name, on_error="skip")}


def loaded(number: str, name: str, **options: Any) -> Dataset | str:
    """The data set, or the text of the error."""
    try:
        return load_dataset(folder_of(number) / name, **options)
    except LoadtestError as error:
        return str(error)


def by_content(world: World, number: str) -> Seen:
    names = ("lines.json", "array.jsonl", "one.jsonl")
    return {name.replace(".", "_"): loaded(number, name) for name in names}


def turns(world: World, number: str) -> Seen:
    return dataset(world, number) | {"math": loaded(number, "question.jsonl", category="math", on_error="skip")}


def surrogate(world: World, number: str) -> Seen:
    cell = world.answers.cells[2]
    sent = {r["id"]: r["body"]["messages"][-1]["content"] for r in world.answers.log}
    rows = world.answers.rows(cell["cell_id"])
    return dataset(world, number) | {"sent": [sent[r["request_id"]] for r in rows], "rows": rows}


Driver = Callable[[World, str], Seen]
DRIVERS: dict[str, Driver] = {
    "01": two_pages, "02": two_pages, "04": one_page, "05": two_pages, "07": two_pages, "08": two_pages,
    "10": alias, "11": replicas, "13": scrape_500, "14": redirected, "16": one_page, "17": gzipped,
    "19": aborted, "20": warm_cache, "22": plain_rows, "23": plain_rows, "25": plain_rows, "26": plain_rows,
    "28": across_k, "29": stream, "31": stream, "32": stream, "34": stream, "35": stream, "37": stream, "38": stream,
    "40": stream, "41": stream, "43": stream, "44": stream, "46": stream, "47": preempted, "49": stream,
    "50": rejects, "52": dead_engine, "53": plain_rows, "55": lengths, "56": duplicates, "58": out_of_range,
    "59": merged_workers, "61": all_failed, "62": nan_figures, "64": no_baseline, "65": implausible, "67": goodput,
    "68": dataset, "70": by_content, "71": dataset, "73": dataset, "74": turns, "76": surrogate,
}  # fmt: skip
"""Number of the case -> what runs it."""
