"""The simulated server's answers have the shape of the captured ones: keys, their order, types, kinds of chunk."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadtest.server.sim.process import SimProcess, simulated_server

USAGE = {"stream_options": {"include_usage": True}}
CONTINUOUS = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
IDS = {"logprobs": True, "top_logprobs": 1, "return_token_ids": True}
PROMPT = "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\nFix this python code."


def shape(value: Any) -> Any:
    """Keys in order and kinds of value; of a list, the different shapes of its elements."""
    if isinstance(value, dict):
        return [(key, shape(item)) for key, item in value.items()]
    if isinstance(value, list):
        kinds = []
        for item in value:
            if (kind := shape(item)) not in kinds:
                kinds.append(kind)
        return ["list", *kinds]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "number"
    return type(value).__name__


def events(raw: str) -> list[Any]:
    """Events of a stream; [DONE] stays text. Anything that is not a data line is an error."""
    parts = raw.strip("\n").split("\n\n")
    assert all(p.startswith("data: ") for p in parts), parts
    return [p[6:] if p == "data: [DONE]" else json.loads(p[6:]) for p in parts]


def stream_shape(items: list[Any]) -> list[Any]:
    """The sequence of event shapes with repeats folded, texts of tokens left out of top_logprobs."""
    folded: list[Any] = []
    for item in items:
        for choice in item["choices"] if isinstance(item, dict) and "choices" in item else []:
            if isinstance(choice.get("logprobs"), dict) and "top_logprobs" in choice["logprobs"]:
                choice["logprobs"]["top_logprobs"] = [
                    {"token": v} for e in choice["logprobs"]["top_logprobs"] for v in e.values()
                ]
        kind = shape(item) if isinstance(item, dict) else item
        if not folded or folded[-1] != kind:
            folded.append(kind)
    return folded


def post(server: SimProcess, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        connection.request("POST", path, json.dumps(body), headers or {})
        answer = connection.getresponse()
        assert answer.headers["x-loadtest-simulated"] == "1"
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def get(server: SimProcess, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.headers["x-loadtest-simulated"] == "1"
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def ask(server: SimProcess, chat: bool, **extra: Any) -> str:
    body: dict[str, Any] = {"model": "sim-model", "max_tokens": 64, "temperature": 0, "ignore_eos": True, **extra}
    body |= {"messages": [{"role": "user", "content": PROMPT}]} if chat else {"prompt": PROMPT}
    status, text = post(server, "/v1/chat/completions" if chat else "/v1/completions", body)
    assert status == 200, text
    return text


PLAIN = {"timing_metrics": False, "prompt_tokens_details": False, "speed": 20}
EASY = {"*": {"coverage": 1, "conditional": [0.7]}}
SERVERS: dict[str, dict[str, Any]] = {
    "baseline": {**PLAIN},
    # The captures of n-gram were taken with every per-request flag on, those of suffix with none of them.
    "ngram": {"method": "ngram", "speed": 20, "acceptance": EASY},
    "suffix": {"method": "suffix", **PLAIN, "acceptance": EASY},
    "tiny-draft": {
        "method": "draft_model",
        "gamma": 3,
        "per_request_metrics": "summary",
        "speed": 20,
        "prompt_tokens_details": False,
    },
}


@pytest.fixture(scope="module", params=sorted(SERVERS))
def named(request: pytest.FixtureRequest) -> Iterator[tuple[str, SimProcess]]:
    with simulated_server(**SERVERS[request.param]) as server:
        yield request.param, server


CAPTURES: dict[str, dict[str, Any]] = {
    "chat.json": {"chat": True},
    "comp.json": {"chat": False},
    "comp-1tok.json": {"chat": False, "max_tokens": 1},
    "chat-n2.json": {"chat": True, "n": 2},
    "chat-logprobs.json": {"chat": True, "logprobs": True, "top_logprobs": 1, "return_token_ids": True},
    "chat.sse": {"chat": True, "stream": True, **USAGE},
    "comp.sse": {"chat": False, "stream": True, **USAGE},
    "chat-continuous.sse": {"chat": True, "stream": True, **CONTINUOUS},
    "chat-nousage.sse": {"chat": True, "stream": True},
    "comp-nousage.sse": {"chat": False, "stream": True},
    "comp-tokids.sse": {"chat": False, "stream": True, "logprobs": 0, "return_token_ids": True, **CONTINUOUS},
    "chat-logprobs.sse": {
        "chat": True,
        "stream": True,
        "logprobs": True,
        "top_logprobs": 1,
        "return_token_ids": True,
        **USAGE,
    },
}


def test_answers_have_the_shape_of_the_captures(named: tuple[str, SimProcess], data_dir: Path) -> None:
    """For every capture of this kind of server: the same keys in the same order with the same kinds of value."""
    name, server = named
    captures = [
        p for p in sorted((data_dir / "sim").glob(f"{name}-*.*")) if p.name.removeprefix(f"{name}-") in CAPTURES
    ]
    assert len(captures) >= 2
    for capture in captures:
        kind = capture.name.removeprefix(f"{name}-")
        request = dict(CAPTURES[kind])
        if name == "ngram" and kind.endswith(".sse"):
            request |= CONTINUOUS  # that server had --enable-force-include-usage
        seen = capture.read_text("utf-8")
        assert post(server, "/reset_prefix_cache", {})[0] == 200
        if '"cached_tokens":128' in seen:
            ask(server, chat=bool(request["chat"]), max_tokens=1)
        answer = ask(server, **request)
        if kind.endswith(".json"):
            assert shape(json.loads(answer)) == shape(json.loads(seen)), capture.name
        else:
            assert stream_shape(events(answer)) == stream_shape(events(seen)), capture.name


def test_models_and_server_info(data_dir: Path) -> None:
    """/v1/models as captured; /server_info has the captured paths that provenance reads, and says simulated."""
    with simulated_server(method="ngram") as server:
        status, text = get(server, "/v1/models")
        assert status == 200
        assert shape(json.loads(text)) == shape(json.loads((data_dir / "sim/baseline-models.json").read_text()))
        info = json.loads(get(server, "/server_info?config_format=json")[1])
        seen = json.loads((data_dir / "sim/ngram-server_info.json").read_text())
        assert info["simulated"] is True
        for part, values in info["vllm_config"].items():
            assert part == "scheduler_config" or set(values) <= set(seen["vllm_config"][part])
        captured = seen["vllm_config"]["speculative_config"]
        same = (
            "method",
            "model",
            "num_speculative_tokens",
            "prompt_lookup_min",
            "prompt_lookup_max",
            "rejection_sample_method",
        )
        assert {k: info["vllm_config"]["speculative_config"][k] for k in same} == {k: captured[k] for k in same}
        assert json.loads(get(server, "/version")[1]) == {"version": "0.32.0", "simulated": True}
        assert get(server, "/health") == (200, "")
        assert json.loads(get(server, "/load")[1]) == {"server_load": 0}


def test_baseline_discloses_no_speculation() -> None:
    """A baseline has a null speculative_config, as the captured one."""
    with simulated_server() as server:
        assert json.loads(get(server, "/server_info")[1])["vllm_config"]["speculative_config"] is None


def test_request_id_and_fingerprint() -> None:
    """X-Request-Id stands in the id, --fingerprint on every answer; without it the fingerprint says sim-."""
    body = {"prompt": "hello", "max_tokens": 3, "temperature": 0}
    with simulated_server(fingerprint="cfg-ngram-4", method="ngram", speed=20) as server:
        answer = json.loads(post(server, "/v1/completions", body, {"X-Request-Id": "cell7-42"})[1])
        assert (answer["id"], answer["system_fingerprint"]) == ("cmpl-cell7-42", "cfg-ngram-4")
        chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3, "stream": True, **USAGE}
        stream = events(post(server, "/v1/chat/completions", chat, {"X-Request-Id": "cell7-43"})[1])
        assert {e["id"] for e in stream[:-1]} == {"chatcmpl-cell7-43"}
        assert stream[-2]["system_fingerprint"] == "cfg-ngram-4"
    with simulated_server(speed=20) as server:
        assert json.loads(post(server, "/v1/completions", body)[1])["system_fingerprint"].startswith("sim-0.32.0-")


@pytest.mark.parametrize(
    ("body", "status", "kind", "words"),
    [
        ({"model": "other", "prompt": "x"}, 404, "NotFoundError", "The model `other` does not exist."),
        ({"prompt": "x", "max_tokens": 100_000}, 400, "BadRequestError", "maximum context length is 8192 tokens"),
        ({"prompt": "x", "temperature": -1}, 400, "BadRequestError", "temperature"),
        ({"prompt": "x", "max_tokens": "many"}, 400, "Bad Request", "valid integer"),
        ({"prompt": ["a", "b"]}, 400, "Bad Request", "one prompt"),
        ({"prompt": "x", "stream_options": {"include_usage": True}}, 400, "Bad Request", "stream=True"),
    ],
)
def test_errors_have_vllms_form(idle: SimProcess, body: dict[str, Any], status: int, kind: str, words: str) -> None:
    """{"error": {message, type, param, code}} with the HTTP status as code."""
    got, text = post(idle, "/v1/completions", body)
    error = json.loads(text)["error"]
    assert (got, error["code"], error["type"]) == (status, status, kind)
    assert list(error) == ["message", "type", "param", "code"]
    assert words in error["message"]


def test_bad_json_is_a_400(idle: SimProcess) -> None:
    """A torn body is the client's fault, in vLLM's form."""
    connection = http.client.HTTPConnection("127.0.0.1", idle.port, timeout=20)
    connection.request("POST", "/v1/completions", '{"prompt": "x')
    answer = connection.getresponse()
    assert answer.status == 400
    assert "JSON" in json.loads(answer.read())["error"]["message"]
    connection.close()


@pytest.fixture(scope="module")
def idle() -> Iterator[SimProcess]:
    with simulated_server() as server:
        yield server
