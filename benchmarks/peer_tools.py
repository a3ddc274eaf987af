"""Command lines of the tools that peers.py compares, and where each writes what it reports."""

from __future__ import annotations

import csv
import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import locust_client
import peers_setup
import pyarrow as pa

from loadtest.load.launch import locust_argv, locust_env
from loadtest.model import to_json

HERE = Path(__file__).parent
ROOT = HERE.parent
CLIENTS = HERE / "clients"
CACHE = HERE / ".venvs" / "hf-home"
TOKENIZER = CACHE / "hub" / "models--bench--words" / "snapshots" / ("0" * 40)
VLLM = ROOT / ".vllm-lab" / "venv" / "bin" / "vllm"
PROMPT_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a tool: `streams` in a closed loop, `rounds` requests of each."""

    url: str
    streams: int
    rounds: int
    k: int
    tokens: int
    folder: Path
    answer_s: float

    @property
    def requests(self) -> int:
        return self.streams * self.rounds


@dataclass(frozen=True, slots=True)
class Tool:
    """A load tool. `parse` gives TTFT and TPOT in ms as it reports them; None = it does not report that figure."""

    name: str
    command: Callable[[Job], list[str]]
    parse: Callable[[Job], dict[str, float | None]]
    version: Callable[[], str]
    missing: Callable[[], str | None] = field(default=lambda: None)
    """Why it cannot be run here, None if it can."""
    variables: Callable[[Job], Mapping[str, str]] = field(default=lambda job: {})  # noqa: ARG005
    enough: Callable[[Job], bool] | None = None
    """Says that the results are written, for a tool that goes on with something else for long."""

    def environment(self, job: Job) -> dict[str, str]:
        """Nothing may be fetched and nothing sent home."""
        quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HOME": str(CACHE), "DO_NOT_TRACK": "1"}
        more = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "TOKENIZERS_PARALLELISM": "false"}
        return {**quiet, **more, **self.variables(job)}


def four(ttft: tuple[Any, Any], tpot: tuple[Any, Any], scale: float = 1.0) -> dict[str, float | None]:
    """(p50, p99) of TTFT and TPOT, times `scale`."""
    named = {"ttft_p50": ttft[0], "ttft_p99": ttft[1], "tpot_p50": tpot[0], "tpot_p99": tpot[1]}
    return {name: None if value is None else float(value) * scale for name, value in named.items()}


def need_tokenizer(python: Path) -> None:
    """Makes the tokenizer in the offline cache where it is not there yet."""
    if not (TOKENIZER / "config.json").exists():
        subprocess.run([python, CLIENTS / "make_tokenizer.py", CACHE], check=True, stdout=subprocess.DEVNULL)


def in_venv(name: str, program: str) -> Path:
    return peers_setup.VENVS / name / "bin" / program


def missing_venv(name: str) -> str | None:
    why = peers_setup.VENVS / name / peers_setup.WHY
    if why.exists():
        return f"not installed: {why.read_text().strip()}"
    if not (peers_setup.VENVS / name / "recipe.json").exists():
        return "not installed; `make bench-peers-setup` installs it"
    need_tokenizer(in_venv(name, "python"))
    return None


def pinned(name: str) -> str:
    return str(peers_setup.specs()[name]["packages"][-1]).split("==")[1]


# -- ours: a full Locust run with recording


def ours_command(job: Job) -> list[str]:
    load = locust_client.job_of(job.folder, job.url, job.streams, 1.5 * job.answer_s, job.rounds * job.answer_s, 0.002)
    job_file = job.folder / "job.json"
    job_file.write_text(json.dumps(to_json(load)))
    return locust_argv(job_file, load)


def ours_variables(job: Job) -> dict[str, str]:
    return locust_env(job.folder / "job.json", base={})


def ours_parse(job: Job) -> dict[str, float | None]:
    """Exact percentiles of the rows of the window, as `loadtest merge` takes them."""
    from fidelity import rank

    (folder,) = (job.folder / "cells").iterdir()
    columns = ["phase", "outcome", "ttft_us", "tpot_us"]
    rows = [
        row
        for path in sorted(folder.glob("worker-*.arrows"))
        for row in pa.ipc.open_stream(path.read_bytes()).read_all().select(columns).to_pylist()
        if row["phase"] == "measure"
    ]
    bad = [row["outcome"] for row in rows if row["outcome"] != "ok"]
    if bad or not rows:
        raise ValueError(f"{len(rows)} rows in the window, {len(bad)} of them failed ({bad[:1]})")
    ttft, tpot = [row["ttft_us"] for row in rows], [row["tpot_us"] for row in rows]
    return four((rank(ttft, 50), rank(ttft, 99)), (rank(tpot, 50), rank(tpot, 99)), 1e-3)


# -- Locust's own HTTP users, and aiohttp


def locust_command(file: str) -> Callable[[Job], list[str]]:
    def command(job: Job) -> list[str]:
        users = ["--headless", "--only-summary", "-u", str(job.streams), "-r", str(job.streams)]
        csv_prefix = ["--csv", str(job.folder / "locust"), "--host", job.url]
        return [sys.executable, "-m", "locust", "-f", str(CLIENTS / file), *users, *csv_prefix]

    return command


def locust_parse(job: Job) -> dict[str, float | None]:
    with (job.folder / "locust_stats.csv").open() as f:
        rows = {row["Name"]: row for row in csv.DictReader(f)}
    ttft, tpot = ((float(rows[name]["50%"]), float(rows[name]["99%"])) for name in ("ttft", "tpot"))
    return four(ttft, (tpot[0] / 1e3, tpot[1] / 1e3))  # the locustfile gives TPOT in microseconds


def locust_variables(job: Job) -> dict[str, str]:
    return {"BENCH_REQUESTS": str(job.rounds)}


def aiohttp_command(job: Job) -> list[str]:
    out = str(job.folder / "aiohttp.json")
    return [sys.executable, str(CLIENTS / "aiohttp_client.py"), job.url, str(job.streams), str(job.rounds), out]


def aiohttp_parse(job: Job) -> dict[str, float | None]:
    told = json.loads((job.folder / "aiohttp.json").read_text())
    return four(told["ttft"], told["tpot"])


# -- vllm bench serve


def vllm_missing() -> str | None:
    if not VLLM.exists():
        return "not installed; tools/vllm_cpu/setup.sh installs it"
    need_tokenizer(VLLM.with_name("python"))
    return None


def vllm_version() -> str:
    site = next((VLLM.parents[1] / "lib").glob("python3*/site-packages"))
    return next(p.stem.split("-")[1] for p in site.glob("vllm_cpu-*.dist-info"))


def vllm_command(job: Job) -> list[str]:
    return [
        str(VLLM), "bench", "serve", "--backend", "openai-chat", "--endpoint", "/v1/chat/completions",
        "--base-url", job.url, "--model", "schedule", "--tokenizer", str(TOKENIZER),
        "--dataset-name", "random", "--random-input-len", str(PROMPT_TOKENS), "--random-output-len", str(job.tokens),
        "--num-prompts", str(job.requests), "--max-concurrency", str(job.streams),
        "--percentile-metrics", "ttft,tpot", "--metric-percentiles", "50,99", "--disable-tqdm",
        "--ready-check-timeout-sec", "0", "--save-result", "--result-dir", str(job.folder),
        "--result-filename", "vllm.json",
    ]  # fmt: skip


def vllm_parse(job: Job) -> dict[str, float | None]:
    told = json.loads((job.folder / "vllm.json").read_text())
    ttft, tpot = ((told[f"median_{name}_ms"], told[f"p99_{name}_ms"]) for name in ("ttft", "tpot"))
    return four(ttft, tpot)


# -- guidellm, aiperf, genai-bench, inference-perf: see peers.toml


def guidellm_command(job: Job) -> list[str]:
    return [
        str(in_venv("guidellm", "guidellm")), "run", "--disable-console",
        "--backend", f"kind=openai_http,target={job.url},model=schedule",
        "--tokenizer", f"kind=huggingface_auto,model={TOKENIZER}",
        "--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={job.tokens}",
        "--profile", f"kind=concurrent,streams={job.streams}",
        "--constraint", f"kind=max_requests,count={job.requests}",
        "--output", f"kind=json,path={job.folder / 'benchmarks.json'}",
    ]  # fmt: skip


def guidellm_parse(job: Job) -> dict[str, float | None]:
    told = json.loads((job.folder / "benchmarks.json").read_text())["benchmarks"][0]["metrics"]
    # Its "time per output token" contains the TTFT; what others call TPOT is its "inter-token latency".
    ttft, tpot = (
        told[name]["successful"]["percentiles"] for name in ("time_to_first_token_ms", "inter_token_latency_ms")
    )
    return four((ttft["p50"], ttft["p99"]), (tpot["p50"], tpot["p99"]))


def aiperf_command(job: Job) -> list[str]:
    return [
        str(in_venv("aiperf", "aiperf")), "profile", "--model", "bench/words", "--tokenizer", "bench/words",
        "--url", job.url, "--endpoint-type", "chat", "--streaming", "--concurrency", str(job.streams),
        "--request-count", str(job.requests), "--synthetic-input-tokens-mean", str(PROMPT_TOKENS),
        "--output-tokens-mean", str(job.tokens), "--use-server-token-count", "--ui-type", "none",
        "--output-artifact-dir", str(job.folder / "aiperf"),
    ]  # fmt: skip


def aiperf_parse(job: Job) -> dict[str, float | None]:
    told = json.loads((job.folder / "aiperf" / "profile_export_aiperf.json").read_text())
    ttft, tpot = told["time_to_first_token"], told["inter_token_latency"]
    return four((ttft["p50"], ttft["p99"]), (tpot["p50"], tpot["p99"]))


def genai_command(job: Job) -> list[str]:
    return [
        str(in_venv("genai-bench", "genai-bench")), "benchmark", "--api-backend", "vllm", "--api-base", job.url,
        "--api-key", "none", "--api-model-name", "schedule", "--model-tokenizer", str(TOKENIZER),
        "--task", "text-to-text", "--traffic-scenario", f"D({PROMPT_TOKENS},{job.tokens})",
        "--num-concurrency", str(job.streams), "--max-time-per-run", "1",
        "--max-requests-per-run", str(job.requests), "--experiment-base-dir", str(job.folder),
        "--experiment-folder-name", "genai",
    ]  # fmt: skip


def genai_result(job: Job) -> Path | None:
    return next((job.folder / "genai").glob("*_num_concurrency_*.json"), None)


def genai_enough(job: Job) -> bool:
    """The file is whole. Drawing its ten pictures takes another 20 s."""
    try:
        return (file := genai_result(job)) is not None and "aggregated_metrics" in json.loads(file.read_text())
    except ValueError:
        return False


def genai_parse(job: Job) -> dict[str, float | None]:
    file = genai_result(job)
    if file is None:
        raise ValueError("no file of results")
    told = json.loads(file.read_text())["aggregated_metrics"]["stats"]
    return four((told["ttft"]["p50"], told["ttft"]["p99"]), (told["tpot"]["p50"], told["tpot"]["p99"]), 1e3)


def inference_perf_command(job: Job) -> list[str]:
    lengths = {"min": PROMPT_TOKENS, "max": PROMPT_TOKENS, "mean": PROMPT_TOKENS, "std_dev": 0}
    outputs = {"min": job.tokens, "max": job.tokens, "mean": job.tokens, "std_dev": 0}
    config = {
        "api": {"type": "completion", "streaming": True},  # its random data drives no other
        "data": {
            "type": "random",
            "input_distribution": {**lengths, "total_count": job.requests},
            "output_distribution": {**outputs, "total_count": job.requests},
        },
        "load": {
            "type": "concurrent",
            "stages": [{"num_requests": job.requests, "concurrency_level": job.streams}],
            "num_workers": 1,
            "worker_max_concurrency": job.streams,
        },
        "server": {"type": "vllm", "model_name": "schedule", "base_url": job.url, "ignore_eos": True},
        "tokenizer": {"pretrained_model_name_or_path": str(TOKENIZER)},
        "report": {"request_lifecycle": {"per_request": False, "use_server_output_tokens": True}},
        "storage": {"local_storage": {"path": str(job.folder / "reports")}},
    }
    file = job.folder / "inference-perf.yaml"
    file.write_text(json.dumps(config))  # JSON is YAML
    return [str(in_venv("inference-perf", "inference-perf")), "--config_file", str(file)]


def inference_perf_parse(job: Job) -> dict[str, float | None]:
    told = json.loads((job.folder / "reports" / "stage_0_lifecycle_metrics.json").read_text())["successes"]["latency"]
    ttft, tpot = told["time_to_first_token"], told["time_per_output_token"]
    return four((ttft["median"], ttft["p99"]), (tpot["median"], tpot["p99"]), 1e3)


def locust_version() -> str:
    return importlib.metadata.version("locust")


def _peer(
    name: str,
    command: Callable[[Job], list[str]],
    parse: Callable[[Job], dict[str, float | None]],
    enough: Callable[[Job], bool] | None = None,
) -> Tool:
    return Tool(name, command, parse, lambda: pinned(name), lambda: missing_venv(name), enough=enough)


TOOLS = {
    tool.name: tool
    for tool in (
        Tool("loadtest", ours_command, ours_parse, lambda: importlib.metadata.version("loadtest"),
             variables=ours_variables),
        Tool("locust FastHttpUser", locust_command("locustfile_fast.py"), locust_parse, locust_version,
             variables=locust_variables),
        Tool("locust HttpUser", locust_command("locustfile_http.py"), locust_parse, locust_version,
             variables=locust_variables),
        Tool("aiohttp", aiohttp_command, aiohttp_parse, lambda: importlib.metadata.version("aiohttp")),
        Tool("vllm bench serve", vllm_command, vllm_parse, vllm_version, vllm_missing),
        _peer("inference-perf", inference_perf_command, inference_perf_parse),
        _peer("aiperf", aiperf_command, aiperf_parse),
        _peer("genai-bench", genai_command, genai_parse, genai_enough),
        _peer("guidellm", guidellm_command, guidellm_parse),
    )
}  # fmt: skip
