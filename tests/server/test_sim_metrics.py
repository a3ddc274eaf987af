"""The simulated /metrics: families as captured, and counting as vLLM counts."""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from loadtest.server.sim.process import SimProcess, simulated_server

MODEL = {"max_model_len": 2048, "model": "gemma"}


def page(server: SimProcess) -> str:
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def value(text: str, name: str, **labels: str) -> float:
    """The one sample of this name that has these labels."""
    found = [
        s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
        if s.name == name and labels.items() <= s.labels.items()
    ]
    assert len(found) == 1, (name, labels, found)
    return float(found[0])


def series(text: str) -> list[str]:
    """Help and type lines and series of the vllm: families, in order, without values."""
    lines = [line for line in text.splitlines() if re.match(r"(# (HELP|TYPE) )?vllm:", line)]
    plain = [line if line.startswith("#") else line.rsplit(" ", 1)[0] for line in lines]
    return [re.sub(r"cache_config_info\{.*", "cache_config_info", line) for line in plain]


def config_labels(text: str) -> set[str]:
    line = next(line for line in text.splitlines() if line.startswith("vllm:cache_config_info{"))
    return set(re.findall(r'(\w+)="', line))


@pytest.mark.parametrize(
    ("capture", "options"),
    [("ngram-metrics-after.txt", {"method": "ngram", "gamma": 4}), ("baseline-metrics-before.txt", {})],
)
def test_every_vllm_series_as_captured(capture: str, options: dict[str, Any], data_dir: Path) -> None:
    """Same families, help texts, types, labels, label order, bucket edges and _created series, in the same order."""
    with simulated_server(**options, **MODEL) as server:
        ours = page(server)
    captured = (data_dir / "sim" / capture).read_text("utf-8")
    assert series(ours) == series(captured)
    assert config_labels(ours) == config_labels(captured)
    assert ours.startswith("# HELP python_gc_objects_collected_total")
    assert len(list(text_string_to_metric_families(ours))) > 40


def test_baseline_has_no_speculation_families() -> None:
    """Spec families exist only with speculation, and K is the number of positions."""
    with simulated_server(**MODEL) as server:
        assert "spec_decode" not in page(server)
    with simulated_server(method="suffix", **MODEL) as server:
        positions = re.findall(r'per_pos_total\{.*position="(\d+)"', page(server))
        assert positions == [str(i) for i in range(8)]


def complete(server: SimProcess, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(f"{server.url}/v1/completions", json.dumps({"temperature": 0, **body}).encode())
    with urllib.request.urlopen(request, timeout=20) as answer:
        result: dict[str, Any] = json.loads(answer.read())
    return result


def test_finished_requests_are_counted_once_each() -> None:
    """Histograms, counters and success reasons after 4 requests of 5 sequences, one of them with a single token."""
    with simulated_server(method="draft_model", speed=20) as server:
        prompt = "word " * 64
        complete(server, {"prompt": prompt, "max_tokens": 20, "ignore_eos": True})
        complete(server, {"prompt": prompt, "max_tokens": 20, "ignore_eos": True})
        complete(server, {"prompt": "short", "max_tokens": 1})
        complete(server, {"prompt": "two", "max_tokens": 10, "ignore_eos": True, "n": 2})
        text = page(server)
    prompt_tokens = 64 + 1  # the last space is a token of its own
    expect = {
        "vllm:request_success_total": (5, {"finished_reason": "length"}),
        "vllm:generation_tokens_total": (61, {}),
        "vllm:prompt_tokens_total": (2 * prompt_tokens + 3, {}),
        "vllm:prefix_cache_queries_total": (2 * prompt_tokens + 3, {}),
        "vllm:prefix_cache_hits_total": (64, {}),
        "vllm:prompt_tokens_cached_total": (64, {}),
        "vllm:time_to_first_token_seconds_count": (5, {}),
        "vllm:e2e_request_latency_seconds_count": (5, {}),
        "vllm:request_time_per_output_token_seconds_count": (5, {}),
        "vllm:request_params_n_count": (4, {}),
        "vllm:request_params_n_sum": (5, {}),
        "vllm:request_max_num_generation_tokens_count": (4, {}),
        "vllm:request_generation_tokens_sum": (61, {}),
        "vllm:num_requests_running": (0, {}),
    }
    assert {name: value(text, name, **labels) for name, (_, labels) in expect.items()} == {
        name: number for name, (number, _) in expect.items()
    }
    # One gap per engine output, not per token: fewer than tokens - first tokens.
    gaps = value(text, "vllm:inter_token_latency_seconds_count")
    steps = value(text, "vllm:spec_decode_num_drafts_total")
    assert gaps == steps < 61 - 5


def test_an_aborted_request_counts_its_tokens_but_never_finishes() -> None:
    """TTFT, gaps, generated tokens and drafts count; e2e, TPOT and request_success do not, not even under abort."""
    with simulated_server(method="eagle3") as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        body = {"prompt": "tell me a story", "max_tokens": 4000, "ignore_eos": True, "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(body))
        answer = connection.getresponse()
        for _ in range(10):
            answer.readline()
        answer.close()
        connection.close()
        deadline = time.monotonic() + 10
        while value(text := page(server), "vllm:num_requests_running") and time.monotonic() < deadline:
            time.sleep(0.02)
    assert value(text, "vllm:num_requests_running") == 0
    assert value(text, "vllm:time_to_first_token_seconds_count") == 1
    assert 5 <= value(text, "vllm:generation_tokens_total") < 4000
    assert value(text, "vllm:spec_decode_num_drafts_total") >= 4
    assert value(text, "vllm:inter_token_latency_seconds_count") >= 4
    for name in ("e2e_request_latency_seconds", "request_time_per_output_token_seconds", "request_queue_time_seconds"):
        assert value(text, f"vllm:{name}_count") == 0
    for reason in ("stop", "length", "abort", "error"):
        assert value(text, "vllm:request_success_total", finished_reason=reason) == 0


def test_requests_over_max_num_seqs_wait() -> None:
    """With room for 2, the other 4 of 6 are waiting, and the queue time shows it."""
    with simulated_server(max_num_seqs=2) as server:
        body = {"prompt": "go", "max_tokens": 60, "ignore_eos": True}
        threads = [threading.Thread(target=complete, args=(server, body)) for _ in range(6)]
        for thread in threads:
            thread.start()
        seen: set[tuple[float, float]] = set()
        while any(t.is_alive() for t in threads):
            text = page(server)
            seen.add((value(text, "vllm:num_requests_running"), value(text, "vllm:num_requests_waiting")))
            time.sleep(0.01)
        for thread in threads:
            thread.join()
        assert max(running for running, _ in seen) == 2
        assert max(waiting for _, waiting in seen) >= 2
        text = page(server)
        assert value(text, "vllm:request_queue_time_seconds_sum") > 6 * 0.1
        assert value(text, "vllm:num_requests_waiting_by_reason", reason="capacity") == 0


def test_a_reset_empties_the_prefix_cache() -> None:
    """POST /reset_prefix_cache empties the cache."""
    with simulated_server(speed=20) as server:
        body = {"prompt": "word " * 40, "max_tokens": 2}
        cached = [complete(server, body)["usage"]["prompt_tokens_details"]["cached_tokens"] for _ in range(2)]
        urllib.request.urlopen(urllib.request.Request(f"{server.url}/reset_prefix_cache", b""), timeout=10).close()
        cached.append(complete(server, body)["usage"]["prompt_tokens_details"]["cached_tokens"])
        assert cached == [0, 32, 0]
