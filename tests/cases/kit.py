"""What every case needs: its files, whole Locust runs against the replay server, the real scraper, merge and gate.

Nothing here computes a figure: inputs become what goes over the wire or lies in a run folder, and the product's own
merged rows, cells and verdicts come back.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from loadtest.judge.gate import judge_run
from loadtest.judge.verdict import Verdict
from loadtest.load.launch import locust_argv, locust_env
from loadtest.merge.merge import merge_run
from loadtest.merge.read import RunData, open_run
from loadtest.model import Cell, ClientSpec, ConfigSpec, LoadJob, Slo, to_json
from loadtest.plan.datasets import Dataset
from loadtest.server.scrapes import SCRAPE_OK
from tests.cases.scraping import Page, Pages, PageServer, Reply, Scrapers, zeroed
from tests.merge.make_run import (
    BASELINE,
    NGRAM,
    SECOND,
    T0,
    done,
    edge,
    make_cell,
    make_cell_folder,
    make_run,
    row,
    sample,
)

DATA = Path(__file__).parents[1] / "data" / "cases"
SLUGS = sorted(p.name for p in DATA.iterdir() if p.is_dir())
PROVENANCE = {"versions": {"vllm": "0.32.0"}, "model": {"id": "m"}, "gpus": ["H200"], "host": {"name": "h"}}
READ_TIMEOUT_S, TOTAL_TIMEOUT_S = 3.0, 5.0
"""The longest silence of a case that still gets its answer is 2 s."""

__all__ = ["BASELINE", "NGRAM", "Page", "PageServer", "Pages", "Reply", "Scrapers", "make_cell", "row", "zeroed"]


def folder_of(number: str) -> Path:
    """The folder of case "29"."""
    return next(DATA.glob(f"{number}-*"))


def read(number: str, name: str) -> Any:
    """A JSON file of a case; `.jsonl` as a list; NaN is accepted as Python writes it."""
    text = (folder_of(number) / name).read_text(encoding="utf-8")
    if name.endswith(".jsonl"):
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    return json.loads(text)


# -- run folders


@dataclass
class Run:
    """A merged run."""

    data: RunData
    folder: Path
    log: list[dict[str, Any]] = field(default_factory=list)
    """What the replay server did."""
    scripts: Mapping[str, Any] = field(default_factory=dict)
    """What it was told to do."""

    @property
    def cells(self) -> list[dict[str, Any]]:
        return self.data.cells.to_pylist()

    @property
    def cell(self) -> dict[str, Any]:
        (cell,) = self.cells
        return cell

    def rows(self, cell_id: str | None = None) -> list[dict[str, Any]]:
        rows = self.data.requests().to_pylist()
        rows = [r for r in rows if r["phase"] == "measure" and cell_id in (None, r["cell_id"])]
        return sorted(rows, key=lambda r: r["seq"])

    def samples(self) -> list[dict[str, Any]]:
        import pyarrow.parquet as pq

        return pq.read_table(self.folder / "server.parquet").to_pylist()

    def judge(self, *slos: Slo) -> Verdict:
        return judge_run(self.data, list(slos))


def merged(folder: Path) -> Run:
    merge_run(folder)
    return Run(open_run(folder), folder)


@dataclass
class Part:
    """One cell of a run folder written by hand; `pages` are scraped by the real scraper."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    config: ConfigSpec = NGRAM
    load: float = 8
    pages: Pages | None = None
    scrapes: list[dict[str, Any]] | None = None
    """Rows of server.arrows; None: those of a server that did exactly what the requests say."""
    done: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=lambda: PROVENANCE)


