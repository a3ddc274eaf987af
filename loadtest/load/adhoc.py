"""The job of a run by hand: one cell, made from Locust's command line. Import after locust."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import gevent
import orjson

from loadtest import __version__
from loadtest.errors import EndpointError, InputError
from loadtest.load.cellrun import encode_prompts
from loadtest.load.request import Endpoint
from loadtest.model import SCHEMA_VERSION, Cell, ClientSpec, ConfigSpec, LoadJob, SamplingSpec, to_json
from loadtest.plan.datasets import load_dataset
from loadtest.plan.places import DEFAULT_WARMUP, find_dataset
from loadtest.plan.units import parse_duration

DRAIN_S = 10.0
"""Long enough for an answer of 256 tokens at 25 ms; whoever stops by hand waits for it."""
ASK_TIMEOUT_S = 5.0
SIMULATED_HEADER = "x-loadtest-simulated"
"""Every answer of the simulated server carries it."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line (or the web page) asked for."""

    host: str
    mix: str
    dataset: str | None
    max_tokens: int
    temperature: float
    warmup_s: float
    model: str | None
    api: Literal["chat", "completions"]
    stream: bool
    run_dir: str | None
    users: int
    workers: int


def options_of(parsed: Any, host: str | None, users: int, workers: int) -> Options:
    """Reads Locust's parsed options. Raises InputError that names the option and the value."""
    if not host:
        raise InputError("--host is not set: give the server's address, for example --host http://127.0.0.1:8000")
    Endpoint.parse(host)
    try:
        max_tokens, temperature = int(parsed.max_tokens), float(parsed.temperature)
        warmup_s = float(parse_duration(parsed.warmup)) if parsed.warmup not in ("0", "0s", 0) else 0.0
    except ValueError as e:
        raise InputError(f"--max-tokens, --temperature or --warmup: {e}") from e
    if max_tokens < 1:
        raise InputError(f"--max-tokens must be 1 or more, not {max_tokens}")
    if temperature < 0:
        raise InputError(f"--temperature must be 0 or more, not {temperature}")
    return Options(
        host=host,
        mix=_mix_name(parsed),
        dataset=parsed.dataset or None,
        max_tokens=max_tokens,
        temperature=temperature,
        warmup_s=warmup_s,
        model=parsed.model or None,
        api=parsed.api,
        stream=not parsed.no_stream,
        run_dir=parsed.run_dir or None,
        users=users,
        workers=workers,
    )


def _mix_name(parsed: Any) -> str:
    """The name of the mix: part of file names, cell ids and histogram tags, so without blanks and slashes."""
    if parsed.dataset:
        return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(parsed.dataset).stem).strip("-.")[:64] or "prompts"
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", parsed.mix):
        raise InputError(f"--mix {parsed.mix!r} is no name of a bundled mix: give code or chat, or --dataset FILE")
    return str(parsed.mix)


def make_job(options: Options) -> LoadJob:
    """Asks the server for its model, writes the prompts to a new run folder and returns the job.

    Raises InputError for a data set that is not there, EndpointError for a server that does not answer.
    """
    name = options.dataset or f"datasets/{options.mix}.jsonl"
    path, pool = find_dataset(name, None), find_dataset(DEFAULT_WARMUP, None)
    if path is None:
        raise InputError(f"no data set {name!r}: give --dataset FILE, or --mix code or --mix chat")
    prompts = load_dataset(path).prompts
    warmup = load_dataset(pool).prompts if pool is not None else ()
    model, simulated = ask_model(options)
    run_dir = _new_run_dir(options.run_dir)
    (run_dir / "prompts").mkdir()
    (run_dir / "prompts" / f"{options.mix}.jsonl").write_bytes(encode_prompts(prompts))
    (run_dir / "prompts" / f"{options.mix}.warmup.jsonl").write_bytes(encode_prompts(warmup))
    files = {
        options.mix: f"prompts/{options.mix}.jsonl",
        f"{options.mix}.warmup": f"prompts/{options.mix}.warmup.jsonl",
    }
    return LoadJob(
        run_id=run_dir.name,
        run_dir=str(run_dir),
        config=ConfigSpec("manual", "unknown", None, urls=(options.host,)),
        base_urls=(options.host,),
        model_name=model,
        api=options.api,
        client=ClientSpec(stream=options.stream, workers=options.workers),
        cells=(_cell(options, run_dir.name),),
        prompt_files=files,
        mix_weights={options.mix: (1.0,)},
        scraper_socket=None,
        provenance_file=None,
        simulated=simulated,
    )


