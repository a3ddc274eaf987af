"""Request bytes: what goes over the wire, and what must never."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from loadtest.errors import PlanError
from loadtest.load.request import Endpoint, RequestBuilder
from loadtest.model import ClientSpec, Message, SamplingSpec

GREEDY = SamplingSpec("greedy", 0.0, 64)


def builder(
    url: str = "http://h:8000", api: Any = "chat", client: ClientSpec | None = None, **env: str
) -> RequestBuilder:
    return RequestBuilder(url, api=api, model="m", client=client or ClientSpec(), environ=env)


def sent(
    b: RequestBuilder, messages: list[Message], sampling: SamplingSpec = GREEDY, **more: Any
) -> tuple[str, dict[str, str], dict[str, Any]]:
    """Request line, headers (lower case) and JSON body as a server would read them."""
    head, _, body = b.frame(b.body(messages, sampling, **more), "7-0-1").partition(b"\r\n\r\n")
    line, *headers = head.decode("latin-1").split("\r\n")
    fields = {k.lower(): v.strip() for k, v in (h.split(":", 1) for h in headers)}
    assert int(fields["content-length"]) == len(body)
    return line, fields, json.loads(body)


@pytest.mark.parametrize(
    ("url", "line", "host"),
    [
        ("http://h:8000", "POST /v1/chat/completions HTTP/1.1", "h:8000"),
        ("http://h:8000/", "POST /v1/chat/completions HTTP/1.1", "h:8000"),
        ("http://h/v1", "POST /v1/chat/completions HTTP/1.1", "h"),
        ("https://h:443/v1/", "POST /v1/chat/completions HTTP/1.1", "h"),
        ("https://gate.example/team-a/vllm", "POST /team-a/vllm/v1/chat/completions HTTP/1.1", "gate.example"),
        ("http://[::1]:9000", "POST /v1/chat/completions HTTP/1.1", "[::1]:9000"),
        ("http://bücher.example", "POST /v1/chat/completions HTTP/1.1", "xn--bcher-kva.example"),
    ],
)
def test_base_urls(url: str, line: str, host: str) -> None:
    got, headers, _ = sent(builder(url), [Message("user", "hi")])

    assert (got, headers["host"]) == (line, host)


@pytest.mark.parametrize(
    "url", ["h:8000", "ftp://h", "http://", "http://h:x", "http://u:secret@h", "http://h/?key=secret", "http://h/a b"]
)
def test_bad_urls_are_refused_without_showing_a_secret(url: str) -> None:
    with pytest.raises(PlanError) as caught:
        Endpoint.parse(url)
    assert "secret" not in str(caught.value)


def test_chat_request_asks_for_running_usage_and_no_compression() -> None:
    _, headers, body = sent(builder(), [Message("system", "s"), Message("user", "hi")])

    assert headers["accept-encoding"] == "identity"
    assert headers["x-request-id"] == "7-0-1"
    assert "authorization" not in headers
    assert body == {
        "model": "m",
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}],
        "max_tokens": 64,
        "temperature": 0.0,
        "top_p": 1.0,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


def test_completions_without_stream() -> None:
    line, headers, body = sent(
        builder(api="completions", client=ClientSpec(stream=False)), [Message("user", "def add(")]
    )

    assert line == "POST /v1/completions HTTP/1.1"
    assert headers["accept"] == "application/json"
    assert body == {
        "model": "m",
        "prompt": "def add(",
        "max_tokens": 64,
        "temperature": 0.0,
        "top_p": 1.0,
        "stream": False,
    }


def test_sampling_fields_and_overrides() -> None:
    sampling = SamplingSpec("s", 0.7, 64, top_p=0.9, seed=1, ignore_eos=True, extra_body={"min_p": 0.1, "stop": ["\n"]})

    _, _, body = sent(builder(), [Message("user", "hi")], sampling, max_tokens=9, seed=5)

    assert {k: body[k] for k in ("temperature", "top_p", "max_tokens", "seed", "ignore_eos", "min_p", "stop")} == {
        "temperature": 0.7,
        "top_p": 0.9,
        "max_tokens": 9,
        "seed": 5,
        "ignore_eos": True,
        "min_p": 0.1,
        "stop": ["\n"],
    }


def test_extra_body_may_not_hide_a_plan_key() -> None:
    with pytest.raises(PlanError, match=r"\['stream', 'temperature'\]"):
        builder().body(
            [Message("user", "hi")], SamplingSpec("s", 0.0, 1, extra_body={"temperature": 1, "stream": False})
        )


def test_key_and_headers_come_from_the_environment() -> None:
    client = ClientSpec(api_key_env="MY_KEY", headers_env={"X-Team": "TEAM"})

    _, headers, _ = sent(builder(client=client, MY_KEY="sk-1", TEAM="blue"), [Message("user", "hi")])

    assert (headers["authorization"], headers["x-team"]) == ("Bearer sk-1", "blue")


@pytest.mark.parametrize(
    ("client", "env"),
    [
        (ClientSpec(headers_env={"X-A": "MISSING"}), {}),
        (ClientSpec(headers_env={"X A": "A"}), {"A": "topsecret"}),
        (ClientSpec(headers_env={"X-A": "A"}), {"A": "topsecret\r\nX-B: 1"}),
        (ClientSpec(api_key_env="A"), {"A": "topsecret中"}),
    ],
)
def test_headers_that_cannot_be_sent_are_refused_without_their_value(client: ClientSpec, env: dict[str, str]) -> None:
    with pytest.raises(PlanError) as caught:
        builder(client=client, **env)
    assert "topsecret" not in str(caught.value)


def test_lone_surrogates_are_sent_as_replacement_characters() -> None:
    """Half a surrogate pair passes json.loads and breaks whoever encodes it later, in mid-run."""
    lone, pair = json.loads('["bad \\ud83d end", "\\ud83d\\ude00"]')

    _, _, body = sent(
        builder(),
        [Message("user", lone), Message("user", pair)],
        SamplingSpec("s", 0.0, 1, extra_body={"stop": [lone]}),
    )

    assert [m["content"] for m in body["messages"]] == ["bad � end", "😀"]
    assert body["stop"] == ["bad � end"]


def test_prompt_hash_is_of_the_text_sent() -> None:
    b = builder()
    body = b.body([Message("user", "hi"), Message("assistant", "x")], GREEDY)

    assert body.prompt_sha256 == hashlib.sha256(b"user\0hi\0assistant\0x\0").hexdigest()
    assert b.body([Message("user", "hi"), Message("assistantx", "")], GREEDY).prompt_sha256 != body.prompt_sha256