def run_of(folder: Path, *parts: Part, scrapers: Scrapers | None = None, **run: Any) -> Run:
    """A merged run of these cells. Rows of a scraped cell are moved into the window that the scrapes span."""
    cells = [
        dataclasses.replace(make_cell(i, part.config, load=part.load), load_kind="sequential")
        for i, part in enumerate(parts)
    ]
    configs = list({part.config.name: part.config for part in parts}.values())
    make_run(folder, cells, configs, simulated=False, **run)
    for cell, part in zip(cells, parts, strict=True):
        rows, told = part.rows, done(part.rows)
        if part.pages is not None:
            assert scrapers is not None
            start, end = scrapers.record(folder / "cells" / cell.cell_id, part.pages)
            rows = [moved(r, start - T0) for r in rows]
            told |= {"window_start_ns": start, "window_end_ns": max(end, start + 10)}
        make_cell_folder(
            folder, cell, rows, done_json=told | dict(part.done), provenance=dict(part.provenance), config=part.config,
            scrapes=None if part.pages is not None else
            part.scrapes or quiet_scrapes(rows, part.config.method != "none"),
        )  # fmt: skip
        told_cell = json.loads((folder / "cells" / cell.cell_id / "cell.json").read_text())
        (folder / "cells" / cell.cell_id / "cell.json").write_text(json.dumps(told_cell | {"simulated": False}))
    return merged(folder)


def quiet_scrapes(rows: Sequence[Mapping[str, Any]], speculative: bool) -> list[dict[str, Any]]:
    """Scrapes of a server that did exactly what these rows say, so that nothing but the case is wrong with the cell."""
    tokens = float(sum(r.get("completion_tokens") or 0 for r in rows))
    out = []
    for name, done_tokens in (("idle_start", 0.0), ("window_start", 0.0), ("window_end", tokens), ("idle_end", tokens)):
        values = {"vllm:generation_tokens_total": done_tokens, "vllm:prefix_cache_queries_total": 10 * done_tokens}
        values["vllm:prefix_cache_hits_total"] = 0.0
        if speculative:
            names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
            sums = (sum(r.get(k) or 0 for r in rows) for k in ("spec_steps", "draft_tokens", "accepted_tokens"))
            share = 1.0 if done_tokens else 0.0
            values |= {f"vllm:spec_decode_{n}_total": share * s for n, s in zip(names, sums, strict=True)}
        out += edge(name, values)
    return out + [sample(T0 + s * SECOND, SCRAPE_OK, 1.0) for s in range(11)]


def moved(one: dict[str, Any], by_ns: int) -> dict[str, Any]:
    """A row at another time of day."""
    return {k: v + by_ns if k.endswith("_ns") and v is not None else v for k, v in one.items()}