def run_facts(job: LoadJob, options: Options, started_ns: int) -> dict[str, Any]:
    """The content of run.json of a run by hand."""
    asked = {k: getattr(options, k) for k in Options.__slots__}
    return {
        "schema": SCHEMA_VERSION,
        "tool_version": __version__,
        "run_id": job.run_id,
        "plan": {"manual": asked},
        "plan_sha256": None,
        "target": {"model": job.model_name, "api": job.api},
        "client": to_json(job.client),
        "configs": [to_json(job.config)],
        "cells": to_json(job.cells),
        "slos": [],
        "host": {"hostname": os.uname().nodename},
        "simulated": job.simulated,
        "started_ns": started_ns,
        "ended_ns": None,
        "state": "measuring",
    }


def _cell(options: Options, salt: str) -> Cell:
    return Cell(
        index=0,
        cell_id=f"000-manual-{options.mix}-manual-c{options.users}-r1",
        config="manual",
        method="unknown",
        gamma=None,
        mix=options.mix,
        sampling=SamplingSpec("manual", options.temperature, options.max_tokens),
        load_kind="closed",
        load_value=float(options.users),
        repeat=1,
        order_seed=0,
        salt=salt,
        warmup_s=options.warmup_s,
        measure_s=None,  # until it is stopped
        measure_requests=None,
        drain_s=DRAIN_S,
    )


def ask_model(options: Options) -> tuple[str, bool]:
    """(model name, whether the server is the simulated one). Raises EndpointError."""
    url = _url(options.host, "/v1/models")
    try:
        body, headers = _get(url)
        names = [str(m["id"]) for m in orjson.loads(body)["data"]]
    except (OSError, KeyError, TypeError, ValueError) as e:
        if options.model and isinstance(e, KeyError | TypeError | ValueError):
            return options.model, False
        raise EndpointError(f"{url} does not answer as an OpenAI server: {e}; check --host (and OPENAI_API_KEY)") from e
    if options.model is None and not names:
        raise EndpointError(f"{url} lists no model; give --model")
    return options.model or names[0], SIMULATED_HEADER in headers


def start_scraper(host: str, run_dir: Path) -> tuple[subprocess.Popen[bytes], str] | None:
    """Starts a scraper when the server has /metrics: (process, control socket), or None. It ends with this process."""
    url = _url(host, "/metrics")
    try:
        _get(url)
    except (OSError, ValueError):
        return None
    if importlib.util.find_spec("loadtest.server.scraper") is None:
        return None
    control = str(Path(tempfile.mkdtemp(prefix="ltsc-", dir="/tmp")) / "s")
    folder = run_dir / "servers" / "00-manual"
    folder.mkdir(parents=True)
    spec: dict[str, Any] = {"endpoints": [url], "socket": control, "headers_env": {}, "reset_urls": []}
    spec |= {"period_s": 1.0, "timeout_s": 5.0}
    (folder / "scraper.json").write_text(json.dumps(spec | {"parent_pid": os.getpid()}))
    with (folder / "scraper.log").open("ab") as out:
        argv = [sys.executable, "-m", "loadtest.server.scraper", "--spec", str(folder / "scraper.json")]
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
    deadline = time.monotonic() + 20.0
    while not _accepts(control) and process.poll() is None and time.monotonic() < deadline:
        gevent.sleep(0.05)
    return process, control


def _accepts(control: str) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(control)
    except OSError:
        return False
    return True


def _new_run_dir(asked: str | None) -> Path:
    base = Path(asked) if asked else Path("reports") / time.strftime("manual-%Y%m%d-%H%M%S", time.gmtime())
    for attempt in range(1000):
        path = base if attempt == 0 else base.with_name(f"{base.name}-{attempt + 1}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        return path.resolve()
    raise InputError(f"no free folder for {base}; give --run-dir another name")


def _url(host: str, path: str) -> str:
    endpoint = Endpoint.parse(host)
    prefix = endpoint.prefix if path.startswith("/v1") else endpoint.prefix.removesuffix("/v1")
    return f"{endpoint.scheme}://{endpoint.host_header}{prefix}{path.removeprefix('/v1')}"


def _get(url: str) -> tuple[bytes, dict[str, str]]:
    request = urllib.request.Request(url)  # noqa: S310  Endpoint.parse allows http and https only
    if key := os.environ.get("OPENAI_API_KEY", "").strip():
        request.add_header("Authorization", f"Bearer {key}")
    with urllib.request.urlopen(request, timeout=ASK_TIMEOUT_S) as answer:  # noqa: S310
        return answer.read(), {k.lower(): v for k, v in answer.headers.items()}