def timed_row(seq: int, record: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A record of a case (milliseconds) as a raw row; failed ones have no latency but the time of their end."""
    one = row(seq, **{"client_lag_us": 100, "first_chunk_merged": False, **more})
    send = one["send_ns"]
    if not record["ok"]:
        status = record.get("status")
        one |= {"outcome": "http_error" if status else "read_timeout", "http_status": status, "token_source": "none"}
        return one | {"end_ns": send + round(record.get("e2e_ms", 1000) * 1e6)} | more
    us = {k: record.get(k) for k in ("ttft_ms", "e2e_ms", "tpot_ms")}
    one |= {f"{k[:-3]}_us": None if v is None else v * 1000 for k, v in us.items()}
    one["completion_tokens"] = record.get("completion_tokens", 31)
    one["chunks"] = 1 if one["completion_tokens"] == 1 else 16
    if one["ttft_us"] is not None and one["e2e_us"] is not None:
        one |= {
            "first_token_ns": send + round(one["ttft_us"] * 1e3),
            "last_token_ns": send + round(one["e2e_us"] * 1e3),
        }
        one |= {"end_ns": one["last_token_ns"]}
        if one["tpot_us"] is None and one["completion_tokens"] > 1:
            one["tpot_us"] = (one["e2e_us"] - one["ttft_us"]) / (one["completion_tokens"] - 1)
    for key in ("ttft_us", "e2e_us"):
        one[key] = None if one[key] is None else round(one[key])
    return one | more


# -- whole Locust runs

WARMUP = "warm-up"
_WARM_BODY = b'{"choices": [{"index": 0, "message": {"content": "w"}, "finish_reason": "stop"}]}'
WARM_ANSWER = {
    "status": 200,
    "headers": {"content-type": "application/json"},
    "headers_ms": 100,
    "chunks": [{"t_ms": 100, "b64": base64.b64encode(_WARM_BODY).decode()}],
    "end": "eof",
    "framing": "length",
    "again": True,
}
"""Every window has a short warm-up in front: its requests must not use up a script."""


@contextmanager
def replay_server(folder: Path, scripts: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    """(URL, log) of a replay server that plays these scripts."""
    file, log = folder / "scripts.json", folder / "server.jsonl"
    file.write_bytes(orjson.dumps(scripts))
    log.touch()
    argv = [sys.executable, str(Path(__file__).with_name("replay_server.py")), str(file), str(log)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}", log
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def locust_run(
    folder: Path, scripts: Mapping[str, Any], cells: Sequence[Cell], prompt_files: Mapping[str, str], **job: Any
) -> Run:
    """One Locust start with a worker process against the replay server, merged."""
    config = ConfigSpec("replay", "ngram", 3, urls=("http://replay",), speculative={"method": "ngram"})
    (folder / "provenance.json").write_text(json.dumps(PROVENANCE))
    make_run(folder, cells, [config], simulated=False)
    warm = {f"{mix}.warmup": write_prompts(folder, f"{mix}.warmup", [("warm", WARMUP)]) for mix in prompt_files}
    scripts = {**scripts, WARMUP: WARM_ANSWER}
    with replay_server(folder, scripts) as (url, log):
        facts: dict[str, Any] = {
            "run_id": "cases",
            "run_dir": str(folder),
            "config": config,
            "base_urls": (url,),
            "model_name": "m",
            "api": "chat",
            "client": ClientSpec(read_timeout_s=READ_TIMEOUT_S, total_timeout_s=TOTAL_TIMEOUT_S),
            "cells": tuple(cells),
            "prompt_files": {**prompt_files, **warm},
            "mix_weights": dict.fromkeys(prompt_files, (1.0,)),
            "scraper_socket": None,
            "provenance_file": str(folder / "provenance.json"),
        }
        whole = LoadJob(**(facts | job))
        file = folder / "job.json"
        file.write_text(json.dumps(to_json(whole)))
        with (folder / "locust.log").open("ab") as out:
            code = subprocess.run(
                locust_argv(file, whole), env=locust_env(file), stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                timeout=60, check=False,
            ).returncode  # fmt: skip
        text = (folder / "locust.log").read_text(errors="replace")
        assert code == 0, text
        assert "Traceback" not in text, text
    run = merged(folder)
    run.log = [one for line in log.read_text().splitlines() if (one := json.loads(line))["name"] != WARMUP]
    run.scripts = scripts
    return run


def write_prompts(folder: Path, mix: str, prompts: Sequence[tuple[str, str]]) -> str:
    """prompts/<mix>.jsonl with (id, text) each; -> its path below the folder."""
    path = folder / "prompts" / f"{mix}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        {"prompt_id": name, "stratum": "case", "messages": [{"role": "user", "content": text}]}
        for name, text in prompts
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return f"prompts/{mix}.jsonl"


def write_dataset(folder: Path, mix: str, dataset: Dataset) -> str:
    """prompts/<mix>.jsonl as the plan room writes it."""
    path = folder / "prompts" / f"{mix}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(to_json(p), ensure_ascii=False) + "\n" for p in dataset.prompts))
    return f"prompts/{mix}.jsonl"


def changed_cell(cell: Cell, **changes: Any) -> Cell:
    return dataclasses.replace(cell, config="replay", **changes)


def sequential(index: int, mix: str, requests: int) -> Cell:
    """A cell in which one user sends this many requests, one after the other."""
    return changed_cell(
        make_cell(index, mix=mix), load_kind="sequential", load_value=1.0, warmup_s=0.0, salt="",
        measure_s=None, measure_requests=requests, max_measure_s=30.0,
    )  # fmt: skip
